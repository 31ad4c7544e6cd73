"""Turns a snapshot into a plan. This is the whole decision, in order.

It finds out what the spec asks for, adopts orphans, gives revisions their roles, then maintains the children and moves replicas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dflash_controller.api import defaults, names
from dflash_controller.api.conditions import ConditionType, Reason, get_condition, shorten
from dflash_controller.api.defaults import RolloutPolicy
from dflash_controller.api.parse import parse_spec
from dflash_controller.api.types import Spec
from dflash_controller.engines import ENGINES
from dflash_controller.engines.resolve import resolve
from dflash_controller.model.snapshot import Snapshot
from dflash_controller.planning.children.shared import other_children, shared_children
from dflash_controller.planning.children.workloads import clean_up, workload_steps
from dflash_controller.planning.replicas.count import pools
from dflash_controller.planning.replicas.next_replicas import Budget, frozen_goals, next_replicas, rollout_goals
from dflash_controller.planning.revisions.desired import PendingRevision, desired_revision
from dflash_controller.planning.revisions.operations import pinned
from dflash_controller.planning.revisions.outcome import CandidateOutcome, Phase
from dflash_controller.planning.revisions.revision import Origin, Revision, RevisionState, read
from dflash_controller.planning.revisions.roles import StoredRevisions
from dflash_controller.planning.rollout.canary import rule
from dflash_controller.planning.rollout.surge import without_surge
from dflash_controller.planning.rollout.transitions import (
    SPEC_CHANGED,
    Asker,
    carry_out,
    finish_collapse,
    keep_answers,
    lost_revisions,
    new_revision,
    note_lack_of_room,
    take_roles,
)
from dflash_controller.planning.state import blockers
from dflash_controller.planning.state.child_ownership import adoptions, being_deleted, foreign, ref
from dflash_controller.planning.state.inputs import Blocker, PlannerInputs
from dflash_controller.planning.state.plan import REQUEUE_AFTER_S, Annotate, Create, Event, Plan, Step
from dflash_controller.planning.state.reconcile_state import ReconcileState
from dflash_controller.planning.status.build import status
from dflash_controller.planning.status.conditions import stalled, unfinished
from dflash_controller.planning.tuning import judged, tuned

TERMINATING_S = 15.0


def decide(snapshot: Snapshot, stored: StoredRevisions, context: PlannerInputs) -> Plan:
    """Returns what to write next and the status to show. It is level-based: the same for every trigger, with no state between calls.

    ``stored`` are the snapshot's revisions.
    """
    deployment = snapshot.deployment
    if deployment is None or being_deleted(deployment):
        return Plan()
    spec = parse_spec(deployment)
    state = ReconcileState(
        snapshot,
        deployment,
        context,
        spec if isinstance(spec, Spec) else None,
        stored,
        records=stored.records,
        stable=stored.stable,
        pools=tuple(pools(snapshot)),
    )
    if not isinstance(spec, Spec):
        return _blocked(state, blockers.invalid(spec))
    policy = defaults.effective_rollout(spec)
    state = replace(
        state,
        budget=Budget(defaults.replicas(spec), policy.max_surge, policy.max_unavailable),
        pin=pinned(deployment, stored.records),
    )

    if unknown := blockers.workloads_unknown(snapshot, stored):
        return replace(_blocked(state, unknown), requeue_after_s=REQUEUE_AFTER_S)
    if strangers := foreign((*snapshot.revisions, *snapshot.workloads, *snapshot.others), deployment):
        return replace(_blocked(state, blockers.name_taken(strangers)), requeue_after_s=REQUEUE_AFTER_S)
    if stored.unreadable:
        return _blocked(state, blockers.revisions_unreadable(stored.unreadable))
    state, finished = finish_collapse(state)
    asked = _wanted(state, spec)
    if isinstance(asked, Blocker):
        return _blocked(state, asked)
    wanted, pin = asked, state.pin
    if pin is not None:
        state, wanted = replace(state, departs=isinstance(asked, PendingRevision) or asked.hash != pin.hash), pin
    if context.refusal is not None:
        return _blocked(state, context.refusal)
    state, wanted, tuners_reason = tuned(state, spec, policy, wanted)
    if defaults.suspended(spec):
        return _suspended(state, wanted)
    if tuners_reason is not None:
        asker = Asker(Origin.TUNER, tuners_reason)
    else:
        asker = Asker(Origin.USER, "Pinned" if pin is not None else SPEC_CHANGED)
    return _carry_on(state, spec, policy, wanted, asker, finished)


def _wanted(state: ReconcileState, spec: Spec) -> Revision | PendingRevision | Blocker:
    context, key = state.context, state.snapshot.key
    if problems := blockers.spec_problems(spec, context):
        return blockers.invalid(problems)
    wanted = desired_revision(
        spec,
        state.records,
        state.stable,
        lambda carried: resolve(spec, key.name, key.namespace, context.catalog, context.defaults, carried),
    )
    if isinstance(wanted, list):
        return blockers.unresolved(wanted, spec, context)
    if isinstance(wanted, PendingRevision):
        request = wanted.resolved.launch_request(wanted.speculation)
        if impossible := ENGINES[wanted.resolved.engine].problems(request):
            return blockers.engine_unsupported(impossible)
    if wanted.resolved.nodes > 1 and "LeaderWorkerSet" not in state.snapshot.kinds:
        return blockers.leader_worker_set_missing()
    return wanted


def _blocked(state: ReconcileState, blocker: Blocker) -> Plan:
    """Returns a plan that writes only the status and an event. What runs keeps running."""
    wanted = {pool.revision: pool.wanted for pool in state.pools}
    state = replace(state, blocker=blocker, candidate=state.stored.candidate, wanted=wanted)
    return Plan(_announced(state, ConditionType.STALLED, blocker.reason, blocker.message), status(state))


def _suspended(state: ReconcileState, wanted: Revision | PendingRevision) -> Plan:
    """Returns a plan that writes only the status and an event. Pods keep serving; even rollback and repair wait."""
    if isinstance(wanted, PendingRevision):
        state = replace(state, departs=True)
    elif wanted != state.stable:
        failed = wanted.state is RevisionState.FAILED and not state.pin
        state = replace(state, failed=wanted) if failed else replace(state, candidate=wanted)
    state = replace(state, wanted={pool.revision: pool.wanted for pool in state.pools})
    message = "Nothing is written until spec.suspend is false; pods keep serving"
    return Plan(_announced(state, ConditionType.RECONCILING, Reason.SUSPENDED, message), status(state))


def _carry_on(
    state: ReconcileState, spec: Spec, policy: RolloutPolicy, wanted: Revision | PendingRevision, asker: Asker, finished: Sequence[Step]
) -> Plan:
    snapshot = state.snapshot
    adopted: list[Step] = [*adoptions((*snapshot.revisions, *snapshot.workloads, *snapshot.others), state.deployment)]
    if lost := lost_revisions(state):
        # They determine which revision is active, so nothing else is decided before they are rebuilt.
        names_ = ", ".join(item["metadata"]["name"] for item in lost)
        told = Event("Warning", "RevisionRebuilt", f"The record of {names_} was missing and has been created again from its workload")
        return Plan((*adopted, *(Create(item) for item in lost), told))

    made: list[Step] = []
    if isinstance(wanted, PendingRevision):
        manifest = new_revision(state, spec, wanted, asker)
        target = _as_record(manifest)
        made = [Create(manifest), Event("Normal", "RevisionCreated", f"{target.name}: {_describe(target)}")]
        state = replace(state, records=(*state.records, target))
    else:
        target = wanted
    state, moves = take_roles(state, target, asker, fresh=bool(made))
    begins, before = bool(made or moves), state.stable
    state, decided = _decide_candidate(state, spec, policy, begins=begins)
    if state.stable is not None and state.stable != before:
        state = replace(state, health=judged(state, spec, state.stable))

    state = replace(state, wanted=next_replicas(state.budget, state.pools, _goals(state, policy, begins=begins)))
    terminal, reason, message = stalled(state)
    shown = status(state)
    outcome = state.outcome
    ends = outcome is not None and outcome.end is not None
    # Only this plan knows the verdicts that ended the trial. A conflict of a child write before its status would lose them.
    children = (
        ()
        if ends
        else (
            *shared_children(state, spec, state.stable or target),
            *workload_steps(state),
            *clean_up(state, policy.history_limit),
        )
    )
    learned = () if begins or decided or finished else _learned(state)
    steps = (
        *adopted,
        *finished,
        *made,
        *moves,
        *decided,
        *learned,
        *_tuning_reported(state, shown),
        *_outage_ahead(state),
        *children,
        *_phase_reached(state, shown),
        *(_announced(state, ConditionType.STALLED, reason, message) if terminal else ()),
    )
    probe = outcome.probe if outcome and not ends else None
    return Plan(steps, shown, _requeue_after_s(state), state.decision, probe, stores_learned=bool(learned))


def _decide_candidate(state: ReconcileState, spec: Spec, policy: RolloutPolicy, *, begins: bool) -> tuple[ReconcileState, list[Step]]:
    """Decides on the candidate, but not in the plan that makes it one. The status shows the trial before a replica is used for it."""
    stable, candidate = state.stable, state.candidate
    if stable is None:
        return state, []
    if candidate is None:
        state, noted = note_lack_of_room(state)
        return without_surge(state, stable), [*noted]
    if begins:
        message = f"{candidate.name} will replace {stable.name}"
        outcome = CandidateOutcome(Phase.PREPARING, Reason.ROLLOUT_IN_PROGRESS, message, candidate.trial, tried=False)
        return replace(state, outcome=outcome), []
    state, kept = keep_answers(state)
    state = without_surge(state, candidate)
    state, moved = carry_out(state, rule(state, spec, policy))
    jobs = other_children(state, state.outcome.jobs if state.outcome else ())
    return state, [*kept, *moved, *jobs]


def _goals(state: ReconcileState, policy: RolloutPolicy, *, begins: bool) -> dict[str, int]:
    stable, candidate, outcome = state.stable, state.candidate, state.outcome
    if stable is not None and candidate is not None and begins:
        # The next evaluation decides whether it is tried now. A replica moved until then would load for nothing.
        return {record.hash: state.pool(record.hash).wanted for record in (stable, candidate)}
    if stable is not None and candidate is None and state.failed is None and policy.paused:
        once_in_force = {record.hash for record in state.records if record.state is RevisionState.STABLE}
        return frozen_goals(state.budget, [pool for pool in state.pools if pool.revision in once_in_force], stable.hash)
    tried = candidate is not None and (stable is None or (outcome is not None and outcome.tried))
    return rollout_goals(state.budget, stable.hash if stable else None, candidate.hash if candidate and tried else None)


def _learned(state: ReconcileState) -> tuple[Annotate, ...]:
    """Returns the write that stores the tuner's knowledge with the active revision, so that it survives a restart of the operator."""
    record, stable = state.context.tuning.record, state.stable
    if record is None or stable is None:
        return ()
    return (Annotate(ref(stable.source), {names.ANNOTATION_LEARNED: record}),)


def _tuning_reported(state: ReconcileState, shown: Mapping[str, Any]) -> tuple[Event, ...]:
    """Returns an event for a decision that the status shows for the first time."""
    tuning = shown.get("tuning")
    if tuning is None or tuning == (state.deployment.get("status") or {}).get("tuning"):
        return ()
    held = tuning["state"] == "Held"
    return (Event("Warning" if held else "Normal", f"Tuner{tuning['reason']}", str(tuning["message"])),)


def _requeue_after_s(state: ReconcileState) -> float | None:
    """Returns the seconds to the next evaluation, or None if nothing depends on time."""
    waits = [state.outcome.requeue_after_s] if state.outcome and state.outcome.end is None else []
    if state.decision is not None and state.decision.state != "Off":
        waits.append(state.context.tuning_requeue_s)
    if any(pod.terminating for pod in state.snapshot.pods):
        # No watch reports that the node of a terminating pod is dead.
        waits.append(TERMINATING_S)
    if state.candidate is None and unfinished(state) and state.budget.max_surge:
        waits.append(REQUEUE_AFTER_S)
    return min((wait for wait in waits if wait is not None), default=None)


def _phase_reached(state: ReconcileState, shown: Mapping[str, Any]) -> list[Event]:
    """Returns one event for every new phase of a rollout. The events for revision and promotion already report the very first start."""
    before = (state.deployment.get("status") or {}).get("rollout") or {}
    rollout = shown.get("rollout") or {}
    phase = rollout.get("phase")
    if phase is None or not before or phase == before.get("phase"):
        return []
    bad = phase == Phase.HELD or state.failed is not None
    return [Event("Warning" if bad else "Normal", f"Rollout{phase}", str(rollout.get("message")))]


def _as_record(manifest: dict[str, object]) -> Revision:
    record = read(manifest)
    if record is None:
        raise AssertionError("a revision just rendered cannot be read back")
    return record


def _describe(record: Revision) -> str:
    resolved = record.resolved
    drafter = f"{resolved.drafter.model}@{resolved.drafter.revision or 'main'}"
    return f"{resolved.engine} {resolved.version}, {resolved.target.model} with {drafter}, block size {record.speculation.label()}"


def _outage_ahead(state: ReconcileState) -> list[Event]:
    """Returns an event ahead of an outage: the only serving replica stops, and nothing serves until the new one has loaded."""
    left = unfinished(state)
    if left is None or left[0] is not Reason.OUTAGE_AHEAD:
        return []
    return [*_announced(state, ConditionType.RECONCILING, *left)]


def _announced(state: ReconcileState, type: ConditionType, reason: Reason, message: str) -> tuple[Event, ...]:
    """Returns an event if the condition does not say so yet. A restart of the operator therefore repeats no event."""
    shown = get_condition((state.deployment.get("status") or {}).get("conditions") or (), type)
    if shown is not None and shown.get("reason") == reason and shown.get("message") in (message, shorten(message)):
        return ()
    return (Event("Normal" if reason is Reason.SUSPENDED else "Warning", str(reason), shorten(message)),)
