"""Builds the status. It is a projection of the state and may be lost at any time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from dflash_controller.analysis.verdict import MetricVerdict
from dflash_controller.api import defaults, names
from dflash_controller.api.conditions import Reason, shorten, timestamp
from dflash_controller.engines.protocol import ModelRef
from dflash_controller.planning.revisions.capacity import effective
from dflash_controller.planning.revisions.outcome import Phase
from dflash_controller.planning.revisions.revision import Revision, RevisionState
from dflash_controller.planning.state.reconcile_state import ReconcileState
from dflash_controller.planning.status.conditions import by_tuner, conditions, unfinished
from dflash_controller.planning.status.notices import notices
from dflash_controller.planning.status.tuning import tuning_status
from dflash_controller.render.startup import budget_reason, startup_budget_s

REVISIONS_SHOWN = 20
SHOWN_FOR = timedelta(seconds=60)
VERDICT_LETTERS = 256


def status(state: ReconcileState) -> dict[str, Any]:
    """Returns the whole status. A field that does not apply is None, which means absent."""
    deployment, target, stable = state.deployment, state.target, state.stable
    shown = deployment.get("status") or {}
    in_force = stable or target
    metrics = _metric_values(state, shown)
    return {
        "observedGeneration": deployment["metadata"].get("generation"),
        "conditions": conditions(state),
        "notices": notices(state, metrics) or None,
        "replicas": state.existing,
        "readyReplicas": state.serving,
        "serving": f"{state.serving}/{state.budget.replicas}" if state.spec is not None else shown.get("serving"),
        "selector": ",".join(f"{key}={value}" for key, value in names.engine_selector(state.snapshot.key.name).items()),
        "engine": f"{in_force.resolved.engine} {in_force.resolved.version}" if in_force else None,
        "stableRevision": stable.name if stable else None,
        "candidateRevision": state.candidate.name if state.candidate else None,
        "speculation": _speculation(in_force) if in_force else None,
        "drafter": in_force.resolved.drafter.model if in_force else None,
        "drafterRevision": _revision(in_force.resolved.drafter) if in_force else None,
        "startupBudgetSeconds": startup_budget_s(in_force.resolved) if in_force else None,
        "startupBudgetReason": budget_reason(in_force.resolved) if in_force else None,
        "effectiveMaxConcurrency": effective(stable, metrics) if stable else None,
        "metrics": metrics,
        "tuning": tuning_status(state),
        "rollout": _rollout(state, shown),
        "revisions": _revisions(state) or None,
    }


def _speculation(record: Revision) -> dict[str, Any]:
    return {**record.speculation.to_json(), "label": record.speculation.label()}


def _revision(model: ModelRef) -> str:
    return model.revision or "main"


def _metric_values(state: ReconcileState, shown: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Returns the metrics of the stable revision. It drops those of an earlier revision, which would be read as the new one's."""
    stable, before = state.stable, state.stored.stable
    if stable is None:
        return None
    current: Mapping[str, Any] = (shown.get("metrics") if shown.get("stableRevision") == stable.name else None) or {}
    new = (state.context.metric_values if before is not None and before.hash == stable.hash else None) or {}
    if all(current.get(name) == value for name, value in new.items()):
        return current or None
    return {**current, **new, "measuredAt": timestamp(state.context.now)}


def _rollout(state: ReconcileState, shown: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Returns the current rollout, including the first start, or else the last one."""
    before: Mapping[str, Any] = shown.get("rollout") or {}
    about = state.candidate or _moved_by_tuner(state) or state.failed or state.stable
    if (blocker := state.held) is not None and state.failed is None:
        if before.get("phase") in (None, *_ENDS):
            return before or None
        stuck = {
            "phase": Phase.HELD.value,
            "reason": blocker.reason.value,
            "step": _STEPS[Phase.HELD],
            "message": shorten(blocker.message),
        }
        return {**before, **stuck}
    if about is None or (state.waits_for_hub is not None and state.candidate is None):
        return before or None
    phase, reason, step, message = _standing(state, about, under_way=before.get("phase", Phase.COMPLETED) not in _ENDS)
    now = timestamp(state.context.now)
    same = before.get("revision") == about.name and (phase in _ENDS or before.get("phase") not in _ENDS)
    over = phase in _ENDS
    return {
        "phase": phase.value,
        "revision": about.name,
        "reason": reason.value if reason else None,
        "step": step,
        "message": shorten(message),
        "startedAt": before.get("startedAt", now) if same else now,
        "finishedAt": (before.get("finishedAt") if same else None) or now if over else None,
        "updatedReplicas": state.pool(about.hash).serving,
        **_analysis(state, before if same else {}),
    }


_ENDS = frozenset({Phase.COMPLETED, Phase.ROLLED_BACK, Phase.SUPERSEDED})


def _moved_by_tuner(state: ReconcileState) -> Revision | None:
    """Returns the newest revision if replicas still move because of the tuner: it failed a trial of the tuner, or replaces the others.

    Once they have moved, nobody has to act. A change of the user that failed before is then shown again.
    """
    if unfinished(state) is None or not by_tuner(state):
        return None
    newest = state.newest
    return newest if newest is not None and newest.state in (RevisionState.FAILED, RevisionState.STABLE) else None


def _standing(state: ReconcileState, about: Revision, *, under_way: bool) -> tuple[Phase, Reason | None, str | None, str]:
    """Returns phase, reason, what the rollout waits for, and a message that says the same.

    ``under_way`` is True if the status shows a running rollout. A rollout is complete when every new replica serves; later scaling does
    not begin a new one.
    """
    left, outcome, newest = unfinished(state), state.outcome, max(state.records, key=lambda record: record.number)
    # The last new replica can only start after the last old one has ended. Until then the new revision is not active everywhere.
    leaving = any(pool.terminating for pool in state.pools if pool.revision != about.hash)
    moving = left is not None and (left[0] not in (Reason.SCALING, Reason.STARTING) or leaving)
    if state.spec is not None and defaults.suspended(state.spec) and moving:
        return (Phase.SUSPENDED, Reason.SUSPENDED, None, "spec.suspend is true: nothing is written")
    if state.candidate is not None and outcome is not None:
        step = "Waiting for room" if outcome.phase is Phase.HELD and not outcome.stalls else _STEPS.get(outcome.phase)
        return (outcome.phase, outcome.reason, step, outcome.message)
    if about.state is RevisionState.FAILED and about is not state.candidate:
        found, phase = about.trial.told, Phase.ROLLED_BACK if left is None else Phase.ROLLING_BACK
        return (phase, found.reason, _STEPS.get(phase), found.message)
    back = newest.hash != about.hash and newest.state is RevisionState.SUPERSEDED
    reverted = bool(about.history) and about.history[-1]["reason"] == Reason.REVERTED
    if left is None or (not moving and state.candidate is None):
        if back:
            return (Phase.SUPERSEDED, Reason.SUPERSEDED, None, _superseded(newest))
        if left is None or not under_way:
            return (Phase.COMPLETED, Reason.COMPLETED, None, f"{about.name} is active")
    if back:
        return (Phase.ROLLING_BACK, Reason.SUPERSEDED, _STEPS[Phase.ROLLING_BACK], left[1])
    phase = Phase.PAUSED if left[0] is Reason.PAUSED else Phase.ROLLING_BACK if reverted and moving else Phase.PROGRESSING
    return (phase, left[0], _STEPS.get(phase), left[1])


def _superseded(record: Revision) -> str:
    """Returns how a revision ended that the spec no longer asks for."""
    if (failure := record.failure) is None:
        return f"{record.name} was replaced by another change before it was promoted"
    why = f": {record.trial.finding.message}" if record.trial.finding else ""
    return f"{record.name} failed ({failure['reason']}){why}; the spec asks for something else now"


_STEPS = {
    Phase.PREPARING: "Preparing the trial",
    Phase.CANARY: "Waiting for one replica to serve",
    Phase.ANALYZING: "Comparing one replica with the stable ones",
    Phase.HELD: "Waiting for you",
    Phase.PAUSED: "Waiting for spec.rollout.paused to become false",
    Phase.PROGRESSING: "Replacing replicas within the budget",
    Phase.ROLLING_BACK: "Replacing replicas by those of the stable revision",
}


def _analysis(state: ReconcileState, before: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the shown verdicts until one changes or a minute has passed, because their metrics change with every evaluation."""
    kept = {"analyzedAt": before.get("analyzedAt"), "analysis": before.get("analysis")}
    outcome, now = state.outcome, state.context.now
    if outcome is None or not outcome.verdicts:
        return kept
    fresh = [_verdict(verdict) for verdict in outcome.verdicts]
    same = [(item["metric"], item["verdict"]) for item in fresh] == [(item["metric"], item["verdict"]) for item in kept["analysis"] or ()]
    if same and outcome.end is None and timestamp(now - SHOWN_FOR) < str(kept["analyzedAt"]):
        return kept
    return {"analyzedAt": timestamp(now), "analysis": fresh}


def _verdict(verdict: MetricVerdict) -> dict[str, Any]:
    return {
        "metric": verdict.metric,
        "verdict": verdict.outcome.value,
        "candidate": _rounded(verdict.candidate),
        "stable": _rounded(verdict.stable),
        "limit": _rounded(verdict.limit),
        "samples": _rounded(verdict.samples),
        "stableSamples": _rounded(verdict.stable_samples),
        "ageSeconds": _rounded(verdict.age_s),
        "gates": None if verdict.gates else False,
        "message": shorten(verdict.message, VERDICT_LETTERS),
    }


def _rounded(value: float | None) -> float | None:
    """Returns the value rounded to four significant digits, because more mean nothing. None if it is not finite."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.4g}")


def _revisions(state: ReconcileState) -> list[dict[str, Any]]:
    newest = sorted(state.records, key=lambda record: record.number, reverse=True)[:REVISIONS_SHOWN]
    return [_revision_status(state, record) for record in newest]


def _revision_status(state: ReconcileState, record: Revision) -> dict[str, Any]:
    pool = state.pool(record.hash)
    return {
        "name": record.name,
        "number": record.number,
        "state": record.state.value,
        "engine": f"{record.resolved.engine} {record.resolved.version}",
        "speculation": record.speculation.label(),
        "drafterRevision": _revision(record.resolved.drafter),
        "origin": record.origin,
        "reason": record.history[-1]["reason"] if record.history else None,
        "replicas": pool.existing,
        "readyReplicas": pool.serving,
    }
