"""The conditions of a deployment, decided from its situation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dflash_controller.api import defaults
from dflash_controller.api.conditions import ConditionStatus, ConditionType, Reason, set_condition
from dflash_controller.planning.context import NOT_MEASURED
from dflash_controller.planning.pools import engines
from dflash_controller.planning.record import Record
from dflash_controller.planning.situation import Situation
from dflash_controller.planning.snapshot import Object, Pod
from dflash_controller.render.startup import startup_budget_s

HOPELESS_RESTARTS = 5
"""With the kubelet's back-off some five minutes of an engine that dies at once."""

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
    if serving >= needed:
        return (True, Reason.ENOUGH_REPLICAS, f"{serving} of {replicas} serving, {needed} needed")
    return (False, Reason.TOO_FEW_REPLICAS, f"{serving} of {replicas} serving, {needed} needed{_trouble(situation)}")


def unfinished(situation: Situation) -> tuple[Reason, str] | None:
    """What is left to do for the user's last change, None when it is done."""
    target, replicas = situation.target, situation.budget.replicas
    if target is None:
        return (Reason.NEW_GENERATION, "No revision has been made yet")
    if situation.candidate is not None and situation.stable is not None:
        return (Reason.ROLLOUT_IN_PROGRESS, f"{situation.candidate.name} is being tried on one replica; {situation.stable.name} serves")
    pool = situation.pool(target.hash)
    others = sum(other.existing for other in situation.pools if other.revision != target.hash)
    if others:
        return (Reason.ROLLOUT_IN_PROGRESS, f"{pool.serving} of {replicas} serve {target.name}, {others} of earlier revisions are left")
    if pool.existing > replicas or situation.wanted.get(target.hash, 0) != replicas:
        return (Reason.SCALING, f"From {pool.existing} to {replicas} replicas")
    untried = situation.candidate is not None
    if pool.serving < replicas and (untried or pool.existing < replicas or any(map(_loading, _pods(situation, target.hash)))):
        return (Reason.STARTING, f"{pool.serving} of {replicas} serving; an engine may take {_budget(target)} to load")
    return None


def ready(situation: Situation) -> Verdict:
    """Available, and what runs is what the spec asks for."""
    if situation.obstacle:
        return (False, situation.obstacle.reason, situation.obstacle.message)
    left, (enough, reason, message) = unfinished(situation), available(situation)
    if left and left[0] is not Reason.STARTING:
        return (False, left[0], left[1] + _trouble(situation))
    if enough:
        return (True, reason if reason is Reason.SCALED_TO_ZERO else Reason.AS_SPECIFIED, message)
    if pod := _troubled(situation):
        return (False, Reason.INSUFFICIENT_ACCELERATORS if pod.unschedulable else Reason.ENGINE_FAILING, message)
    return (False, left[0], left[1]) if left else (False, reason, message)


def reconciling(situation: Situation) -> Verdict:
    """A change made by the user is not finished."""
    if situation.obstacle:
        return (False, situation.obstacle.reason, "Waits for a human; see Stalled")
    if situation.spec is not None and defaults.suspended(situation.spec):
        return (False, Reason.SUSPENDED, "spec.suspend is true: nothing is written")
    if left := unfinished(situation):
        return (True, *left)
    return (False, Reason.SETTLED, "Nothing is left to do")


def stalled(situation: Situation) -> Verdict:
    """Nothing will get better without a human."""
    if situation.obstacle:
        return (True, situation.obstacle.reason, situation.obstacle.message)
    target = situation.target
    if target is None or situation.pool(target.hash).serving >= situation.wanted.get(target.hash, 0):
        return (False, Reason.NOT_STALLED, "No human is needed")
    pods = _pods(situation, target.hash)
    if hopeless := next((pod for pod in pods if _failing(pod) and pod.restarts >= HOPELESS_RESTARTS), None):
        return (True, Reason.ENGINE_FAILING, f"{target.name} keeps failing. {_explain(hopeless)}")
    if any(_deadline_exceeded(item) for item in situation.snapshot.workloads if item["metadata"]["name"] == target.name):
        reason = Reason.INSUFFICIENT_ACCELERATORS if any(pod.unschedulable for pod in pods) else Reason.ENGINE_FAILING
        return (True, reason, f"{target.name} made no progress within its start-up budget{_trouble(situation)}")
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
    """The rollout under way goes well."""
    if situation.candidate is None or situation.stable is None:
        return (True, Reason.NO_ROLLOUT, "No rollout is under way")
    failing = [pod for pod in _pods(situation, situation.candidate.hash) if _failing(pod)]
    if failing:
        return (False, Reason.ENGINE_FAILING, _explain(failing[0]))
    return (True, Reason.PROGRESSING, f"{situation.candidate.name} is being tried")


def _pods(situation: Situation, revision: str) -> list[Pod]:
    return [pod for pod in engines(situation.snapshot.pods) if pod.revision == revision and not pod.terminating]


def _loading(pod: Pod) -> bool:
    return not pod.ready and pod.restarts == 0 and not _failing(pod)


def _failing(pod: Pod) -> bool:
    return not pod.ready and (pod.restarts > 0 or pod.phase == "Failed" or pod.waiting_reason in _FAILURES)


_FAILURES = frozenset(
    {
        "CrashLoopBackOff",
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
    }
)


def _explain(pod: Pod) -> str:
    """No number that moves on while the trouble lasts: a message that changes is a write."""
    state = pod.unschedulable or pod.waiting_reason or ("keeps restarting" if pod.restarts else pod.phase)
    return f"Pod {pod.name}: {state}" + (f": {pod.message}" if pod.message and pod.message != state else "")


def _troubled(situation: Situation) -> Pod | None:
    """The first pod with a problem worth naming."""
    pods = sorted(engines(situation.snapshot.pods), key=lambda pod: pod.name)
    return next((pod for pod in pods if not pod.terminating and (pod.unschedulable or _failing(pod))), None)


def _trouble(situation: Situation) -> str:
    """The same as a sentence to append."""
    pod = _troubled(situation)
    return f". {_explain(pod)}" if pod else ""


def _deadline_exceeded(workload: Object) -> bool:
    return any(
        item.get("type") == "Progressing" and item.get("status") == "False" and item.get("reason") == "ProgressDeadlineExceeded"
        for item in (workload.get("status") or {}).get("conditions") or ()
    )


def _budget(target: Record) -> str:
    return f"up to {math.ceil(startup_budget_s(target.resolved) / 60)} min"
