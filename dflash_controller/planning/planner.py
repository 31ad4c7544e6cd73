"""From a snapshot to a plan: the whole decision, in order.

Find out what the spec asks for, adopt orphans, give revisions their roles, then keep the children and move replicas.
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
from dflash_controller.planning.replicas.scaling import Budget, frozen_goals, next_replicas, rollout_goals
from dflash_controller.planning.revisions.desired import Draft, stable_record, wanted_revision
from dflash_controller.planning.revisions.operations import pinned
from dflash_controller.planning.revisions.outcome import Phase, Ruling
from dflash_controller.planning.revisions.revision import Origin, Record, State, read
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
from dflash_controller.planning.state.inputs import Context, Obstacle
from dflash_controller.planning.state.owner_references import adoptions, being_deleted, foreign, ref
from dflash_controller.planning.state.plan import Annotate, Create, Event, Plan, Step
from dflash_controller.planning.state.reconcile_state import Situation
from dflash_controller.planning.status.build import status
from dflash_controller.planning.status.conditions import stalled, unfinished
from dflash_controller.planning.tuning import judged, tuned

LOOK_AGAIN_S = 60.0
"""A name that somebody else holds is not watched, and neither is the clock."""
TERMINATING_S = 15.0


def decide(snapshot: Snapshot, context: Context) -> Plan:
    """What to write next, and the status to show. Level-based: the same for every trigger, and nothing is remembered between calls."""
    deployment = snapshot.deployment
    if deployment is None or being_deleted(deployment):
        return Plan()
    spec = parse_spec(deployment)
    stored = [(item, read(item)) for item in snapshot.revisions]
    records = tuple(record for _, record in stored if record is not None)
    situation = Situation(
        snapshot,
        deployment,
        context,
        spec if isinstance(spec, Spec) else None,
        records=records,
        stable=stable_record(records),
        pools=tuple(pools(snapshot)),
    )
    if not isinstance(spec, Spec):
        return _blocked(situation, blockers.invalid(spec))
    policy = defaults.effective_rollout(spec)
    situation = replace(
        situation,
        budget=Budget(defaults.replicas(spec), policy.max_surge, policy.max_unavailable),
        pin=pinned(deployment, records),
    )

    if strangers := foreign((*snapshot.revisions, *snapshot.workloads, *snapshot.others), deployment):
        return replace(_blocked(situation, blockers.name_taken(strangers)), requeue_after_s=LOOK_AGAIN_S)
    if unreadable := [item for item, record in stored if record is None]:
        return _blocked(situation, blockers.revisions_unreadable(unreadable))
    situation, finished = finish_collapse(situation)
    asked = _wanted(situation, spec)
    if isinstance(asked, Obstacle):
        return _blocked(situation, asked)
    wanted, pin = asked, situation.pin
    if pin is not None:
        situation, wanted = replace(situation, departs=isinstance(asked, Draft) or asked.hash != pin.hash), pin
    if context.refusal is not None:
        return _blocked(situation, context.refusal)
    situation, wanted, tuners_reason = tuned(situation, spec, policy, wanted)
    if defaults.suspended(spec):
        return _suspended(situation, wanted)
    if tuners_reason is not None:
        asker = Asker(Origin.TUNER, tuners_reason)
    else:
        asker = Asker(Origin.USER, "Pinned" if pin is not None else SPEC_CHANGED)
    return _carry_on(situation, spec, policy, wanted, asker, finished)


def _wanted(situation: Situation, spec: Spec) -> Record | Draft | Obstacle:
    context, key = situation.context, situation.snapshot.key
    if problems := blockers.spec_problems(spec, context):
        return blockers.invalid(problems)
    wanted = wanted_revision(
        spec,
        situation.records,
        lambda carried: resolve(spec, key.name, key.namespace, context.catalog, context.defaults, carried),
    )
    if isinstance(wanted, list):
        return blockers.unresolved(wanted, spec, context)
    if isinstance(wanted, Draft):
        request = wanted.resolved.launch_request(wanted.speculation)
        if impossible := ENGINES[wanted.resolved.engine].problems(request):
            return blockers.engine_unsupported(impossible)
    if wanted.resolved.nodes > 1 and "LeaderWorkerSet" not in situation.snapshot.kinds:
        return blockers.leader_worker_set_missing()
    return wanted


def _blocked(situation: Situation, obstacle: Obstacle) -> Plan:
    """Nothing is written but the status: what runs keeps running."""
    candidate = next((record for record in situation.records if record.state is State.CANDIDATE), None)
    wanted = {pool.revision: pool.wanted for pool in situation.pools}
    situation = replace(situation, obstacle=obstacle, candidate=candidate, wanted=wanted)
    return Plan(_announced(situation, ConditionType.STALLED, obstacle.reason, obstacle.message), status(situation))


def _suspended(situation: Situation, wanted: Record | Draft) -> Plan:
    """Pods keep serving, nothing below is written, rollback and repair included."""
    if isinstance(wanted, Draft):
        situation = replace(situation, departs=True)
    elif wanted != situation.stable:
        failed = wanted.state is State.FAILED and not situation.pin
        situation = replace(situation, failed=wanted) if failed else replace(situation, candidate=wanted)
    situation = replace(situation, wanted={pool.revision: pool.wanted for pool in situation.pools})
    message = "Nothing is written until spec.suspend is false; pods keep serving"
    return Plan(_announced(situation, ConditionType.RECONCILING, Reason.SUSPENDED, message), status(situation))


def _carry_on(
    situation: Situation, spec: Spec, policy: RolloutPolicy, wanted: Record | Draft, asker: Asker, finished: Sequence[Step]
) -> Plan:
    snapshot = situation.snapshot
    adopted: list[Step] = [*adoptions((*snapshot.revisions, *snapshot.workloads, *snapshot.others), situation.deployment)]
    if lost := lost_revisions(situation):
        # Which revision is in force depends on them, so nothing else is decided before they are back.
        names_ = ", ".join(item["metadata"]["name"] for item in lost)
        told = Event("Warning", "RevisionRebuilt", f"The record of {names_} was gone and has been made again from its workload")
        return Plan((*adopted, *(Create(item) for item in lost), told))

    made: list[Step] = []
    if isinstance(wanted, Draft):
        manifest = new_revision(situation, spec, wanted, asker)
        target = _as_record(manifest)
        made = [Create(manifest), Event("Normal", "RevisionCreated", f"{target.name}: {_describe(target)}")]
        situation = replace(situation, records=(*situation.records, target))
    else:
        target = wanted
    situation, moves = take_roles(situation, target, asker, fresh=bool(made))
    begins, before = bool(made or moves), situation.stable
    situation, ruled = _ruled(situation, spec, policy, begins=begins)
    if situation.stable is not None and situation.stable != before:
        situation = replace(situation, health=judged(situation, spec, situation.stable))

    situation = replace(situation, wanted=next_replicas(situation.budget, situation.pools, _goals(situation, policy, begins=begins)))
    hopeless, reason, message = stalled(situation)
    shown = status(situation)
    ruling = situation.ruling
    ends = ruling is not None and ruling.end is not None
    # The verdicts that ended a trial are known to this plan alone, so nothing that may meet a conflict stands before its status.
    children = (
        ()
        if ends
        else (
            *shared_children(situation, spec, situation.stable or target),
            *workload_steps(situation),
            *clean_up(situation, policy.history_limit),
        )
    )
    learned = () if begins or ruled or finished else _learned(situation)
    steps = (
        *adopted,
        *finished,
        *made,
        *moves,
        *ruled,
        *learned,
        *_tuning_told(situation, shown),
        *_outage_ahead(situation),
        *children,
        *_phase_reached(situation, shown),
        *(_announced(situation, ConditionType.STALLED, reason, message) if hopeless else ()),
    )
    return Plan(steps, shown, _look_again_s(situation), situation.decision, ruling.probe if ruling and not ends else None)


def _ruled(situation: Situation, spec: Spec, policy: RolloutPolicy, *, begins: bool) -> tuple[Situation, list[Step]]:
    """Rule on the candidate, except in the plan that makes it one: that it will be tried is shown before a replica is taken for it."""
    stable, candidate = situation.stable, situation.candidate
    if stable is None:
        return situation, []
    if candidate is None:
        situation, noted = note_lack_of_room(situation)
        return without_surge(situation, stable), [*noted]
    if begins:
        message = f"{candidate.name} is to replace {stable.name}"
        ruling = Ruling(Phase.PREPARING, Reason.ROLLOUT_IN_PROGRESS, message, candidate.trial, tried=False)
        return replace(situation, ruling=ruling), []
    situation, kept = keep_answers(situation)
    situation = without_surge(situation, candidate)
    situation, moved = carry_out(situation, rule(situation, spec, policy))
    jobs = other_children(situation, situation.ruling.jobs if situation.ruling else ())
    return situation, [*kept, *moved, *jobs]


def _goals(situation: Situation, policy: RolloutPolicy, *, begins: bool) -> dict[str, int]:
    stable, candidate, ruling = situation.stable, situation.candidate, situation.ruling
    if stable is not None and candidate is not None and begins:
        # Whether it is tried now is ruled at the next look. A replica put back for that moment, or taken from it, would load in vain.
        return {record.hash: situation.pool(record.hash).wanted for record in (stable, candidate)}
    if stable is not None and candidate is None and situation.failed is None and policy.paused:
        once_in_force = {record.hash for record in situation.records if record.state is State.STABLE}
        return frozen_goals(situation.budget, [pool for pool in situation.pools if pool.revision in once_in_force], stable.hash)
    tried = candidate is not None and (stable is None or (ruling is not None and ruling.tried))
    return rollout_goals(situation.budget, stable.hash if stable else None, candidate.hash if candidate and tried else None)


def _learned(situation: Situation) -> tuple[Annotate, ...]:
    """What the tuner has learned is kept with the revision in force, so that it outlives the operator."""
    record, stable = situation.context.tuning.record, situation.stable
    if record is None or stable is None:
        return ()
    return (Annotate(ref(stable.source), {names.ANNOTATION_LEARNED: record}),)


def _tuning_told(situation: Situation, shown: Mapping[str, Any]) -> tuple[Event, ...]:
    """An event for each decision that status shows for the first time."""
    tuning = shown.get("tuning")
    if tuning is None or tuning == (situation.deployment.get("status") or {}).get("tuning"):
        return ()
    held = tuning["state"] == "Held"
    return (Event("Warning" if held else "Normal", f"Tuner{tuning['reason']}", str(tuning["message"])),)


def _look_again_s(situation: Situation) -> float | None:
    """Time is news only where something is being waited for."""
    waits = [situation.ruling.look_again_s] if situation.ruling and situation.ruling.end is None else []
    if situation.decision is not None and situation.decision.state != "Off":
        waits.append(situation.context.tuning_look_s)
    if any(pod.terminating for pod in situation.snapshot.pods):
        # Whether the node of a pod that does not end is dead is not watched.
        waits.append(TERMINATING_S)
    if situation.candidate is None and unfinished(situation) and situation.budget.max_surge:
        waits.append(LOOK_AGAIN_S)
    return min((wait for wait in waits if wait is not None), default=None)


def _phase_reached(situation: Situation, shown: Mapping[str, Any]) -> list[Event]:
    """One event for every phase of a rollout. The first start of all is told by its revision and its promotion."""
    before = (situation.deployment.get("status") or {}).get("rollout") or {}
    rollout = shown.get("rollout") or {}
    phase = rollout.get("phase")
    if phase is None or not before or phase == before.get("phase"):
        return []
    bad = phase == Phase.HELD or situation.failed is not None
    return [Event("Warning" if bad else "Normal", f"Rollout{phase}", str(rollout.get("message")))]


def _as_record(manifest: dict[str, object]) -> Record:
    record = read(manifest)
    if record is None:
        raise AssertionError("a revision just rendered cannot be read back")
    return record


def _describe(record: Record) -> str:
    resolved = record.resolved
    drafter = f"{resolved.drafter.model}@{resolved.drafter.revision or 'main'}"
    return f"{resolved.engine} {resolved.version}, {resolved.target.model} with {drafter}, block size {record.speculation.label()}"


def _outage_ahead(situation: Situation) -> list[Event]:
    """Said before it happens: the only serving replica goes down and nothing serves until the new one has loaded."""
    left = unfinished(situation)
    if left is None or left[0] is not Reason.OUTAGE_AHEAD:
        return []
    return [*_announced(situation, ConditionType.RECONCILING, *left)]


def _announced(situation: Situation, type: ConditionType, reason: Reason, message: str) -> tuple[Event, ...]:
    """An event when the condition does not say so yet: an operator that restarts has nothing new to tell."""
    shown = get_condition((situation.deployment.get("status") or {}).get("conditions") or (), type)
    if shown is not None and shown.get("reason") == reason and shown.get("message") in (message, shorten(message)):
        return ()
    return (Event("Normal" if reason is Reason.SUSPENDED else "Warning", str(reason), shorten(message)),)
