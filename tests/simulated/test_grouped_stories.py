"""Every story of the rules again, with rules that are grouped by the label of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.monitoring import healthy, readings, set_ups
from tests.monitoring.grouping import grouped
from tests.monitoring.test_grouping import in_cluster
from tests.monitoring.test_rules import ALERTS, RULES, STORIES, agrees


def moved(group: dict[str, Any]) -> dict[str, Any]:
    """A test group of promtool whose series are those of cluster eu, and so is what is expected of them."""
    inputs = {one["series"]: one["values"] for one in group["input_series"]}
    new = group | {"input_series": [{"series": name, "values": values} for name, values in in_cluster(inputs, "eu").items()]}
    if "alert_rule_test" in group:
        new["alert_rule_test"] = [look | {"exp_alerts": [_alert(one) for one in look["exp_alerts"]]} for look in group["alert_rule_test"]]
    if "promql_expr_test" in group:
        new["promql_expr_test"] = [
            look | {"exp_samples": [_sample(one) for one in look["exp_samples"]]} for look in group["promql_expr_test"]
        ]
    return new


def _alert(expected: dict[str, Any]) -> dict[str, Any]:
    labels, annotations = expected["exp_labels"], expected["exp_annotations"]
    namespace = labels.get("namespace")
    if namespace is None:
        return expected  # Nothing is left of the operator, its cluster included.
    summary = annotations["summary"].replace(namespace, f"eu/{namespace}", 1)
    return {"exp_labels": labels | {"cluster": "eu"}, "exp_annotations": annotations | {"summary": summary}}


def _sample(expected: dict[str, Any]) -> dict[str, Any]:
    return expected | {"labels": expected["labels"].replace("{", '{cluster="eu",', 1)}


def test_every_story_is_the_same_in_a_cluster_of_its_own(tmp_path: Path) -> None:
    stories = [one.to_dict(ALERTS) for one in STORIES] + healthy.groups(list(ALERTS)) + readings.groups()
    stories += [one for _, one in set_ups.stories()]
    agrees([moved(one) for one in stories], grouped(RULES.read_text(encoding="utf-8"), ("cluster",)), tmp_path)
