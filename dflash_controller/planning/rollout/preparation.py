"""Prepares a candidate before it gets a replica: the nodes hold its weights, and stable has answered the probe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dflash_controller.api import names
from dflash_controller.api.conditions import Reason
from dflash_controller.api.defaults import RolloutPolicy
from dflash_controller.api.types import Spec
from dflash_controller.model.probe import ProbeRequest
from dflash_controller.planning.revisions.revision import Revision
from dflash_controller.planning.rollout.probe import reference_needed
from dflash_controller.planning.state.prefetch_progress import PrefetchState, progress
from dflash_controller.planning.state.reconcile_state import ReconcileState
from dflash_controller.render.prefetch import prefetch_jobs


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a candidate waits for. ``stalls`` is True if it will not happen without a human."""

    reason: Reason
    message: str
    stalls: bool = False
    probe: ProbeRequest | None = None
    jobs: tuple[Mapping[str, Any], ...] = ()


def prepare(
    state: ReconcileState, spec: Spec, policy: RolloutPolicy, stable: Revision, candidate: Revision, *, concurrent: bool
) -> Waiting | None:
    """Returns what the candidate waits for, or None if it may get a replica."""
    jobs = _jobs(state, spec, stable, candidate)
    found = progress(jobs, state.snapshot.others, state.snapshot.pods)
    if found.state is PrefetchState.FAILED:
        return Waiting(Reason.PREFETCH_FAILED, found.message, stalls=True, jobs=tuple(jobs))
    if found.state is PrefetchState.RUNNING:
        return Waiting(Reason.PREFETCHING, found.message, jobs=tuple(jobs))
    if not concurrent and (request := reference_needed(state, policy, stable)):
        message = f"{stable.name} answers the probe's prompts before it stops, to compare {candidate.name} with"
        return Waiting(Reason.TAKING_REFERENCE, message, probe=request)
    return None


def _jobs(state: ReconcileState, spec: Spec, stable: Revision, candidate: Revision) -> list[Mapping[str, Any]]:
    """Returns the prefetch Jobs; none if the nodes already hold the weights, that is the same models from the same storage."""
    before, after = stable.resolved, candidate.resolved
    same_place = stable.inputs.get("storage") == candidate.inputs.get("storage")
    if same_place and (before.target, before.drafter) == (after.target, after.drafter):
        return []
    key = state.snapshot.key
    serving = (names.ROLE_ENGINE, names.ROLE_WORKER)
    nodes = sorted({pod.node for pod in state.snapshot.pods if pod.role in serving and pod.node and not pod.terminating})
    return list(prefetch_jobs(key.name, key.namespace, candidate.hash, spec, after, nodes))
