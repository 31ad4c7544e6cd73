"""What a person asks for by annotation: promote or abort a candidate, pin a revision.

An operation names its object and holds while the annotation stands. The operator never removes one: a stale one does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from dflash_controller.api import names
from dflash_controller.model.snapshot import Object
from dflash_controller.planning.revisions.revision import Revision

OPERATIONS = {"promote": names.ANNOTATION_PROMOTE, "abort": names.ANNOTATION_ABORT}


def standing(deployment: Object, revision: str) -> tuple[str, ...]:
    """The operations whose annotations name this revision (its whole name), sorted."""
    annotations = deployment["metadata"].get("annotations") or {}
    return tuple(sorted(operation for operation, key in OPERATIONS.items() if annotations.get(key) == revision))


def asked(deployment: Object, candidate: Revision) -> tuple[str, ...]:
    """The operations that concern this trial: an annotation left over from an earlier trial of the same revision does not."""
    return tuple(operation for operation in standing(deployment, candidate.name) if operation not in candidate.trial.disregards)


def pinned(deployment: Object, records: Sequence[Revision]) -> Revision | None:
    """The revision that shall run whatever the spec asks for."""
    name = pin(deployment)
    return next((record for record in records if record.name == name), None)


def pin(deployment: Object) -> str | None:
    """The name that the pin annotation gives."""
    name: str | None = (deployment["metadata"].get("annotations") or {}).get(names.ANNOTATION_PIN)
    return name


def remedy(candidate: Revision) -> str:
    """How a person decides."""
    return f"Decide with kubectl annotate: {names.ANNOTATION_PROMOTE}={candidate.name}, or {names.ANNOTATION_ABORT}={candidate.name}"
