"""The coarse limits."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from dflash_controller.analysis.guardrails import improbable
from dflash_controller.analysis.histograms import difference, quantile, quantile_bounds, total
from dflash_controller.analysis.judge import judge
from dflash_controller.analysis.verdict import AnalysisDecision, MetricVerdict, Outcome
from dflash_controller.api.defaults import GATES
from dflash_controller.model.counters import Evidence, Histogram
from tests.support.analysis_world import DRAFTER, TARGET, Engine, evidence, verdict

NO_TEXT = replace(DRAFTER, text_gates=False)
NOW = 1800.0


def _found(metric: str, candidate: Engine, *stable: Engine, now_s: float = NOW) -> MetricVerdict:
    return verdict(judge(TARGET, evidence(candidate, *stable), now_s), metric)


def test_quantiles_are_interpolated_as_promql_does() -> None:
    histogram = Histogram((1.0, 2.0, 4.0, math.inf), (50.0, 90.0, 100.0, 100.0))
    assert quantile(histogram, 0.95) == pytest.approx(3.0)
    assert quantile(histogram, 0.5) == pytest.approx(1.0)
    assert quantile(Histogram((1.0, math.inf), (10.0, 100.0)), 0.95) == 1.0
    assert quantile(Histogram((1.0, math.inf), (0.0, 0.0)), 0.95) is None
    assert quantile(None, 0.95) is None


def test_histograms_of_other_bounds_are_not_added() -> None:
    one, other = Histogram((1.0, math.inf), (3.0, 4.0)), Histogram((2.0, math.inf), (5.0, 5.0))
    assert total([one, None, one]) == Histogram((1.0, math.inf), (6.0, 8.0))
    assert total([one, other]) == one
    assert difference(one, other) is None
    assert difference(one, None) == one
    assert difference(None, one) is None


def test_few_observations_leave_a_quantile_wide_open() -> None:
    few, many = (Histogram((1.0, 2.0, 4.0, math.inf), tuple(n * share for share in (0.5, 0.9, 1.0, 1.0))) for n in (20.0, 10000.0))
    assert quantile_bounds(few, 0.95, 1.64)[1] == math.inf
    low, high = quantile_bounds(many, 0.95, 1.64)
    assert 2.9 < low < 3.0 < high < 3.1


def test_a_longer_time_to_first_token_fails_only_as_a_lasting_one() -> None:
    slow = Engine("new", seed=7, ttft_s=0.2)
    found = _found("ttft", slow)
    assert found.outcome is Outcome.FAILED
    assert found.candidate == pytest.approx(0.2, rel=0.2)
    assert found.limit == 20
    assert judge(TARGET, evidence(slow), NOW).decision is AnalysisDecision.FAIL
    # Two windows are tolerated, and 960 s hold three of 300 s after the warm-up.
    assert _found("ttft", replace(slow, count=31), now_s=930.0).outcome is Outcome.SUCCESSFUL
    assert _found("ttft", replace(slow, count=32), now_s=960.0).outcome is Outcome.FAILED


def test_a_longer_time_to_first_token_within_the_limit_passes() -> None:
    wide = replace(TARGET, gates={"ttft": replace(GATES["ttft"], limit=150)})
    found = verdict(judge(wide, evidence(Engine("new", seed=7, ttft_s=0.08)), NOW), "ttft")
    assert found.candidate == pytest.approx(2 * (found.stable or 0), rel=0.05)
    assert found.outcome is Outcome.SUCCESSFUL


def test_latency_per_token_is_held_against_its_own_limit() -> None:
    assert _found("latency", Engine("new", seed=7, step_s=0.03)).outcome is Outcome.FAILED
    assert _found("latency", Engine("new", seed=7)).outcome is Outcome.SUCCESSFUL


def test_a_guardrail_without_data_neither_blocks_nor_fails() -> None:
    blind = Engine("new", seed=7, missing=frozenset({"time_to_first_token", "time_per_token", "failed"}))
    judgement = judge(NO_TEXT, evidence(blind), NOW)
    assert {verdict(judgement, metric).outcome for metric in ("ttft", "latency", "errors")} == {Outcome.INCONCLUSIVE}
    assert judgement.decision is AnalysisDecision.PROMOTE


def test_a_window_grows_until_it_holds_its_samples() -> None:
    """10 requests every 30 s: 300 s hold 100. With 3, no more than two windows of 1,000 s fit."""
    assert "of 5 windows" in _found("ttft", *(Engine(n, requests=10.0) for n in "nab")).message
    assert "of 1 windows" in _found("ttft", *(Engine(n, requests=3.0) for n in "nab")).message
    assert _found("ttft", *(Engine(n, requests=1.0) for n in "nab")).outcome is Outcome.INCONCLUSIVE


def test_one_error_in_a_hundred_is_luck_and_many_are_not() -> None:
    assert not improbable(1, 100, 0.01)
    assert not improbable(4, 100, 0.01)
    assert improbable(7, 100, 0.01)
    assert improbable(100, 100, 0.01)
    assert not improbable(0, 0, 0.01)
    assert not improbable(5, 1000, 0.01)


def test_errors_above_stables_fail() -> None:
    assert _found("errors", Engine("new", failed=4.0)).outcome is Outcome.FAILED
    both = [Engine(name, failed=4.0) for name in ("new", "old-1", "old-2")]
    assert _found("errors", *both).outcome is Outcome.SUCCESSFUL
    assert _found("errors", Engine("new", failed=0.2)).outcome is Outcome.SUCCESSFUL


def test_a_candidate_that_fails_everything_is_not_kept_for_a_whole_window() -> None:
    assert _found("errors", Engine("new", failed=40.0, count=5), now_s=150.0).outcome is Outcome.FAILED


def test_failures_are_seen_though_their_counter_appears_with_the_first() -> None:
    trace = Engine("new", failed=10.0).trace()
    late = tuple(replace(r, failed=None if r.at_s < 600 else r.failed) for r in trace.readings)
    found = replace(evidence(), candidate=(replace(trace, readings=late),))
    assert verdict(judge(TARGET, found, NOW), "errors").outcome is Outcome.FAILED


def test_a_restart_fails_at_once_and_none_passes_after_the_warm_up() -> None:
    assert judge(TARGET, evidence(candidate_restarts=1), NOW).decision is AnalysisDecision.FAIL
    found = Evidence((Engine("new", count=1).trace(),))
    assert verdict(judge(TARGET, found, 30.0), "restarts").outcome is Outcome.INCONCLUSIVE
    assert verdict(judge(TARGET, found, 60.0), "restarts").outcome is Outcome.SUCCESSFUL
    lenient = replace(TARGET, gates={"restarts": replace(GATES["restarts"], limit=1)})
    assert verdict(judge(lenient, evidence(candidate_restarts=1), NOW), "restarts").outcome is Outcome.SUCCESSFUL
