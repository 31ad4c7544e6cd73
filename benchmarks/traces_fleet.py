"""Simulates a fleet under a policy minute by minute, with changes one replica after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import Protocol

from benchmarks.traces_world import Cell, Trace

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


class Policy(Protocol):
    """A policy that decides once a minute, except during a change."""

    def observe(self, minute: int, block: int, load: float, serving: Sequence[int]) -> None:
        """Takes the load of a serving replica, and in ``serving`` the block of each replica that serves."""

    def wish(self, minute: int, block: int) -> int:
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
    speeds: list[float] = field(default_factory=list)

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
        trace = self.setting.trace
        return _mixed(trace.cells[minute], trace.loads[minute], self.setting.replicas, before, after, changed)


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
    result = Run(setting)
    trace, replicas, minutes = setting.trace, setting.replicas, setting.minutes
    block, target, left = setting.start, setting.start, 0
    for minute in range(minutes):
        load = trace.loads[minute]
        if left == 0:
            target = policy.wish(minute, block)
            if target != block:
                result.changes.append((minute, block, target))
                left = setting.change
        if left:
            changed = (setting.change - left) // setting.step
            speed = reference.mixed(minute, block, target, changed)
            if replicas > 1 and minute not in trace.gaps:
                serving = [target] * changed + [block] * (replicas - 1 - changed)
                policy.observe(minute, block, crowded(load, replicas, replicas - 1), serving)
            left -= 1
            if left == 0:
                block = target
        else:
            speed = reference.whole(block)[minute]
            if minute not in trace.gaps:
                policy.observe(minute, block, load, [block] * replicas)
        result.speeds.append(speed)
    return result.closed(reference)


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
