"""Turns evidence into a decision. Pure and stateless: with more evidence it decides anew.

Failures are checked first. A candidate is promoted once three conditions hold: every gating primary metric has passed by traffic or by the
probe, the text is the same if that gates and was compared, and no guardrail failed. A block size chosen by the tuner must also reach its
predicted speed under the load it was chosen for. The probe cannot show this, because it sends one prompt at a time. A missing metric never
promotes and never fails a candidate. While the metrics source fails, only restarts and the probe can fail a candidate, and nothing can
promote it.

If no primary metric gates (another target), nothing proves the candidate better or equal. It is promoted after it has served one window of
its gates after the warm-up. During that time it must have no restart and no failed guardrail, and its counters must be readable throughout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dflash_controller.analysis import traffic_comparability
from dflash_controller.analysis.blocks import Traffic, traffic
from dflash_controller.analysis.gates import GUARDRAILS, PRIMARY_METRICS, Measured
from dflash_controller.analysis.positions import by_position
from dflash_controller.analysis.primary import PrimaryResult, collapse
from dflash_controller.analysis.probe import TEXT, pairs, probe, same_text
from dflash_controller.analysis.verdict import AnalysisDecision, AnalysisRequest, Judgement, MetricVerdict, Outcome
from dflash_controller.api.conditions import Reason
from dflash_controller.api.gates import ACCEPTANCE, ERRORS, PRIMARY, RESTARTS, SPEED
from dflash_controller.model.counters import Evidence


@dataclass(frozen=True, slots=True)
class _Case:
    """All results for one candidate, before they are weighed."""

    question: AnalysisRequest
    evidence: Evidence
    traffic: Traffic
    differs: str | None
    primary: Mapping[str, PrimaryResult]
    probe: Mapping[str, MetricVerdict]
    text: MetricVerdict | None
    guards: Mapping[str, MetricVerdict]
    collapsed: MetricVerdict | None


def judge(question: AnalysisRequest, evidence: Evidence, now_s: float) -> Judgement:
    """Decides what to do with the candidate, and why. It may be called at any time: the bounds hold at all evaluations together."""
    case = _case(question, evidence, now_s)
    outcomes = {metric: _outcome(metric, case) for metric in PRIMARY if metric in question.gates}
    verdicts = _verdicts(case, outcomes, now_s)
    decision, reason, message = _decide(case, outcomes)
    return Judgement(decision, reason, message, verdicts)


def _case(question: AnalysisRequest, evidence: Evidence, now_s: float) -> _Case:
    readable = evidence if evidence.failure is None else replace(evidence, candidate=(), stable=())
    counted = traffic(readable, question.warm_up_s, concurrent=question.concurrent)
    differs = traffic_comparability.difference(counted)
    measured = Measured(question, evidence, counted, differs, now_s)
    found = {name: finding for name, metric in PRIMARY_METRICS.items() if (finding := metric.evaluate(measured))}
    guards = {name: GUARDRAILS[name].evaluate(gate, measured) for name, gate in question.gates.items() if name in GUARDRAILS}
    if evidence.failure is not None:
        found = {metric: PrimaryResult(_unread(finding.verdict, evidence.failure)) for metric, finding in found.items()}
        guards = {name: v if GUARDRAILS[name].from_cluster else _unread(v, evidence.failure) for name, v in guards.items()}
    paired = pairs(evidence)
    probed = {
        metric: probe(metric, question, question.gates[metric], paired)
        for metric in PRIMARY
        if paired is not None and metric in question.gates and metric in found
    }
    text = same_text(question, paired) if paired is not None else None
    return _Case(question, evidence, counted, differs, found, probed, text, guards, collapse(question, counted))


def _unread(verdict: MetricVerdict, failure: str) -> MetricVerdict:
    return replace(verdict, outcome=Outcome.ERROR, message=f"metrics cannot be read: {failure}")


def _outcome(metric: str, case: _Case) -> Outcome:
    """Returns the outcome from traffic if traffic decides. Otherwise returns that of the probe, unless traffic's estimate contradicts
    it."""
    finding, probed = case.primary.get(metric), case.probe.get(metric)
    if finding is None:
        return Outcome.INCONCLUSIVE
    own = finding.verdict.outcome
    if own in (Outcome.SUCCESSFUL, Outcome.FAILED) or probed is None or not _probe_counts(metric, case.question):
        return own
    if probed.outcome is Outcome.FAILED:
        return Outcome.FAILED
    if probed.outcome is Outcome.SUCCESSFUL and not finding.contradicts and own is not Outcome.ERROR:
        return Outcome.SUCCESSFUL
    return own


def _probe_counts(metric: str, question: AnalysisRequest) -> bool:
    return metric != SPEED or question.promise is None


def _decide(case: _Case, outcomes: Mapping[str, Outcome]) -> tuple[AnalysisDecision, Reason, str]:
    failed = _failure(case, outcomes)
    if failed is not None:
        reason = Reason.TEXT_DIFFERS if failed.metric == TEXT else Reason.ANALYSIS_FAILED
        return AnalysisDecision.FAIL, reason, f"{failed.metric}: {failed.message}"
    if case.evidence.failure is not None:
        return AnalysisDecision.CONTINUE, Reason.METRICS_UNREACHABLE, f"metrics cannot be read: {case.evidence.failure}"
    text_open = case.text is not None and case.question.text_gates and case.text.outcome is not Outcome.SUCCESSFUL
    open_ = [metric for metric in outcomes if outcomes[metric] is not Outcome.SUCCESSFUL]
    if not open_ and not text_open:
        if outcomes:
            return AnalysisDecision.PROMOTE, Reason.ANALYSIS_PASSED, _passed(case, outcomes)
        return _without_primary(case)
    return _undecided(case, open_, text_open)


def _failure(case: _Case, outcomes: Mapping[str, Outcome]) -> MetricVerdict | None:
    """Returns the verdict that fails the candidate, the clearest first; None if none does."""
    if case.collapsed is not None:
        return case.collapsed
    if case.text is not None and case.text.gates and case.text.outcome is Outcome.FAILED:
        return case.text
    for metric, outcome in outcomes.items():
        if outcome is Outcome.FAILED:
            finding = case.primary[metric].verdict
            return finding if finding.outcome is Outcome.FAILED else case.probe[metric]
    return next((case.guards[m] for m in GUARDRAILS if m in case.guards and case.guards[m].outcome is Outcome.FAILED), None)


def _undecided(case: _Case, open_: Sequence[str], text_open: bool) -> tuple[AnalysisDecision, Reason, str]:
    """Returns the decision while metrics are open. Messages contain no numbers, which change all the time; the verdicts have them."""
    names = _names([*open_, *([TEXT] if text_open else [])])
    if case.differs and open_:
        return AnalysisDecision.CONTINUE, Reason.TRAFFIC_DIFFERS, f"{names}: candidate and stable get different requests; see the verdicts"
    biased = bool(open_) and all(metric in case.primary and case.primary[metric].biased for metric in open_)
    probe_due = case.question.text_gates and case.evidence.probe is None
    if biased and not text_open and not probe_due:
        return (
            AnalysisDecision.HOLD,
            Reason.REPLICA_BIAS,
            f"{names}: replicas of one revision differ by more than the limit allows for a verdict",
        )
    return AnalysisDecision.CONTINUE, Reason.ANALYZING, f"{names} not decided yet"


def _without_primary(case: _Case) -> tuple[AnalysisDecision, Reason, str]:
    gates, counted = case.question.gates, case.traffic
    if not gates:
        return _without_gates(case)
    restarts = case.guards.get(RESTARTS)
    if restarts is not None and restarts.outcome is not Outcome.SUCCESSFUL:
        return AnalysisDecision.CONTINUE, Reason.ANALYZING, "the candidate is in its warm-up"
    window_s = max(gate.window_s for gate in gates.values())
    read_s = (counted.end_s or 0.0) - (counted.start_s or 0.0)
    if counted.candidate.total("requests") is None or read_s < window_s:
        return AnalysisDecision.CONTINUE, Reason.ANALYZING, "the candidate's counters have not been read over a whole window yet"
    errors = case.guards.get(ERRORS)
    if errors is not None and errors.outcome is not Outcome.SUCCESSFUL and counted.candidate.total("failed"):
        return AnalysisDecision.CONTINUE, Reason.ANALYZING, "requests failed, too few of all to judge them"
    judged = [metric for metric, verdict in case.guards.items() if verdict.outcome is Outcome.SUCCESSFUL]
    if not judged:
        return AnalysisDecision.CONTINUE, Reason.ANALYZING, f"{_names(list(gates))} not decided yet"
    return AnalysisDecision.PROMOTE, Reason.ANALYSIS_PASSED, f"{_names(judged)} within their limits"


def _without_gates(case: _Case) -> tuple[AnalysisDecision, Reason, str]:
    """Returns the decision if every meaningful metric is disabled. The text may still have to be compared."""
    if not case.question.text_gates:
        return AnalysisDecision.PROMOTE, Reason.NOT_COMPARED, "no metric of this change is judged"
    if case.text is None:
        return AnalysisDecision.CONTINUE, Reason.ANALYZING, f"{TEXT} not compared yet"
    return AnalysisDecision.PROMOTE, Reason.ANALYSIS_PASSED, f"{TEXT}: {case.text.message}"


def _passed(case: _Case, outcomes: Mapping[str, Outcome]) -> str:
    verdicts = [v if (v := case.primary[metric].verdict).outcome is Outcome.SUCCESSFUL else case.probe[metric] for metric in outcomes]
    return "; ".join(f"{verdict.metric}: {verdict.message}" for verdict in verdicts)


def _verdicts(case: _Case, outcomes: Mapping[str, Outcome], now_s: float) -> tuple[MetricVerdict, ...]:
    """Returns the verdicts as the status shows them. The probe's speed gates only if traffic leaves speed undecided."""
    newest = [side.newest_s for side in (case.traffic.candidate, case.traffic.stable) if side.newest_s is not None]
    age_s = max(0.0, now_s - max(newest)) if newest else None
    shown: list[MetricVerdict] = []
    for metric, finding in case.primary.items():
        own = case.collapsed if case.collapsed is not None and metric == case.collapsed.metric else finding.verdict
        shown.append(replace(own, age_s=age_s))
    if case.collapsed is not None and case.collapsed.metric not in case.primary:
        shown.insert(0, replace(case.collapsed, age_s=age_s))
    gate = case.question.gates.get(ACCEPTANCE)
    if gate is not None and (positions := by_position(case.question, case.traffic, gate.limit)):
        shown.append(replace(positions, age_s=age_s))
    for metric, verdict in case.guards.items():
        shown.append(replace(verdict, age_s=0.0 if GUARDRAILS[metric].from_cluster else age_s))
    probe_age_s = max(0.0, now_s - max(run.finished_at_s for run in case.evidence.probe)) if case.evidence.probe else None
    for metric, verdict in case.probe.items():
        left = case.primary[metric].verdict.outcome not in (Outcome.SUCCESSFUL, Outcome.FAILED)
        shown.append(replace(verdict, age_s=probe_age_s, gates=left and metric in outcomes and _probe_counts(metric, case.question)))
    if case.text is not None:
        shown.append(replace(case.text, age_s=probe_age_s))
    return tuple(shown)


def _names(metrics: Sequence[str]) -> str:
    return " and ".join((", ".join(metrics[:-1]), metrics[-1])) if len(metrics) > 1 else metrics[0]
