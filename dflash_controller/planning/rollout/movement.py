"""Decides how the replicas of each revision may move: fill, stay, or drain.

A movement is a fact of its own and not a consequence of the role alone: while a candidate is on trial, a revision that was being replaced
stays where it is, and going back to it keeps its replicas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from enum import StrEnum

from dflash_controller.planning.replicas.next_replicas import Budget, Pool
from dflash_controller.planning.revisions.revision import Revision, RevisionState


class Movement(StrEnum):
    """How the replicas of a revision may move."""

    FILLING = "Filling"
    """It gets replicas until it has all of them, or the one of a trial."""
    FROZEN = "Frozen"
    """It keeps its replicas."""
    DRAINING = "Draining"
    """It loses its replicas."""


def movements(
    records: Sequence[Revision],
    pools: Sequence[Pool],
    in_force: str | None,
    *,
    canary: str | None,
    unread: Set[str],
    frozen: bool,
) -> dict[str, Movement]:
    """Returns the movement of every revision that has replicas or a role.

    ``in_force`` is the hash of the revision that serves users, ``canary`` that of a candidate that may have its one replica, ``unread`` are
    those of revisions in force or on trial whose records cannot be read. ``frozen`` is
    True while a candidate waits or is on trial, the rollout is paused, or an obstacle stops it. A candidate that failed or was superseded
    drains in any case: nobody judges it any more, and it serves users.
    """
    states = {record.hash: record.state for record in records}
    found: dict[str, Movement] = {}
    for revision in (*([canary] if canary else []), *([in_force] if in_force else []), *(pool.revision for pool in pools)):
        state = states.get(revision)
        if state is RevisionState.FAILED:
            found[revision] = Movement.DRAINING
        elif revision == canary:
            found[revision] = Movement.FILLING
        elif frozen and (state is RevisionState.STABLE or revision == in_force or revision in unread):
            found[revision] = Movement.FROZEN
        else:
            found[revision] = Movement.FILLING if revision == in_force else Movement.DRAINING
    return found


def goals(
    budget: Budget, pools: Sequence[Pool], moving: Mapping[str, Movement], in_force: str | None, canary: str | None
) -> dict[str, int]:
    """Returns the replicas that each revision is to reach.

    A canary gets one replica; without surge it takes the place of another. Frozen revisions keep theirs. The revision in force gets what is
    missing, so an edit of ``replicas`` and the budget's floor count while everything else is frozen. If there are too many, the other
    frozen revisions give up theirs first.
    """
    found: dict[str, int] = {}
    others = budget.replicas
    if canary is not None and moving.get(canary) is Movement.FILLING:
        found[canary] = min(1, budget.replicas)
        others -= 0 if budget.max_surge else found[canary]
    kept = {pool.revision: pool.wanted for pool in pools if moving.get(pool.revision) is Movement.FROZEN and pool.revision != in_force}
    if in_force is not None and moving.get(in_force) in (Movement.FILLING, Movement.FROZEN):
        has = next((pool.wanted for pool in pools if pool.revision == in_force), 0)
        # One promoted without replicas has none yet. A trial needs one of it to compare with.
        found[in_force] = max(others - sum(kept.values()), min(max(has, 1), others))
        others -= found[in_force]
    for revision, wanted in kept.items():
        found[revision] = min(wanted, max(0, others))
        others -= found[revision]
    return found
