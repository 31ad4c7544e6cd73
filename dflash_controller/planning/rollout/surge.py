"""Handles surge replicas without accelerators. A replica above spec.replicas needs accelerators that nobody has promised."""

from __future__ import annotations

from dataclasses import replace

from dflash_controller.planning.revisions.revision import Revision
from dflash_controller.planning.state.pod_troubles import no_room_since
from dflash_controller.planning.state.reconcile_state import ReconcileState

SURGE_TIMEOUT_S = 300.0
"""Seconds after which an unscheduled replica above spec.replicas counts as impossible to schedule."""


def unschedulable_s(state: ReconcileState, revision: str) -> float:
    """Returns how many seconds the longest-waiting pod of a revision, or one it cannot create, has had no room; 0 if every pod has it."""
    since = no_room_since(state, revision)
    return max(0.0, (state.context.now - since).total_seconds()) if since else 0.0


def without_surge(state: ReconcileState, target: Revision) -> ReconcileState:
    """Returns the state with maxSurge 0 if a surge for this revision found no accelerators and maxUnavailable is not 0."""
    budget = state.budget
    if not target.trial.without_surge or not budget.max_unavailable:
        return state
    return replace(state, budget=replace(budget, max_surge=0))
