"""Finds what a candidate changes, and which gates therefore judge it."""

from __future__ import annotations

from typing import Any

from dflash_controller.analysis.gates import applicable
from dflash_controller.analysis.verdict import AnalysisRequest
from dflash_controller.api.defaults import RolloutPolicy
from dflash_controller.engines.resolved import PART_OF_FIELD
from dflash_controller.model.change import Change, Part
from dflash_controller.planning.revisions.rendering import pod_difference
from dflash_controller.planning.revisions.revision import Revision

TEXT_STAYS = frozenset({Part.DRAFTER, Part.BLOCK_SIZE})
"""Changes that keep the generated text the same. Other kernels round differently, and another target generates other text."""


def changed_values(stable: Revision, candidate: Revision) -> frozenset[Part]:
    """Returns the parts in which the values differ that the user, the catalog or the operator's defaults decide.

    A restart with a drafter that is not pinned to a commit may load other weights, so it counts as a change of drafter.
    """
    before, after = stable.resolved, candidate.resolved
    parts = {part for field, part in PART_OF_FIELD.items() if getattr(before, field) != getattr(after, field)}
    loaded_anew = _written(stable, "restartId") != _written(candidate, "restartId") and not after.drafter.pinned
    if loaded_anew:
        parts.add(Part.DRAFTER)
    if stable.speculation != candidate.speculation:
        parts.add(Part.BLOCK_SIZE)
    if (_written(stable, "engine") or {}).get("env") != (_written(candidate, "engine") or {}).get("env"):
        parts.add(Part.ENGINE)
    return frozenset(parts)


def changed(stable: Revision, candidate: Revision) -> frozenset[Part]:
    """Returns the parts that the candidate changes, as the stored pods of both show them.

    It is empty if the pods run the same and only fields differ that cannot change performance (scheduling, labels, storage, restartId). A
    setting that came with another release of the operator counts as a change of the engine, like one that the user wrote.
    """
    parts, pods = changed_values(stable, candidate), pod_difference(stable, candidate)
    unexplained = bool(pods.unexplained) if pods.unexplained is not None else not parts
    return parts | {Part.ENGINE} if pods.any and (pods.resources or unexplained) else parts


def rendered_differently(stable: Revision, candidate: Revision) -> tuple[str, ...]:
    """Returns the names of the settings that the candidate changes only because another release of the operator rendered one of them."""
    return pod_difference(stable, candidate).unexplained or ()


def question(policy: RolloutPolicy, stable: Revision, candidate: Revision, *, concurrent: bool, warm_up_s: float) -> AnalysisRequest | None:
    """Returns the analysis that the candidate needs, or None if no relevant part has changed or every gate is switched off."""
    parts = changed(stable, candidate)
    if not parts:
        return None
    change = Change(parts, candidate.speculation.max_block_size, stable.speculation.max_block_size)
    judged = applicable(change)
    gates = {name: gate for name, gate in policy.analysis.items() if name in judged and gate.enabled}
    text = policy.probe.enabled and parts <= TEXT_STAYS
    if not gates and not text:
        return None
    return AnalysisRequest(
        gates=gates,
        text_gates=text,
        max_mismatch_percent=policy.probe.max_mismatch_percent,
        candidate_block=change.candidate_block,
        stable_block=change.stable_block,
        concurrent=concurrent,
        warm_up_s=warm_up_s,
        deadline_s=policy.deadline_s,
    )


def _written(record: Revision, field: str) -> Any:
    return record.inputs.get(field)
