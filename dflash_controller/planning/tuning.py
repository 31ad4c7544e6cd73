"""The tuner's part in a plan: its inputs, its decision, and the revision it chooses in place of the active one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from dflash_controller.api import defaults
from dflash_controller.api.conditions import Reason, shorten
from dflash_controller.api.defaults import RolloutPolicy, TuningPolicy
from dflash_controller.api.speculation import Speculation
from dflash_controller.api.types import Spec
from dflash_controller.engines import ENGINES
from dflash_controller.planning.actuators import ACTUATORS
from dflash_controller.planning.revisions.capacity import by_block, effective
from dflash_controller.planning.revisions.desired import PendingRevision, block_acted_upon, rolled_back
from dflash_controller.planning.revisions.drafter_health import DrafterHealth, Fallback, judge, may_draft, remedy
from dflash_controller.planning.revisions.revision import Origin, Revision, RevisionState, TunerTrial
from dflash_controller.planning.rollout.maintenance_window import opening
from dflash_controller.planning.rollout.transitions import Asker
from dflash_controller.planning.state.reconcile_state import ReconcileState
from dflash_controller.render.startup import startup_budget_s
from dflash_controller.tuner.decision import Change, TunerDecision, TunerInputs
from dflash_controller.tuner.policy import decide
from dflash_controller.tuner.priors import prior_of
from dflash_controller.tuner.schedule_price import MEASURED_PRICE

MISSED_EVALUATIONS = 3
"""Evaluations with too few measured pods after which the tuner reports Held. It changes nothing from the first one on."""
SCHEDULE_LETTERS = 200
"""Longest text about why no schedule is chosen."""
_MEASURED = frozenset({Reason.NOT_FASTER, Reason.INCONCLUSIVE, Reason.REPLICA_BIAS})
"""Why a trial ends that measured its block size, without a promotion."""
_TRIED = frozenset({RevisionState.STABLE, RevisionState.FAILED})


def tuned(
    state: ReconcileState, spec: Spec, policy: RolloutPolicy, wanted: Revision | PendingRevision
) -> tuple[ReconcileState, Revision | PendingRevision, Asker | None]:
    """Returns the state with the tuner's decision, the revision to run, and the tuner as its asker if it differs from the spec's revision.

    A change that the tuner began continues until it is promoted, fails, or a change of the user replaces it. Leaving mode Auto ends it.
    While the spec's revision is marked Failed, stable serves in its place and is tuned. The failure stays in the state, so it stays shown.
    """
    stable = state.stable
    if stable is None:
        return state, wanted, None
    state = replace(state, health=judged(state, spec, stable))
    tuning = defaults.effective_tuning(spec, stable.resolved.trained_block_size)
    own = _own_candidate(state)
    if state.pin is None and isinstance(wanted, Revision) and rolled_back(wanted):
        state = replace(state, failed=wanted)
    undisturbed = state.pin is None and isinstance(wanted, Revision) and (wanted.hash == stable.hash or state.failed is not None)
    if undisturbed and own is not None and tuning.mode == "Auto":
        message = f"{own.name} is on trial{' because its gain is not known' if own.exploratory else ''}"
        asker = Asker(Origin.TUNER, own.asked["reason"], own.tuners_trial)
        return replace(state, decision=_decision(state, spec, policy, tuning, stable, message)), own, asker
    against = "" if undisturbed else "a change of the spec, or a pin, goes before"
    decision = _decision(state, spec, policy, tuning, stable, against)
    state = replace(state, decision=decision)
    fallback = _fallback(state, spec, policy, stable, tuning) if undisturbed else None
    if fallback is not None and (replacement := fallback.record or _draft(state, spec, stable, fallback.speculation)) is not None:
        return state, replacement, Asker(Origin.TUNER, Reason.DRAFTER_COLLAPSED)
    if decision is None or decision.change_to is None or not undisturbed or decision.change_to == stable.speculation:
        return state, wanted, None
    draft = _draft(state, spec, stable, decision.change_to)
    return (state, wanted, None) if draft is None or rolled_back(draft) else (state, draft, _asker(decision))


def _asker(decision: TunerDecision) -> Asker:
    exploratory = decision.reason is Reason.EXPLORING
    load = float(decision.numbers.get("concurrency", 0.0))
    trial = TunerTrial(max(0.1, load), exploratory) if load > 0 else None
    return Asker(Origin.TUNER, Reason.EXPLORING if exploratory else Reason.TUNED, trial)


def _draft(state: ReconcileState, spec: Spec, stable: Revision, speculation: Speculation) -> Revision | PendingRevision | None:
    """Returns the stored revision that differs from stable in speculation only, or a draft of it. None if the engine cannot run it."""
    for record in state.records:
        if record.speculation == speculation and record.same_intent(stable.inputs):
            return record
    if ENGINES[stable.resolved.engine].problems(stable.resolved.launch_request(speculation)):
        return None
    return PendingRevision(stable.inputs, block_acted_upon(spec, stable), speculation, stable.resolved)


def _own_candidate(state: ReconcileState) -> Revision | None:
    """Returns the tuner's candidate: a revision that differs from stable in speculation, or an earlier revision to return to. Else None."""
    for record in state.records:
        if record.state is RevisionState.CANDIDATE and record.origin == Origin.TUNER:
            return record
    return None


def judged(state: ReconcileState, spec: Spec, stable: Revision) -> DrafterHealth:
    """Returns the health of the active drafter."""
    context, status, before = state.context, state.deployment.get("status") or {}, state.stored.stable
    return judge(
        context.tuning.recent,
        before.name if before else None,
        context.now.timestamp(),
        stable,
        state.records,
        status,
        spec.block_size,
    )


def _fallback(state: ReconcileState, spec: Spec, policy: RolloutPolicy, stable: Revision, tuning: TuningPolicy) -> Fallback | None:
    """Returns what replaces a collapsed drafter. None if it has not collapsed, or if the operator may not act."""
    health, budget = state.health, state.budget
    if health is None or not health.confirmed or _frozen(replace(state, health=None), spec, policy):
        return None
    if budget.replicas == 1 and not budget.max_surge and not tuning.allow_downtime:
        return None
    return remedy(state.records, stable, tuning.mode, may_go_back=policy.automatic_rollback)


def _decision(
    state: ReconcileState, spec: Spec, policy: RolloutPolicy, tuning: TuningPolicy, stable: Revision, against: str
) -> TunerDecision | None:
    """Returns the tuner's decision.

    Returns None if nothing was learned yet, or if too few pods were measured just now; the status then stays as it is. An operator that has
    just started has measured no pod, and a pod may miss a round. Both end soon, so neither is reported.
    """
    knowledge = state.context.tuning
    if knowledge.learned is None:
        return None
    resolved, budget = stable.resolved, state.budget
    price, shown = knowledge.schedule_price or MEASURED_PRICE, _shown_metrics(state, stable)
    no_schedule = shorten(ACTUATORS["Schedule"].unavailable(stable, tuning, knowledge.schedule_price), SCHEDULE_LETTERS)
    tuner_inputs = TunerInputs(
        now_s=state.context.now.timestamp(),
        policy=replace(tuning, block_sizes=_block_sizes(state, stable, tuning)),
        speculation=stable.speculation,
        trained_block=resolved.trained_block_size,
        mixture=resolved.mixture_of_experts,
        replicas=budget.replicas,
        serving=state.serving,
        measured=knowledge.measured,
        surge=budget.max_surge > 0,
        restart_s=restart_s(state, stable),
        frozen=against or _frozen(state, spec, policy),
        degraded=_degraded(state),
        leaving=_leaving(state),
        metrics=_metrics(state),
        changes=tuple(changes(state.records)),
        schedule=not no_schedule,
        no_schedule=no_schedule,
        schedule_below_percent=price.below_percent,
        schedule_largest_percent=price.largest_percent,
        max_concurrency=effective(stable, shown) or resolved.max_concurrency,
        capacity=by_block(stable, shown, (1, *tuning.block_sizes), knowledge.recent),
    )
    decision = decide(tuner_inputs, knowledge.learned, prior=prior_of(resolved))
    few = decision.reason is Reason.METRICS_MISSING and not tuner_inputs.metrics
    if few and knowledge.short_for_s < MISSED_EVALUATIONS * state.context.tuning_requeue_s:
        return None
    return decision


def _shown_metrics(state: ReconcileState, stable: Revision) -> Mapping[str, Any]:
    """Returns the metrics that the status shows of the stable revision, and those to be shown from now on."""
    status, before = state.deployment.get("status") or {}, state.stored.stable
    shown: Mapping[str, Any] = (status.get("metrics") if status.get("stableRevision") == stable.name else None) or {}
    return {**shown, **((state.context.metric_values if before is not None and before.hash == stable.hash else None) or {})}


def _block_sizes(state: ReconcileState, stable: Revision, tuning: TuningPolicy) -> tuple[int, ...]:
    """Returns the block sizes to choose from. Those that failed for the user with this intent are left out until the intent changes."""
    if not may_draft(stable, state.records):
        return (1,)
    failed = {record.speculation for record in state.records if rolled_back(record) and record.same_intent(stable.inputs)}
    left = tuple(block for block in tuning.block_sizes if defaults.speculation_of(block) not in failed)
    return left or (stable.speculation.max_block_size,)


def _metrics(state: ReconcileState) -> str:
    """Returns why there are no fresh metrics, or ''. Pods Ready only since the last round do not count; the next round measures them."""
    health = state.context.metrics
    if health.available is not False or (health.reason is Reason.NO_PODS and state.serving):
        return ""
    return health.message


def restart_s(state: ReconcileState, stable: Revision) -> float:
    """Returns the seconds from a pod's creation to Ready: the slowest of the Ready pods, or half the start-up budget if none is known.

    Pods that have restarted do not count.
    """
    took = [
        (pod.ready_since - pod.created_at).total_seconds()
        for pod in state.pods(stable.hash)
        if pod.ready_since is not None and pod.created_at is not None and not pod.restarts
    ]
    return max(took, default=startup_budget_s(stable.resolved) / 2)


def changes(records: Iterable[Revision]) -> list[Change]:
    """Returns the tuner's changes so far, oldest first, from the histories of the revisions."""
    found = []
    for record in records:
        asked = ""
        for entry in record.history:
            trial = TunerTrial.of(entry)
            if entry["outcome"] == RevisionState.CANDIDATE:
                asked = entry["origin"]
            elif (asked == Origin.TUNER or trial is not None) and entry["outcome"] in _TRIED:
                kept, refused = entry["outcome"] == RevisionState.STABLE, entry["reason"] in _MEASURED
                at_s, block = datetime.fromisoformat(entry["at"]).timestamp(), record.speculation.max_block_size
                load, exploratory = (trial.load, trial.exploratory) if trial is not None else (0.0, False)
                found.append(Change(at_s, block, kept, load, refused, exploratory))
                asked = ""
    return sorted(found, key=lambda change: change.at_s)


def _frozen(state: ReconcileState, spec: Spec, policy: RolloutPolicy) -> str:
    if defaults.suspended(spec):
        return "spec.suspend is true"
    if policy.paused:
        return "spec.rollout.paused is true"
    if policy.window is not None and not opening(policy.window, state.context.now).open:
        return "spec.rollout.window is closed"
    if state.health is not None and state.health.reason is Reason.DRAFTER_COLLAPSED:
        return "the drafter has collapsed"
    return _unrest(state)


def _unrest(state: ReconcileState) -> str:
    """Returns a message if a rollout is not finished, else ''."""
    stable = state.stable
    if any(record.state is RevisionState.CANDIDATE for record in state.records):
        return "a rollout is under way"
    if any(pool.existing or pool.terminating for pool in state.pools if stable is None or pool.revision != stable.hash):
        return "a rollout is not over yet"
    rollout = (state.deployment.get("status") or {}).get("rollout") or {}
    return "a rollout is not over yet" if rollout and rollout.get("finishedAt") is None else ""


def _degraded(state: ReconcileState) -> str:
    replicas, serving = state.budget.replicas, state.serving
    if replicas == 0:
        return "spec.replicas is 0"
    if serving < replicas:
        return f"{serving} of {replicas} replicas serve"
    return ""


def _leaving(state: ReconcileState) -> str:
    """Returns why a pod is terminating, or ''.

    The operator does not watch nodes; a drained node shows in its terminating pods. Pods of a dead node do not count, because they may be
    terminating for ever.
    """
    snapshot = state.snapshot
    leaving = any(pod.terminating and pod.node not in snapshot.dead_nodes for pod in snapshot.pods)
    return "its node is drained, or it was evicted, deleted or scaled away" if leaving else ""
