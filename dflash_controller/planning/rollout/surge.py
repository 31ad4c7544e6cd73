"""Replicas above spec.replicas need accelerators nobody has promised: what happens when there are none."""

from __future__ import annotations

from dataclasses import replace

from dflash_controller.planning.revisions.revision import Revision
from dflash_controller.planning.state.reconcile_state import ReconcileState

SURGE_TIMEOUT_S = 300.0
"""A replica above spec.replicas that no node takes for so long will not be taken."""


def unschedulable_s(state: ReconcileState, revision: str) -> float:
    """How long the longest waiting pod of a revision has been without a node; 0 where all have one."""
    since = [pod.unschedulable_since for pod in state.pods(revision) if pod.unschedulable_since is not None]
    return (state.context.now - min(since)).total_seconds() if since else 0.0


def without_surge(state: ReconcileState, target: Revision) -> ReconcileState:
    """Where a surge for this revision found no room, the rollout goes on as with maxSurge 0, as far as maxUnavailable allows."""
    budget = state.budget
    if not target.trial.without_surge or not budget.max_unavailable:
        return state
    return replace(state, budget=replace(budget, max_surge=0))
