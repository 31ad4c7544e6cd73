"""Reads the operations that a person requests by annotation: promote or abort a candidate, pin a revision.

An annotation names a revision and applies as long as it is set. The operator never removes one; an outdated one has no effect.
"""

from __future__ import annotations

from collections.abc import Sequence

from dflash_controller.api import names
from dflash_controller.model.snapshot import Object
from dflash_controller.planning.revisions.revision import Revision

OPERATIONS = {"promote": names.ANNOTATION_PROMOTE, "abort": names.ANNOTATION_ABORT}


def standing(deployment: Object, revision: str) -> tuple[str, ...]:
    """Returns the operations whose annotations name this revision by its full name, sorted."""
    annotations = deployment["metadata"].get("annotations") or {}
    return tuple(sorted(operation for operation, key in OPERATIONS.items() if annotations.get(key) == revision))


def asked(deployment: Object, candidate: Revision) -> tuple[str, ...]:
    """Returns the operations for this trial. It leaves out annotations that remain from an earlier trial of the same revision."""
    return tuple(operation for operation in standing(deployment, candidate.name) if operation not in candidate.trial.disregards)


def pinned(deployment: Object, records: Sequence[Revision]) -> Revision | None:
    """Returns the pinned revision, which runs whatever the spec asks for. None if nothing is pinned or the revision does not exist."""
    name = pin(deployment)
    return next((record for record in records if record.name == name), None)


def pin(deployment: Object) -> str | None:
    """Returns the revision name in the pin annotation, or None."""
    name: str | None = (deployment["metadata"].get("annotations") or {}).get(names.ANNOTATION_PIN)
    return name


def remedy(candidate: Revision) -> str:
    """Returns the sentence that says how a person decides on the candidate."""
    return f"Decide with kubectl annotate: {names.ANNOTATION_PROMOTE}={candidate.name}, or {names.ANNOTATION_ABORT}={candidate.name}"
