"""The status to show: a projection of the situation, which may be lost at any time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_controller.api import names
from dflash_controller.api.conditions import Reason, shorten, timestamp
from dflash_controller.engines.protocol import ModelRef
from dflash_controller.planning.conditions import conditions, unfinished
from dflash_controller.planning.notices import notices
from dflash_controller.planning.record import Record
from dflash_controller.planning.situation import Situation
from dflash_controller.render.startup import startup_budget_s

REVISIONS_SHOWN = 20


def status(situation: Situation) -> dict[str, Any]:
    """The whole status. Fields that do not apply are None, which is how absence is rendered."""
    deployment, target, stable = situation.deployment, situation.target, situation.stable
    shown = deployment.get("status") or {}
    in_force = stable or target
    return {
        "observedGeneration": deployment["metadata"].get("generation"),
        "conditions": conditions(situation),
        "notices": notices(situation) or None,
        "replicas": situation.existing,
        "readyReplicas": situation.serving,
        "serving": f"{situation.serving}/{situation.budget.replicas}" if situation.spec is not None else shown.get("serving"),
        "selector": ",".join(f"{key}={value}" for key, value in names.engine_selector(situation.snapshot.key.name).items()),
        "engine": f"{in_force.resolved.engine} {in_force.resolved.version}" if in_force else None,
        "stableRevision": stable.name if stable else None,
        "candidateRevision": situation.candidate.name if situation.candidate else None,
        "speculation": _speculation(in_force) if in_force else None,
        "drafter": in_force.resolved.drafter.model if in_force else None,
        "drafterRevision": _revision(in_force.resolved.drafter) if in_force else None,
        "startupBudgetSeconds": startup_budget_s(in_force.resolved) if in_force else None,
        "figures": _figures(situation, shown),
        "rollout": _rollout(situation, shown),
        "revisions": _revisions(situation) or None,
    }


def _speculation(record: Record) -> dict[str, Any]:
    return {**record.speculation.to_json(), "label": record.speculation.label()}


def _revision(model: ModelRef) -> str:
    return model.revision or "main"


def _figures(situation: Situation, shown: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Those of the stable revision. Figures of an earlier one would be read as the new one's, so they go with it."""
    if situation.stable is None or shown.get("stableRevision") != situation.stable.name:
        return None
    current: Mapping[str, Any] = shown.get("figures") or {}
    new = situation.context.figures or {}
    if all(current.get(name) == value for name, value in new.items()):
        return current or None
    return {**current, **new, "measuredAt": timestamp(situation.context.now)}


def _rollout(situation: Situation, shown: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The rollout under way, the first start included, else the last one."""
    target, left, before = situation.target, unfinished(situation), shown.get("rollout") or {}
    now, under_way = timestamp(situation.context.now), before.get("phase") in ("Canary", "Progressing")
    if target is None:
        return before or None
    if left is None:
        done = {"phase": "Completed", "message": f"{target.name} is in force", "startedAt": before.get("startedAt"), "finishedAt": now}
        return done if under_way else before or None
    first = situation.stable is None
    if not first and left[0] is not Reason.ROLLOUT_IN_PROGRESS and not under_way:
        return before or None
    canary = situation.candidate is not None and not first
    return {
        "phase": "Canary" if canary else "Progressing",
        "step": "Waiting for one replica to serve" if situation.candidate else "Replacing replicas within the budget",
        "message": shorten(left[1]),
        "startedAt": before.get("startedAt", now) if under_way else now,
        "updatedReplicas": situation.pool(target.hash).serving,
    }


def _revisions(situation: Situation) -> list[dict[str, Any]]:
    newest = sorted(situation.records, key=lambda record: record.number, reverse=True)[:REVISIONS_SHOWN]
    return [_revision_status(situation, record) for record in newest]


def _revision_status(situation: Situation, record: Record) -> dict[str, Any]:
    pool = situation.pool(record.hash)
    return {
        "name": record.name,
        "number": record.number,
        "state": record.state.value,
        "engine": f"{record.resolved.engine} {record.resolved.version}",
        "speculation": record.speculation.label(),
        "drafterRevision": _revision(record.resolved.drafter),
        "origin": record.history[-1]["origin"] if record.history else None,
        "replicas": pool.existing,
        "readyReplicas": pool.serving,
    }
