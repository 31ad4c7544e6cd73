"""Finds what keeps parts of the plan from being carried out: names held by others, unreadable revisions, kinds that are not served.

Each obstacle stops its own part only. What serves is scaled and repaired under every one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from dflash_controller.api import names
from dflash_controller.model.snapshot import Object, Snapshot
from dflash_controller.planning.replicas.count import LEADER_WORKER_SET, revision_of
from dflash_controller.planning.revisions.revision import RevisionState
from dflash_controller.planning.revisions.roles import StoredRevisions, read_stored
from dflash_controller.planning.state import blockers
from dflash_controller.planning.state.child_ownership import foreign
from dflash_controller.planning.state.inputs import Blocker
from dflash_controller.planning.state.plan import Part

_ROLES = frozenset({RevisionState.STABLE, RevisionState.CANDIDATE})
_REVISIONS = ("ControllerRevision", "Deployment", LEADER_WORKER_SET)


@dataclass(frozen=True, slots=True)
class Obstacles:
    """The obstacles, and the snapshot without the objects of others.

    ``unknown`` are the hashes of revisions in force or on trial whose records cannot be read. ``in_force`` is the one of them that is
    active, or None if the active revision can be read. ``taken`` are the children that cannot be written.
    """

    snapshot: Snapshot
    stored: StoredRevisions
    found: Mapping[Part, Blocker]
    unknown: frozenset[str]
    in_force: str | None
    taken: frozenset[tuple[str, str]]


def find_obstacles(snapshot: Snapshot, stored: StoredRevisions, deployment: Object) -> Obstacles:
    """Returns the obstacles that the objects show. Those of the spec and of refused writes are not among them."""
    strangers = foreign((*snapshot.revisions, *snapshot.workloads, *snapshot.others), deployment)
    if strangers:
        snapshot, stored = _without(snapshot, strangers)
    taken = {(item["kind"], item["metadata"]["name"]) for item in strangers}
    unread = [item for item in stored.unreadable if _state(item) in _ROLES]
    held = [item for item in strangers if item["kind"] == "ControllerRevision"]
    # A revision whose ControllerRevision somebody else holds cannot be read either.
    unknown = frozenset(revision_of(item) for item in (*unread, *held))
    in_force = _newest_stable(unread, stored)
    found: dict[Part, Blocker] = {}
    if own := [item for item in strangers if item["kind"] in _REVISIONS]:
        serves = {revision.hash for revision in (stored.stable,) if revision is not None} | unknown
        part = Part.SERVING if any(revision_of(item) in serves for item in own) else Part.ROLLOUT
        found[part] = blockers.name_taken(own)
        found.setdefault(Part.ROLLOUT, found[part])
    if others := [item for item in strangers if item["kind"] not in _REVISIONS]:
        found[Part.ACCESSORIES] = blockers.name_taken(others)
    if unread:
        found[Part.ROLLOUT] = blockers.revisions_unreadable(unread)
    known = {revision_of(item) for item in (*snapshot.revisions, *snapshot.workloads)}
    if lost := sorted({pod.workload for pod in snapshot.pods if pod.serving and pod.workload and pod.revision not in known}):
        found.setdefault(Part.SERVING, blockers.pods_without_workload(lost))
    if missing := blockers.workloads_unknown(snapshot, stored):
        found[Part.SERVING] = found[Part.ROLLOUT] = missing
        taken |= {(LEADER_WORKER_SET, record.name) for record in stored.records if record.resolved.nodes > 1}
    return Obstacles(snapshot, stored, found, unknown, in_force, frozenset(taken))


def _without(snapshot: Snapshot, strangers: Iterable[Object]) -> tuple[Snapshot, StoredRevisions]:
    gone = {id(item) for item in strangers}
    kept = replace(
        snapshot,
        revisions=tuple(item for item in snapshot.revisions if id(item) not in gone),
        workloads=tuple(item for item in snapshot.workloads if id(item) not in gone),
        others=tuple(item for item in snapshot.others if id(item) not in gone),
    )
    return kept, read_stored(kept.revisions)


def _newest_stable(unread: Iterable[Object], stored: StoredRevisions) -> str | None:
    number = stored.stable.number if stored.stable is not None else 0
    newer = [item for item in unread if _state(item) is RevisionState.STABLE and int(item.get("revision", 0)) >= number]
    return revision_of(max(newer, key=lambda item: int(item.get("revision", 0)))) if newer else None


def _state(item: Object) -> RevisionState | None:
    """Returns the state of a revision whose record cannot be read. With a state that cannot be read either it stays as it is."""
    text = (item["metadata"].get("annotations") or {}).get(names.ANNOTATION_STATE)
    try:
        return RevisionState(text) if text else None
    except ValueError:
        return RevisionState.CANDIDATE
