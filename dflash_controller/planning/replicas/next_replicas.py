"""Computes how many replicas each revision gets next. It is arithmetic over pods and nothing else.

Two invariants hold after every step, whatever happened before it:

* the operator never reduces serving replicas below ``replicas - max_unavailable``;
* desired replicas and terminating pods together never exceed ``replicas + max_surge``.

A replica that does not serve protects nothing, so it may always be removed. A rollout can therefore leave a broken revision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Budget:
    """The rollout limits in absolute replicas, as ``api.defaults.effective_rollout`` returns them."""

    replicas: int
    max_surge: int
    max_unavailable: int

    @property
    def floor(self) -> int:
        """Returns the number of serving replicas that a step must keep."""
        return max(0, self.replicas - self.max_unavailable)

    @property
    def ceiling(self) -> int:
        """Returns the largest number of replicas whose accelerators may be in use."""
        return self.replicas + self.max_surge


@dataclass(frozen=True, slots=True)
class Pool:
    """The current replicas of one revision."""

    revision: str
    wanted: int
    """Desired replicas: ``spec.replicas`` of the workload; what exists if there is no workload."""
    existing: int
    """Replicas whose pods exist and are not terminating."""
    serving: int
    terminating: int
    settled: bool = True
    """True if the workload's controller has observed the newest spec."""
    drops_broken_first: bool = True
    """True for a Deployment, which removes pods that are not ready first. A LeaderWorkerSet removes its highest index, healthy or not."""
    serving_indexes: frozenset[int] | None = None
    """Indexes of the groups that serve, for a LeaderWorkerSet. None if they are not known."""

    def serving_at(self, wanted: int) -> int:
        """Returns the replicas that still serve after the workload has scaled down to ``wanted``."""
        if self.drops_broken_first:
            return min(self.serving, wanted)
        if self.serving_indexes is not None:
            return sum(index < wanted for index in self.serving_indexes)
        return max(0, self.serving - max(0, self.existing - wanted))


def next_replicas(budget: Budget, pools: Sequence[Pool], goals: Mapping[str, int]) -> dict[str, int]:
    """Returns the replicas of each revision after one step towards ``goals``. Revisions not named there go to 0.

    A terminating pod still holds its accelerators, so growth waits until the shrinking revisions have released theirs. The revision with
    the smallest share of serving replicas shrinks first. The last serving replica stops only if its accelerators are needed for another
    one, that is with one replica and no surge.
    """
    needed = budget.ceiling == 1 and any(goal > _wanted(pools, revision) for revision, goal in goals.items())
    floor = budget.floor if needed else max(budget.floor, min(1, budget.replicas))
    wanted = {pool.revision: pool.wanted for pool in pools}

    shrinking = [pool for pool in pools if pool.wanted > goals.get(pool.revision, 0) and pool.settled]
    for pool in sorted(shrinking, key=lambda pool: (pool.serving / pool.wanted, pool.revision)):
        spare = max(0, sum(other.serving_at(wanted[other.revision]) for other in pools) - floor)
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


def _wanted(pools: Sequence[Pool], revision: str) -> int:
    return next((pool.wanted for pool in pools if pool.revision == revision), 0)
