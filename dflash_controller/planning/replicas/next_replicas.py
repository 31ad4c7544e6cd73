"""How many replicas each revision shall have next: arithmetic over pods, nothing else.

Two invariants hold after every step, whatever happened before it:

* serving replicas never fall below ``replicas - max_unavailable`` by our doing;
* wanted replicas and terminating pods together never exceed ``replicas + max_surge``.

A replica that does not serve protects nothing, so it may always be taken away: a broken revision can be left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Budget:
    """Absolute numbers, as ``api.defaults.effective_rollout`` gives them."""

    replicas: int
    max_surge: int
    max_unavailable: int

    @property
    def floor(self) -> int:
        """Serving replicas that a step may not go below."""
        return max(0, self.replicas - self.max_unavailable)

    @property
    def ceiling(self) -> int:
        """Accelerators of at most this many replicas may be held."""
        return self.replicas + self.max_surge


@dataclass(frozen=True, slots=True)
class Pool:
    """The replicas of one revision as they are."""

    revision: str
    wanted: int
    """``spec.replicas`` of its workload; 0 where there is none."""
    existing: int
    """Replicas whose pods are there and not terminating."""
    serving: int
    terminating: int
    settled: bool = True
    """The workload's controller has seen its newest spec."""
    drops_broken_first: bool = True
    """A Deployment scales down pods that are not ready first; a LeaderWorkerSet drops its highest index whatever its health."""

    def serving_at(self, wanted: int) -> int:
        """Replicas still serving once the workload has come down to ``wanted``."""
        if self.drops_broken_first:
            return min(self.serving, wanted)
        return max(0, self.serving - max(0, self.existing - wanted))


def rollout_goals(budget: Budget, stable: str | None, candidate: str | None) -> dict[str, int]:
    """Where the replicas shall end up in the present phase.

    A candidate beside a stable revision is tried on one replica; ``replicas`` edited meanwhile goes to stable. Without a stable one
    there is nothing to compare with, so the first revision starts whole.
    """
    if candidate is None:
        return {stable: budget.replicas} if stable else {}
    if stable is None:
        return {candidate: budget.replicas}
    canary = min(1, budget.replicas)
    return {candidate: canary, stable: budget.replicas - (0 if budget.max_surge else canary)}


def frozen_goals(budget: Budget, pools: Sequence[Pool], stable: str) -> dict[str, int]:
    """Where a paused replacement stays: stable keeps what it has got, and gets what is added; what is taken goes from the older ones."""
    older = {pool.revision: pool.wanted for pool in pools if pool.revision != stable and pool.wanted}
    has = sum(pool.wanted for pool in pools if pool.revision == stable)
    goals = {stable: max(budget.replicas - sum(older.values()), min(has, budget.replicas))}
    for revision, wanted in older.items():
        goals[revision] = min(wanted, budget.replicas - sum(goals.values()))
    return goals


def next_replicas(budget: Budget, pools: Sequence[Pool], goals: Mapping[str, int]) -> dict[str, int]:
    """One step towards ``goals``; revisions not named there go to 0.

    Accelerators of a terminating pod are not free, so growth waits for what shrinks. Among revisions to shrink the one with the
    smallest share of serving replicas goes first.
    """
    wanted = {pool.revision: pool.wanted for pool in pools}

    shrinking = [pool for pool in pools if pool.wanted > goals.get(pool.revision, 0) and pool.settled]
    for pool in sorted(shrinking, key=lambda pool: (pool.serving / pool.wanted, pool.revision)):
        spare = max(0, sum(other.serving_at(wanted[other.revision]) for other in pools) - budget.floor)
        keep = pool.wanted
        while keep > goals.get(pool.revision, 0):
            loss = pool.serving_at(pool.wanted) - pool.serving_at(keep - 1)
            if loss > spare:
                break
            keep -= 1
        wanted[pool.revision] = keep

    held = sum(max(pool.wanted, pool.existing) + pool.terminating for pool in pools)
    for revision, goal in goals.items():
        grow = min(goal - wanted.setdefault(revision, 0), budget.ceiling - held)
        if grow > 0:
            wanted[revision] += grow
            held += grow
    return wanted
