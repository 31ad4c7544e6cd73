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
from dflash_controller.model.counters import ProbeRun
from dflash_controller.model.snapshot import Object
from dflash_controller.planning.replicas.count import revision_of
from dflash_controller.planning.revisions.desired import PendingRevision, acts_at_once, binds_user, block_acted_upon, rolled_back
from dflash_controller.planning.revisions.drafter_health import collapsed, to_be_failed
from dflash_controller.planning.revisions.operations import asked, standing
from dflash_controller.planning.revisions.outcome import CandidateOutcome
from dflash_controller.planning.revisions.rendering import render, with_speculation
from dflash_controller.planning.revisions.revision import (
    Origin,
    Revision,
    RevisionState,
    TunerTrial,
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

SPEC_CHANGED = "SpecChanged"
PINNED = "Pinned"


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks for a revision, and the reason in one word."""

    origin: Origin
    reason: str
    trial: TunerTrial | None = None
    """What the history keeps of a trial that the tuner asks for."""


def new_revision(state: ReconcileState, spec: Spec, draft: PendingRevision, asker: Asker) -> dict[str, Any]:
    """Returns the ControllerRevision of a draft, with the rendered workload inside. The caller has checked the spec for problems.

    A draft that differs from stable in speculation alone is made from stable's stored workload. It carries nothing that a newer release of
    the operator renders differently.
    """
    key, resolved, stable = state.snapshot.key, draft.resolved, state.stable
    revision, rendered = revision_hash(draft.inputs, draft.speculation, _taken(state)), None
    if stable is not None and stable.resolved == resolved and stable.same_intent(draft.inputs):
        rendered = with_speculation(stable, draft.speculation, revision, key.name, key.namespace, spec)
    roots = state.context.defaults.host_path_roots
    rendered = rendered or render(key.name, key.namespace, revision, spec, resolved, draft.speculation, roots)
    return manifest(
        key.name,
        key.namespace,
        owner_reference(state.deployment),
        revision,
        next_number(state.records),
        data(draft.inputs, draft.block_size_as_written, draft.speculation, resolved, rendered),
        RevisionState.CANDIDATE,
        [history_entry(state.context.now, asker.origin, RevisionState.CANDIDATE, asker.reason, asker.trial)],
        # A pruned revision returns under its old name, and an old annotation may still name it.
        _new_trial(state, f"{key.name}-{revision}", _block_to_remember(state, spec, asker, None)),
    )


def _new_trial(state: ReconcileState, name: str, asked_block: int | None) -> Trial:
    return Trial(disregards=standing(state.deployment, name), asked_block=asked_block)


def _block_to_remember(state: ReconcileState, spec: Spec, asker: Asker, own: int | None) -> int | None:
    """Returns the ``spec.blockSize`` that a candidate acts upon; 0 if the spec has none. ``own`` is what it acted upon before.

    A change of the user acts upon the spec. A change of the tuner does not: it leaves the memory of stable as it is. A pin goes back to a
    revision with its own memory, so that the spec's block size counts again afterwards.
    """
    if asker.reason == PINNED:
        return own
    if asker.origin is Origin.TUNER and state.stable is not None:
        return block_acted_upon(spec, state.stable) or 0
    return spec.block_size or 0


def lost_revisions(state: ReconcileState) -> list[dict[str, Any]]:
    """Returns the lost ControllerRevisions, rebuilt from the record that every workload carries, each with its old number.

    A workload without a number gets one at the end of the order. Stable ones come after retired and failed ones, because the highest number
    is active.
    """
    known = {revision_of(item) for item in state.snapshot.revisions}
    lost = [
        (_reported_state(item), _reported_number(item), revision_of(item), content)
        for item in state.snapshot.workloads
        if revision_of(item) not in known | state.unknown and (content := data_from_workload(item)) is not None
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
            # What it last acted upon is lost too. The current value counts as acted upon, so that nothing restarts.
            _new_trial(state, f"{key.name}-{revision}", (state.spec and state.spec.block_size) or 0),
        )
        for position, (stored_state, number, revision, content) in enumerate(lost)
    ]


def _reported_state(workload: Object) -> RevisionState:
    """Returns the state that the workload carries. One that cannot be read has to prove itself again."""
    try:
        return RevisionState((workload["metadata"].get("annotations") or {}).get(names.ANNOTATION_STATE, RevisionState.STABLE))
    except ValueError:
        return RevisionState.CANDIDATE


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
        self,
        record: Revision,
        state: RevisionState,
        origin: Origin,
        reason: str,
        number: int | None = None,
        trial: Trial | None = None,
        tuners: TunerTrial | None = None,
    ) -> Revision:
        annotations = state_annotations(record, state, self.now, origin, reason, tuners)
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
            history=(*record.history, history_entry(self.now, origin, state, reason, tuners)),
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


def take_roles(
    state: ReconcileState, spec: Spec, target: Revision, asker: Asker, *, fresh: bool
) -> tuple[ReconcileState, list[Annotate | Event]]:
    """Makes the desired revision the candidate, unless it is active or has failed. Supersedes candidates that are no longer desired.

    ``fresh`` is True if this plan creates the revision. The very first revision is active once it serves, because there is nothing to
    compare it with. A failed revision is superseded when the spec asks for something else, be it another block size; a pin is not a change
    of the spec. A failed revision is tried again if the tuner asks for it or a pin names it. While the spec's own revision has failed,
    what failed on the tuner's side stays Failed too. A revision that is still being replaced is active again at once: going back to it is
    a rollback, and its replicas are kept.
    """
    moves = _Moves(state.context.now, list(state.records))
    forgets = asker.reason == SPEC_CHANGED and not rolled_back(target)
    for record in state.records:
        withdrawn = not record.same_intent(target.inputs) or _asked_for_another_block(spec, record)
        already_failed = record.state is RevisionState.FAILED and forgets and withdrawn
        if record.hash != target.hash and (record.state is RevisionState.CANDIDATE or already_failed):
            moves.move(record, RevisionState.SUPERSEDED, asker.origin, asker.reason)

    # While the tuner tries something, what failed for the user stays shown.
    stable, candidate, failed = state.stable, None, state.failed
    if stable is None and not fresh and (state.pool(target.hash).serving > 0 or state.budget.replicas == 0):
        stable = moves.move(target, RevisionState.STABLE, Origin.USER, "Serving" if state.budget.replicas else "Unproven")
        moves.steps.append(Event("Normal", "Promoted", f"{target.name} is active"))
    elif stable is not None and target.hash != stable.hash and asker.reason != Reason.DRAFTER_COLLAPSED and _being_replaced(state, target):
        # An annotation that has named it for long was not meant for this.
        trial = replace(target.trial, disregards=standing(state.deployment, target.name))
        stable = moves.move(target, RevisionState.STABLE, asker.origin, Reason.REVERTED.value, next_number(moves.records), trial)
        moves.steps.append(Event("Normal", Reason.REVERTED.value, f"{target.name} is active again; its replicas are kept"))
    elif stable is None or target.hash != stable.hash:
        if rolled_back(target) and stable is not None and not state.pin and asker.origin is Origin.USER:
            failed = target
        elif fresh or target.state is RevisionState.CANDIDATE:
            candidate = target
        else:
            remembered = _block_to_remember(state, spec, asker, target.trial.asked_block)
            trial = _new_trial(state, target.name, remembered)
            number = next_number(moves.records)
            candidate = moves.move(target, RevisionState.CANDIDATE, asker.origin, asker.reason, number, trial, asker.trial)
    return replace(state, records=tuple(moves.records), stable=stable, candidate=candidate, failed=failed), moves.steps


def _asked_for_another_block(spec: Spec, record: Revision) -> bool:
    """Returns whether the user asked for the revision's block size and has changed that since. A collapse counts at every block size."""
    return record.origin == Origin.USER and not collapsed(record) and block_acted_upon(spec, record) != spec.block_size


def _being_replaced(state: ReconcileState, record: Revision) -> bool:
    """Returns whether the revision was in force before a replacement that has not finished: it still has replicas."""
    return record.state is RevisionState.STABLE and state.pool(record.hash).existing > 0


def abort_replacement(state: ReconcileState) -> tuple[ReconcileState, list[Annotate | Event]]:
    """Fails the active revision if the abort annotation names it while it still replaces another one, which is then active again."""
    stable = state.stable
    if stable is None or state.pin is not None or "abort" not in asked(state.deployment, stable):
        return state, []
    before = [record for record in state.records if record.hash != stable.hash and _being_replaced(state, record)]
    if not before:
        return state, []
    back, moves = max(before, key=lambda record: record.number), _Moves(state.context.now, list(state.records))
    finding = TrialFailure(Reason.ABORTED, "the annotation serving.dflash.io/abort named it while it replaced the others")
    moves.move(stable, RevisionState.FAILED, Origin.ROLLBACK, Reason.ABORTED.value, trial=replace(stable.trial, finding=finding))
    if any(record.state is RevisionState.STABLE and record.number > back.number for record in moves.records):
        # The highest number is active, and that one has no replica left.
        back = moves.move(back, RevisionState.STABLE, Origin.ROLLBACK, Reason.REVERTED.value, next_number(moves.records))
    moves.steps.append(Event("Warning", Reason.ABORTED.value, f"{stable.name} failed: {finding.message}; {back.name} is active again"))
    return replace(state, records=tuple(moves.records), stable=back), moves.steps


def remember_block(state: ReconcileState, spec: Spec, asker: Asker) -> tuple[ReconcileState, list[Annotate | Event]]:
    """Stores the ``spec.blockSize`` acted upon with the revisions in force, if it is not stored yet.

    Stable acts at once upon a value that it already runs, and upon a value that was removed. Any other value is acted upon by a candidate.
    """
    stable, candidate = state.stable, state.candidate
    if stable is None:
        return state, []
    moves, asked = _Moves(state.context.now, list(state.records)), spec.block_size or 0
    lost = stable.trial.asked_block is None and stable.trial_lost
    if lost or ((block_acted_upon(spec, stable) or 0) != asked and acts_at_once(spec, stable)):
        stable = moves.remember(stable, replace(stable.trial, asked_block=asked))
    state = replace(state, stable=stable)
    if candidate is not None and "uid" in candidate.source["metadata"]:
        # One that this plan creates gets it with the next.
        remembered = _block_to_remember(state, spec, asker, candidate.trial.asked_block)
        if candidate.trial.asked_block != remembered:
            candidate = moves.remember(candidate, replace(candidate.trial, asked_block=remembered))
    return replace(state, candidate=candidate, records=tuple(moves.records)), moves.steps


def forget_operations(state: ReconcileState) -> tuple[ReconcileState, list[Annotate | Event]]:
    """Forgets that an annotation was there before the active revision's trial, once it is gone. Set again, it counts."""
    stable = state.stable
    if stable is None or state.candidate is not None:
        return state, []
    left = tuple(name for name in stable.trial.disregards if name in standing(state.deployment, stable.name))
    if left == stable.trial.disregards:
        return state, []
    moves = _Moves(state.context.now, list(state.records))
    noted = moves.remember(stable, replace(stable.trial, disregards=left))
    return replace(state, stable=noted, records=tuple(moves.records)), moves.steps


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
    decided, tuners = replace(state, outcome=outcome), candidate.tuners_trial
    match outcome.end:
        case RevisionState.STABLE:
            # The highest number is active, and a rebuilt record may have a higher number than the candidate.
            number = None if candidate.number == next_number(moves.records) - 1 else next_number(moves.records)
            origin, left = Origin(candidate.origin or Origin.USER), state.stable if reverts_failure(candidate) else None
            if left is not None:
                # If the operator stops before the last of these writes, this one records what is left to do.
                left = moves.move(left, RevisionState.STABLE, Origin.TUNER, Reason.DRAFTER_COLLAPSED.value)
            stable = moves.move(candidate, RevisionState.STABLE, origin, outcome.reason.value, number, outcome.trial, tuners)
            moves.steps.append(Event("Normal", "Promoted", f"{candidate.name} is active: {outcome.message}"))
            if left is not None:
                moves.fail_collapsed(left, state.health.message if state.health else "")
            decided = replace(decided, stable=stable, candidate=None)
        case RevisionState.FAILED:
            reason = outcome.reason.value
            failed = moves.move(candidate, RevisionState.FAILED, Origin.ROLLBACK, reason, trial=outcome.trial, tuners=tuners)
            moves.steps.append(_refused(candidate, outcome))
            decided = replace(decided, candidate=None, failed=failed if binds_user(failed) else state.failed)
        case _ if outcome.trial != candidate.trial:
            decided = replace(decided, candidate=moves.remember(candidate, outcome.trial))
    return replace(decided, records=tuple(moves.records)), moves.steps


def _refused(candidate: Revision, outcome: CandidateOutcome) -> Event:
    """Returns the event of a failed candidate. An exploratory trial that has measured what it was made for is no cause for concern."""
    if candidate.exploratory and outcome.reason is Reason.NOT_FASTER:
        return Event("Normal", outcome.reason.value, f"{candidate.name} was measured and is not fast enough: {outcome.message}")
    return Event("Warning", outcome.reason.value, f"{candidate.name} failed: {outcome.message}")


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
    held = {name.rpartition("-")[2] for _, name in state.taken}
    return held | state.unknown | {revision_of(item) for item in (*state.snapshot.revisions, *state.snapshot.workloads)}
