"""The compared policies: one block throughout, a threshold with hysteresis, and the project's tuner."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Sequence

from benchmarks.traces_fleet import MOST, Setting, Trial
from dflash_controller.api.conditions import Reason
from dflash_controller.api.defaults import TuningPolicy, speculation_of
from dflash_controller.model.load_sample import LoadSample
from dflash_controller.tuner.decision import Change, TunerDecision, TunerInputs
from dflash_controller.tuner.inputs import DecisionInputs
from dflash_controller.tuner.learned import Learned
from dflash_controller.tuner.learner import Learner
from dflash_controller.tuner.policy import judge
from dflash_controller.tuner.predicted_gain import predict
from dflash_controller.tuner.priors import Prior
from dflash_controller.tuner.step_times import Limits

NOISE = 0.05
LOAD_NOISE = 0.015
"""Noise of concurrency, which comes from counters that advance with every step."""
NOISY = 6.0
DWELL_MIN = 30
CHANGES_PER_DAY = 4
WINDOW_MIN = 5
DAY = 1440
SHOWN_PODS = 2
"""Maximum number of pods whose metrics the tuner gets: fewer than the operator measures, so that noise matters."""
EPOCH_S = 1_800_000_000.0


class Static:
    """Never changes."""

    def observe(self, minute: int, block: int, load: float, serving: Sequence[int]) -> None:
        """Ignores it."""

    def wish(self, minute: int, block: int) -> int:
        return block


class Hysteresis:
    """Chooses the larger block up to 8 requests per replica and the smaller above 12, by the mean of five minutes."""

    def __init__(self, candidate_blocks: tuple[int, int], setting: Setting) -> None:
        self._small, self._large = sorted(candidate_blocks)
        self._setting = setting
        self._loads: deque[float] = deque(maxlen=WINDOW_MIN)
        self._done: list[int] = []
        self._fresh = -1

    def observe(self, minute: int, block: int, load: float, serving: Sequence[int]) -> None:
        self._loads.append(load)
        self._fresh = minute

    def wish(self, minute: int, block: int) -> int:
        if not self._loads or minute - self._fresh > 1:
            return block
        load = sum(self._loads) / len(self._loads)
        target = self._large if load <= 8 else self._small if load > 12 else block
        if target == block or (self._done and minute < self._done[-1] + DWELL_MIN):
            return block
        if sum(minute - done < DAY for done in self._done) >= CHANGES_PER_DAY:
            return block
        self._done.append(minute + self._setting.change)
        return target


class Tuner:
    """The real learner and policy with noisy load samples of one minute."""

    def __init__(self, setting: Setting, blocks: tuple[int, ...], prior: Prior, seed: int) -> None:
        self._setting = setting
        self._prior = prior
        self.mixture = setting.machine.mixture
        self._draw = random.Random(seed)
        self.learner = Learner(prior.steps)
        self._changes: list[Change] = []
        self._fresh = -1
        self._serving = 0
        self._policy = TuningPolicy("Auto", blocks, "Restart", 5.0, 60 * WINDOW_MIN, 60 * DWELL_MIN, CHANGES_PER_DAY, True)
        self.reasons: dict[str, int] = {}
        self.impossible = 0
        """Wishes for a block size that the table does not have: speculation off."""
        self._on_trial = False

    def observe(self, minute: int, block: int, load: float, serving: Sequence[int]) -> None:
        cell = self._setting.trace.cells[minute]
        now_s = EPOCH_S + 60.0 * (minute + 1)
        load_samples = []
        for place, own in enumerate(serving[:SHOWN_PODS]):
            noise = NOISE * (NOISY if self._setting.trace.noisy and place == 0 else 1.0)
            step_s = cell.step_s(own, load) * self._factor(noise)
            steps = 60.0 / step_s * load
            committed = steps * max(1.0, min(own, cell.lengths[own] * self._factor(NOISE)))
            load_samples.append(
                LoadSample(now_s, 60.0, own, max(0.5, load * self._factor(LOAD_NOISE)), step_s, steps, committed, committed)
            )
        tried = [one for one in load_samples if one.block != block and self._on_trial]
        self.learner.take([one for one in load_samples if one not in tried], now_s)
        self.learner.take(tried, now_s, on_trial=True)
        self._fresh, self._serving = minute, len(serving)

    def wish(self, minute: int, block: int) -> int | Trial:
        now_s = EPOCH_S + 60.0 * minute
        setting = self._setting
        known = self._fresh >= minute - 3
        tuner_inputs = TunerInputs(
            now_s=now_s,
            policy=self._policy,
            speculation=speculation_of(block),
            trained_block=max(setting.candidate_blocks),
            mixture=self.mixture,
            replicas=setting.replicas,
            serving=setting.replicas,
            measured=min(SHOWN_PODS, setting.replicas),
            surge=setting.surge,
            restart_s=float(setting.restart_s),
            metrics="" if known or minute == 0 else "the last sample is older than three minutes",
            changes=tuple(self._changes),
            max_concurrency=MOST,
        )
        learned = self.learner.learned(now_s, self._policy.window_s)
        decision = judge(DecisionInputs(tuner_inputs, learned, self._prior, Limits()))
        self.learner.note(decision, now_s)
        self.reasons[decision.reason.value] = self.reasons.get(decision.reason.value, 0) + 1
        if decision.change_to is None:
            return block
        if decision.change_to.max_block_size not in setting.candidate_blocks:
            self.impossible += 1
            return block
        exploratory = decision.reason is Reason.EXPLORING
        if exploratory or setting.trials:
            return self._trial(decision, learned, exploratory=exploratory)
        target = decision.change_to.max_block_size
        self._changes.append(Change(now_s + 60.0 * setting.change, target, True))
        return target

    def _trial(self, decision: TunerDecision, learned: Learned, *, exploratory: bool) -> Trial:
        """Returns the trial of a decision, with the gain that the operator asks of such a candidate."""
        assert decision.change_to is not None
        block, load = decision.change_to.max_block_size, float(decision.numbers["concurrency"])
        now = speculation_of(int(decision.numbers["block"]))
        least = self._policy.min_gain_percent
        promise = predict(
            learned, now, decision.change_to, mixture=self.mixture, min_gain_percent=least, exploratory=exploratory, prior=self._prior
        )

        self._on_trial = True

        def ended(minute: int, promoted: bool) -> None:
            self._on_trial = False
            self._changes.append(Change(EPOCH_S + 60.0 * (minute + 1), block, promoted, load, not promoted, exploratory))

        return Trial(block, promise.least, exploratory, ended)

    def _factor(self, noise: float) -> float:
        return math.exp(self._draw.gauss(0.0, noise))
