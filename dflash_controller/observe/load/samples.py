"""Windows of one pod, in their order, as load samples: points of the curves the tuner learns. Pure.

Both engines move some counters with every step, so concurrency and step time of half a minute can be told from them; no gauge of load is
believed. Both numbers are means over the steps: where the load moves within the load sample they then lie on the chord of the curve, while
means over requests would show the step time of a higher load than the mean one.

The time of a window ÷ its steps is that mean as long as the engine is never idle, and too large otherwise; it is never too small. The time
the requests themselves spent ÷ their steps does not mind idle time, but weighs by requests (vLLM), or is credited when a request ends and
may be of another time (SGLang). So the smaller of the two counts wherever the second is of this load sample.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dflash_controller.model.load_sample import LoadSample
from dflash_controller.observe.load.littles_law import Counted, LittlesLaw
from dflash_controller.observe.pipeline.series import CounterWindow, LabelledMetric

_PREFILL_SHARE = 1 / 6
"""Of the tokens computed (prompt tokens, and those verified). Step time grows by less than their number, by its root to its 0.8th power
where it grows at all, so a sixth of the tokens is a tenth of the time."""
_CACHE_USE = 0.9
_BARE_SHARE = 0.02
"""Of the passes: one without graph takes up to twice the time."""
_FRACTION = 0.05
"""A mean block farther from a whole number is a mixture of several."""
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
_WAITED = frozenset({"Preemption", "CacheFull", "Queue"})
"""Requests waited for their turn, be it in the middle of their decoding."""
_POOLED_STEPS = 2000.0
"""Verify steps of ended requests that fix the acceptance length to some 2 % (one step's tokens scatter by 75 % of their mean)."""
_KEPT = 40


@dataclass(frozen=True, slots=True)
class _Ended:
    """Requests that ended in a window."""

    requests: float
    prompt: float
    """Their tokens."""
    generated: float
    lived_s: float | None
    """For how long they were decoded, in all; None: not exported."""

    @property
    def context(self) -> float:
        """Tokens that one of them held while it was decoded: all of its prompt, and on average half of its answer."""
        return (self.prompt + self.generated / 2) / self.requests if self.requests > 0 else 0.0


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the counters of a window say. ``busy_s`` ÷ steps would be the mean step time, were the engine never idle."""

    block: int
    batch: float
    """Requests in a step, mean over the steps; 0 where nothing was decoded."""
    passes: float
    request_steps: float
    """Of all requests together."""
    told: tuple[float, float]
    """Seconds that steps took for the requests in them, and how many steps those were."""
    life_s: float
    """Mean duration of the requests that ``told`` is told by; 0 where they tell it step by step."""
    steps: float
    committed: float
    tokens: float
    survival: tuple[float, ...]
    prefilled: float
    excluded: str
    ended: _Ended

    @property
    def own_step_s(self) -> float | None:
        """Seconds a step took for the requests in it; None where none tells."""
        seconds, steps = self.told
        return seconds / steps if seconds > 0 and steps > 0 else None


@dataclass(frozen=True, slots=True)
class _Past:
    seconds: float
    concurrency: float
    step_s: float


class Follower:
    """Follows one pod. ``speculation_on``: as its revision has it; vLLM tells itself when a schedule switches it off."""

    def __init__(self, engine: str, speculation_on: bool) -> None:
        self._read = _READERS[engine]
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
        seen = self._read(window, self._speculation_on, self._acceptance)
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
            excluded=seen.excluded or ("Prefill" if _prefilling(seen) else "") or ("" if steady else "Unsteady"),
            requests=seen.ended.requests,
            context=seen.ended.context,
            inconsistent=inconsistent,
        )

    def _inconsistent(self, seconds: float, seen: _Seen) -> bool:
        ended = seen.ended
        if seen.excluded in _WAITED or ended.lived_s is None:
            self._law.clear()
            return False
        return self._law.contradicts(Counted(seconds, seen.batch, seen.request_steps, *seen.told, ended.requests, ended.lived_s))

    def _step_time(self, seconds: float, seen: _Seen) -> tuple[float, bool]:
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
        if own is not None and (seen.life_s <= _BRIEF * seconds or settled_s >= seconds + seen.life_s):
            step_s, steady = min(own, pass_s), own <= _SKEWED * pass_s and (own >= _BUSY * pass_s or seen.batch <= _FEW)
        else:
            # The requests that ended tell of another time, or none has ended. Then the engine must have been busy throughout.
            step_s = pass_s
            steady = before is not None and 1 / _AGREE <= before.step_s / pass_s <= _AGREE and (own is None or pass_s <= _AGREE * own)
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


def _near(one: float, other: float, factor: float, requests: float) -> bool:
    low, high = sorted((one, other))
    return high <= factor * low + requests


def _prefilling(seen: _Seen) -> bool:
    verified = seen.block * seen.batch * seen.passes
    return seen.prefilled > _PREFILL_SHARE * (seen.prefilled + verified)


def _crowded(window: CounterWindow, evicted: bool) -> str:
    if evicted:
        return "Preemption"
    if window.levels.get(LabelledMetric("cache_use"), 0.0) > _CACHE_USE:
        return "CacheFull"
    return "Queue" if window.levels.get(LabelledMetric("waiting"), 0.0) > 0 else ""


_Acceptance = Callable[[float, float], float | None]


def _vllm(window: CounterWindow, speculation_on: bool, _: _Acceptance) -> _Seen | None:
    """One inter-token latency is observed per request and step, so its count is the requests' steps and its sum the time they took."""
    needed = [window.deltas.get(LabelledMetric(name)) for name in ("request_steps", "step_seconds", "steps", "tokens")]
    if any(value is None for value in needed):
        return None
    request_steps, seconds, passes, tokens = (value or 0.0 for value in needed)
    moved = {
        name: window.deltas.get(LabelledMetric(name), 0.0)
        for name in (
            *("drafts", "draft_tokens", "accepted", "prompt", "cached", "preemptions"),
            *("requests", "ended_prompt", "ended_generated"),
        )
    }
    drafts = moved["drafts"] if speculation_on else 0.0
    by_position = {
        int(cell.part): value for cell, value in window.deltas.items() if cell.quantity == "accepted_at" and cell.part.isdecimal()
    }
    mean = 1.0 + moved["draft_tokens"] / drafts if drafts > 0 else 1.0
    block = round(mean)
    one_block = drafts > 0 and abs(mean - block) <= _FRACTION and not any(by_position[i] > 0 for i in by_position if i >= block - 1)
    # A step that a schedule runs without drafts counts none.
    mixed = drafts > 0 and (not one_block or drafts < (1 - _FRACTION) * request_steps)
    ended = _Ended(moved["requests"], moved["ended_prompt"], moved["ended_generated"], window.deltas.get(LabelledMetric("lived_seconds")))
    if request_steps <= 0 or passes <= 0:
        return _Seen(max(1, block), 0.0, 0.0, 0.0, (0.0, 0.0), 0.0, 0.0, 0.0, max(0.0, tokens), (), 0.0, "", ended)
    return _Seen(
        block=max(1, block),
        batch=max(1.0, request_steps / passes),
        passes=passes,
        request_steps=request_steps,
        told=(seconds, request_steps),
        life_s=0.0,
        steps=drafts or request_steps,
        committed=drafts + moved["accepted"] if drafts > 0 else request_steps,
        tokens=tokens,
        survival=tuple(min(1.0, by_position[i] / drafts) for i in sorted(by_position) if i < block - 1) if one_block else (),
        prefilled=max(0.0, moved["prompt"] - moved["cached"]),
        excluded=_crowded(window, moved["preemptions"] > 0) or ("Blocks" if mixed else ""),
        ended=ended,
    )


def _sglang(window: CounterWindow, speculation_on: bool, acceptance: _Acceptance) -> _Seen | None:
    """Passes and decoded tokens are counted in every pass; verify steps, tokens and latencies of requests when those end.

    Counters appear with their first increment, so a missing one stood still. Decode passes do not prefill: those that do are others, whose
    time is in the window's and in the other requests' latency alike.
    """
    moved = {
        name: window.deltas.get(LabelledMetric(name), 0.0)
        for name in (
            *("passes", "tokens", "generated", "verify_steps", "requests", "e2e_seconds", "queue_seconds", "prefill_seconds"),
            *("prefilled", "entered", "bare_passes", "prompt"),
        )
    }
    block = round(window.levels.get(LabelledMetric("block"), 0.0)) if speculation_on else 1
    if block < 1:
        return None
    ended, generated = moved["verify_steps"], moved["generated"]
    length: float | None = 1.0
    if speculation_on:
        length = acceptance(generated, ended)
    else:
        ended = max(0.0, generated - moved["requests"])
    # Queueing and prefill are credited when a request enters, and more may enter than end, or fewer.
    share = moved["requests"] / moved["entered"] if moved["entered"] > 0 else 0.0
    decoded_s = max(0.0, moved["e2e_seconds"] - share * (moved["queue_seconds"] + moved["prefill_seconds"]))
    requests = _Ended(moved["requests"], moved["prompt"], generated, decoded_s if decoded_s > 0 or not moved["requests"] else None)
    passes, tokens = moved["passes"], moved["tokens"]
    committed = min(generated, block * ended) if speculation_on else ended
    if passes <= 0 or tokens <= 0:
        return _Seen(block, 0.0, 0.0, 0.0, (decoded_s, ended), 0.0, ended, committed, max(0.0, tokens), (), 0.0, "", requests)
    if length is None:
        return None
    return _Seen(
        block=block,
        batch=max(1.0, tokens / (length * passes)),
        passes=passes,
        request_steps=tokens / length,
        told=(decoded_s, ended),
        life_s=moved["e2e_seconds"] / moved["requests"] if moved["requests"] > 0 else 0.0,
        steps=ended,
        committed=committed,
        tokens=tokens,
        survival=(),
        prefilled=moved["prefilled"],
        excluded=_crowded(window, window.levels.get(LabelledMetric("retracted"), 0.0) > 0)
        or ("NoGraph" if moved["bare_passes"] > _BARE_SHARE * passes else ""),
        ended=requests,
    )


_READERS: Mapping[str, Callable[[CounterWindow, bool, _Acceptance], _Seen | None]] = {"vllm": _vllm, "sglang": _sglang}
