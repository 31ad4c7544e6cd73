"""Simulates a fleet under a policy minute by minute, with changes one replica after the other, or after a trial on one of them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import Protocol

from benchmarks.traces_world import Cell, Trace
from dflash_controller.tuner.machine import UNKNOWN, Machine

TRIAL_NOISE = 0.1
"""Deviation of the logarithm of candidate's ÷ stable's speed, measured over a minute."""
TRIAL_SURE = 2.33
"""Standard errors of 99 % certainty, one-sided: that of the gates."""
TRIAL_WORST = math.log(0.95)
"""A candidate must surely be better than this (``spec.rollout.analysis``)."""
SHORTEST_TRIAL, LONGEST_TRIAL = 10, 120
"""Minutes; the longest is ``spec.rollout.deadline``, after which a candidate of the tuner fails."""
TRIAL_SEED = 29
MOST = 64
"""Requests a replica serves concurrently; closed-loop clients beyond that wait."""


@dataclass(frozen=True)
class Setting:
    """Parameters of a run."""

    trace: Trace
    replicas: int
    restart_s: int
    candidate_blocks: tuple[int, ...]
    start: int
    surge: bool = False
    """Whether a replica more may run during a change."""
    machine: Machine = UNKNOWN
    trials: bool = False
    """Whether every change of the tuner begins with a trial on one replica, as in the operator."""

    def starting_at(self, block: int) -> Setting:
        return replace(self, start=block)

    @property
    def minutes(self) -> int:
        return len(self.trace.loads)

    @property
    def step(self) -> int:
        """Minutes for which a replica is down."""
        return max(1, self.restart_s // 60)

    @property
    def change(self) -> int:
        """Minutes until all replicas have changed."""
        return self.step * self.replicas


@dataclass(frozen=True)
class Trial:
    """A wish to try a block on one replica, and to change the others if it is faster."""

    block: int
    least: float
    """Logarithm of the gain that it must reach."""
    exploratory: bool
    ended: Callable[[int, bool], None]
    """Is told the minute, and whether the block was promoted."""


class Policy(Protocol):
    """A policy that decides once a minute, except during a change."""

    def observe(self, minute: int, block: int, load: float, serving: Sequence[int]) -> None:
        """Takes the load of a serving replica, and in ``serving`` the block of each replica that serves."""

    def wish(self, minute: int, block: int) -> int | Trial:
        """Returns the block to run from now on."""


@dataclass
class Run:
    """Result of a run."""

    setting: Setting
    share: float = 0.0
    """Mean of speed ÷ the best block's speed."""
    tokens: float = 0.0
    changes: list[tuple[int, int, int]] = field(default_factory=list)
    """(first minute, from, to)."""
    explorations: list[tuple[int, int, bool]] = field(default_factory=list)
    """(first minute, block, whether it was promoted) of exploratory trials."""
    refusals: int = 0
    """Other trials that were refused."""
    speeds: list[float] = field(default_factory=list)

    def share_between(self, reference: Reference, begin: int, end: int) -> float:
        """Returns the mean of speed ÷ the best block's speed over these minutes."""
        pairs = zip(self.speeds[begin:end], reference.best[begin:end], strict=True)
        return float(sum(speed / best for speed, best in pairs) / (min(end, len(self.speeds)) - begin))

    def closed(self, reference: Reference) -> Run:
        """Returns the run with its sums."""
        self.tokens = 60 * sum(self.speeds)
        self.share = sum(speed / best for speed, best in zip(self.speeds, reference.best, strict=True)) / len(self.speeds)
        return self

    def wasted(self, reference: Reference) -> int:
        """Returns the number of changes that generated fewer tokens until the next one, or the end, than staying would have."""
        limits = pairwise([*(begin for begin, _, _ in self.changes), len(self.speeds)])
        return sum(
            sum(self.speeds[begin:end]) < sum(reference.whole(before)[begin:end])
            for (begin, end), (_, before, _) in zip(limits, self.changes, strict=True)
        )


class Reference:
    """Speeds of whole fleets in one setting."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._whole: dict[int, list[float]] = {}
        self.best = [
            max(minute) for minute in zip(*(self.whole(candidate_block) for candidate_block in setting.candidate_blocks), strict=True)
        ]

    def whole(self, candidate_block: int) -> list[float]:
        """Returns the tokens per second of a fleet that runs ``candidate_block`` throughout, by minute."""
        if candidate_block not in self._whole:
            trace, replicas = self.setting.trace, self.setting.replicas
            self._whole[candidate_block] = [
                replicas * cell.speed(candidate_block, min(load, MOST)) for cell, load in zip(trace.cells, trace.loads, strict=True)
            ]
        return self._whole[candidate_block]

    def mixed(self, minute: int, before: int, after: int, changed: int) -> float:
        """Returns the tokens per second while one replica restarts, ``changed`` others have changed and the rest have not."""
        trace, replicas = self.setting.trace, self.setting.replicas
        if self.setting.surge:
            return self.beside(minute, before, after, changed, replicas)
        return _mixed(trace.cells[minute], trace.loads[minute], replicas, before, after, changed)

    def beside(self, minute: int, before: int, after: int, changed: int, serving: int) -> float:
        """Returns the tokens per second while ``serving`` replicas serve, ``changed`` of them with the block ``after``.

        A replica more than usual takes its share of the load, and adds nothing: otherwise every change with surge would count as a gain.
        """
        cell, replicas = self.setting.trace.cells[minute], self.setting.replicas
        load = crowded(self.setting.trace.loads[minute], replicas, min(serving, replicas))
        speed = changed * cell.speed(after, load) + (serving - changed) * cell.speed(before, load)
        return float(speed * min(1.0, replicas / serving))


def crowded(load: float, replicas: int, serving: int) -> float:
    """Returns the load of a serving replica while others are down."""
    return min(float(MOST), load * replicas / serving)


@lru_cache(maxsize=65536)
def _mixed(cell: Cell, load: float, replicas: int, before: int, after: int, changed: int) -> float:
    if replicas == 1:
        return 0.0
    shared = crowded(load, replicas, replicas - 1)
    return changed * cell.speed(after, shared) + (replicas - 1 - changed) * cell.speed(before, shared)


def run(setting: Setting, reference: Reference, policy: Policy) -> Run:
    """Runs the policy over the whole trace."""
    return _Simulation(setting, reference, policy).run()


class _Simulation:
    """A fleet under a policy: steady, during a change, or with one replica on trial."""

    def __init__(self, setting: Setting, reference: Reference, policy: Policy) -> None:
        self._setting, self._reference, self._policy = setting, reference, policy
        self._result = Run(setting)
        self._block = self._target = setting.start
        self._left = 0
        """Minutes until all replicas have changed; 0 while none changes."""
        self._trial: Trial | None = None
        self._began = 0
        self._starting = 0
        """Minutes until the replica on trial serves, or the stable one after a refusal."""
        self._ratios: list[float] = []
        self._draw = random.Random(TRIAL_SEED)

    def run(self) -> Run:
        for minute in range(self._setting.minutes):
            if not self._left and not self._trial and not self._starting:
                self._decide(minute)
            if self._trial or self._starting:
                speed = self._tried(minute)
            elif self._left:
                speed = self._changing(minute)
            else:
                speed = self._serve(minute, [self._block] * self._setting.replicas)
            self._result.speeds.append(speed)
        return self._result.closed(self._reference)

    def _decide(self, minute: int) -> None:
        wish = self._policy.wish(minute, self._block)
        if isinstance(wish, Trial):
            self._trial, self._began, self._starting, self._ratios = wish, minute, self._setting.step, []
            if wish.exploratory:
                self._result.explorations.append((minute, wish.block, False))
        elif wish != self._block:
            self._change(minute, wish, self._setting.change)

    def _change(self, minute: int, target: int, left: int) -> None:
        self._result.changes.append((minute, self._block, target))
        self._target, self._left = target, left
        if not left:
            self._block = target

    def _serve(self, minute: int, serving: Sequence[int]) -> float:
        """Lets the policy observe the serving replicas and returns their tokens per second."""
        setting, trace = self._setting, self._setting.trace
        if not serving:
            return 0.0
        if minute not in trace.gaps:
            load = crowded(trace.loads[minute], setting.replicas, min(len(serving), setting.replicas))
            self._policy.observe(minute, self._block, load, serving)
        after = next((block for block in serving if block != self._block), self._block)
        return self._reference.beside(minute, self._block, after, sum(block == after for block in serving), len(serving))

    def _changing(self, minute: int) -> float:
        setting = self._setting
        changed = (setting.change - self._left) // setting.step
        serving = [self._target] * changed + [self._block] * (setting.replicas - (not setting.surge) - changed)
        speed = self._serve(minute, serving)
        self._left -= 1
        if not self._left:
            self._block = self._target
        return speed

    def _tried(self, minute: int) -> float:
        setting, trial = self._setting, self._trial
        others = [self._block] * (setting.replicas - (not setting.surge))
        if self._starting:
            self._starting -= 1
            return self._serve(minute, others)
        assert trial is not None
        speed = self._serve(minute, [trial.block, *others])
        cell, load = setting.trace.cells[minute], min(float(MOST), setting.trace.loads[minute])
        ratio = math.log(cell.speed(trial.block, load) / cell.speed(self._block, load))
        self._ratios.append(ratio + self._draw.gauss(0.0, TRIAL_NOISE))
        promoted = verdict(self._ratios, trial.least)
        if promoted is not None:
            self._end(minute, trial, promoted=promoted)
        return speed

    def _end(self, minute: int, trial: Trial, *, promoted: bool) -> None:
        setting, result, self._trial = self._setting, self._result, None
        trial.ended(minute, promoted)
        if trial.exploratory:
            result.explorations[-1] = (*result.explorations[-1][:2], promoted)
        elif not promoted:
            result.refusals += 1
        if promoted:
            self._change(self._began, trial.block, setting.change - setting.step)
        else:
            self._starting = 0 if setting.surge else setting.step


def verdict(ratios: Sequence[float], least: float) -> bool | None:
    """Returns whether a candidate is promoted, by the rules of the operator's analysis; None while it is not decided.

    It fails if it is surely not fast enough, and passes if its estimate is and it is surely no worse than the limit.
    """
    if len(ratios) < SHORTEST_TRIAL:
        return None
    mean, radius = sum(ratios) / len(ratios), TRIAL_SURE * TRIAL_NOISE / math.sqrt(len(ratios))
    if mean + radius < least:
        return False
    if mean >= least and mean - radius > TRIAL_WORST:
        return True
    return False if len(ratios) >= LONGEST_TRIAL else None


def oracle(setting: Setting, reference: Reference) -> Run:
    """Returns the best schedule of changes for a known trace: a dynamic program over minutes and blocks, without dwell or daily limit."""
    candidate_blocks, change, step, minutes = setting.candidate_blocks, setting.change, setting.step, setting.minutes
    shares = {
        candidate_block: [speed / best for speed, best in zip(reference.whole(candidate_block), reference.best, strict=True)]
        for candidate_block in candidate_blocks
    }
    cost = {(a, b): _changing(setting, reference, a, b) for a in candidate_blocks for b in candidate_blocks if a != b}
    value = {candidate_block: [0.0] * (minutes + 1) for candidate_block in candidate_blocks}
    choice = {candidate_block: [candidate_block] * minutes for candidate_block in candidate_blocks}
    for minute in range(minutes - 1, -1, -1):
        for candidate_block in candidate_blocks:
            best, pick = shares[candidate_block][minute] + value[candidate_block][minute + 1], candidate_block
            if minute + change <= minutes:
                for other in candidate_blocks:
                    if other != candidate_block:
                        sums = cost[candidate_block, other]
                        gain = sum(sums[k][minute + (k + 1) * step] - sums[k][minute + k * step] for k in range(setting.replicas))
                        gain += value[other][minute + change]
                        if gain > best + 1e-12:
                            best, pick = gain, other
            value[candidate_block][minute], choice[candidate_block][minute] = best, pick
    return run(setting, reference, _Known(choice))


def _changing(setting: Setting, reference: Reference, before: int, after: int) -> list[list[float]]:
    """Returns running sums, over the minutes, of the share served while replica k restarts."""
    sums = []
    for changed in range(setting.replicas):
        total, found = 0.0, [0.0]
        for minute in range(setting.minutes):
            total += reference.mixed(minute, before, after, changed) / reference.best[minute]
            found.append(total)
        sums.append(found)
    return sums


class _Known:
    def __init__(self, choice: dict[int, list[int]]) -> None:
        self._choice = choice

    def observe(self, minute: int, block: int, load: float, serving: Sequence[int]) -> None:
        """Ignores it: everything is known already."""

    def wish(self, minute: int, block: int) -> int:
        return self._choice[block][minute]
