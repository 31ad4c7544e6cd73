"""Reads the revisions of one deployment from its ControllerRevisions, once per snapshot.

Only this module decides which revision is stable. ``status.stableRevision`` only shows it, because a status may be lost at any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dflash_controller.model.snapshot import Object
from dflash_controller.planning.revisions.revision import Revision, RevisionState, read


@dataclass(frozen=True, slots=True)
class StoredRevisions:
    """The revisions of one deployment. ``stable`` and ``candidate`` are the roles before a plan."""

    records: tuple[Revision, ...] = ()
    stable: Revision | None = None
    candidate: Revision | None = None
    unreadable: tuple[Object, ...] = ()
    """ControllerRevisions that a newer operator wrote or that are damaged."""

    def named(self, name: str) -> Revision | None:
        """Returns the revision of this name, or of this part after the deployment's name; None if there is none."""
        return next((record for record in self.records if name in (record.name, record.hash)), None)


def read_stored(items: Iterable[Object]) -> StoredRevisions:
    """Returns the revisions in the ControllerRevisions of one deployment."""
    pairs = [(item, read(item)) for item in items]
    records = tuple(record for _, record in pairs if record is not None)
    return StoredRevisions(
        records=records,
        # An interrupted promotion leaves an older revision marked Stable too.
        stable=_newest(records, RevisionState.STABLE),
        candidate=_newest(records, RevisionState.CANDIDATE),
        unreadable=tuple(item for item, record in pairs if record is None),
    )


def _newest(records: Sequence[Revision], state: RevisionState) -> Revision | None:
    """Returns the revision of this state with the highest number. Of two with one number the older counts: it was there first."""
    found = [record for record in records if record.state is state]
    return min(found, key=lambda record: (-record.number, _created(record)), default=None)


def _created(record: Revision) -> str:
    """Returns the time of creation, which sorts as text. A record that is not written yet is the newest."""
    return str(record.source["metadata"].get("creationTimestamp") or "new")
