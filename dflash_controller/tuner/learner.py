"""Learns from one deployment: a ``Learner`` takes load samples and the tuner's own decisions.

Plain state without clock or I/O. The caller passes load samples to ``take`` and the decision of every evaluation to ``note``, and reads
``learned`` in between. ``to_json`` returns what must survive a restart of the operator.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import mean, stdev
from typing import Any

from dflash_controller.api.conditions import Reason
from dflash_controller.model.load_sample import LoadSample
from dflash_controller.tuner.acceptance import decay_between
from dflash_controller.tuner.decision import TunerDecision
from dflash_controller.tuner.learned import Learned, PairKnowledge, Seen
from dflash_controller.tuner.point_pools import Pools
from dflash_controller.tuner.points import StepPoint
from dflash_controller.tuner.priors import Priors
from dflash_controller.tuner.prompt_length import MOVED, PromptLengths
from dflash_controller.tuner.regret import DAY_S, RegretLedger
from dflash_controller.tuner.speeds import Speeds
from dflash_controller.tuner.step_times import OFF, Limits, StepPrior, StepTimes
from dflash_controller.tuner.window import KEPT_S, SLOT_S, DecisionWindow, Usual

__all__ = ["Learned", "Learner"]

KEPT_DECAYS = 8
SETTLING_S = 1200.0
"""Minimum time a block must have served before and after a change to learn a decay: over minutes, traffic varies more than blocks do."""
ACCEPTANCE_S = 300.0
SAME_TRAFFIC_S = 3600.0
"""Longest time between the lengths of two blocks that still count as the same traffic."""
PAIRED_S = 540.0
"""Minimum time between the first and the last load sample of a replica on trial to learn a decay from it."""
PAIRED_STEPS = 2000.0
"""Minimum verify steps of both blocks in that time: the ratio of their lengths is then known to about 1 %."""
TRIAL_GAP_S = 600.0
"""Load samples on trial that are farther apart belong to different trials."""
CHECKED = 10
"""Number of load samples at a new block before its step time is compared with the prediction."""
SIGMAS = 2.0
KEPT_MISSES = 4
GAIN = "gainPercent"
"""Prefix of a decision's numbers that hold the gain of each block size, followed by the block size."""


_Settled = tuple[int, float, float, float]
"""Block size, since when and until when it served, and its smoothed acceptance length."""


@dataclass(slots=True)
class _Trial:
    """The trial that load samples are taken from."""

    block: int
    since_s: float
    at_s: float
    counted: bool = False


class Learner:
    """Of one deployment. ``prior`` and ``limits`` serve to say whether a change of block brought what was predicted; loads and
    acceptance are summed up over ``slot_s`` seconds at a time."""

    def __init__(self, prior: StepPrior | None = None, limits: Limits | None = None, slot_s: float = SLOT_S) -> None:
        self._prior = prior or Priors.load().prior().steps
        self._limits = limits or Limits()
        self._pools = Pools()
        self._context = PromptLengths()
        self._window = DecisionWindow(slot_s)
        self._inconsistent = DecisionWindow(slot_s)
        self._speeds = Speeds(slot_s)
        self._usual = Usual()
        self._drafted: Seen | None = None
        self._decays: deque[float] = deque(maxlen=KEPT_DECAYS)
        self._borrowed_decays: tuple[float, ...] = ()
        self._settled: _Settled | None = None
        self._left: _Settled | None = None
        self._trial: _Trial | None = None
        self._ledger = RegretLedger()
        self._misses: deque[tuple[float, int]] = deque(maxlen=KEPT_MISSES)
        self._model_error = 0.0
        self._before: tuple[int, StepTimes] | None = None
        self._log_errors: list[tuple[float, float]] = []

    def take(self, load_samples: Iterable[LoadSample], now_s: float, *, on_trial: bool = False) -> None:
        """Takes load samples of any pods, each once. Ignores those from the future or with impossible values.

        Those of a replica ``on_trial`` are not compared with the prediction: the trial is judged, and a change that was not made missed
        nothing. Beside the others they show a decay, because both get the same traffic at the same time.
        """
        load_samples = tuple(load_samples)
        for load_sample in load_samples:
            if (
                load_sample.at_s > now_s + 1
                or now_s - load_sample.at_s > 30 * DAY_S
                or not _possible(load_sample)
                or not load_sample.served
            ):
                continue
            load = load_sample
            if load_sample.inconsistent:
                load = replace(load_sample, concurrency=0.0)
                self._inconsistent.add(load)
            self._window.add(load)
            self._usual.add(load)
            if self._context.take(load_sample.at_s, load_sample.requests, load_sample.context):
                self._pools.renew(load_sample.at_s)
                self._before, self._log_errors = None, []
            if not load_sample.excluded and load.concurrency > 0 and load_sample.step_s > 0:
                decoding = replace(load_sample, step_s=load_sample.decode_step_s, prefill_share=0.0)
                if not on_trial:
                    self._check(decoding)
                self._pools.add(decoding.at_s, decoding.block, decoding.concurrency, decoding.step_s)
                self._speeds.add(load_sample)
        if on_trial and any(load_sample.block > OFF for load_sample in load_samples):
            self._pair(load_samples[-1].block, now_s)
        self._accept(now_s)

    def _pair(self, block: int, now_s: float) -> None:
        """Learns one decay from each trial, once both blocks have served for long enough."""
        trial = self._trial
        if trial is None or trial.block != block or now_s - trial.at_s > TRIAL_GAP_S:
            trial = self._trial = _Trial(block, now_s, now_s)
        trial.at_s = now_s
        if trial.counted or now_s - trial.since_s < PAIRED_S:
            return
        seen = [found for found in self._window.over(now_s, PAIRED_S).acceptance if found.steps >= PAIRED_STEPS]
        tried = next((found for found in seen if found.block == block), None)
        other = max((found for found in seen if found.block != block), key=lambda found: found.steps, default=None)
        if tried is not None and other is not None:
            self._decays.append(round(decay_between(other.length, other.block, tried.length, tried.block), 5))
            trial.counted = True

    def note(self, decision: TunerDecision, now_s: float) -> None:
        """Records the decision of this evaluation; call it once after each ``policy.decide``. Decisions without comparison do not count."""
        numbers = decision.numbers
        block = int(numbers.get("block", 0))
        if not block or "costSeconds" not in numbers:
            return
        gains = {int(key[len(GAIN) :]): float(value) for key, value in numbers.items() if key.startswith(GAIN) and key != GAIN}
        changing_to = decision.change_to.max_block_size if decision.change_to is not None else None
        log_gains = {candidate_block: math.log1p(max(-99.0, percent) / 100) for candidate_block, percent in gains.items()}
        self._ledger.note(now_s, block, log_gains, float(numbers["costSeconds"]), changing_to)
        if changing_to is not None:
            points = self._pools.points() if decision.reason is not Reason.EXPLORING else ()  # An exploratory trial promises nothing.
            self._before = (changing_to, StepTimes(points, self._prior, self._limits)) if points else None
            self._log_errors = []

    def learned(self, now_s: float, window_s: float = 300.0) -> Learned:
        """Returns the snapshot over ``window_s`` seconds, the policy's window, at most six hours."""
        span_s = min(window_s, KEPT_S)
        window = self._window.over(now_s, span_s)
        recent = [block for at_s, block in self._misses if now_s - at_s < DAY_S]
        return Learned(
            self._pools.points(),
            window.loads,
            self._usual.loads(),
            window.acceptance,
            self._drafted,
            tuple(self._decays) or self._borrowed_decays,
            window.load_samples,
            len(recent),
            recent[-1] if recent else 0,
            round(self._model_error, 4),
            self._ledger.past(now_s),
            self._inconsistent.over(now_s, span_s).load_samples,
            self._speeds.over(now_s, span_s, window.acceptance),
            prefilling=window.prefilling,
            waiting=window.waiting,
            warming=window.warming,
            prefill_share=window.prefill_share,
        )

    @property
    def points(self) -> tuple[StepPoint, ...]:
        """Step times by block and load, as ``learned`` has them."""
        return self._pools.points()

    def lend(self) -> PairKnowledge:
        """Returns what a deployment of the same pair can start from."""
        return PairKnowledge(self._pools.lend(), self._context.tokens, tuple(self._decays))

    def borrow(self, lent: Iterable[PairKnowledge]) -> None:
        """Takes what other deployments of the same pair have learned, in place of what was borrowed before.

        Step times from requests of another length than the own are left out.
        """
        own, found = self._context.tokens, list(lent)
        alike = [one for one in found if not own or not one.context or abs(math.log(one.context / own)) <= math.log(MOVED)]
        if found and not alike:
            self._pools.forget_borrowed()
        self._pools.borrow(one.pools for one in alike)
        self._borrowed_decays = next((one.decays for one in alike if one.decays), ())

    @property
    def epoch(self) -> int:
        """How often step times at the same block and load, or the mean context, have changed for good."""
        return self._pools.epoch

    def _accept(self, now_s: float) -> None:
        """Remembers the last acceptance, and learns a decay after each change of the block size."""
        seen = self._window.over(now_s, ACCEPTANCE_S).acceptance
        if not seen:
            return
        self._drafted = main = max(seen, key=lambda found: found.steps)
        if self._settled is None or self._settled[0] != main.block:
            self._left, self._settled = self._settled, (main.block, now_s, now_s, main.length)
            return
        block, since_s, at_s, length = self._settled
        length += (main.length - length) * -math.expm1(-(now_s - at_s) / SETTLING_S)
        self._settled = block, since_s, now_s, length
        if self._left is None or now_s - since_s < SETTLING_S:
            return
        other, other_since_s, other_at_s, other_length = self._left
        self._left = None
        if since_s - other_at_s <= SAME_TRAFFIC_S and other_at_s - other_since_s >= SETTLING_S:
            self._decays.append(round(decay_between(other_length, other, length, block), 5))

    def _check(self, load_sample: LoadSample) -> None:
        if self._before is None or load_sample.block != self._before[0]:
            return
        predicted = self._before[1].at(load_sample.block, load_sample.concurrency)
        self._log_errors.append((math.log(load_sample.step_s) - predicted.log, predicted.log_sigma))
        if len(self._log_errors) < CHECKED:
            return
        misses = [miss for miss, _ in self._log_errors]
        error = mean(misses)
        sigma = math.hypot(mean(sigma for _, sigma in self._log_errors), stdev(misses) / math.sqrt(len(misses)))
        self._model_error = error
        if abs(error) > SIGMAS * sigma:
            self._misses.append((load_sample.at_s, load_sample.block))
        else:
            self._misses.clear()
        self._before, self._log_errors = None, []

    def to_json(self) -> dict[str, Any]:
        """Returns at most 8 KiB. It leaves out the window, which fills again in minutes, and a check in progress."""
        return {
            "v": 1,
            "pools": self._pools.to_json(),
            "earlier": self._pools.earlier_to_json(),
            "borrowed": self._pools.borrowed_to_json(),
            "context": self._context.to_json(),
            "usual": [round(self._usual.at_s), [[place, round(seconds)] for place, seconds in sorted(self._usual.seconds.items())]],
            "drafted": self._drafted.to_json() if self._drafted else None,
            "decays": list(self._decays),
            "settled": list(self._settled) if self._settled else None,
            "left": list(self._left) if self._left else None,
            "ledger": self._ledger.to_json(),
            "misses": [list(miss) for miss in self._misses],
            "modelError": self._model_error,
            "epoch": self._pools.epoch,
        }

    @staticmethod
    def from_json(
        data: Mapping[str, Any] | None, prior: StepPrior | None = None, limits: Limits | None = None, slot_s: float = SLOT_S
    ) -> Learner:
        """Returns the learner of ``to_json``, or an empty one if the data is missing or malformed: it can be learned again."""
        if data is None:
            return Learner(prior, limits, slot_s)
        try:
            return _restored(data, Learner(prior, limits, slot_s))
        except (KeyError, TypeError, ValueError, OverflowError, IndexError, AttributeError):
            return Learner(prior, limits, slot_s)


def _restored(data: Mapping[str, Any], learner: Learner) -> Learner:
    _finite(data)
    if data["v"] != 1:
        raise ValueError("another version")
    learner._pools = Pools.from_json(data["pools"], data.get("earlier", ()), data.get("borrowed", ()))
    learner._context = PromptLengths.from_json(data.get("context"))
    learner._pools.epoch = int(data["epoch"])
    learner._usual.at_s = float(data["usual"][0])
    learner._usual.seconds = {int(place): float(seconds) for place, seconds in data["usual"][1]}
    if data["drafted"]:
        learner._drafted = Seen.from_json(data["drafted"])
    learner._decays.extend(float(decay) for decay in data["decays"])
    learner._settled, learner._left = _settled(data["settled"]), _settled(data["left"])
    learner._ledger = RegretLedger.from_json(data["ledger"])
    learner._misses.extend((float(at_s), int(block)) for at_s, block in data["misses"])
    learner._model_error = float(data["modelError"])
    learner.learned(0.0)  # Raises on data that would fail at the first evaluation.
    return learner


def _settled(data: Any) -> _Settled | None:
    if not data:
        return None
    block, since_s, at_s, length = data
    if not 1 <= length <= block:
        raise ValueError(f"acceptance length {length} is impossible at block {block}")
    return int(block), float(since_s), float(at_s), float(length)


def _finite(value: Any) -> None:
    """Raises ValueError if a number at any depth is not finite."""
    if isinstance(value, Mapping):
        for inner in value.values():
            _finite(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _finite(inner)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number is not finite")


def _possible(load_sample: LoadSample) -> bool:
    metric_values = (
        *(
            load_sample.at_s,
            load_sample.seconds,
            load_sample.concurrency,
            load_sample.step_s,
            load_sample.steps,
            load_sample.committed,
            load_sample.tokens,
        ),
        *(load_sample.requests, load_sample.context),
    )
    return load_sample.block >= OFF and all(math.isfinite(figure) and figure >= 0 for figure in metric_values)
