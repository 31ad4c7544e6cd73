"""Decides the conditions of a deployment from its state."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dflash_controller.api import defaults
from dflash_controller.api.conditions import ConditionStatus, ConditionType, Reason, get_condition, set_condition
from dflash_controller.model.metrics_health import NOT_MEASURED
from dflash_controller.planning.revisions.revision import Origin, Revision, RevisionState
from dflash_controller.planning.state.fetches import arrives, arriving, told
from dflash_controller.planning.state.plan import Part
from dflash_controller.planning.state.pod_troubles import deadline_exceeded, failing, pod_failure
from dflash_controller.planning.state.reconcile_state import ReconcileState
from dflash_controller.planning.status.tuning import ready as tuning_ready
from dflash_controller.planning.status.tuning import tuning_status
from dflash_controller.render.startup import startup_budget_s

Verdict = tuple[ConditionStatus | bool | None, Reason, str]


def conditions(state: ReconcileState) -> list[Mapping[str, Any]]:
    """Returns all conditions, each with the generation it was decided for. Unchanged conditions keep their transition time."""
    verdicts: dict[ConditionType, Verdict] = {
        ConditionType.AVAILABLE: available(state),
        ConditionType.READY: ready(state),
        ConditionType.RECONCILING: reconciling(state),
        ConditionType.STALLED: stalled(state),
        ConditionType.METRICS_AVAILABLE: metrics_available(state),
        ConditionType.ROLLOUT_HEALTHY: rollout_healthy(state),
        ConditionType.ACCESSORIES_READY: accessories_ready(state),
    }
    if state.decision is not None:
        verdicts[ConditionType.TUNING_READY] = tuning_ready(tuning_status(state))
    if state.health is not None:
        verdicts[ConditionType.SPECULATION_HEALTHY] = (state.health.value, state.health.reason, state.health.message)
    metadata, status = state.deployment["metadata"], state.deployment.get("status") or {}
    current: Sequence[Mapping[str, Any]] = status.get("conditions") or ()
    for type, (value, reason, message) in verdicts.items():
        current = set_condition(current, type, value, reason, message, metadata.get("generation"), state.context.now)
    return list(current)


def floor(state: ReconcileState) -> int:
    """Returns the number of replicas that must serve for Available.

    It is at least 1 unless replicas is 0: one replica that may be unavailable does not make a deployment available that serves nothing.
    """
    return max(min(1, state.budget.replicas), state.budget.floor)


def available(state: ReconcileState) -> Verdict:
    """Decides Available: at least replicas - maxUnavailable replicas serve, and at least one, of any revision."""
    serving = state.serving
    replicas, needed = state.budget.replicas, floor(state)
    if replicas == 0:
        return (True, Reason.SCALED_TO_ZERO, "spec.replicas is 0: nothing serves, as asked")
    message = f"{serving} of {replicas} serving, {needed} needed"
    if serving >= needed:
        return (True, Reason.ENOUGH_REPLICAS, message)
    found = pod_failure(state)
    return (False, Reason.TOO_FEW_REPLICAS, f"{message}. {found.message}" if found else message)


def unfinished(state: ReconcileState) -> tuple[Reason, str] | None:
    """Returns what is left to do for the last change, or None if nothing is."""
    return _changing(state) or _loading(state)


def _changing(state: ReconcileState) -> tuple[Reason, str] | None:
    """Returns which change of revisions or replicas is not finished, or None."""
    target, replicas = state.target, state.budget.replicas
    if state.waits_for_hub is not None:
        return (Reason.RESOLVING_REVISIONS, state.waits_for_hub)
    if target is None or (state.departs and state.pin is None):
        return (Reason.NEW_GENERATION, "The revision that the spec asks for does not exist yet")
    if state.candidate is not None and state.stable is not None:
        return _trial(state, state.stable, state.candidate)
    pool = state.pool(target.hash)
    others = sum(other.existing for other in state.pools if other.revision != target.hash)
    if others and state.failed is not None and not by_tuner(state):
        return (Reason.ROLLING_BACK, f"{state.failed.name} failed; {pool.serving} of {replicas} serve {target.name}, {others} are left")
    if others:
        if _paused(state):
            return (Reason.PAUSED, f"spec.rollout.paused is true: {pool.serving} of {replicas} serve {target.name}, {others} wait")
        return (Reason.ROLLOUT_IN_PROGRESS, f"{pool.serving} of {replicas} serve {target.name}, {others} of earlier revisions remain")
    if pool.existing > replicas or state.wanted.get(target.hash, 0) != replicas:
        return (Reason.SCALING, f"From {pool.existing} to {replicas} replicas")
    return None


def _loading(state: ReconcileState) -> tuple[Reason, str] | None:
    """Returns what keeps replicas of the target that were just made from serving, or None. A replica that fails later does not count."""
    target, replicas = state.target, state.budget.replicas
    if target is None:
        return None
    pool = state.pool(target.hash)
    untried = state.candidate is not None
    loading = any(not pod.serving and (not failing(pod) or arrives(state, pod)) for pod in state.pods(target.hash))
    if pool.serving < replicas and (untried or pool.existing < replicas or loading):
        if found := pod_failure(state, target.hash):
            return (found.reason, f"{pool.serving} of {replicas} serving. {found.message}")
        if fetching := told(state, target.hash):
            return (Reason.STARTING, f"{pool.serving} of {replicas} serving. {fetching}")
        return (Reason.STARTING, f"{pool.serving} of {replicas} serving; an engine may take {_budget(target)} to load")
    return None


def asked_by_user(state: ReconcileState) -> tuple[Reason, str] | None:
    """Returns what is left to do for a change of the user.

    None for a change of the tuner, which the user did not ask for, and for replicas that load again after the user's last change was done.
    """
    if by_tuner(state):
        return None
    return _changing(state) or (None if _settled_before(state) else _loading(state))


def _settled_before(state: ReconcileState) -> bool:
    """Returns whether the status says of this generation that nothing is left to do. If the status was lost, replicas that load count."""
    shown = get_condition((state.deployment.get("status") or {}).get("conditions") or (), ConditionType.RECONCILING)
    generation = state.deployment["metadata"].get("generation")
    return shown is not None and shown.get("reason") == Reason.SETTLED and shown.get("observedGeneration") == generation


def by_tuner(state: ReconcileState) -> bool:
    """Returns whether the newest revision is the tuner's and is on trial, has failed, or is replacing the others."""
    newest = state.newest
    if newest is None or newest.origin != Origin.TUNER or state.departs:
        return False
    if newest.state is not RevisionState.STABLE:
        return newest.state in (RevisionState.CANDIDATE, RevisionState.FAILED)
    rollout = (state.deployment.get("status") or {}).get("rollout") or {}
    return rollout.get("revision") == newest.name and rollout.get("finishedAt") is None


def _trial(state: ReconcileState, stable: Revision, candidate: Revision) -> tuple[Reason, str]:
    if outage_ahead(state):
        message = (
            f"{stable.name} stops so that {candidate.name} can load: nothing serves meanwhile. Set spec.rollout.maxSurge to 1 to avoid it"
        )
        return (Reason.OUTAGE_AHEAD, message)
    if state.outcome is not None:
        return (state.outcome.reason, state.outcome.message)
    return (Reason.ROLLOUT_IN_PROGRESS, f"{candidate.name} will replace {stable.name}")


def outage_ahead(state: ReconcileState) -> bool:
    """Returns whether the only replica has to stop for the candidate and has not stopped yet.

    A candidate that waits for something gets no replica, so nothing stops for it. The plan that begins a trial gives it none either, and
    tells of the outage before the next plan causes it.
    """
    stable, candidate, budget, outcome = state.stable, state.candidate, state.budget, state.outcome
    if stable is None or candidate is None or budget.replicas != 1 or budget.max_surge:
        return False
    if not state.pool(stable.hash).serving or state.pool(candidate.hash).serving:
        return False
    if outcome is None:
        return state.held is None or state.pool(candidate.hash).wanted > 0
    return not outcome.stalls and (outcome.tried or outcome.reason is Reason.ROLLOUT_IN_PROGRESS)


def _paused(state: ReconcileState) -> bool:
    return state.spec is not None and bool(state.spec.rollout.paused)


def ready(state: ReconcileState) -> Verdict:
    """Decides Ready: the deployment is available and runs what the spec asks for. A later failure within maxUnavailable does not end it."""
    if state.blocker:
        return (False, state.blocker.reason, state.blocker.message)
    found, (enough, reason, message) = pod_failure(state), available(state)
    if left := asked_by_user(state):
        if state.spec is not None and defaults.suspended(state.spec):
            return (False, Reason.SUSPENDED, f"spec.suspend keeps this from being carried out: {left[1]}")
        unsaid = found is not None and found.message not in left[1]
        return (False, left[0], f"{left[1]}. {found.message}" if found and unsaid else left[1])
    if state.failed is not None:
        return (False, Reason.ROLLED_BACK, _rolled_back(state, state.failed))
    if state.pin is not None and state.departs:
        return (
            False,
            Reason.PINNED,
            f"{state.pin.name} runs, as the annotation serving.dflash.io/pin asks, and not what the spec asks for",
        )
    if enough and reason is not Reason.SCALED_TO_ZERO and state.serving >= state.budget.replicas:
        return (True, Reason.AS_SPECIFIED, message)
    if enough:
        return (True, reason, f"{message}. {found.message}" if found else message)
    return (False, found.reason if found else reason, message)


def reconciling(state: ReconcileState) -> Verdict:
    """Decides Reconciling: a change of the user is not finished."""
    if blocker := state.obstacles.get(Part.SERVING, state.held):
        return (False, blocker.reason, "Waits for your action; see Stalled")
    if state.spec is not None and defaults.suspended(state.spec):
        return (False, Reason.SUSPENDED, "Nothing is written until spec.suspend is false; pods keep serving")
    if left := asked_by_user(state):
        return (True, *left)
    if state.failed is not None:
        return (False, Reason.ROLLED_BACK, _rolled_back(state, state.failed))
    return (False, Reason.SETTLED, "Nothing is left to do")


def _rolled_back(state: ReconcileState, failed: Revision) -> str:
    found, stable = failed.trial.finding, state.stable
    why = f": {found.message}" if found else ""
    return f"{failed.name} failed{why}. {stable.name if stable else 'Nothing'} serves. Change the spec, or spec.restartId to try again"


def stalled(state: ReconcileState) -> Verdict:
    """Decides Stalled: the operator cannot continue without a human."""
    if state.blocker:
        return (True, state.blocker.reason, state.blocker.message)
    if state.failed is not None:
        finding = state.failed.trial.finding
        reason = Reason.ABORTED if finding and finding.reason is Reason.ABORTED else Reason.ROLLED_BACK
        return (True, reason, _rolled_back(state, state.failed))
    outcome = state.outcome
    if outcome is not None and state.candidate is not None:
        return (True, outcome.reason, outcome.message) if outcome.stalls else (False, Reason.NOT_STALLED, "No action is needed")
    target = state.target
    if target is None or state.pool(target.hash).serving >= state.wanted.get(target.hash, 0):
        return (False, Reason.NOT_STALLED, "No action is needed")
    found = pod_failure(state, target.hash)
    if found and found.terminal:
        return (True, found.reason, found.message)
    if deadline_exceeded(state, target.hash) and not arriving(state, target.hash):
        reason, message = (found.reason, f". {found.message}") if found else (Reason.ENGINE_FAILING, "")
        return (True, reason, f"{target.name} made no progress within its start-up budget{message}")
    return (False, Reason.NOT_STALLED, "No action is needed")


def metrics_available(state: ReconcileState) -> Verdict:
    """Decides MetricsAvailable: the operator can read the engines' metrics."""
    health = state.context.metrics
    if health.reason is Reason.NO_PODS and state.serving:
        # The pods became Ready after the last round of measurements.
        return (NOT_MEASURED.available, NOT_MEASURED.reason, NOT_MEASURED.message)
    if health.available is None:
        # Nothing is measured yet right after a start, so the last known value stays.
        status = state.deployment.get("status") or {}
        shown = next((item for item in status.get("conditions") or () if item["type"] == ConditionType.METRICS_AVAILABLE), None)
        # A reason that only a newer operator gives is not repeated.
        if shown is not None and shown.get("reason") in set(Reason):
            return (shown["status"], Reason(shown["reason"]), shown["message"])
    return (health.available, health.reason, health.message)


def rollout_healthy(state: ReconcileState) -> Verdict:
    """Decides RolloutHealthy: the current rollout goes well, or the last one did."""
    if state.held is not None and state.candidate is not None:
        return (False, state.held.reason, f"{state.candidate.name} stays as it is: {state.held.message}")
    left, target, failed = unfinished(state), state.target, state.failed
    if failed is not None:
        finding = failed.trial.told
        return (False, finding.reason, f"{failed.name}: {finding.message}")
    outcome = state.outcome if state.candidate is not None else None
    if target is None or left is None or (left[0] in (Reason.SCALING, Reason.STARTING) and outcome is None and state.candidate is None):
        return (True, Reason.NO_ROLLOUT, "No rollout is under way")
    if left[0] is Reason.OUTAGE_AHEAD or (outcome is not None and outcome.stalls):
        return (False, *left)
    if found := pod_failure(state, target.hash):
        return (False, found.reason, found.message)
    return (True, outcome.reason if outcome else Reason.PROGRESSING, left[1])


def accessories_ready(state: ReconcileState) -> Verdict:
    """Decides AccessoriesReady: the objects around the engines could be written as the spec asks."""
    if blocker := state.obstacles.get(Part.ACCESSORIES):
        return (False, blocker.reason, blocker.message)
    if state.spec is None:
        return (None, Reason.INVALID_SPEC, "They stay as they are until the spec is valid")
    return (True, Reason.AS_SPECIFIED, "They are as the spec asks")


def _budget(target: Revision) -> str:
    return f"up to {math.ceil(startup_budget_s(target.resolved) / 60)} min"
