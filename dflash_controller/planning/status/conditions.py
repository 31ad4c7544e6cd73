"""The conditions of a deployment, decided from its situation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dflash_controller.api import defaults
from dflash_controller.api.conditions import ConditionStatus, ConditionType, Reason, set_condition
from dflash_controller.planning.revisions.revision import Origin, Record, State
from dflash_controller.planning.state.inputs import NOT_MEASURED
from dflash_controller.planning.state.pod_failures import deadline_exceeded, failing, trouble
from dflash_controller.planning.state.reconcile_state import Situation
from dflash_controller.planning.status.tuning import ready as tuning_ready
from dflash_controller.planning.status.tuning import tuning_status
from dflash_controller.render.startup import startup_budget_s

Verdict = tuple[ConditionStatus | bool | None, Reason, str]


def conditions(situation: Situation) -> list[Mapping[str, Any]]:
    """All conditions, each with the generation they were decided for; unchanged ones keep their transition time."""
    verdicts: dict[ConditionType, Verdict] = {
        ConditionType.AVAILABLE: available(situation),
        ConditionType.READY: ready(situation),
        ConditionType.RECONCILING: reconciling(situation),
        ConditionType.STALLED: stalled(situation),
        ConditionType.METRICS_AVAILABLE: metrics_available(situation),
        ConditionType.ROLLOUT_HEALTHY: rollout_healthy(situation),
    }
    if situation.decision is not None:
        verdicts[ConditionType.TUNING_READY] = tuning_ready(tuning_status(situation))
    if situation.health is not None:
        verdicts[ConditionType.SPECULATION_HEALTHY] = (situation.health.value, situation.health.reason, situation.health.message)
    metadata, status = situation.deployment["metadata"], situation.deployment.get("status") or {}
    current: Sequence[Mapping[str, Any]] = status.get("conditions") or ()
    for type, (value, reason, message) in verdicts.items():
        current = set_condition(current, type, value, reason, message, metadata.get("generation"), situation.context.now)
    return list(current)


def floor(situation: Situation) -> int:
    """Replicas that must serve. One at least: with one replica of which one may be unavailable, nothing serving is not available."""
    return max(min(1, situation.budget.replicas), situation.budget.floor)


def available(situation: Situation) -> Verdict:
    """Serving at least replicas - maxUnavailable, of any revision."""
    serving = situation.serving
    if situation.spec is None or (situation.obstacle and not situation.budget.replicas):
        return (serving > 0, Reason.ENOUGH_REPLICAS if serving else Reason.TOO_FEW_REPLICAS, f"{serving} serving")
    replicas, needed = situation.budget.replicas, floor(situation)
    if replicas == 0:
        return (True, Reason.SCALED_TO_ZERO, "spec.replicas is 0: nothing serves, as asked")
    message = f"{serving} of {replicas} serving, {needed} needed"
    if serving >= needed:
        return (True, Reason.ENOUGH_REPLICAS, message)
    found = trouble(situation)
    return (False, Reason.TOO_FEW_REPLICAS, f"{message}. {found.message}" if found else message)


def unfinished(situation: Situation) -> tuple[Reason, str] | None:
    """What is left to do for the user's last change, None when it is done."""
    target, replicas = situation.target, situation.budget.replicas
    if target is None or (situation.departs and situation.pin is None):
        return (Reason.NEW_GENERATION, "The revision that the spec asks for has not been made yet")
    if situation.candidate is not None and situation.stable is not None:
        return _trial(situation, situation.stable, situation.candidate)
    pool = situation.pool(target.hash)
    others = sum(other.existing for other in situation.pools if other.revision != target.hash)
    if others and situation.failed is not None:
        return (Reason.ROLLING_BACK, f"{situation.failed.name} failed; {pool.serving} of {replicas} serve {target.name}, {others} are left")
    if others:
        if _paused(situation):
            return (Reason.PAUSED, f"spec.rollout.paused is true: {pool.serving} of {replicas} serve {target.name}, {others} wait")
        return (Reason.ROLLOUT_IN_PROGRESS, f"{pool.serving} of {replicas} serve {target.name}, {others} of earlier revisions are left")
    if pool.existing > replicas or situation.wanted.get(target.hash, 0) != replicas:
        return (Reason.SCALING, f"From {pool.existing} to {replicas} replicas")
    untried = situation.candidate is not None
    loading = any(not pod.ready and not failing(pod) for pod in situation.pods(target.hash))
    if pool.serving < replicas and (untried or pool.existing < replicas or loading):
        if found := trouble(situation, target.hash):
            return (found.reason, f"{pool.serving} of {replicas} serving. {found.message}")
        return (Reason.STARTING, f"{pool.serving} of {replicas} serving; an engine may take {_budget(target)} to load")
    return None


def asked_by_user(situation: Situation) -> tuple[Reason, str] | None:
    """What is left to do, unless it is the tuner's change: then nothing is missing that the user asked for."""
    return None if by_tuner(situation) else unfinished(situation)


def by_tuner(situation: Situation) -> bool:
    """The newest revision is the tuner's, and is being tried, given up, or put in the place of the others."""
    newest = situation.newest
    if newest is None or newest.origin != Origin.TUNER or situation.departs:
        return False
    if newest.state is not State.STABLE:
        return newest.state in (State.CANDIDATE, State.FAILED)
    rollout = (situation.deployment.get("status") or {}).get("rollout") or {}
    return rollout.get("revision") == newest.name and rollout.get("finishedAt") is None


def _trial(situation: Situation, stable: Record, candidate: Record) -> tuple[Reason, str]:
    if outage_ahead(situation):
        message = (
            f"{stable.name} stops so that {candidate.name} can load: nothing serves meanwhile. Set spec.rollout.maxSurge to 1 to avoid it"
        )
        return (Reason.OUTAGE_AHEAD, message)
    if situation.ruling is not None:
        return (situation.ruling.reason, situation.ruling.message)
    return (Reason.ROLLOUT_IN_PROGRESS, f"{candidate.name} is to replace {stable.name}")


def outage_ahead(situation: Situation) -> bool:
    """The only replica has to go down for the candidate, and has not yet."""
    stable, candidate, budget = situation.stable, situation.candidate, situation.budget
    if stable is None or candidate is None or budget.replicas != 1 or budget.max_surge:
        return False
    waits = situation.ruling is not None and (situation.ruling.stalls or situation.ruling.reason in _NOT_YET)
    return situation.pool(stable.hash).serving > 0 and not situation.pool(candidate.hash).serving and not waits


_NOT_YET = frozenset({Reason.PAUSED, Reason.OUTSIDE_WINDOW, Reason.PREFETCHING, Reason.TAKING_REFERENCE})
"""What is to be waited for before anything is taken down."""


def _paused(situation: Situation) -> bool:
    return situation.spec is not None and bool(situation.spec.rollout.paused)


def ready(situation: Situation) -> Verdict:
    """Available, and what runs is what the spec asks for. A replica that fails later, within maxUnavailable, does not end it."""
    if situation.obstacle:
        return (False, situation.obstacle.reason, situation.obstacle.message)
    found, (enough, reason, message) = trouble(situation), available(situation)
    if left := asked_by_user(situation):
        if situation.spec is not None and defaults.suspended(situation.spec):
            return (False, Reason.SUSPENDED, f"spec.suspend keeps this from being carried out: {left[1]}")
        unsaid = found is not None and found.message not in left[1]
        return (False, left[0], f"{left[1]}. {found.message}" if found and unsaid else left[1])
    if situation.failed is not None:
        return (False, Reason.ROLLED_BACK, _rolled_back(situation, situation.failed))
    if situation.pin is not None and situation.departs:
        return (
            False,
            Reason.PINNED,
            f"{situation.pin.name} runs, as the annotation serving.dflash.io/pin asks, and not what the spec asks for",
        )
    if enough and reason is not Reason.SCALED_TO_ZERO and situation.serving >= situation.budget.replicas:
        return (True, Reason.AS_SPECIFIED, message)
    if enough:
        return (True, reason, f"{message}. {found.message}" if found else message)
    return (False, found.reason if found else reason, message)


def reconciling(situation: Situation) -> Verdict:
    """A change made by the user is not finished."""
    if situation.obstacle:
        return (False, situation.obstacle.reason, "Waits for a human; see Stalled")
    if situation.spec is not None and defaults.suspended(situation.spec):
        return (False, Reason.SUSPENDED, "spec.suspend is true: nothing is written")
    if left := asked_by_user(situation):
        return (True, *left)
    if situation.failed is not None:
        return (False, Reason.ROLLED_BACK, _rolled_back(situation, situation.failed))
    return (False, Reason.SETTLED, "Nothing is left to do")


def _rolled_back(situation: Situation, failed: Record) -> str:
    found, stable = failed.trial.finding, situation.stable
    why = f": {found.message}" if found else ""
    return (
        f"{failed.name} was given up{why}. {stable.name if stable else 'Nothing'} serves. Change the spec, or spec.restartId to try again"
    )


def stalled(situation: Situation) -> Verdict:
    """Nothing will get better without a human."""
    if situation.obstacle:
        return (True, situation.obstacle.reason, situation.obstacle.message)
    if situation.failed is not None:
        finding = situation.failed.trial.finding
        reason = Reason.ABORTED if finding and finding.reason is Reason.ABORTED else Reason.ROLLED_BACK
        return (True, reason, _rolled_back(situation, situation.failed))
    ruling = situation.ruling
    if ruling is not None and situation.candidate is not None:
        return (True, ruling.reason, ruling.message) if ruling.stalls else (False, Reason.NOT_STALLED, "No human is needed")
    target = situation.target
    if target is None or situation.pool(target.hash).serving >= situation.wanted.get(target.hash, 0):
        return (False, Reason.NOT_STALLED, "No human is needed")
    found = trouble(situation, target.hash)
    if found and found.hopeless:
        return (True, found.reason, found.message)
    if deadline_exceeded(situation, target.hash):
        reason, message = (found.reason, f". {found.message}") if found else (Reason.ENGINE_FAILING, "")
        return (True, reason, f"{target.name} made no progress within its start-up budget{message}")
    return (False, Reason.NOT_STALLED, "No human is needed")


def metrics_available(situation: Situation) -> Verdict:
    """The operator can read what the engines measure."""
    health = situation.context.metrics
    if health.reason is Reason.NO_PODS and situation.serving:
        # They became Ready after the last round of measurements.
        return (NOT_MEASURED.available, NOT_MEASURED.reason, NOT_MEASURED.message)
    if health.available is None:
        # Right after a start nothing is measured yet: what was known before still stands.
        status = situation.deployment.get("status") or {}
        shown = next((item for item in status.get("conditions") or () if item["type"] == ConditionType.METRICS_AVAILABLE), None)
        if shown is not None:
            return (shown["status"], Reason(shown["reason"]), shown["message"])
    return (health.available, health.reason, health.message)


def rollout_healthy(situation: Situation) -> Verdict:
    """The rollout under way goes well; the last one did."""
    if situation.obstacle is not None and situation.candidate is not None:
        return (False, situation.obstacle.reason, f"{situation.candidate.name} stays as it is: {situation.obstacle.message}")
    left, target, failed = unfinished(situation), situation.target, situation.failed
    if failed is not None:
        finding = failed.trial.told
        return (False, finding.reason, f"{failed.name}: {finding.message}")
    ruling = situation.ruling if situation.candidate is not None else None
    if target is None or left is None or (left[0] in (Reason.SCALING, Reason.STARTING) and ruling is None and situation.candidate is None):
        return (True, Reason.NO_ROLLOUT, "No rollout is under way")
    if left[0] is Reason.OUTAGE_AHEAD or (ruling is not None and ruling.stalls):
        return (False, *left)
    if found := trouble(situation, target.hash):
        return (False, found.reason, found.message)
    return (True, ruling.reason if ruling else Reason.PROGRESSING, left[1])


def _budget(target: Record) -> str:
    return f"up to {math.ceil(startup_budget_s(target.resolved) / 60)} min"
