"""The life of revisions: made, tried, promoted, superseded; and made again from a workload when the record was lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dflash_controller.api import names
from dflash_controller.api.types import Spec
from dflash_controller.engines import ENGINES
from dflash_controller.planning.intent import Draft
from dflash_controller.planning.ownership import owner_reference, ref
from dflash_controller.planning.plan import Annotate, Event
from dflash_controller.planning.pools import revision_of
from dflash_controller.planning.record import (
    Origin,
    Record,
    State,
    data,
    data_from_workload,
    history_entry,
    manifest,
    revision_hash,
    state_annotations,
)
from dflash_controller.planning.situation import Situation
from dflash_controller.render.workload import workload


def new_revision(situation: Situation, spec: Spec, draft: Draft) -> dict[str, Any]:
    """The ControllerRevision of a draft, with its workload rendered inside. The spec's problems have been ruled out."""
    key, resolved, engine = situation.snapshot.key, draft.resolved, ENGINES[draft.resolved.engine]
    revision = revision_hash(draft.inputs, draft.speculation, _taken(situation))
    rendered = workload(
        key.name,
        key.namespace,
        revision,
        spec,
        resolved,
        engine.launch(resolved.launch_request(draft.speculation)),
        engine.probes(resolved.version),
        draft.speculation,
    )
    return manifest(
        key.name,
        key.namespace,
        owner_reference(situation.deployment),
        revision,
        next_number(situation.records),
        data(draft.inputs, draft.block_size_as_written, draft.speculation, resolved, rendered),
        State.CANDIDATE,
        [history_entry(situation.context.now, Origin.USER, State.CANDIDATE, "SpecChanged")],
    )


def lost_revisions(situation: Situation) -> list[dict[str, Any]]:
    """ControllerRevisions to make again, from the record every workload carries. Stable ones come late: the highest number is in force."""
    known = {record.hash for record in situation.records}
    lost = [
        (State((item["metadata"].get("annotations") or {}).get(names.ANNOTATION_STATE, State.STABLE)), revision_of(item), content)
        for item in situation.snapshot.workloads
        if revision_of(item) not in known and (content := data_from_workload(item)) is not None
    ]
    lost.sort(key=lambda entry: (entry[0] is State.CANDIDATE, entry[0] is State.STABLE, entry[1]))
    key, owner, first = situation.snapshot.key, owner_reference(situation.deployment), next_number(situation.records)
    return [
        manifest(
            key.name,
            key.namespace,
            owner,
            revision,
            first + position,
            content,
            state,
            [history_entry(situation.context.now, Origin.USER, state, "RebuiltFromWorkload")],
        )
        for position, (state, revision, content) in enumerate(lost)
    ]


def move_states(situation: Situation, target: Record, *, fresh: bool) -> tuple[Situation, list[Annotate | Event]]:
    """Give the wanted revision its role, promote it when it has proved itself, and supersede candidates nobody wants any more.

    ``fresh``: the revision is made by this very plan. Promotion is one write, and comes before any stable replica beyond the canary's
    is taken.
    """
    now = situation.context.now
    moves: list[Annotate | Event] = []
    records = list(situation.records)

    def move(record: Record, state: State, reason: str, number: int | None = None) -> Record:
        moves.append(Annotate(ref(record.source), state_annotations(record, state, now, Origin.USER, reason), number))
        moved = replace(record, state=state, number=record.number if number is None else number)
        records[records.index(record)] = moved
        return moved

    for record in situation.records:
        if record.state is State.CANDIDATE and record.hash != target.hash:
            move(record, State.SUPERSEDED, "SpecChanged")

    stable, candidate = situation.stable, None
    if stable is None or target.hash != stable.hash:
        candidate = target
        if not fresh and target.state is not State.CANDIDATE:
            candidate = move(target, State.CANDIDATE, "SpecChanged", next_number(records))
        elif not fresh and (situation.pool(target.hash).serving > 0 or situation.budget.replicas == 0):
            stable, candidate = move(target, State.STABLE, "Serving" if situation.budget.replicas else "Unproven"), None
            moves.append(Event("Normal", "Promoted", f"{target.name} is in force"))
    return replace(situation, records=tuple(records), stable=stable, candidate=candidate), moves


def next_number(records: Sequence[Record]) -> int:
    """One above the highest, as StatefulSets count their revisions."""
    return max((record.number for record in records), default=0) + 1


def _taken(situation: Situation) -> set[str]:
    """Hashes in use, also by objects that cannot be read as a record."""
    return {revision_of(item) for item in (*situation.snapshot.revisions, *situation.snapshot.workloads)}
