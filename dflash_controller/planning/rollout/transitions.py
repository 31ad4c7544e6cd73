"""Moves revisions through their states: created, tried, promoted, superseded. Rebuilds a lost record from its workload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from dflash_controller.analysis.probe_json import to_json
from dflash_controller.api import names
from dflash_controller.api.conditions import Reason
from dflash_controller.api.types import Spec
from dflash_controller.engines import ENGINES
from dflash_controller.model.counters import ProbeRun
from dflash_controller.model.snapshot import Object
from dflash_controller.planning.replicas.count import revision_of
from dflash_controller.planning.revisions.desired import PendingRevision
from dflash_controller.planning.revisions.drafter_health import to_be_failed
from dflash_controller.planning.revisions.operations import standing
from dflash_controller.planning.revisions.outcome import CandidateOutcome
from dflash_controller.planning.revisions.revision import (
    Origin,
    Revision,
    RevisionState,
    data,
    data_from_workload,
    history_entry,
    manifest,
    revision_hash,
    state_annotations,
)
from dflash_controller.planning.revisions.trial_state import Trial, TrialFailure
from dflash_controller.planning.rollout.surge import SURGE_TIMEOUT_S, unschedulable_s
from dflash_controller.planning.state.child_ownership import owner_reference, ref
from dflash_controller.planning.state.plan import Annotate, Event
from dflash_controller.planning.state.reconcile_state import ReconcileState
from dflash_controller.render.workload import workload

SPEC_CHANGED = "SpecChanged"


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks for a revision, and the reason in one word."""

    origin: Origin
    reason: str


def new_revision(state: ReconcileState, spec: Spec, draft: PendingRevision, asker: Asker) -> dict[str, Any]:
    """Returns the ControllerRevision of a draft, with the rendered workload inside. The caller has checked the spec for problems."""
    key, resolved, engine = state.snapshot.key, draft.resolved, ENGINES[draft.resolved.engine]
    revision = revision_hash(draft.inputs, draft.speculation, _taken(state))
    rendered = workload(
        key.name,
        key.namespace,
        revision,
        spec,
        resolved,
        engine.launch(resolved.launch_request(draft.speculation)),
        engine.probes(resolved.version),
        draft.speculation,
        state.context.defaults.host_path_roots,
    )
    return manifest(
        key.name,
        key.namespace,
        owner_reference(state.deployment),
        revision,
        next_number(state.records),
        data(draft.inputs, draft.block_size_as_written, draft.speculation, resolved, rendered),
        RevisionState.CANDIDATE,
        [history_entry(state.context.now, asker.origin, RevisionState.CANDIDATE, asker.reason)],
        # A pruned revision returns under its old name, and an old annotation may still name it.
        Trial(disregards=standing(state.deployment, f"{key.name}-{revision}")),
    )


def lost_revisions(state: ReconcileState) -> list[dict[str, Any]]:
    """Returns the lost ControllerRevisions, rebuilt from the record that every workload carries, each with its old number.

    A workload without a number gets one at the end of the order. Stable ones come after retired and failed ones, because the highest number
    is active.
    """
    known = {record.hash for record in state.records}
    lost = [
        (_reported_state(item), _reported_number(item), revision_of(item), content)
        for item in state.snapshot.workloads
        if revision_of(item) not in known and (content := data_from_workload(item)) is not None
    ]
    lost.sort(key=lambda entry: (entry[0] is RevisionState.CANDIDATE, entry[0] is RevisionState.STABLE, entry[2]))
    key, owner, first = state.snapshot.key, owner_reference(state.deployment), next_number(state.records)
    return [
        manifest(
            key.name,
            key.namespace,
            owner,
            revision,
            number or first + position,
            content,
            stored_state,
            [history_entry(state.context.now, Origin.USER, stored_state, "RebuiltFromWorkload")],
            Trial(disregards=standing(state.deployment, f"{key.name}-{revision}")),
        )
        for position, (stored_state, number, revision, content) in enumerate(lost)
    ]


def _reported_state(workload: Object) -> RevisionState:
    return RevisionState((workload["metadata"].get("annotations") or {}).get(names.ANNOTATION_STATE, RevisionState.STABLE))


def _reported_number(workload: Object) -> int:
    """Returns the revision number that the workload carries; 0 if it carries none."""
    text = (workload["metadata"].get("annotations") or {}).get(names.ANNOTATION_NUMBER, "")
    return int(text) if text.isdecimal() else 0


@dataclass(slots=True)
class _Moves:
    """Collects changes of revisions, in the order in which they are written."""

    now: datetime
    records: list[Revision]
    steps: list[Annotate | Event] = field(default_factory=list)

    def move(
        self, record: Revision, state: RevisionState, origin: Origin, reason: str, number: int | None = None, trial: Trial | None = None
    ) -> Revision:
        annotations = state_annotations(record, state, self.now, origin, reason)
        if trial is not None:
            annotations |= {names.ANNOTATION_TRIAL: trial.to_json()}
        if state is RevisionState.CANDIDATE:
            annotations |= {names.ANNOTATION_PROBE: ""}
        self.steps.append(Annotate(ref(record.source), annotations, number))
        return self._replace(
            record,
            state=state,
            number=record.number if number is None else number,
            trial=record.trial if trial is None else trial,
            probe=None if state is RevisionState.CANDIDATE else record.probe,
        )

    def remember(self, record: Revision, trial: Trial) -> Revision:
        self.steps.append(Annotate(ref(record.source), {names.ANNOTATION_TRIAL: trial.to_json()}))
        return self._replace(record, trial=trial)

    def keep(self, record: Revision, run: ProbeRun) -> Revision:
        self.steps.append(Annotate(ref(record.source), {names.ANNOTATION_PROBE: to_json(run)}))
        return self._replace(record, probe=run)

    def fail_collapsed(self, record: Revision, message: str) -> Revision:
        finding = TrialFailure(Reason.DRAFTER_COLLAPSED, message or "Its drafter had collapsed")
        trial = replace(record.trial, finding=finding)
        return self.move(record, RevisionState.FAILED, Origin.ROLLBACK, Reason.DRAFTER_COLLAPSED.value, trial=trial)

    def _replace(self, record: Revision, **changes: Any) -> Revision:
        moved = replace(record, **changes)
        self.records[self.records.index(record)] = moved
        return moved


def take_roles(state: ReconcileState, target: Revision, asker: Asker, *, fresh: bool) -> tuple[ReconcileState, list[Annotate | Event]]:
    """Makes the desired revision the candidate, unless it is active or has failed. Supersedes candidates that are no longer desired.

    ``fresh`` is True if this plan creates the revision. The very first revision is active once it serves, because there is nothing to
    compare it with. A failed revision is superseded when the spec asks for something else; a pin is not a change of the spec. A failed
    revision is tried again if the tuner asks for it or a pin names it.
    """
    moves = _Moves(state.context.now, list(state.records))
    for record in state.records:
        already_failed = record.state is RevisionState.FAILED and asker.reason == SPEC_CHANGED and not record.same_intent(target.inputs)
        if record.hash != target.hash and (record.state is RevisionState.CANDIDATE or already_failed):
            moves.move(record, RevisionState.SUPERSEDED, asker.origin, asker.reason)

    stable, candidate, failed = state.stable, None, None
    if stable is None and not fresh and (state.pool(target.hash).serving > 0 or state.budget.replicas == 0):
        stable = moves.move(target, RevisionState.STABLE, Origin.USER, "Serving" if state.budget.replicas else "Unproven")
        moves.steps.append(Event("Normal", "Promoted", f"{target.name} is active"))
    elif stable is None or target.hash != stable.hash:
        if target.state is RevisionState.FAILED and stable is not None and not state.pin and asker.origin is Origin.USER:
            failed = target
        elif fresh or target.state is RevisionState.CANDIDATE:
            candidate = target
        else:
            trial = Trial(disregards=standing(state.deployment, target.name))
            candidate = moves.move(target, RevisionState.CANDIDATE, asker.origin, asker.reason, next_number(moves.records), trial)
    return replace(state, records=tuple(moves.records), stable=stable, candidate=candidate, failed=failed), moves.steps


def reverts_failure(candidate: Revision) -> bool:
    """Returns whether the candidate replaces a revision whose drafter has collapsed."""
    return candidate.asked.get("reason") == Reason.DRAFTER_COLLAPSED


def finish_collapse(state: ReconcileState) -> tuple[ReconcileState, list[Annotate | Event]]:
    """Marks revisions Failed that were replaced after a collapse, if the operator stopped before it could."""
    stable = state.stable
    moves = _Moves(state.context.now, list(state.records))
    for record in to_be_failed(state.records, stable) if stable else ():
        moves.fail_collapsed(record, "")
    return replace(state, records=tuple(moves.records)), moves.steps


def keep_answers(state: ReconcileState) -> tuple[ReconcileState, list[Annotate | Event]]:
    """Stores new answers of the probe with the revisions that gave them."""
    moves = _Moves(state.context.now, list(state.records))
    stable, candidate = state.stable, state.candidate
    for run in state.context.probes:
        if candidate is not None and run.revision == candidate.hash and _is_news(run, candidate):
            candidate = moves.keep(candidate, run)
        if stable is not None and run.revision == stable.hash and _is_news(run, stable):
            stable = moves.keep(stable, run)
    return replace(state, records=tuple(moves.records), stable=stable, candidate=candidate), moves.steps


def _is_news(run: ProbeRun, record: Revision) -> bool:
    return record.probe is None or to_json(run) != to_json(record.probe)


def carry_out(state: ReconcileState, outcome: CandidateOutcome) -> tuple[ReconcileState, list[Annotate | Event]]:
    """Writes the decision on the candidate. Raises ValueError without a candidate.

    Promotion is one write. It comes before any stable replica is replaced beyond the one that the canary took.
    """
    candidate, moves = state.candidate, _Moves(state.context.now, list(state.records))
    if candidate is None:
        raise ValueError("a ruling without a candidate")
    decided = replace(state, outcome=outcome)
    match outcome.end:
        case RevisionState.STABLE:
            # The highest number is active, and a rebuilt record may have a higher number than the candidate.
            number = None if candidate.number == next_number(moves.records) - 1 else next_number(moves.records)
            origin, left = Origin(candidate.origin or Origin.USER), state.stable if reverts_failure(candidate) else None
            if left is not None:
                # If the operator stops before the last of these writes, this one records what is left to do.
                left = moves.move(left, RevisionState.STABLE, Origin.TUNER, Reason.DRAFTER_COLLAPSED.value)
            stable = moves.move(candidate, RevisionState.STABLE, origin, outcome.reason.value, number, outcome.trial)
            moves.steps.append(Event("Normal", "Promoted", f"{candidate.name} is active: {outcome.message}"))
            if left is not None:
                moves.fail_collapsed(left, state.health.message if state.health else "")
            decided = replace(decided, stable=stable, candidate=None)
        case RevisionState.FAILED:
            failed = moves.move(candidate, RevisionState.FAILED, Origin.ROLLBACK, outcome.reason.value, trial=outcome.trial)
            moves.steps.append(Event("Warning", outcome.reason.value, f"{candidate.name} failed: {outcome.message}"))
            decided = replace(decided, candidate=None, failed=failed)
        case _ if outcome.trial != candidate.trial:
            decided = replace(decided, candidate=moves.remember(candidate, outcome.trial))
    return replace(decided, records=tuple(moves.records)), moves.steps


def note_lack_of_room(state: ReconcileState) -> tuple[ReconcileState, list[Annotate | Event]]:
    """Notes on the stable revision that it found no accelerators above spec.replicas while it replaces another revision."""
    stable = state.stable
    others = any(pool.existing for pool in state.pools if stable and pool.revision != stable.hash)
    if stable is None or not others or stable.trial.without_surge or not state.budget.max_surge:
        return state, []
    if unschedulable_s(state, stable.hash) < SURGE_TIMEOUT_S:
        return state, []
    moves = _Moves(state.context.now, list(state.records))
    noted = moves.remember(stable, replace(stable.trial, without_surge=True))
    return replace(state, stable=noted, records=tuple(moves.records)), moves.steps


def next_number(records: Sequence[Revision]) -> int:
    """Returns the highest number plus one, as StatefulSets number their revisions."""
    return max((record.number for record in records), default=0) + 1


def _taken(state: ReconcileState) -> set[str]:
    """Returns the hashes in use, including those of objects whose record cannot be read."""
    return {revision_of(item) for item in (*state.snapshot.revisions, *state.snapshot.workloads)}
