"""What becomes of the candidate now: wait, try, judge, promote, give up, or leave it to a human.

Everything follows from the spec, the stored revisions, the pods and the evidence; nothing is remembered between two rulings but what
``Trial`` keeps with the candidate's revision.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from dflash_controller.analysis.judge import judge
from dflash_controller.analysis.verdict import Decision, Judgement, Question
from dflash_controller.api.conditions import Reason
from dflash_controller.api.defaults import RolloutPolicy, effective_tuning
from dflash_controller.api.types import Spec
from dflash_controller.model.counters import Evidence
from dflash_controller.planning.revisions import operations
from dflash_controller.planning.revisions.diff import changed, question
from dflash_controller.planning.revisions.outcome import Phase, Ruling
from dflash_controller.planning.revisions.revision import Origin, Record, State
from dflash_controller.planning.revisions.trial_state import Finding, Trial
from dflash_controller.planning.rollout.maintenance_window import opening
from dflash_controller.planning.rollout.preparation import prepare
from dflash_controller.planning.rollout.probe import paired_runs, probe_pending, probe_wanted
from dflash_controller.planning.rollout.surge import SURGE_PATIENCE_S, unschedulable_s
from dflash_controller.planning.rollout.transitions import cures
from dflash_controller.planning.state.pod_failures import deadline_exceeded, failing, trouble
from dflash_controller.planning.state.reconcile_state import Situation
from dflash_controller.tuner.prediction import promise

LOOK_AGAIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Case:
    """The candidate before the one who rules."""

    situation: Situation
    spec: Spec
    policy: RolloutPolicy
    stable: Record
    candidate: Record
    trial: Trial

    @property
    def now(self) -> datetime:
        return self.situation.context.now

    @property
    def begun(self) -> bool:
        """Some replica was taken for it already."""
        pool = self.situation.pool(self.candidate.hash)
        return pool.wanted > 0 or pool.existing > 0

    @property
    def concurrent(self) -> bool:
        """Stable keeps serving beside it."""
        return self.situation.budget.replicas > 1 or self.situation.budget.max_surge > 0

    @property
    def by_tuner(self) -> bool:
        """Nobody waits for it: where it does not prove itself it is given up, and no human is called."""
        return self.candidate.origin == Origin.TUNER

    @property
    def question(self) -> Question | None:
        context, stable = self.situation.context, self.stable
        asked = question(self.policy, stable, self.candidate, concurrent=self.concurrent, warm_up_s=context.warm_up_s)
        if asked is None or not self.by_tuner:
            return asked
        resolved = stable.resolved
        promised = promise(
            context.tuning.learned,
            stable.speculation,
            self.candidate.speculation,
            mixture=resolved.mixture_of_experts or resolved.hybrid,
            min_gain_percent=effective_tuning(self.spec, resolved.trained_block_size).min_gain_percent,
        )
        return replace(asked, promise=promised)

    def rule(self, phase: Phase, reason: Reason, message: str, **more: Any) -> Ruling:
        return Ruling(phase, reason, message, **{"trial": self.trial, **more})

    def promoted(self, reason: Reason, message: str, **more: Any) -> Ruling:
        return self.rule(Phase.PROGRESSING, reason, message, end=State.STABLE, **more)

    def failed(self, reason: Reason, message: str, **more: Any) -> Ruling:
        """Given up, or held for a human where the spec says so; either way the finding outlives its figures."""
        if self.policy.automatic_rollback or self.by_tuner:
            return self.given_up(reason, message, **more)
        trial = replace(self.trial, finding=Finding(reason, message))
        message = f"{message}. {operations.remedy(self.candidate)}"
        return self.rule(Phase.HELD, reason, message, trial=trial, stalls=True, **more)

    def given_up(self, reason: Reason, message: str, **more: Any) -> Ruling:
        trial = replace(self.trial, finding=Finding(reason, message))
        return self.rule(Phase.ROLLING_BACK, reason, message, **{**more, "trial": trial, "end": State.FAILED})


def rule(situation: Situation, spec: Spec, policy: RolloutPolicy) -> Ruling:
    """Rule on the situation's candidate. There is a stable revision."""
    stable, candidate = situation.stable, situation.candidate
    if stable is None or candidate is None:
        raise ValueError("nothing to rule on without a stable revision and a candidate")
    standing = operations.standing(situation.deployment, candidate.name)
    trial = replace(candidate.trial, disregards=tuple(name for name in candidate.trial.disregards if name in standing))
    if trial.served_at is not None and trial.served_at > situation.context.now:
        # Damaged by hand, or written by a clock that was wrong: the trial begins anew.
        trial = replace(trial, served_at=None)
    case = Case(situation, spec, policy, stable, candidate, trial)
    asked = operations.asked(situation.deployment, candidate)
    if "abort" in asked:
        return case.given_up(Reason.ABORTED, "the annotation serving.dflash.io/abort names it")
    if "promote" in asked or situation.pin is not None:
        return _by_hand(case)
    # Replicas of one that was in force before may be left from then: they are no trial.
    on_trial = case.begun and not any(entry["outcome"] == State.STABLE for entry in candidate.history)
    if situation.budget.replicas == 0 and (on_trial or trial.served_at is not None or trial.interrupted):
        # Scaling down for the night must not pass a candidate that would have failed in the morning.
        message = f"spec.replicas is 0 in the middle of its trial: {candidate.name} is tried again when there are replicas"
        trial = replace(trial, served_at=None, interrupted=True)
        return case.rule(Phase.PREPARING, Reason.SCALED_TO_ZERO, message, trial=trial, tried=False)
    if situation.budget.replicas == 0 and not policy.paused:
        return case.promoted(Reason.UNPROVEN, "spec.replicas is 0: it takes over without a trial")
    if trial.finding is not None:
        return case.failed(trial.finding.reason, trial.finding.message)
    if cures(candidate) and situation.pool(candidate.hash).serving:
        return case.promoted(Reason.NOT_COMPARED, f"it serves, and the drafter of {stable.name} has collapsed")
    if policy.paused and not case.begun:
        return case.rule(Phase.PAUSED, Reason.PAUSED, "spec.rollout.paused is true: nothing is begun", tried=False)
    ruling = _on_trial(case) if case.begun else _before(case)
    if policy.paused and ruling.end is not State.FAILED and ruling.phase is not Phase.HELD:
        message = "spec.rollout.paused is true: the rollout stays where it is"
        return replace(ruling, phase=Phase.PAUSED, reason=Reason.PAUSED, message=message, end=None)
    return ruling


def _by_hand(case: Case) -> Ruling:
    """A human has decided; all that is waited for is one replica that serves, so that stable is not left for nothing."""
    word, reason = ("pin", Reason.PINNED) if case.situation.pin else ("promote", Reason.PROMOTED_BY_HAND)
    if case.situation.pool(case.candidate.hash).serving or case.situation.budget.replicas == 0:
        return case.promoted(reason, f"the annotation serving.dflash.io/{word} names it")
    found = trouble(case.situation, case.candidate.hash)
    message = f"The annotation serving.dflash.io/{word} names {case.candidate.name}; waiting for one replica to serve"
    return case.rule(Phase.CANARY, found.reason if found else reason, f"{message}. {found.message}" if found else message)


def _before(case: Case) -> Ruling:
    """No replica was taken for it yet."""
    if case.trial.without_surge and case.situation.budget.max_unavailable == 0:
        return _no_room(case)
    if window := case.policy.window:
        found = opening(window, case.now)
        if not found.open:
            when = f"it opens {found.changes_at:%Y-%m-%d %H:%M} UTC" if found.changes_at else "it never opens"
            seconds = (found.changes_at - case.now).total_seconds() if found.changes_at else LOOK_AGAIN_S
            return case.rule(
                Phase.PREPARING,
                Reason.OUTSIDE_WINDOW,
                f"{case.candidate.name} waits for spec.rollout.window: {when}",
                tried=False,
                look_again_s=max(1.0, seconds),
            )
    if waiting := prepare(case.situation, case.spec, case.policy, case.stable, case.candidate, concurrent=case.concurrent):
        return case.rule(
            Phase.HELD if waiting.stalls else Phase.PREPARING,
            waiting.reason,
            waiting.message,
            tried=False,
            stalls=waiting.stalls,
            probe=waiting.probe,
            jobs=waiting.jobs,
            look_again_s=LOOK_AGAIN_S,
        )
    trial = replace(case.trial, alone=_serves_nobody(case), interrupted=False)
    return case.rule(Phase.CANARY, Reason.STARTING, f"{case.candidate.name} gets one replica", trial=trial)


def _on_trial(case: Case) -> Ruling:
    situation, candidate, trial = case.situation, case.candidate, case.trial
    pool = situation.pool(candidate.hash)
    if trial.served_at is None:
        if not pool.serving:
            return _starting(case)
        trial = replace(trial, served_at=case.now.replace(microsecond=0), restarts=_restarts(case))
        case = replace(case, trial=trial)
    asked = case.question
    if asked is None:
        parts = changed(case.stable, candidate)
        why = "every gate is switched off" if parts else "nothing that could change how it performs has changed"
        return case.promoted(Reason.NOT_COMPARED, f"it serves, and {why}") if pool.serving else _starting(case)
    if pool.serving and (trial.alone or _serves_nobody(case)):
        return case.promoted(
            Reason.STABLE_NOT_SERVING, f"it serves and {case.stable.name} does not, so there is nothing to compare it with"
        )
    return _judged(case, asked)


def _judged(case: Case, asked: Question) -> Ruling:
    context, candidate, trial = case.situation.context, case.candidate, case.trial
    evidence = Evidence(
        candidate=context.traces.get(candidate.hash, ()),
        stable=context.traces.get(case.stable.hash, ()),
        probe=paired_runs(case.policy, case.stable, candidate, concurrent=case.concurrent),
        candidate_restarts=max(0, _restarts(case) - trial.restarts),
        trouble=context.metrics_trouble,
    )
    serving = case.situation.pool(candidate.hash).serving > 0
    found = None if serving else trouble(case.situation, candidate.hash)
    judgement = judge(asked, evidence, case.now.timestamp())
    more: dict[str, Any] = {"verdicts": judgement.verdicts}
    pending = asked.text_gates and probe_pending(case.policy, case.stable, candidate, concurrent=case.concurrent)
    if judgement.decision is Decision.PROMOTE and (not serving or (pending and not context.probe_error)):
        judgement = replace(judgement, decision=Decision.CONTINUE, reason=Reason.ANALYZING)
    if judgement.decision is Decision.PROMOTE:
        return case.promoted(judgement.reason, judgement.message, **more)
    if judgement.decision is Decision.FAIL:
        return case.failed(judgement.reason, judgement.message, **more)
    if found is not None and found.hopeless and found.reason is Reason.ENGINE_FAILING:
        return case.failed(found.reason, f"{candidate.name} does not stay up. {found.message}", **more)
    assert trial.served_at is not None
    left_s = case.policy.deadline_s - (case.now - trial.served_at).total_seconds()
    intervals = [gate.interval_s for gate in asked.gates.values()]
    more |= {
        "probe": probe_wanted(case.situation, case.policy, case.stable, candidate, concurrent=case.concurrent),
        "look_again_s": max(1.0, min([LOOK_AGAIN_S, *intervals])),
    }
    if left_s <= 0:
        return _overdue(case, judgement, more, serving=serving)
    if judgement.decision is Decision.HOLD and case.by_tuner:
        return case.given_up(judgement.reason, judgement.message, **more)
    if judgement.decision is Decision.HOLD:
        return case.rule(Phase.HELD, judgement.reason, f"{judgement.message}. {operations.remedy(candidate)}", stalls=True, **more)
    due = trial.served_at + timedelta(seconds=case.policy.deadline_s)
    until = f"a verdict is due by {due:%Y-%m-%d %H:%M} UTC"
    if found is not None:
        return case.rule(Phase.ANALYZING, found.reason, f"{candidate.name} does not serve now. {found.message}", **more)
    if context.probe_error:
        until = f"{until}. {context.probe_error}"
    return case.rule(Phase.ANALYZING, judgement.reason, f"{candidate.name} serves and is compared with {case.stable.name}; {until}", **more)


def _overdue(case: Case, judgement: Judgement, more: dict[str, Any], *, serving: bool) -> Ruling:
    late = f"no verdict within spec.rollout.deadline: {judgement.message}"
    if case.by_tuner:
        return case.given_up(Reason.INCONCLUSIVE, late, **more)
    match case.policy.on_inconclusive:
        case "Promote" if serving:
            return case.promoted(Reason.INCONCLUSIVE, f"{late}; spec.rollout.onInconclusive is Promote", **more)
        case "Rollback":
            return case.given_up(Reason.INCONCLUSIVE, late, **more)
        case _:
            message = f"{case.candidate.name}: {late}. {operations.remedy(case.candidate)}"
            return case.rule(Phase.HELD, Reason.HELD_PAST_DEADLINE, message, stalls=True, **more)


def _starting(case: Case) -> Ruling:
    """One replica was taken for it and does not serve yet."""
    situation, candidate = case.situation, case.candidate
    found = trouble(situation, candidate.hash)
    waited_s = unschedulable_s(situation, candidate.hash)
    if situation.budget.max_surge and waited_s >= SURGE_PATIENCE_S:
        without = replace(case, trial=replace(case.trial, without_surge=True))
        if situation.budget.max_unavailable == 0:
            return _no_room(without)
        return without.rule(Phase.CANARY, Reason.INSUFFICIENT_ACCELERATORS, "No accelerators are free: it takes the place of a replica")
    if found and found.hopeless and found.reason is Reason.ENGINE_FAILING:
        return case.failed(found.reason, f"{candidate.name} does not start. {found.message}")
    if deadline_exceeded(situation, candidate.hash):
        why = f". {found.message}" if found else ""
        return case.failed(
            found.reason if found else Reason.ENGINE_FAILING, f"{candidate.name} did not serve within its start-up budget{why}"
        )
    message = f"Waiting for one replica of {candidate.name} to serve"
    patience = SURGE_PATIENCE_S - waited_s if situation.budget.max_surge else LOOK_AGAIN_S
    return case.rule(
        Phase.CANARY,
        found.reason if found else Reason.STARTING,
        f"{message}. {found.message}" if found else message,
        look_again_s=max(1.0, patience),
    )


def _no_room(case: Case) -> Ruling:
    message = (
        f"No node takes a replica of {case.candidate.name} above spec.replicas, and spec.rollout.maxUnavailable 0 allows no other way. "
        f"Free accelerators and change spec.restartId, or set spec.rollout.maxUnavailable to 1"
    )
    return case.rule(Phase.HELD, Reason.INSUFFICIENT_ACCELERATORS, message, tried=False, stalls=True)


def _restarts(case: Case) -> int:
    return sum(pod.restarts for pod in case.situation.pods(case.candidate.hash))


def _serves_nobody(case: Case) -> bool:
    """Stable is broken, not merely loading: every pod it has fails, and it should have some."""
    pods = case.situation.pods(case.stable.hash)
    return case.situation.pool(case.stable.hash).wanted > 0 and bool(pods) and all(failing(pod) for pod in pods)
