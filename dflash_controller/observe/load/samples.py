"""Windows of one pod, in their order, as load samples: points of the curves the tuner learns. Pure.

Both engines move some counters with every step, so concurrency and step time of half a minute can be told from them; no gauge of load is
believed. Both numbers are means over the steps: where the load moves within the load sample they then lie on the chord of the curve, while
means over requests would show the step time of a higher load than the mean one.

The time of a window ÷ its steps is that mean as long as the engine is never idle, and too large otherwise; it is never too small. The time
the requests themselves spent ÷ their steps does not mind idle time, but weighs by requests (vLLM), or is credited when a request ends and
may be of another time (SGLang). So the smaller of the two counts wherever the second is of this load sample.

While requests queue, SGLang's second is off in addition. It is the latency of the requests that ended less the wait of those that entered,
and while the queue grows these waited longer: with 30 % more requests than the engine can serve it is too small by a quarter, whatever the
length of the sample. But an engine with a queue is not idle, so there the time of the window ÷ its steps is right.

A queue that was there at every look may have been gone in between. An engine that was idle begins again with a request that enters at once.
So without such a request it was never idle. Where there are some (in a short queue many wait for a moment only), the second time decides:
it is then right enough to confirm the first, and idle time and a growing queue both make it the smaller one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from dflash_controller.engines import ENGINES
from dflash_controller.model.decode_window import DecodeWindow
from dflash_controller.model.load_sample import PREFILL, WAITED, WARM_UP, LoadSample
from dflash_controller.model.series import CounterWindow, LabelledMetric
from dflash_controller.observe.load.littles_law import Counted, LittlesLaw
from dflash_controller.observe.load.warm_up import WarmUp

MOSTLY_PREFILL = 2 / 3
"""Of the time. What is left for decoding is then too small a difference to be told."""
_PREFILL_SHARE = 1 / 6
"""Where the time of prefill is not known: of the tokens computed (prompt tokens, and those verified). Step time grows by less than their
number, by its root to its 0.8th power where it grows at all, so a sixth of the tokens is a tenth of the time."""
_JUMP, _JUMP_REQUESTS = 1.5, 1.0
"""A load that differs by more than this factor and one request from the load sample before moved within one of the two."""
_SKEWED = 1.15
"""Mean step time over requests ÷ over steps, beyond which the load moved within the load sample. (Equal for a steady load.)"""
_BUSY, _FEW = 0.2, 2.0
"""Of the time. Where an engine that had many requests at once was busy for less, how a burst begins and ends weighs too much."""
_ALIKE, _ALIKE_REQUESTS = 1.25, 1.0
"""Loads that are this near are the same, as far as requests that lived through both are concerned."""
_AGREE = 1.1
"""Ratio up to which two step times agree."""
_BRIEF = 0.25
"""Requests that last less than this part of a load sample lie in it, but for a few."""
_MOST = 0.95
_POOLED_STEPS = 2000.0
"""Verify steps of ended requests that fix the acceptance length to some 2 % (one step's tokens scatter by 75 % of their mean)."""
_KEPT = 40


@dataclass(frozen=True, slots=True)
class _Past:
    seconds: float
    concurrency: float
    step_s: float


class Follower:
    """Follows one pod. ``speculation_on``: as its revision has it; vLLM tells itself when a schedule switches it off.

    ``warm_up_s``: for how many seconds of load a process teaches no step times (``warm_up``).
    """

    def __init__(self, engine: str, speculation_on: bool, warm_up_s: float = 0.0) -> None:
        schema = ENGINES[engine].metric_schema
        self._decode_window = schema.decode_window
        self._passes = LabelledMetric(schema.passes)
        self._warm_up = WarmUp(warm_up_s)
        self._speculation_on = speculation_on
        self._past: deque[_Past] = deque(maxlen=_KEPT)
        self._credited: deque[tuple[float, float]] = deque(maxlen=_KEPT)
        self._law = LittlesLaw()
        self.last_s = 0.0
        """End of the last window taken."""

    def take(self, window: CounterWindow, end_s: float) -> LoadSample | None:
        """The load sample that ended at ``end_s`` (seconds since the epoch); None where a counter it needs is missing.

        For SGLang that includes the acceptance length before the first request has ended.
        """
        self.last_s = end_s
        seen = self._decode_window(window, self._speculation_on, self._acceptance)
        if seen is None or window.seconds <= 0:
            return None
        inconsistent = self._inconsistent(window.seconds, seen)
        if seen.batch <= 0:
            return LoadSample(
                *(end_s, window.seconds, seen.block, 0.0, 0.0, seen.steps, seen.committed, seen.tokens, seen.survival),
                requests=seen.ended.requests,
                context=seen.ended.context,
            )
        step_s, steady = self._step_time(window.seconds, seen)
        total = window.totals.get(self._passes)
        warming = total is not None and self._warm_up.lasts(total, seen.passes, step_s, seen.batch)
        prefill = None if seen.prefill_s is None else max(0.0, min(_MOST, seen.prefill_s / (step_s * seen.passes)))
        return LoadSample(
            at_s=end_s,
            seconds=window.seconds,
            block=seen.block,
            concurrency=seen.batch,
            step_s=step_s,
            steps=seen.steps,
            committed=seen.committed,
            tokens=seen.tokens,
            survival=seen.survival,
            excluded=WARM_UP if warming else seen.excluded or _unfit(seen, prefill, steady),
            requests=seen.ended.requests,
            context=seen.ended.context,
            prefill_share=round(prefill or 0.0, 4),
            inconsistent=inconsistent,
            queued=seen.queued,
        )

    def _inconsistent(self, seconds: float, seen: DecodeWindow) -> bool:
        ended = seen.ended
        if seen.excluded in WAITED or ended.lived_s is None:
            self._law.clear()
            return False
        return self._law.contradicts(Counted(seconds, seen.batch, seen.request_steps, *seen.told, ended.requests, ended.lived_s))

    def _step_time(self, seconds: float, seen: DecodeWindow) -> tuple[float, bool]:
        """Seconds per step, and whether the load was steady enough for that to be the step time at the mean load."""
        pass_s = seconds / seen.passes
        before = self._past[-1] if self._past else None
        settled_s = seconds
        for past in reversed(self._past):
            if not _near(past.concurrency, seen.batch, _ALIKE, _ALIKE_REQUESTS):
                break
            settled_s += past.seconds
        moved = before is None or not _near(before.concurrency, seen.batch, _JUMP, _JUMP_REQUESTS)
        own = seen.own_step_s
        of_this_time = seen.life_s <= _BRIEF * seconds or settled_s >= seconds + seen.life_s
        if seen.queued and seen.at_once is not None:
            step_s = pass_s
            busy = seen.at_once == 0 or (own is not None and of_this_time and _agree(own, pass_s, _SKEWED))
            steady = busy and before is not None and _agree(before.step_s, pass_s, _AGREE)
        elif own is not None and of_this_time:
            step_s, steady = min(own, pass_s), own <= _SKEWED * pass_s and (own >= _BUSY * pass_s or seen.batch <= _FEW)
        else:
            # The requests that ended tell of another time, or none has ended. Then the engine must have been busy throughout.
            step_s = pass_s
            steady = before is not None and _agree(before.step_s, pass_s, _AGREE) and (own is None or pass_s <= _AGREE * own)
        self._past.append(_Past(seconds, seen.batch, step_s))
        return step_s, steady and not moved

    def _acceptance(self, generated: float, steps: float) -> float | None:
        """Tokens per verify step, from the requests that ended in this window and, as far as needed, in those before; None without any."""
        if steps > 0:
            self._credited.append((generated, steps))
        tokens = of = 0.0
        for more, further in reversed(self._credited):
            tokens, of = tokens + more, of + further
            if of >= _POOLED_STEPS:
                break
        return tokens / of if of > 0 else None


def _agree(one: float, other: float, factor: float) -> bool:
    return 1 / factor <= one / other <= factor


def _near(one: float, other: float, factor: float, requests: float) -> bool:
    low, high = sorted((one, other))
    return high <= factor * low + requests


def _unfit(seen: DecodeWindow, prefill: float | None, steady: bool) -> str:
    if _prefilling(seen, prefill):
        return PREFILL
    return "" if steady else "Unsteady"


def _prefilling(seen: DecodeWindow, share: float | None) -> bool:
    if share is not None:
        return share > MOSTLY_PREFILL
    verified = seen.block * seen.batch * seen.passes
    return seen.prefilled > _PREFILL_SHARE * (seen.prefilled + verified)
