"""What a candidate changes, and therefore what it is judged by.

Metrics are compared only where the change could not alter them by its nature: acceptance length falls with the block size, and another
target is another model altogether.
"""

from __future__ import annotations

from typing import Any

from dflash_controller.analysis.verdict import AnalysisRequest
from dflash_controller.api.defaults import RolloutPolicy
from dflash_controller.engines.resolved import PART_OF_FIELD
from dflash_controller.model.change import Part
from dflash_controller.planning.revisions.revision import Revision

_ALL = frozenset({"acceptanceLength", "speed", "ttft", "latency", "errors", "restarts"})
_JUDGED = {
    Part.TARGET: frozenset({"errors", "restarts"}),
    Part.DRAFTER: _ALL,
    Part.BLOCK_SIZE: _ALL - {"acceptanceLength"},
    Part.ENGINE: _ALL,
}


def changed(stable: Revision, candidate: Revision) -> frozenset[Part]:
    """Empty where only what cannot change performance differs (scheduling, labels, storage, restartId).

    A restart of a drafter that is not pinned to a commit may load another drafter: that is a change of drafter.
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


def question(policy: RolloutPolicy, stable: Revision, candidate: Revision, *, concurrent: bool, warm_up_s: float) -> AnalysisRequest | None:
    """What the candidate is asked; None where nothing that matters has changed, or every gate is switched off.

    Text can be compared while engine and target stay the same: other kernels round otherwise, and another target says something else.
    """
    parts = changed(stable, candidate)
    if not parts:
        return None
    judged = frozenset.intersection(*(_JUDGED[part] for part in parts))
    if min(stable.speculation.max_block_size, candidate.speculation.max_block_size) <= 1:
        judged -= {"acceptanceLength"}
    gates = {name: gate for name, gate in policy.analysis.items() if name in judged and gate.enabled}
    text = policy.probe.enabled and parts <= {Part.DRAFTER, Part.BLOCK_SIZE}
    if not gates and not text:
        return None
    return AnalysisRequest(
        gates=gates,
        text_gates=text,
        max_mismatch_percent=policy.probe.max_mismatch_percent,
        candidate_block=candidate.speculation.max_block_size,
        stable_block=stable.speculation.max_block_size,
        concurrent=concurrent,
        warm_up_s=warm_up_s,
    )


def _written(record: Revision, field: str) -> Any:
    return record.inputs.get(field)
