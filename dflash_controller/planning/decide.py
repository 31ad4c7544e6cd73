"""From a snapshot to a plan: the whole decision, in order.

Find out what the spec asks for, adopt orphans, give revisions their roles, then keep the children and move replicas.
"""

from __future__ import annotations

from dataclasses import replace

from dflash_controller.api import defaults
from dflash_controller.api.conditions import ConditionType, Reason, get_condition, shorten
from dflash_controller.api.parse import parse_spec
from dflash_controller.api.types import Spec
from dflash_controller.engines import ENGINES
from dflash_controller.engines.resolve import resolve
from dflash_controller.planning import obstacles
from dflash_controller.planning.children import shared_children
from dflash_controller.planning.conditions import stalled
from dflash_controller.planning.context import Context, Obstacle
from dflash_controller.planning.intent import Draft, stable_record, wanted_revision
from dflash_controller.planning.ownership import adoptions, being_deleted, foreign
from dflash_controller.planning.plan import Create, Event, Plan, Step
from dflash_controller.planning.pools import pools
from dflash_controller.planning.record import Record, read
from dflash_controller.planning.revisions import lost_revisions, move_states, new_revision
from dflash_controller.planning.rollout import Budget, next_replicas, rollout_goals
from dflash_controller.planning.situation import Situation
from dflash_controller.planning.snapshot import Snapshot
from dflash_controller.planning.status import status
from dflash_controller.planning.workloads import clean_up, workload_steps

LOOK_AGAIN_S = 60.0
"""A name that somebody else holds is not watched, so it is looked at again."""


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
        return _blocked(situation, obstacles.invalid(spec))
    policy = defaults.effective_rollout(spec)
    situation = replace(situation, budget=Budget(defaults.replicas(spec), policy.max_surge, policy.max_unavailable))

    if strangers := foreign((*snapshot.revisions, *snapshot.workloads, *snapshot.others), deployment):
        return replace(_blocked(situation, obstacles.name_taken(strangers)), requeue_after_s=LOOK_AGAIN_S)
    if unreadable := [item for item, record in stored if record is None]:
        return _blocked(situation, obstacles.revisions_unreadable(unreadable))
    wanted = _wanted(situation, spec)
    if isinstance(wanted, Obstacle):
        return _blocked(situation, wanted)
    if context.refusal is not None:
        return _blocked(situation, context.refusal)
    if defaults.suspended(spec):
        return _suspended(situation, wanted)
    return _carry_on(situation, spec, wanted)


def _wanted(situation: Situation, spec: Spec) -> Record | Draft | Obstacle:
    context, key = situation.context, situation.snapshot.key
    if problems := obstacles.spec_problems(spec, context):
        return obstacles.invalid(problems)
    wanted = wanted_revision(
        spec,
        situation.records,
        lambda carried: resolve(spec, key.name, key.namespace, context.catalog, context.defaults, carried),
    )
    if isinstance(wanted, list):
        return obstacles.unresolved(wanted, spec, context)
    if isinstance(wanted, Draft):
        request = wanted.resolved.launch_request(wanted.speculation)
        if impossible := ENGINES[wanted.resolved.engine].problems(request):
            return obstacles.engine_unsupported(impossible)
    if wanted.resolved.nodes > 1 and "LeaderWorkerSet" not in situation.snapshot.kinds:
        return obstacles.leader_worker_set_missing()
    return wanted


def _blocked(situation: Situation, obstacle: Obstacle) -> Plan:
    """Nothing is written but the status: what runs keeps running."""
    situation = replace(situation, obstacle=obstacle, wanted={pool.revision: pool.wanted for pool in situation.pools})
    return Plan(_announced(situation, ConditionType.STALLED, obstacle.reason, obstacle.message), status(situation))


def _suspended(situation: Situation, wanted: Record | Draft) -> Plan:
    """Pods keep serving, nothing below is written, rollback and repair included."""
    candidate = wanted if isinstance(wanted, Record) and wanted != situation.stable else None
    situation = replace(situation, candidate=candidate, wanted={pool.revision: pool.wanted for pool in situation.pools})
    message = "Nothing is written until spec.suspend is false; pods keep serving"
    return Plan(_announced(situation, ConditionType.RECONCILING, Reason.SUSPENDED, message), status(situation))


def _carry_on(situation: Situation, spec: Spec, wanted: Record | Draft) -> Plan:
    snapshot = situation.snapshot
    adopted: list[Step] = [*adoptions((*snapshot.revisions, *snapshot.workloads, *snapshot.others), situation.deployment)]
    if lost := lost_revisions(situation):
        # Which revision is in force depends on them, so nothing else is decided before they are back.
        names_ = ", ".join(item["metadata"]["name"] for item in lost)
        told = Event("Warning", "RevisionRebuilt", f"The record of {names_} was gone and has been made again from its workload")
        return Plan((*adopted, *(Create(item) for item in lost), told))

    made: list[Step] = []
    if isinstance(wanted, Draft):
        manifest = new_revision(situation, spec, wanted)
        target = _as_record(manifest)
        made = [Create(manifest), Event("Normal", "RevisionCreated", f"{target.name}: {_describe(target)}")]
        situation = replace(situation, records=(*situation.records, target))
    else:
        target = wanted
    situation, moves = move_states(situation, target, fresh=bool(made))

    goals = rollout_goals(situation.budget, *(record.hash if record else None for record in (situation.stable, situation.candidate)))
    situation = replace(situation, wanted=next_replicas(situation.budget, situation.pools, goals))
    hopeless, reason, message = stalled(situation)
    steps = (
        *adopted,
        *made,
        *moves,
        *_outage_ahead(situation),
        *shared_children(situation, spec, situation.stable or target),
        *workload_steps(situation),
        *clean_up(situation, defaults.effective_rollout(spec).history_limit),
        *(_announced(situation, ConditionType.STALLED, reason, message) if hopeless else ()),
    )
    return Plan(steps, status(situation))


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
    stable, candidate = situation.stable, situation.candidate
    if stable is None or candidate is None or situation.budget.replicas != 1:
        return []
    pool = situation.pool(stable.hash)
    if pool.serving == 0 or situation.wanted.get(stable.hash, 0) > 0:
        return []
    message = f"{stable.name} stops so that {candidate.name} can load: nothing serves meanwhile. Set spec.rollout.maxSurge to 1 to avoid it"
    return [Event("Warning", str(Reason.OUTAGE_AHEAD), message)]


def _announced(situation: Situation, type: ConditionType, reason: Reason, message: str) -> tuple[Event, ...]:
    """An event when the condition does not say so yet: an operator that restarts has nothing new to tell."""
    shown = get_condition((situation.deployment.get("status") or {}).get("conditions") or (), type)
    if shown is not None and shown.get("reason") == reason and shown.get("message") in (message, shorten(message)):
        return ()
    return (Event("Normal" if reason is Reason.SUSPENDED else "Warning", str(reason), shorten(message)),)
