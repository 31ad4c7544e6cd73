"""The paired prompts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dflash_controller.analysis.judge import judge
from dflash_controller.analysis.verdict import AnalysisDecision, Outcome
from dflash_controller.api.conditions import Reason
from dflash_controller.model.counters import Evidence
from tests.support.analysis_world import DRAFTER, Engine, evidence, runs, verdict

IDLE = evidence(Engine("new", requests=0.0), Engine("old", requests=0.0, ready_at_s=-9e3))
NOW = 1800.0


def test_the_probe_alone_promotes_an_equal_drafter_on_an_idle_cluster() -> None:
    judgement = judge(DRAFTER, replace(IDLE, probe=runs()), NOW)
    assert judgement.decision is AnalysisDecision.PROMOTE
    assert verdict(judgement, "acceptanceLength").outcome is Outcome.INCONCLUSIVE
    for metric in ("probeAcceptanceLength", "probeSpeed", "text"):
        assert verdict(judgement, metric).outcome is Outcome.SUCCESSFUL
    assert verdict(judgement, "text").age_s == 900


def test_without_the_probe_an_idle_cluster_decides_nothing() -> None:
    assert judge(DRAFTER, IDLE, NOW).decision is AnalysisDecision.CONTINUE


def test_pairing_tells_a_loss_apart_that_prompts_would_hide() -> None:
    """Prompts differ by a factor of two, the drafter by 10 %."""
    judgement = judge(DRAFTER, replace(IDLE, probe=runs(acceptance=0.9)), NOW)
    assert judgement.decision is AnalysisDecision.FAIL
    assert judgement.message.startswith("probeAcceptanceLength:")


def test_the_probe_fails_speed_only_beyond_what_replicas_differ_by() -> None:
    slower = judge(DRAFTER, replace(IDLE, probe=runs(speed=0.9)), NOW)
    assert verdict(slower, "probeSpeed").outcome is Outcome.INCONCLUSIVE
    assert slower.decision is AnalysisDecision.CONTINUE
    assert judge(DRAFTER, replace(IDLE, probe=runs(speed=0.6)), NOW).decision is AnalysisDecision.FAIL


def test_traffic_that_decides_overrules_the_probe() -> None:
    judgement = judge(DRAFTER, evidence(probe=runs(acceptance=0.8, speed=0.6)), NOW)
    assert judgement.decision is AnalysisDecision.PROMOTE
    assert not verdict(judgement, "probeSpeed").gates
    worse = judge(DRAFTER, evidence(Engine("new", acceptance=4.5, seed=7), probe=runs()), NOW)
    assert worse.decision is AnalysisDecision.FAIL


def test_the_probe_does_not_overrule_an_estimate_of_traffic_that_contradicts_it() -> None:
    worse = evidence(Engine("new", acceptance=5.7, spread=0.2, seed=5), probe=runs())
    judgement = judge(DRAFTER, worse, NOW)
    assert verdict(judgement, "acceptanceLength").outcome is Outcome.INCONCLUSIVE
    assert judgement.decision is AnalysisDecision.CONTINUE


def test_another_text_fails() -> None:
    judgement = judge(DRAFTER, replace(IDLE, probe=runs(differing=4)), NOW)
    assert (judgement.decision, judgement.reason) == (AnalysisDecision.FAIL, Reason.TEXT_DIFFERS)
    assert verdict(judgement, "text").candidate == pytest.approx(100 * 4 / 64)
    assert "4 of 64 comparable prompts were answered differently; at most 5 % may be" in judgement.message
    assert judge(DRAFTER, replace(IDLE, probe=runs(differing=3)), NOW).decision is AnalysisDecision.PROMOTE


def test_another_text_decides_nothing_where_it_may_change() -> None:
    judgement = judge(replace(DRAFTER, text_gates=False), evidence(probe=runs(differing=30)), NOW)
    assert judgement.decision is AnalysisDecision.PROMOTE
    assert not verdict(judgement, "text").gates


def test_a_prompt_on_which_an_engine_does_not_repeat_itself_is_a_tie() -> None:
    judgement = judge(DRAFTER, replace(IDLE, probe=runs(ties=20)), NOW)
    assert judgement.decision is AnalysisDecision.PROMOTE
    assert verdict(judgement, "text").samples == 44


def test_too_few_comparable_prompts_are_inconclusive_and_hold_back_promotion() -> None:
    judgement = judge(DRAFTER, evidence(probe=runs(ties=57)), NOW)
    assert verdict(judgement, "text").outcome is Outcome.INCONCLUSIVE
    assert judgement.decision is AnalysisDecision.CONTINUE


def test_prompts_are_paired_by_position_and_unanswered_ones_left_out() -> None:
    new, old = runs()
    some = replace(new, answers=(None, *new.answers[1:])), replace(old, answers=(*old.answers[:-1], None))
    judgement = judge(DRAFTER, replace(IDLE, probe=some), NOW)
    assert verdict(judgement, "probeAcceptanceLength").samples == 62
    assert judgement.decision is AnalysisDecision.PROMOTE


def test_runs_of_other_prompts_are_not_compared() -> None:
    new, old = runs(differing=64)
    judgement = judge(DRAFTER, replace(IDLE, probe=(new, replace(old, prompts="32x256"))), NOW)
    assert judgement.decision is AnalysisDecision.CONTINUE
    assert all(v.metric != "text" for v in judgement.verdicts)


def test_an_engine_that_does_not_tell_its_steps_leaves_acceptance_open() -> None:
    new, old = runs()
    silent = replace(new, answers=tuple(a and replace(a, steps=None) for a in new.answers))
    judgement = judge(DRAFTER, replace(IDLE, probe=(silent, old)), NOW)
    assert verdict(judgement, "probeAcceptanceLength").outcome is Outcome.INCONCLUSIVE
    assert judgement.decision is AnalysisDecision.CONTINUE


def test_the_probe_without_any_reading_does_not_promote_while_the_source_is_in_trouble() -> None:
    assert judge(DRAFTER, Evidence(probe=runs(), failure="refused"), NOW).decision is AnalysisDecision.CONTINUE
