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
from dflash_controller.api.parse import parse_spec, serving_part
from dflash_controller.api.types import Spec
from dflash_controller.model.snapshot import Snapshot
from dflash_controller.planning.children.shared import accessories
from dflash_controller.planning.children.workloads import candidate_steps, clean_up, serving_steps, spent_jobs
from dflash_controller.planning.replicas.count import pools, revision_of
from dflash_controller.planning.replicas.next_replicas import Budget, next_replicas
from dflash_controller.planning.revisions.desired import PendingRevision, rolled_back
from dflash_controller.planning.revisions.measured_rates import to_store
from dflash_controller.planning.revisions.operations import pinned
from dflash_controller.planning.revisions.outcome import CandidateOutcome, Phase
from dflash_controller.planning.revisions.revision import Origin, Revision, read
from dflash_controller.planning.revisions.roles import StoredRevisions
from dflash_controller.planning.rollout.canary import rule, rule_under_obstacle
from dflash_controller.planning.rollout.group_starts import note_starts
from dflash_controller.planning.rollout.movement import goals, movements
from dflash_controller.planning.rollout.surge import without_surge
from dflash_controller.planning.rollout.transitions import (
    PINNED,
    SPEC_CHANGED,
    Asker,
    abort_replacement,
    carry_out,
    finish_collapse,
    forget_operations,
    keep_answers,
    lost_revisions,
    new_revision,
    note_lack_of_room,
    remember_block,
    take_roles,
)
from dflash_controller.planning.state import blockers
from dflash_controller.planning.state.child_ownership import adoptions, being_deleted, ref
from dflash_controller.planning.state.inputs import Blocker, PlannerInputs
from dflash_controller.planning.state.obstacles import find_obstacles
from dflash_controller.planning.state.plan import REQUEUE_AFTER_S, Annotate, Create, Event, Part, Plan, Step
from dflash_controller.planning.state.reconcile_state import ReconcileState
from dflash_controller.planning.state.wanted import Waiting, Wanted, wanted_revision
from dflash_controller.planning.status.build import status
from dflash_controller.planning.status.conditions import reconciling, stalled, unfinished
from dflash_controller.planning.status.hub import hub_questions
from dflash_controller.planning.status.notices import concurrency_reported
from dflash_controller.planning.tuning import judged, tuned

TERMINATING_S = 15.0


def decide(snapshot: Snapshot, stored: StoredRevisions, context: PlannerInputs) -> Plan:
    """Returns what to write next and the status to show. It is level-based: the same for every trigger, with no state between calls.

    ``stored`` are the snapshot's revisions.
    """
    deployment = snapshot.deployment
    if deployment is None or being_deleted(deployment):
        return Plan()
    parsed = parse_spec(deployment)
    spec = parsed if isinstance(parsed, Spec) else serving_part(deployment)
    policy = defaults.effective_rollout(spec)
    seen = find_obstacles(snapshot, stored, deployment)
    state = ReconcileState(
        seen.snapshot,
        deployment,
        context,
        spec if spec is parsed else None,
        seen.stored,
        obstacles={**seen.found, **context.refusals},
        unknown=seen.unknown,
        in_force_unread=seen.in_force,
        taken=seen.taken,
        records=seen.stored.records,
        stable=None if seen.in_force else seen.stored.stable,
        pin=pinned(deployment, seen.stored.records),
        budget=Budget(defaults.replicas(spec), policy.max_surge, policy.max_unavailable),
        pools=tuple(pools(seen.snapshot)),
    )
    # A pin names what is to run, so only what makes that unknown or impossible keeps it from being obeyed.
    pinned_through = state.pin is not None and seen.in_force is None and Part.SERVING not in seen.found and not context.refusals
    held = state.held is not None and not pinned_through
    state, finished = finish_collapse(state)
    aborted: Sequence[Step] = ()
    if not defaults.suspended(spec):
        state, aborted = abort_replacement(state)
    found = wanted_revision(state, spec) if isinstance(parsed, Spec) else Wanted(blockers.invalid(parsed))
    asked, state = found.outcome, replace(state, asked_hub=found.pending)
    wanted: Revision | PendingRevision | None = None if isinstance(asked, Blocker | Waiting) else asked
    if isinstance(asked, Blocker):
        state = replace(state, obstacles={Part.ROLLOUT: asked, **state.obstacles})
    elif isinstance(asked, Waiting):
        state = replace(state, waits_for_hub=asked.message, departs=True)
    elif rolled_back(asked) and state.stable is None and state.pin is None and not held and not lost_revisions(state):
        # Somebody edited the states. What failed must not take over, and what serves stays as it is.
        told = {Part.ROLLOUT: blockers.nothing_stable(asked.name if isinstance(asked, Revision) else ""), **state.obstacles}
        state, wanted = replace(state, obstacles=told, unknown=frozenset(pool.revision for pool in state.pools)), None
    if state.pin is not None:
        departs = not isinstance(wanted, Revision) or wanted.hash != state.pin.hash
        state, wanted = replace(state, departs=departs, waits_for_hub=None), state.pin
    if held or wanted is None:
        # What the rollout would do is not known, or cannot be done. What serves is kept up, and an abort is obeyed.
        return (
            _suspended(state, None) if defaults.suspended(spec) else _carry_on(state, spec, policy, None, _ASKED_BY_USER, finished, aborted)
        )
    state, wanted, tuner = tuned(state, spec, policy, wanted)
    if defaults.suspended(spec):
        return _suspended(state, wanted)
    asker = tuner or (Asker(Origin.USER, PINNED) if state.pin is not None else _ASKED_BY_USER)
    return _carry_on(state, spec, policy, wanted, asker, finished, aborted)


_ASKED_BY_USER = Asker(Origin.USER, SPEC_CHANGED)


def _suspended(state: ReconcileState, wanted: Revision | PendingRevision | None) -> Plan:
    """Returns a plan that writes only the status and an event. Pods keep serving; even rollback and repair wait."""
    state = replace(state, wanted={pool.revision: pool.wanted for pool in state.pools})
    if wanted is None:
        state = replace(state, candidate=state.stored.candidate)
    elif isinstance(wanted, PendingRevision):
        state = replace(state, departs=True)
    elif wanted != state.stable:
        failed = rolled_back(wanted) and not state.pin
        state = replace(state, failed=wanted) if failed else replace(state, candidate=wanted)
    # What the condition shows is what is announced: another message would be announced with every reconcile.
    shown = (ConditionType.STALLED, stalled(state)) if state.blocker is not None else (ConditionType.RECONCILING, reconciling(state))
    return Plan(_announced(state, shown[0], *shown[1][1:]), status=status(state), models=hub_questions(state))


def _carry_on(
    state: ReconcileState,
    spec: Spec,
    policy: RolloutPolicy,
    wanted: Revision | PendingRevision | None,
    asker: Asker,
    finished: Sequence[Step],
    aborted: Sequence[Step],
) -> Plan:
    """Returns the plan. ``wanted`` is None if the rollout waits for an obstacle to go away; roles then stay as they are stored."""
    snapshot = state.snapshot
    adopted = adoptions((*snapshot.revisions, *snapshot.workloads, *snapshot.others), state.deployment)
    if lost := lost_revisions(state):
        # They determine which revision is active, so nothing else is decided before they are rebuilt.
        names_ = ", ".join(item["metadata"]["name"] for item in lost)
        told = Event("Warning", "RevisionRebuilt", f"The record of {names_} was missing and has been created again from its workload")
        return Plan((*adopted,), (*(Create(item) for item in lost), told))

    made: tuple[Step, ...] = ()
    moves: tuple[Step, ...] = ()
    before = state.stored.stable
    if wanted is None:
        state = replace(state, candidate=state.stored.candidate)
    else:
        state, made, moves = _take_roles(state, spec, wanted, asker)
    begins = bool(made or moves or aborted)
    remembered: Sequence[Step] = ()
    if wanted is not None and state.spec is not None:
        state, remembered = remember_block(state, spec, asker)
    state, lifted = forget_operations(state)
    undecided = state
    state, decided = _decide_candidate(state, spec, policy, begins=begins, waits=wanted is None)
    if state.stable is not None and (state.stable != before or state.health is None):
        state = replace(state, health=judged(state, spec, state.stable))

    state = _with_next_replicas(state, policy, begins=begins, waits=wanted is None)
    terminal, reason, message = stalled(state)
    shown = status(state)
    announced = _announced(state, ConditionType.STALLED, reason, message) if terminal else ()
    if state.context.refusals:
        # The writes were carried out as far as possible. This plan only reports the rest.
        return Plan(announced, status=shown, requeue_after_s=REQUEUE_AFTER_S)
    outcome = state.outcome
    ends = outcome is not None and outcome.end is not None
    in_force = state.stable or state.candidate
    learned = () if begins or decided or finished or wanted is None else _learned(state)
    measured = () if begins or decided or finished or remembered or lifted or learned or wanted is None else _measured(state)
    # Only the plan that ends a trial knows the verdicts. A conflict of a child write between the record and the status would lose them.
    children = not ends
    if children:
        serving = serving_steps(state)
    elif blockers.refused_before(state.deployment):
        # The end of the trial may not be recorded this time either. What serves is kept up meanwhile.
        serving = serving_steps(_with_next_replicas(undecided, policy, begins=True, waits=wanted is None))
    else:
        serving = []
    return Plan(
        serving=(
            *adopted,
            *_outage_ahead(state),
            *serving,
        ),
        rollout=(
            *finished,
            *aborted,
            *made,
            *moves,
            *remembered,
            *lifted,
            *decided,
            *learned,
            *measured,
            *_tuning_reported(state, shown),
            *concurrency_reported(state, shown),
            *(candidate_steps(state) if children else ()),
            *(clean_up(state, policy.history_limit) if children and wanted is not None else ()),
            *_phase_reached(state, shown),
            *announced,
        ),
        accessories=(
            *(accessories(state, spec, in_force) if children and in_force is not None and state.spec is not None else ()),
            *(spent_jobs(state) if children and wanted is not None else ()),
        ),
        status=shown,
        requeue_after_s=_requeue_after_s(state),
        decision=state.decision,
        probe=outcome.probe if outcome and not ends else None,
        models=hub_questions(state),
        stores_learned=bool(learned),
    )


def _take_roles(
    state: ReconcileState, spec: Spec, wanted: Revision | PendingRevision, asker: Asker
) -> tuple[ReconcileState, tuple[Step, ...], tuple[Step, ...]]:
    """Returns the state with the roles that the desired revision needs, the writes that create it, and the writes that move revisions."""
    made: tuple[Step, ...] = ()
    if isinstance(wanted, PendingRevision):
        manifest, doubts = new_revision(state, spec, wanted, asker), wanted.doubts
        wanted = _as_record(manifest)
        told = (Event("Warning", Reason.REVISION_NOT_RESOLVED.value, shorten(doubt)) for doubt in doubts)
        made = (Create(manifest), Event("Normal", "RevisionCreated", f"{wanted.name}: {_describe(wanted)}"), *told)
        state = replace(state, records=(*state.records, wanted))
    state, moves = take_roles(state, spec, wanted, asker, fresh=bool(made))
    return state, made, tuple(moves)


def _decide_candidate(
    state: ReconcileState, spec: Spec, policy: RolloutPolicy, *, begins: bool, waits: bool
) -> tuple[ReconcileState, list[Step]]:
    """Decides on the candidate, but not in the plan that makes it one. The status shows the trial before a replica is used for it.

    While the rollout waits for an obstacle, only an abort and scaling to 0 or 1 count.
    """
    stable, candidate = state.stable, state.candidate
    starts: Sequence[Step] = ()
    if stable is None or candidate is None:
        state, starts = note_starts(state)
        stable = state.stable
    if stable is None or (waits and candidate is None):
        return state, [*starts]
    if candidate is None:
        state, noted = note_lack_of_room(state)
        return without_surge(state, stable), [*starts, *noted]
    if waits:
        state = without_surge(state, candidate)
        found = rule_under_obstacle(state, spec, policy)
        state, moved = carry_out(state, found) if found else (state, [])
        return state, [*moved]
    if begins:
        message = f"{candidate.name} will replace {stable.name}"
        outcome = CandidateOutcome(Phase.PREPARING, Reason.ROLLOUT_IN_PROGRESS, message, candidate.trial, tried=False)
        return replace(state, outcome=outcome), []
    state, kept = keep_answers(state)
    state = without_surge(state, candidate)
    state, moved = carry_out(state, rule(state, spec, policy))
    return state, [*kept, *moved]


def _with_next_replicas(state: ReconcileState, policy: RolloutPolicy, *, begins: bool, waits: bool) -> ReconcileState:
    """Returns the state with the replicas of every revision after this plan.

    A workload that does not exist yet is created empty before another revision gives up replicas for it. Its creation may be refused, by a
    quota or a policy, for as long as nobody changes that.
    """
    wanted = _next_replicas(state, policy, begins=begins, waits=waits)
    tried = state.candidate if state.outcome is not None and state.outcome.tried else None
    live = {revision_of(item) for item in state.snapshot.workloads}
    heirs = {record.hash for record in (state.stable, tried) if record is not None}
    new = frozenset(revision for revision in heirs - live if not state.pool(revision).existing)
    without = _next_replicas(state, policy, begins=True, waits=waits) if new else wanted
    if all(wanted.get(revision, 0) >= count for revision, count in without.items() if revision not in new):
        return replace(state, wanted=wanted)
    return replace(state, wanted=without, empty_first=new)


def _next_replicas(state: ReconcileState, policy: RolloutPolicy, *, begins: bool, waits: bool) -> dict[str, int]:
    """Returns the replicas of every revision after this plan."""
    stable, candidate, outcome = state.stable, state.candidate, state.outcome
    budget, canary = state.budget, None
    # While something begins, the next evaluation decides on new replicas: one made until then would load for nothing. Edits of replicas
    # count at once, because the writes that begin something may be refused for long.
    begins = begins and state.stored.stable is not None
    if stable is not None and candidate is not None:
        has = state.pool(candidate.hash).wanted > 0
        canary = candidate.hash if (has if begins or outcome is None else outcome.tried) else None
    if outcome is not None and outcome.trial.interrupted and not outcome.tried:
        # The trial may have taken the place of the last serving replica. It gives it back without an outage.
        budget = replace(budget, max_unavailable=0)
    leader = stable or candidate
    in_force = state.in_force_unread or (leader.hash if leader else None)
    moving = movements(
        state.records,
        state.pools,
        in_force,
        canary=canary,
        unread=state.unknown,
        frozen=begins or waits or (stable is not None and (candidate is not None or policy.paused)),
    )
    return next_replicas(budget, state.pools, goals(budget, state.pools, moving, in_force, canary))


def _learned(state: ReconcileState) -> tuple[Annotate, ...]:
    """Returns the write that stores the tuner's knowledge with the active revision, so that it survives a restart of the operator."""
    record, stable = state.context.tuning.record, state.stable
    if record is None or stable is None:
        return ()
    return (Annotate(ref(stable.source), {names.ANNOTATION_LEARNED: record}),)


def _measured(state: ReconcileState) -> tuple[Annotate, ...]:
    """Returns the writes that store how fast the weights of the revisions in force and on trial arrived."""
    found = []
    for record in (state.stable, state.candidate):
        if record is not None and (text := to_store(record, [pod for pod in state.snapshot.pods if pod.revision == record.hash])):
            found.append(Annotate(ref(record.source), {names.ANNOTATION_RATES: text}))
    return tuple(found)


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
    """Returns an event ahead of an outage: the only serving replica stops, and nothing serves until the new one has loaded.

    RolloutHealthy shows it for a change of the tuner too, which Reconciling does not.
    """
    left, candidate = unfinished(state), state.candidate
    if candidate is None or left is None or left[0] is not Reason.OUTAGE_AHEAD or state.pool(candidate.hash).wanted:
        return []
    return [*_announced(state, ConditionType.ROLLOUT_HEALTHY, *left)]


def _announced(state: ReconcileState, type: ConditionType, reason: Reason, message: str) -> tuple[Event, ...]:
    """Returns an event if the condition does not say so yet. A restart of the operator therefore repeats no event."""
    shown = get_condition((state.deployment.get("status") or {}).get("conditions") or (), type)
    if shown is not None and shown.get("reason") == reason and shown.get("message") in (message, shorten(message)):
        return ()
    return (Event("Normal" if reason is Reason.SUSPENDED else "Warning", str(reason), shorten(message)),)
