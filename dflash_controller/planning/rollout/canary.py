"""Decides what happens to the candidate now: wait, try, judge, promote, fail, or leave it to a human.

The decision follows from the spec, the stored revisions, the pods and the evidence. Only ``Trial``, stored with the candidate's revision,
carries state from one decision to the next.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from dflash_controller.analysis.judge import judge
from dflash_controller.analysis.verdict import AnalysisDecision, AnalysisRequest, Judgement, Outcome
from dflash_controller.api.conditions import Reason
from dflash_controller.api.defaults import RolloutPolicy, effective_tuning
from dflash_controller.api.gates import LATENCY, SPEED, TTFT
from dflash_controller.api.types import Spec
from dflash_controller.model.counters import Evidence
from dflash_controller.planning.revisions import operations
from dflash_controller.planning.revisions.diff import changed, question
from dflash_controller.planning.revisions.outcome import CandidateOutcome, Phase
from dflash_controller.planning.revisions.revision import Origin, Revision, RevisionState
from dflash_controller.planning.revisions.trial_state import Trial, TrialFailure
from dflash_controller.planning.rollout.maintenance_window import opening
from dflash_controller.planning.rollout.preparation import fetch, take_reference
from dflash_controller.planning.rollout.probe import paired_runs, probe_needed, probe_pending
from dflash_controller.planning.rollout.surge import SURGE_TIMEOUT_S, unschedulable_s
from dflash_controller.planning.rollout.transitions import reverts_failure
from dflash_controller.planning.rollout.trial_clocks import (
    STABLE_FAILING_S,
    begun,
    cannot_start_left_s,
    loading_left_s,
    served,
    stable_down_left_s,
    ticked,
    unready_s,
)
from dflash_controller.planning.state.engine_exits import TERMINAL_RESTARTS, exits, pods_of
from dflash_controller.planning.state.fetches import arriving, told
from dflash_controller.planning.state.plan import REQUEUE_AFTER_S
from dflash_controller.planning.state.pod_trouble_cases import Kind
from dflash_controller.planning.state.pod_troubles import Trouble, pod_failure
from dflash_controller.planning.state.reconcile_state import ReconcileState
from dflash_controller.tuner.predicted_gain import predict
from dflash_controller.tuner.priors import prior_of
from dflash_controller.tuner.schedule_price import MEASURED_PRICE


@dataclass(frozen=True, slots=True)
class CanaryCase:
    """All that the decision on a candidate needs."""

    state: ReconcileState
    spec: Spec
    policy: RolloutPolicy
    stable: Revision
    candidate: Revision
    trial: Trial

    @property
    def now(self) -> datetime:
        return self.state.context.now

    @property
    def begun(self) -> bool:
        """Returns whether the candidate already has a replica."""
        pool = self.state.pool(self.candidate.hash)
        return pool.wanted > 0 or pool.existing > 0

    @property
    def concurrent(self) -> bool:
        """Returns whether stable keeps serving beside the candidate."""
        return self.state.budget.replicas > 1 or self.state.budget.max_surge > 0

    @property
    def by_tuner(self) -> bool:
        """Returns whether the tuner made the candidate. Nobody waits for it, so without proof it fails and no human is asked."""
        return self.candidate.origin == Origin.TUNER

    @property
    def question(self) -> AnalysisRequest | None:
        context, stable = self.state.context, self.stable
        asked = question(self.policy, stable, self.candidate, concurrent=self.concurrent, warm_up_s=context.warm_up_s)
        if asked is None or not self.by_tuner:
            return asked
        resolved = stable.resolved
        promised = predict(
            context.tuning.learned,
            stable.speculation,
            self.candidate.speculation,
            mixture=resolved.mixture_of_experts,
            min_gain_percent=effective_tuning(self.spec, resolved.trained_block_size).min_gain_percent,
            exploratory=self.candidate.exploratory,
            price=context.tuning.schedule_price or MEASURED_PRICE,
            prior=prior_of(resolved),
        )
        return replace(asked, promise=promised)

    def rule(self, phase: Phase, reason: Reason, message: str, **more: Any) -> CandidateOutcome:
        return CandidateOutcome(phase, reason, message, **{"trial": self.trial, **more})

    def promoted(self, reason: Reason, message: str, **more: Any) -> CandidateOutcome:
        return self.rule(Phase.PROGRESSING, reason, message, end=RevisionState.STABLE, **more)

    def fail_or_hold(self, reason: Reason, message: str, **more: Any) -> CandidateOutcome:
        """Fails the candidate, or holds it for a human if the spec says so. The finding is stored, because its metrics will be gone."""
        if self.policy.automatic_rollback or self.by_tuner:
            return self.fail(reason, message, **more)
        trial = replace(self.trial, finding=TrialFailure(reason, message))
        message = f"{message}. {operations.remedy(self.candidate)}"
        return self.rule(Phase.HELD, reason, message, trial=trial, stalls=True, **more)

    def fail(self, reason: Reason, message: str, **more: Any) -> CandidateOutcome:
        trial = replace(self.trial, finding=TrialFailure(reason, message))
        return self.rule(Phase.ROLLING_BACK, reason, message, **{**more, "trial": trial, "end": RevisionState.FAILED})


def rule(state: ReconcileState, spec: Spec, policy: RolloutPolicy) -> CandidateOutcome:
    """Decides on the state's candidate. Raises ValueError without a stable revision or a candidate."""
    stable, candidate = state.stable, state.candidate
    if stable is None or candidate is None:
        raise ValueError("nothing to rule on without a stable revision and a candidate")
    standing = operations.standing(state.deployment, candidate.name)
    trial = replace(candidate.trial, disregards=tuple(name for name in candidate.trial.disregards if name in standing))
    if trial.served_at is not None and trial.served_at > state.context.now:
        # Someone edited it, or the clock was wrong when it was written. The trial begins again.
        trial = replace(trial, served_at=None)
    case = CanaryCase(state, spec, policy, stable, candidate, trial)
    asked = operations.asked(state.deployment, candidate)
    if (aborted := aborted_by_hand(state)) is not None:
        return aborted
    if "promote" in asked or state.pin is not None:
        return _by_hand(case)
    if (interrupted := _interrupted(case)) is not None:
        return interrupted
    if state.budget.replicas == 0 and not policy.paused and (policy.window is None or opening(policy.window, case.now).open):
        return case.promoted(Reason.UNPROVEN, "spec.replicas is 0: it takes over without a trial")
    if _stops_the_last_unasked(case):
        message = (
            f"{stable.name} serves alone, and spec.tuning.allowDowntime is false: {candidate.name} waits for a second replica or surge"
        )
        return case.rule(Phase.PREPARING, Reason.DOWNTIME_NOT_ALLOWED, message, tried=False)
    if trial.finding is not None:
        return case.fail_or_hold(trial.finding.reason, trial.finding.message)
    if reverts_failure(candidate) and state.pool(candidate.hash).serving:
        return case.promoted(Reason.NOT_COMPARED, f"it serves, and the drafter of {stable.name} has collapsed")
    if policy.paused and not case.begun:
        return case.rule(Phase.PAUSED, Reason.PAUSED, "spec.rollout.paused is true: the trial does not start", tried=False)
    outcome = _on_trial(case) if case.begun else _before(case)
    if policy.paused and outcome.end is not RevisionState.FAILED and outcome.phase is not Phase.HELD:
        message = "spec.rollout.paused is true: the rollout waits"
        return replace(outcome, phase=Phase.PAUSED, reason=Reason.PAUSED, message=message, end=None)
    return outcome


def _stops_the_last_unasked(case: CanaryCase) -> bool:
    """Returns whether a candidate of the tuner would take the place of the only replica. Replicas may have gone since it was made."""
    if not case.by_tuner or case.begun or case.concurrent or case.state.budget.replicas == 0:
        return False
    allowed = effective_tuning(case.spec, case.stable.resolved.trained_block_size).allow_downtime
    return case.candidate.exploratory or not allowed


def rule_under_obstacle(state: ReconcileState, spec: Spec, policy: RolloutPolicy) -> CandidateOutcome | None:
    """Decides on the candidate while an obstacle stops the rollout: it can be aborted, and scaled away. None if it stays as it is."""
    stable, candidate = state.stable, state.candidate
    if stable is None or candidate is None:
        return None
    return aborted_by_hand(state) or _interrupted(CanaryCase(state, spec, policy, stable, candidate, candidate.trial))


def aborted_by_hand(state: ReconcileState) -> CandidateOutcome | None:
    """Returns the end of the trial if the abort annotation names the candidate, else None. It counts under every obstacle."""
    candidate = state.candidate
    if candidate is None or "abort" not in operations.asked(state.deployment, candidate):
        return None
    finding = TrialFailure(Reason.ABORTED, "the annotation serving.dflash.io/abort names it")
    trial = replace(candidate.trial, finding=finding)
    return CandidateOutcome(Phase.ROLLING_BACK, finding.reason, finding.message, trial, end=RevisionState.FAILED)


def _interrupted(case: CanaryCase) -> CandidateOutcome | None:
    """Returns the outcome if the deployment was scaled to 0 or 1 in the middle of the trial, so that only stable keeps a replica."""
    state, candidate, trial = case.state, case.candidate, case.trial
    if state.budget.replicas == 0 and (case.begun or trial.served_at is not None or trial.interrupted):
        # Scaling to 0 overnight must not promote a candidate that would have failed in the morning.
        message = f"spec.replicas is 0 in the middle of its trial: {candidate.name} is tried again when there are replicas"
        trial = replace(begun(trial), interrupted=True, interrupted_at_one=trial.interrupted_at_one)
        return case.rule(Phase.PREPARING, Reason.SCALED_TO_ZERO, message, trial=trial, tried=False)
    return _interrupted_at_one(case) if _left_with_one(case) else None


def _left_with_one(case: CanaryCase) -> bool:
    """Returns whether one replica is left for a trial in which candidate and stable served side by side.

    A candidate that takes the place of a replica, because its surge found no room, has been allowed to by maxUnavailable.
    """
    if case.state.budget.replicas != 1 or case.concurrent:
        return False
    side_by_side = all(case.state.pool(record.hash).wanted > 0 for record in (case.stable, case.candidate))
    return case.trial.interrupted_at_one or (side_by_side and (not case.trial.without_surge or case.trial.served_at is not None))


def _interrupted_at_one(case: CanaryCase) -> CandidateOutcome:
    """Decides that stable keeps the one replica. Nobody asked for the outage that another one in its place would be."""
    message = (
        f"spec.replicas is 1 in the middle of the trial of {case.candidate.name}, and {case.stable.name} keeps the one replica. "
        f"The trial goes on when spec.replicas is 2 or more, or spec.rollout.maxSurge 1 or more. {operations.remedy(case.candidate)}"
    )
    trial = replace(begun(case.trial), interrupted=True, interrupted_at_one=True)
    return case.rule(Phase.PREPARING, Reason.SCALED_TO_ONE, message, trial=trial, tried=False)


def _by_hand(case: CanaryCase) -> CandidateOutcome:
    """Decides after a human has chosen the candidate. It waits for one serving replica, so stable is not replaced by a broken revision."""
    word, reason = ("pin", Reason.PINNED) if case.state.pin else ("promote", Reason.PROMOTED_BY_HAND)
    if case.state.pool(case.candidate.hash).serving or case.state.budget.replicas == 0:
        return case.promoted(reason, f"the annotation serving.dflash.io/{word} names it")
    found = pod_failure(case.state, case.candidate.hash)
    message = f"The annotation serving.dflash.io/{word} names {case.candidate.name}; waiting for one replica to serve"
    told = f"{message}. {found.message}" if found else message
    return case.rule(Phase.CANARY, found.reason if found else reason, told, stalls=found is not None and found.terminal)


def _before(case: CanaryCase) -> CandidateOutcome:
    """Decides on a candidate that has no replica yet."""
    # Fetching takes nothing down, so it does not wait for the window.
    done, fetching = fetch(case.state, case.spec, case.stable, case.candidate)
    case = replace(case, trial=replace(case.trial, fetched=done))
    if (window := case.policy.window) and not (fetching and fetching.stalls):
        found = opening(window, case.now)
        if not found.open:
            when = f"it opens {found.changes_at:%Y-%m-%d %H:%M} UTC" if found.changes_at else "it never opens"
            seconds = (found.changes_at - case.now).total_seconds() if found.changes_at else REQUEUE_AFTER_S
            message = f"{case.candidate.name} waits for spec.rollout.window: {when}"
            return case.rule(
                Phase.PREPARING,
                Reason.OUTSIDE_WINDOW,
                f"{message}. {fetching.message}" if fetching else message,
                tried=False,
                jobs=fetching.jobs if fetching else (),
                requeue_after_s=max(1.0, seconds),
            )
    reference = take_reference(case.state, case.policy, case.stable, case.candidate, concurrent=case.concurrent)
    if waiting := fetching or reference:
        return case.rule(
            Phase.HELD if waiting.stalls or waiting.held else Phase.PREPARING,
            waiting.reason,
            waiting.message,
            tried=False,
            stalls=waiting.stalls,
            probe=waiting.probe,
            jobs=waiting.jobs,
            requeue_after_s=REQUEUE_AFTER_S,
        )
    # Restarts count from the pod's creation: an engine that exits now may have served for weeks, and serve again.
    broken, left_s = _stable_trouble(case), STABLE_FAILING_S - unready_s(case.state, case.stable)
    if broken is not None and left_s > 0:
        message = f"{case.stable.name} is given {STABLE_FAILING_S / 60:.0f} minutes to recover before {case.candidate.name} takes its place"
        return case.rule(Phase.PREPARING, broken.reason, f"{message}. {broken.message}", tried=False, requeue_after_s=left_s)
    return case.rule(Phase.CANARY, Reason.STARTING, f"{case.candidate.name} gets one replica", trial=_first(case))


def _first(case: CanaryCase) -> Trial:
    """Returns the trial as it begins. A stable revision that stops for the candidate can be found broken only before it has stopped."""
    trial, stable = begun(case.trial), case.state.pool(case.stable.hash)
    if case.concurrent or stable.serving:
        return trial
    if not stable.wanted:
        return replace(trial, stable_down_since=case.trial.stable_down_since)
    return replace(trial, stable_down_since=case.now.replace(microsecond=0)) if _stable_trouble(case) else trial


def _stable_trouble(case: CanaryCase) -> Trouble | None:
    """Returns why a stable revision that stops for the candidate fails for good; None if it serves, loads or may recover."""
    stable = case.state.pool(case.stable.hash)
    found = pod_failure(case.state, case.stable.hash) if stable.wanted and not stable.serving and not case.concurrent else None
    return found if found is not None and found.terminal else None


def _on_trial(case: CanaryCase) -> CandidateOutcome:
    state, candidate = case.state, case.candidate
    pool = state.pool(candidate.hash)
    found = None if pool.serving else pod_failure(state, candidate.hash)
    case = replace(case, trial=ticked(state, candidate, case.trial, found))
    if case.trial.served_at is None:
        if not pool.serving:
            return _starting(case, found)
        case = replace(case, trial=served(state, candidate, case.trial))
    asked = case.question
    if asked is None and not pool.serving:
        # Nothing is compared, so that it served once means nothing: it has to start anew.
        return _starting(replace(case, trial=replace(case.trial, served_at=None)), found)
    if asked is None:
        parts = changed(case.stable, candidate)
        why = "every gate is switched off" if parts else "nothing that could change how it performs has changed"
        return case.promoted(Reason.NOT_COMPARED, f"it serves, and {why}")
    down_left_s = stable_down_left_s(state, case.stable, case.trial)
    if pool.serving and down_left_s is not None and (down_left_s <= 0 or not case.concurrent):
        message = f"it serves, and {case.stable.name} has not served for so long that there is nothing to compare it with"
        return case.promoted(Reason.STABLE_NOT_SERVING, message)
    return _judged(case, asked, found, down_left_s)


def _judged(case: CanaryCase, asked: AnalysisRequest, found: Trouble | None, down_left_s: float | None) -> CandidateOutcome:
    """Decides on a candidate that has served. ``found`` keeps it from serving now; stable counts as down in ``down_left_s`` seconds."""
    context, candidate, trial = case.state.context, case.candidate, case.trial
    ends = exits(trial, pods_of(case.state, candidate))
    evidence = Evidence(
        candidate=context.traces.get(candidate.hash, ()),
        stable=context.traces.get(case.stable.hash, ()),
        probe=paired_runs(case.policy, case.stable, candidate, concurrent=case.concurrent),
        candidate_restarts=ends,
        failure=context.metrics_failure,
    )
    serving = case.state.pool(candidate.hash).serving > 0
    judgement = judge(asked, evidence, case.now.timestamp())
    more: dict[str, Any] = {"verdicts": judgement.verdicts}
    pending = asked.text_gates and probe_pending(case.policy, case.stable, candidate, concurrent=case.concurrent)
    if judgement.decision is AnalysisDecision.PROMOTE and (not serving or (pending and not context.probe_error)):
        judgement = replace(judgement, decision=AnalysisDecision.CONTINUE, reason=Reason.ANALYZING)
    if judgement.decision is AnalysisDecision.PROMOTE:
        return case.promoted(judgement.reason, judgement.message, **more)
    if judgement.decision is AnalysisDecision.FAIL:
        return case.fail_or_hold(_refusal(case, judgement), judgement.message, **more)
    if ends >= TERMINAL_RESTARTS and found is not None and found.kind is not Kind.NO_ROOM:
        return case.fail_or_hold(found.reason, f"{candidate.name} does not stay up. {found.message}", **more)
    assert trial.served_at is not None
    due = trial.served_at + timedelta(seconds=case.policy.deadline_s + context.probe_waited_s.get(candidate.hash, 0.0))
    waits = [REQUEUE_AFTER_S, *(gate.interval_s for gate in asked.gates.values()), *([] if down_left_s is None else [down_left_s])]
    more |= {
        "probe": probe_needed(case.state, case.policy, case.stable, candidate, concurrent=case.concurrent),
        "requeue_after_s": max(1.0, min(waits)),
    }
    if case.now >= due:
        return _overdue(case, judgement, more, serving=serving)
    if judgement.decision is AnalysisDecision.HOLD and case.by_tuner:
        return case.fail(judgement.reason, judgement.message, **more)
    if judgement.decision is AnalysisDecision.HOLD:
        return case.rule(Phase.HELD, judgement.reason, f"{judgement.message}. {operations.remedy(candidate)}", stalls=True, **more)
    until = f"the deadline is {due:%Y-%m-%d %H:%M} UTC"
    if found is not None:
        return case.rule(Phase.ANALYZING, found.reason, f"{candidate.name} does not serve now. {found.message}", **more)
    if context.probe_error:
        until = f"{until}. {context.probe_error}"
    return case.rule(Phase.ANALYZING, judgement.reason, f"{candidate.name} serves and is compared with {case.stable.name}; {until}", **more)


def _refusal(case: CanaryCase, judgement: Judgement) -> Reason:
    """Returns why a candidate fails. One of the tuner that is only not fast enough has been measured, and nothing is wrong with it."""
    failed = {verdict.metric for verdict in judgement.verdicts if verdict.outcome is Outcome.FAILED and verdict.gates}
    measured = case.by_tuner and SPEED in failed and failed <= {SPEED, TTFT, LATENCY}
    return Reason.NOT_FASTER if measured else judgement.reason


def _overdue(case: CanaryCase, judgement: Judgement, more: dict[str, Any], *, serving: bool) -> CandidateOutcome:
    late = f"the analysis was inconclusive at spec.rollout.deadline: {judgement.message}"
    if case.by_tuner:
        return case.fail(Reason.INCONCLUSIVE, late, **more)
    match case.policy.on_inconclusive:
        case "Promote" if serving:
            return case.promoted(Reason.INCONCLUSIVE, f"{late}; spec.rollout.onInconclusive is Promote", **more)
        case "Rollback":
            return case.fail(Reason.INCONCLUSIVE, late, **more)
        case _:
            message = f"{case.candidate.name}: {late}. {operations.remedy(case.candidate)}"
            return case.rule(Phase.HELD, Reason.ANALYSIS_DEADLINE_EXCEEDED, message, stalls=True, **more)


def _starting(case: CanaryCase, found: Trouble | None) -> CandidateOutcome:
    """Decides on a candidate that does not serve yet, by its own clocks."""
    state, candidate, trial = case.state, case.candidate, case.trial
    if found is not None and found.kind is Kind.NO_ROOM:
        return _without_room(case, found)
    why = f". {found.message}" if found else ""
    reason = found.reason if found else Reason.ENGINE_FAILING
    if exits(trial, pods_of(state, candidate)) >= TERMINAL_RESTARTS and not arriving(state, candidate.hash):
        why = why or (f". {trial.last_exit}" if trial.last_exit else "")
        return case.fail_or_hold(reason, f"{candidate.name} does not start: its engine exited {TERMINAL_RESTARTS} times{why}")
    blocked_left_s, loading_left = cannot_start_left_s(state, trial), loading_left_s(state, candidate, trial)
    if blocked_left_s is not None and blocked_left_s <= 0:
        return case.fail_or_hold(reason, f"{candidate.name} cannot start{why}")
    if loading_left is not None and loading_left <= 0:
        return case.fail_or_hold(reason, f"{candidate.name} did not serve within its start-up budget{why}")
    waits = [left for left in (REQUEUE_AFTER_S, blocked_left_s, loading_left) if left is not None]
    if found is None and (fetching := told(state, candidate.hash)):
        why = f". {fetching}"
    message = f"Waiting for one replica of {candidate.name} to serve{why}"
    return case.rule(Phase.CANARY, found.reason if found else Reason.STARTING, message, requeue_after_s=max(1.0, min(waits)))


def _without_room(case: CanaryCase, found: Trouble) -> CandidateOutcome:
    """Decides on a candidate whose pod has no room. It stays pending, so that an autoscaler or a queue sees it, and fails nothing."""
    state, budget, name = case.state, case.state.budget, case.candidate.name
    if budget.max_surge and budget.max_unavailable:
        left_s = SURGE_TIMEOUT_S - unschedulable_s(state, case.candidate.hash)
        if left_s <= 0:
            message = f"{name} finds no room above spec.replicas: it replaces a replica instead of being added"
            return case.rule(Phase.CANARY, found.reason, message, trial=replace(case.trial, without_surge=True))
        message = f"Waiting for one replica of {name} to serve. {found.message}"
        return case.rule(Phase.CANARY, found.reason, message, requeue_after_s=max(1.0, min(left_s, REQUEUE_AFTER_S)))
    if found.since is None or any(pool.terminating for pool in state.pools):
        # Room is about to come: pods are just being created, or an old one still holds its accelerators.
        message = f"Waiting for one replica of {name} to serve. {found.message}"
        return case.rule(Phase.CANARY, found.reason, message, requeue_after_s=REQUEUE_AFTER_S)
    message = f"{name} waits for room and starts by itself when there is some; everything else keeps serving. {found.message}"
    return case.rule(Phase.HELD, found.reason, message, requeue_after_s=REQUEUE_AFTER_S)
