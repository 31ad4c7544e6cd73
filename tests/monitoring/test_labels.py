"""One name of a label has one meaning over all metrics of the product."""

from __future__ import annotations

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dflash_controller.api.conditions import ConditionType, Reason
from dflash_controller.api.speculation import Fixed
from dflash_controller.model.snapshot import Key
from dflash_controller.runtime.metrics import Metrics, StatusMetrics
from dflash_controller.tuner.decision import CROSSOVER, MEASURED, PREDICTED, TunerDecision
from monitoring import operator_rules
from monitoring.labels import LABELS
from monitoring.recording_rules import rules


def page() -> str:
    """Everything that the operator can export."""
    metrics = Metrics("dflash")
    metrics.reconciled("success", 0.1)
    metrics.failed("Unavailable")
    metrics.requested("get", "Pod", 200, 0.1)
    metrics.event_arrived("Pod")
    metrics.leading(True)
    metrics.resynced()
    metrics.left_out(())
    metrics.waited(0.1)
    metrics.watch_queue(lambda: 0.0, lambda: 0.0)
    key = Key("team", "chat")
    analysis = [{"metric": "speed", "verdict": "Successful", "candidate": 2.0, "stable": 2.0, "limit": 5.0}]
    conditions = [
        {"type": kind.value, "status": "True", "reason": Reason.AS_SPECIFIED.value, "lastTransitionTime": "2026-01-01T00:00:00Z"}
        for kind in ConditionType
    ]
    for phase in ("Analyzing", "Completed"):
        notices = [{"reason": Reason.FIELD_FIGHT.value}]
        shown = StatusMetrics(
            phase,
            {"r1": "stable", "r2": "candidate"},
            analysis,
            conditions,
            notices,
            {"desired": 2, "serving": 1},
            rolled_out="r2",
            origin="Tuner",
            startup_budget_s=900.0,
            startup_s=60.0,
            max_concurrency={"asked": 32, "effective": 16},
        )
        metrics.show(key, shown)
    numbers = {f"{PREDICTED}16": 900.0, f"{PREDICTED}1": 400.0, f"{MEASURED}16": 890.0, CROSSOVER: 9.0, "gainPercent": 1.0}
    metrics.tuned(key, TunerDecision("Tuning", Reason.TUNED, "words", Fixed(16), None, numbers))
    return metrics.page().decode()


def test_every_value_of_a_label_is_of_its_one_meaning() -> None:
    wrong, seen = [], set()
    for family in text_string_to_metric_families(page()):
        for sample in family.samples:
            if not sample.name.startswith("dflash_"):
                continue
            seen |= set(sample.labels)
            for label, value in sample.labels.items():
                if not re.fullmatch(LABELS[label].values, value):
                    wrong.append(f'{sample.name}{{{label}="{value}"}} is no {LABELS[label].meaning}')
    assert not wrong
    of_engines = {"pod", "engine", "quantile", "position", "stage"}
    assert seen == set(LABELS) - of_engines


def test_the_page_has_every_metric_of_the_operator_that_a_rule_records() -> None:
    exported = set(re.findall(r"^(dflash_\w+?)(?:_bucket|_sum|_count)?(?:{| )", page(), re.MULTILINE))
    assert {record.replace("dflash:", "dflash_") for record in operator_rules.NORMALISED} - {"dflash_tuner_input"} <= exported


def test_every_label_of_a_rule_has_a_meaning() -> None:
    assert {label for rule in rules() for label in rule.keys} <= set(LABELS)


@pytest.mark.parametrize("label", LABELS)
def test_a_label_is_used(label: str) -> None:
    assert f'{label}="' in page() or any(label in rule.keys for rule in rules())
