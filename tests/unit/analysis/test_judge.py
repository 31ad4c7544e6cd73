"""Verdicts and decisions, from readings of engines that count as told."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from dflash_controller.analysis.judge import judge
from dflash_controller.analysis.verdict import AnalysisDecision, AnalysisRequest, Outcome
from dflash_controller.api.conditions import Reason
from dflash_controller.api.defaults import GATES
from dflash_controller.model.counters import CounterSeries, Evidence
from dflash_controller.model.prediction import Prediction
from tests.support.analysis_world import DRAFTER, TARGET, Engine, evidence, gated, runs, verdict

NOW = 1800.0
NO_TEXT = replace(DRAFTER, text_gates=False)


def test_an_equal_drafter_is_promoted() -> None:
    judgement = judge(NO_TEXT, evidence(), NOW)
    assert (judgement.decision, judgement.reason) == (AnalysisDecision.PROMOTE, Reason.ANALYSIS_PASSED)
    assert {v.metric: v.outcome for v in judgement.verdicts} == dict.fromkeys(GATES, Outcome.SUCCESSFUL)


def test_a_worse_drafter_fails_and_the_message_quotes_both_values_and_the_limit() -> None:
    judgement = judge(NO_TEXT, evidence(Engine("new", acceptance=4.5, seed=7)), NOW)
    assert (judgement.decision, judgement.reason) == (AnalysisDecision.FAIL, Reason.ANALYSIS_FAILED)
    found = verdict(judgement, "acceptanceLength")
    assert found.candidate == pytest.approx(4.5, rel=0.03)
    assert found.stable == pytest.approx(6.0, rel=0.03)
    assert found.limit == 5
    assert found.samples == pytest.approx(58 * 40 * 480 / 4.5, rel=0.03)
    assert found.stable_samples == pytest.approx(2 * 58 * 40 * 480 / 6, rel=0.03)
    assert found.age_s == 0
    assert judgement.message.startswith("acceptanceLength: 4.49 against 6.01 (-25 %, 99.5 % sure below 0)")
    assert "at most 5 % less is allowed" in judgement.message


def test_what_is_neither_good_nor_bad_enough_goes_on() -> None:
    judgement = judge(NO_TEXT, evidence(Engine("new", acceptance=5.7, spread=0.2, seed=7)), NOW)
    assert (judgement.decision, judgement.reason) == (AnalysisDecision.CONTINUE, Reason.ANALYZING)
    assert not any(sign.isdigit() for sign in judgement.message)


def test_a_small_loss_never_fails_however_sure_it_is() -> None:
    strict = gated(acceptanceLength=replace(GATES["acceptanceLength"], limit=0.5))
    engines = [Engine(name, acceptance=a, spread=0.001, seed=i) for i, (name, a) in enumerate((("c", 5.92), ("a", 6.0), ("b", 6.0)))]
    judgement = judge(strict, evidence(*engines), NOW)
    assert judgement.decision is AnalysisDecision.CONTINUE
    assert verdict(judgement, "acceptanceLength").outcome is Outcome.INCONCLUSIVE


def test_a_slower_step_fails_speed_though_acceptance_is_equal() -> None:
    judgement = judge(NO_TEXT, evidence(Engine("new", step_s=0.013, seed=7)), NOW)
    assert verdict(judgement, "acceptanceLength").outcome is Outcome.SUCCESSFUL
    assert verdict(judgement, "speed").outcome is Outcome.FAILED
    assert judgement.decision is AnalysisDecision.FAIL
    assert judgement.message.startswith("speed:")


def test_nothing_measured_neither_promotes_nor_fails() -> None:
    for empty in (
        Evidence(),
        Evidence((CounterSeries("new", 0.0, ()),), (CounterSeries("old", 0.0, ()),)),
        evidence(Engine("new", count=0)),
    ):
        assert judge(NO_TEXT, empty, NOW).decision is AnalysisDecision.CONTINUE
        assert judge(TARGET, empty, NOW).decision is AnalysisDecision.CONTINUE


@pytest.mark.parametrize("field", ["steps", "committed", "decode_seconds", "requests"])
def test_a_counter_that_is_not_exported_is_not_zero(field: str) -> None:
    for missing in (Engine("new", seed=7, missing=frozenset({field})), Engine("new", acceptance=4.0, seed=7, missing=frozenset({field}))):
        judgement = judge(gated(speed=GATES["speed"]), evidence(missing), NOW)
        assert judgement.decision is AnalysisDecision.CONTINUE
        assert verdict(judgement, "speed").outcome is Outcome.INCONCLUSIVE


def test_too_few_samples_are_inconclusive_whatever_they_say() -> None:
    gate = replace(GATES["acceptanceLength"], min_samples=10_000_000)
    judgement = judge(gated(acceptanceLength=gate), evidence(Engine("new", acceptance=4.0, seed=7)), NOW)
    assert judgement.decision is AnalysisDecision.CONTINUE
    assert verdict(judgement, "acceptanceLength").outcome is Outcome.INCONCLUSIVE


def test_seven_blocks_are_too_few() -> None:
    """The first reading 60 s after Ready opens the first block, each reading closes one."""
    for readings, outcome in ((9, Outcome.INCONCLUSIVE), (10, Outcome.SUCCESSFUL)):
        judgement = judge(NO_TEXT, evidence(*(Engine(name, seed=i, count=readings) for i, name in enumerate("cab"))), 330.0)
        assert verdict(judgement, "acceptanceLength").outcome is outcome


def test_a_collapsed_drafter_fails_after_twenty_requests() -> None:
    for requests, decision in ((9.0, AnalysisDecision.CONTINUE), (10.0, AnalysisDecision.FAIL)):
        new = Engine("new", acceptance=1.05, requests=requests, count=4)
        judgement = judge(NO_TEXT, evidence(new, Engine("old", count=4)), 120.0)
        assert judgement.decision is decision
    assert verdict(judgement, "acceptanceLength").outcome is Outcome.FAILED
    assert "collapsed" in judgement.message


def test_half_of_stables_acceptance_fails_at_once_but_not_at_another_block() -> None:
    found = evidence(Engine("new", acceptance=2.5, count=4), Engine("old", count=4))
    assert judge(NO_TEXT, found, 120.0).decision is AnalysisDecision.FAIL
    smaller_block = replace(gated(speed=GATES["speed"]), candidate_block=4)
    assert judge(smaller_block, found, 120.0).decision is AnalysisDecision.CONTINUE


def test_a_collapse_fails_a_change_that_acceptance_does_not_gate() -> None:
    judgement = judge(TARGET, evidence(Engine("new", acceptance=1.0, count=4), Engine("old", count=4)), 120.0)
    assert judgement.decision is AnalysisDecision.FAIL
    assert judgement.message.startswith("acceptanceLength:")


def test_a_candidate_that_accepts_as_little_as_stable_is_not_called_collapsed() -> None:
    broken = [Engine(name, acceptance=1.1, spread=0.0) for name in ("new", "old-1", "old-2")]
    assert judge(TARGET, evidence(*broken), NOW).decision is AnalysisDecision.PROMOTE


def test_a_candidate_without_speculation_cannot_collapse() -> None:
    without = replace(TARGET, candidate_block=1)
    judgement = judge(without, evidence(Engine("new", acceptance=1.0, step_s=0.003)), NOW)
    assert judgement.decision is AnalysisDecision.PROMOTE
    assert all(v.metric != "acceptanceLength" for v in judgement.verdicts)


def test_other_requests_are_not_compared() -> None:
    for other in (
        Engine("new", acceptance=4.5, prompt=700.0, seed=7),
        Engine("new", acceptance=4.5, tokens=840.0, seed=7),
        Engine("new", acceptance=4.5, cached=300.0, seed=7),
    ):
        judgement = judge(NO_TEXT, evidence(other), NOW)
        assert (judgement.decision, judgement.reason) == (AnalysisDecision.CONTINUE, Reason.TRAFFIC_DIFFERS)
        assert "not comparable" in verdict(judgement, "acceptanceLength").message


def test_the_probe_may_decide_where_requests_differ() -> None:
    other = Engine("new", acceptance=5.0, prompt=700.0, seed=7)
    assert judge(DRAFTER, evidence(other, probe=runs()), NOW).decision is AnalysisDecision.PROMOTE


def test_one_stable_replica_cannot_tell_bias_from_the_drafter() -> None:
    found = evidence(Engine("new", seed=7), Engine("old", seed=8))
    judgement = judge(NO_TEXT, found, NOW)
    assert (judgement.decision, judgement.reason) == (AnalysisDecision.HOLD, Reason.REPLICA_BIAS)
    assert judge(DRAFTER, found, NOW).decision is AnalysisDecision.CONTINUE, "the probe is still to come"
    assert judge(DRAFTER, replace(found, probe=runs()), NOW).decision is AnalysisDecision.PROMOTE


def test_bias_is_not_blamed_while_more_samples_may_still_decide() -> None:
    acceptance = gated(acceptanceLength=GATES["acceptanceLength"])
    noisy = evidence(Engine("new", seed=7, spread=0.25, count=14), Engine("old", seed=8, count=14))
    assert judge(acceptance, noisy, 420.0).decision is AnalysisDecision.CONTINUE
    wide = gated(acceptanceLength=replace(GATES["acceptanceLength"], limit=10))
    assert judge(wide, evidence(Engine("new", acceptance=5.64, seed=7), Engine("old", seed=8)), NOW).decision is AnalysisDecision.CONTINUE


def test_replicas_of_one_revision_that_differ_widely_hold_the_rollout() -> None:
    judgement = judge(
        NO_TEXT, evidence(Engine("new", seed=7), Engine("old-1", acceptance=7.0, seed=8), Engine("old-2", acceptance=5.0)), NOW
    )
    assert (judgement.decision, judgement.reason) == (AnalysisDecision.HOLD, Reason.REPLICA_BIAS)


def test_bias_does_not_save_a_drafter_that_is_far_worse() -> None:
    assert judge(NO_TEXT, evidence(Engine("new", acceptance=4.0, seed=7), Engine("old", seed=8)), NOW).decision is AnalysisDecision.FAIL


def test_trouble_with_the_source_is_an_error_that_decides_nothing() -> None:
    for new in (Engine("new", seed=7), Engine("new", acceptance=1.0)):
        judgement = judge(DRAFTER, evidence(new, failure="connection refused", probe=runs()), NOW)
        assert (judgement.decision, judgement.reason) == (AnalysisDecision.CONTINUE, Reason.METRICS_UNREACHABLE)
        assert verdict(judgement, "acceptanceLength").outcome is Outcome.ERROR
        assert verdict(judgement, "errors").outcome is Outcome.ERROR


def test_restarts_and_another_text_fail_even_while_metrics_cannot_be_read() -> None:
    assert judge(DRAFTER, evidence(failure="refused", candidate_restarts=1), NOW).decision is AnalysisDecision.FAIL
    assert judge(DRAFTER, evidence(failure="refused", probe=runs(differing=10)), NOW).reason is Reason.TEXT_DIFFERS


def test_the_first_seconds_of_the_candidate_do_not_count() -> None:
    """Until 60 s after Ready its steps were ten times as long."""
    new = Engine("new", seed=7, count=62)
    trace = new.trace()
    slow = [replace(r, decode_seconds=(r.decode_seconds or 0) + min(r.at_s, 60.0) * 20) for r in trace.readings]
    found = evidence(new)
    found = replace(found, candidate=(replace(trace, readings=tuple(slow)),))
    assert judge(NO_TEXT, found, NOW).decision is AnalysisDecision.PROMOTE
    assert judge(replace(NO_TEXT, warm_up_s=0.0), found, NOW).decision is not AnalysisDecision.PROMOTE


def test_a_restart_of_the_engine_begins_anew_and_loses_nothing() -> None:
    gate = gated(acceptanceLength=GATES["acceptanceLength"])
    first = Engine("new", seed=7, count=30).trace()
    second = Engine("new", seed=5, start_s=930.0, ready_at_s=930.0, count=30).trace()
    found = replace(evidence(), candidate=(first, second))
    judgement = judge(gate, found, 1860.0)
    assert verdict(judgement, "acceptanceLength").samples == pytest.approx((28 + 28) * 3200, rel=0.02)
    assert judgement.decision is AnalysisDecision.PROMOTE


def test_stable_counts_only_while_the_candidate_does() -> None:
    """Before the candidate came its acceptance was another."""
    old = Engine("old-1", seed=8, ready_at_s=-9e3, start_s=-3000.0, count=160).trace()
    before = [replace(r, committed=(r.committed or 0) * (1.5 if r.at_s < 0 else 1.0)) for r in old.readings]
    before = [replace(r, committed=(r.committed or 0) + (500_000 if r.at_s >= 0 else 0)) for r in before]
    found = evidence(Engine("new", seed=7), Engine("old-2", seed=9))
    found = replace(found, stable=(*found.stable, replace(old, readings=tuple(before))))
    assert verdict(judge(NO_TEXT, found, NOW), "acceptanceLength").stable == pytest.approx(6.0, rel=0.02)


def test_before_and_after_is_named_so_and_has_a_wider_margin() -> None:
    question = replace(gated(acceptanceLength=GATES["acceptanceLength"]), concurrent=False)
    old = Engine("old", seed=8, ready_at_s=-9e3, start_s=-2000.0, every_s=30.0)
    judgement = judge(question, evidence(Engine("new", acceptance=6.1, seed=7), old), NOW)
    found = verdict(judgement, "acceptanceLength")
    assert "before/after" in found.message
    assert found.limit == 10
    assert found.outcome is Outcome.SUCCESSFUL
    concurrent = judge(replace(question, concurrent=True), evidence(Engine("new", seed=7), old), NOW)
    assert verdict(concurrent, "acceptanceLength").outcome is Outcome.INCONCLUSIVE


def test_an_engine_change_is_promoted_for_serving_a_window_without_failures() -> None:
    assert judge(TARGET, evidence(), NOW).decision is AnalysisDecision.PROMOTE
    idle = [Engine(name, requests=0.0) for name in ("new", "old")]
    assert judge(TARGET, evidence(*idle), NOW).decision is AnalysisDecision.PROMOTE
    soon = [replace(engine, count=8) for engine in idle]
    assert judge(TARGET, evidence(*soon), 240.0).decision is AnalysisDecision.CONTINUE


def test_an_engine_change_with_failures_among_few_requests_waits() -> None:
    few = [Engine("new", requests=1.0, failed=0.5, acceptance=6), Engine("old", requests=1.0)]
    assert judge(TARGET, evidence(*few), NOW).decision is AnalysisDecision.CONTINUE


def shorter(gain: float = 0.0, least: float = 0.0, **of: float) -> tuple[AnalysisRequest, Engine]:
    """The tuner's choice of block 8 in place of 16, and an engine that runs it."""
    asked = replace(gated(speed=GATES["speed"]), candidate_block=8, promise=Prediction(math.log1p(gain), math.log1p(least)))
    return asked, Engine("new", acceptance=5.0, step_s=0.0083333 / of.get("speed", 1.0), seed=7)


def test_the_tuners_choice_is_judged_by_traffic_and_not_by_one_prompt_at_a_time() -> None:
    asked, engine = shorter()
    few = replace(engine, count=6)
    fast = runs(speed=1.78)
    judgement = judge(asked, evidence(few, probe=fast), NOW)
    assert judgement.decision is AnalysisDecision.CONTINUE
    probed = verdict(judgement, "probeSpeed")
    assert (probed.outcome, probed.gates) == (Outcome.SUCCESSFUL, False)
    assert judge(replace(asked, promise=None), evidence(few, probe=fast), NOW).decision is AnalysisDecision.PROMOTE, (
        "a change the user made"
    )
    slow = judge(asked, evidence(few, probe=runs(speed=0.5)), NOW)
    assert slow.decision is AnalysisDecision.CONTINUE
    assert judge(asked, evidence(engine, probe=runs(speed=0.5)), NOW).decision is AnalysisDecision.PROMOTE, (
        "no slower under the load it was made for"
    )


def test_its_text_is_still_compared() -> None:
    asked, engine = shorter()
    judgement = judge(replace(asked, text_gates=True), evidence(engine, probe=runs(differing=32)), NOW)
    assert (judgement.decision, judgement.reason) == (AnalysisDecision.FAIL, Reason.TEXT_DIFFERS)


@pytest.mark.parametrize(
    ("speed", "decision"),
    [(1.12, AnalysisDecision.PROMOTE), (1.07, AnalysisDecision.PROMOTE), (1.0, AnalysisDecision.FAIL), (0.9, AnalysisDecision.FAIL)],
)
def test_a_choice_that_does_not_bring_what_was_promised_is_given_up(speed: float, decision: AnalysisDecision) -> None:
    asked, engine = shorter(0.12, 0.05, speed=speed)
    judgement = judge(asked, evidence(engine), NOW)
    assert judgement.decision is decision
    assert "+12 % was predicted, and +5.0 % is asked for" in verdict(judgement, "speed").message


def test_a_choice_that_is_faster_by_too_little_is_looked_at_until_that_is_sure() -> None:
    asked, engine = shorter(0.12, 0.05, speed=1.04)
    assert judge(asked, evidence(replace(engine, spread=0.3)), NOW).decision is AnalysisDecision.CONTINUE
    sure = [replace(engine, spread=0.001), *(Engine(name, spread=0.001, seed=at, ready_at_s=-9e3) for at, name in enumerate("ab"))]
    assert judge(asked, evidence(*sure), NOW).decision is AnalysisDecision.FAIL


@pytest.mark.parametrize(
    ("speed", "decision", "reason"),
    [
        (1.15, AnalysisDecision.PROMOTE, Reason.ANALYSIS_PASSED),
        (1.07, AnalysisDecision.PROMOTE, Reason.ANALYSIS_PASSED),
        (1.0, AnalysisDecision.HOLD, Reason.REPLICA_BIAS),
        (0.7, AnalysisDecision.FAIL, Reason.ANALYSIS_FAILED),
    ],
)
def test_of_one_replica_on_each_side_an_estimate_that_agrees_with_the_prediction_is_enough(
    speed: float, decision: AnalysisDecision, reason: Reason
) -> None:
    asked, engine = shorter(0.12, 0.05, speed=speed)
    judgement = judge(asked, evidence(engine, Engine("old", seed=8, ready_at_s=-9e3)), NOW)
    assert (judgement.decision, judgement.reason) == (decision, reason)
    if decision is AnalysisDecision.PROMOTE:
        without = judge(replace(asked, promise=Prediction()), evidence(engine, Engine("old", seed=8, ready_at_s=-9e3)), NOW)
        assert (without.decision is AnalysisDecision.PROMOTE) == (speed > 1.1)


def test_where_nothing_was_promised_it_must_be_no_worse() -> None:
    asked, engine = shorter()
    judgement = judge(asked, evidence(engine), NOW)
    assert judgement.decision is AnalysisDecision.PROMOTE
    assert "predicted" not in judgement.message


@pytest.mark.parametrize(
    ("speed", "decision"),
    [(1.12, AnalysisDecision.PROMOTE), (1.07, AnalysisDecision.PROMOTE), (1.02, AnalysisDecision.FAIL), (0.9, AnalysisDecision.FAIL)],
)
def test_a_block_size_that_is_explored_must_gain_what_is_asked_of_any_change(speed: float, decision: AnalysisDecision) -> None:
    """Nothing is predicted of it, but no worse is not enough: the fleet would be changed for nothing."""
    asked, engine = shorter(speed=speed)
    exploring = replace(asked, promise=Prediction(0.0, math.log1p(0.05), exploratory=True))
    sure = [replace(engine, spread=0.001), *(Engine(name, spread=0.001, seed=at, ready_at_s=-9e3) for at, name in enumerate("ab"))]
    judgement = judge(exploring, evidence(*sure), NOW)
    assert judgement.decision is decision
    assert "its gain was not known, and +5.0 % is asked for" in verdict(judgement, "speed").message


def test_of_one_replica_on_each_side_nothing_agrees_with_what_was_not_predicted() -> None:
    asked, engine = shorter(speed=1.07)
    pair = evidence(engine, Engine("old", seed=8, ready_at_s=-9e3))
    predicted = replace(asked, promise=Prediction(math.log1p(0.12), math.log1p(0.05)))
    exploring = replace(asked, promise=Prediction(0.0, math.log1p(0.05), exploratory=True))
    assert judge(predicted, pair, NOW).decision is AnalysisDecision.PROMOTE
    assert judge(exploring, pair, NOW).reason is Reason.REPLICA_BIAS
