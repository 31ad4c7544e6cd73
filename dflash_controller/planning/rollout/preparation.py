"""Prepares a candidate before it gets a replica: the nodes hold its weights, and stable has answered the probe.

A Job's template is immutable, and another release of the operator renders another one. So a Job is created once and never applied again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dflash_controller.api import names
from dflash_controller.api.conditions import Reason
from dflash_controller.api.defaults import RolloutPolicy
from dflash_controller.api.types import Spec
from dflash_controller.engines.protocol import ModelRef
from dflash_controller.model.probe import ProbeRequest
from dflash_controller.planning.revisions import operations
from dflash_controller.planning.revisions.revision import Revision
from dflash_controller.planning.revisions.roles import StoredRevisions
from dflash_controller.planning.rollout.probe import reference_needed
from dflash_controller.planning.state.prefetch_progress import PrefetchState, fetched, next_attempt, progress
from dflash_controller.planning.state.reconcile_state import ReconcileState
from dflash_controller.render.prefetch import prefetch_jobs


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a candidate waits for. ``stalls`` is True if it will not happen without a human."""

    reason: Reason
    message: str
    stalls: bool = False
    probe: ProbeRequest | None = None
    held: bool = False
    """True if the cluster has to make room for it first."""
    jobs: tuple[Mapping[str, Any], ...] = ()
    """The Jobs to create: those that do not exist."""


def fetch(state: ReconcileState, spec: Spec, stable: Revision, candidate: Revision) -> tuple[tuple[str, ...], Waiting | None]:
    """Returns the names of the prefetch Jobs that have succeeded, now or before, and the fetching that the candidate waits for.

    The names are stored with the trial. The fetching is None if the weights are where the pods will run. It takes no replica down.
    """
    jobs = _jobs(state, spec, stable, candidate)
    done = fetched(jobs, state.snapshot.others, state.snapshot.pods, candidate.trial.fetched)
    return done, _waiting(state, candidate, jobs, done)


def _waiting(state: ReconcileState, candidate: Revision, jobs: Sequence[Mapping[str, Any]], done: Sequence[str]) -> Waiting | None:
    found = progress(jobs, state.snapshot.others, state.snapshot.pods, done, state.context.now, state.context.fetching)
    live = {item["metadata"]["name"]: item for item in state.snapshot.others if item["kind"] == "Job"}
    missing = tuple(job for job in jobs if job["metadata"]["name"] not in live and job["metadata"]["name"] not in done)
    if found.state is PrefetchState.FAILED:
        again = [at for job in jobs if (at := next_attempt(live.get(job["metadata"]["name"], {}), candidate))]
        when = f"The next attempt is at {min(again):%Y-%m-%d %H:%M} UTC, or as soon as the Job is deleted" if again else "Delete the Job"
        message = f"{found.message}. {when}. {operations.remedy(candidate)}"
        return Waiting(found.reason, message, stalls=True, jobs=missing)
    if found.state in (PrefetchState.RUNNING, PrefetchState.HELD):
        return Waiting(Reason.PREFETCHING, found.message, held=found.state is PrefetchState.HELD, jobs=missing)
    return None


def take_reference(
    state: ReconcileState, policy: RolloutPolicy, stable: Revision, candidate: Revision, *, concurrent: bool
) -> Waiting | None:
    """Returns the probe of stable that the candidate waits for, or None. It is needed where stable stops before the candidate serves."""
    if not concurrent and (request := reference_needed(state, policy, stable)):
        message = f"{stable.name} answers the probe's prompts before it stops, to compare {candidate.name} with"
        return Waiting(Reason.TAKING_REFERENCE, message, probe=request)
    return None


def _jobs(state: ReconcileState, spec: Spec, stable: Revision, candidate: Revision) -> list[Mapping[str, Any]]:
    """Returns the prefetch Jobs; none if the nodes already hold the weights, that is the same models from the same storage."""
    before, after = stable.resolved, candidate.resolved
    same_place = stable.inputs.get("storage") == candidate.inputs.get("storage")
    same_form = bool(before.fetch_image) == bool(after.fetch_image)
    if same_place and same_form and (before.target, before.drafter) == (after.target, after.drafter):
        return []
    key = state.snapshot.key
    serving = (names.ROLE_ENGINE, names.ROLE_WORKER)
    nodes = sorted({pod.node for pod in state.snapshot.pods if pod.role in serving and pod.node and not pod.terminating})
    roots = state.context.defaults.host_path_roots
    return list(prefetch_jobs(key.name, key.namespace, candidate.hash, spec, after, nodes, roots, kept_models(state.stored, candidate)))


def kept_models(stored: StoredRevisions, candidate: Revision) -> tuple[ModelRef, ...] | None:
    """Returns the models of all stored revisions, to any of which a rollback may lead. None if the record of one cannot be read."""
    if stored.unreadable:
        return None
    found = (model for record in (*stored.records, candidate) for model in (record.resolved.target, record.resolved.drafter))
    return tuple(dict.fromkeys(found))
