"""One ruler over several clusters: rules, alerts and the runbooks' queries grouped by a further label."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed import binaries
from tests.monitoring.engines import DEPLOYMENT, sglang, vllm
from tests.monitoring.grouping import clauses, grouped
from tests.monitoring.story import Series, gauge, label_set
from tests.monitoring.test_rules import ALERTS, RULES, agrees
from tests.monitoring.test_runbooks import queries

_TEXT = RULES.read_text(encoding="utf-8")
COLLAPSED = "DFlashAcceptanceCollapsed"


def in_cluster(series: Series, cluster: str) -> Series:
    """The series as they reach the ruler from one of the clusters."""
    labelled = {}
    for name, values in series.items():
        head, brace, rest = name.partition("{")
        labelled[f'{head}{{cluster="{cluster}"' + ("," + rest if brace else "}")] = values
    return labelled


def story(name: str, series: Series, alert: str, at: str, *firing: tuple[str, dict[str, str]]) -> dict[str, Any]:
    """What fires at a time: summary and labels."""
    own = ALERTS[alert].to_dict()["annotations"]
    expected = [
        {"exp_labels": {"severity": ALERTS[alert].severity, **labels}, "exp_annotations": own | {"summary": summary}}
        for summary, labels in firing
    ]
    inputs = [{"series": one, "values": values} for one, values in series.items()]
    looks = [{"eval_time": at, "alertname": alert, "exp_alerts": expected}]
    return {"name": name, "interval": "1m", "input_series": inputs, "alert_rule_test": looks}


@pytest.mark.parametrize("text", [_TEXT, "\n".join(queries())], ids=["rules", "runbooks"])
def test_every_clause_can_be_extended(text: str) -> None:
    """By a label before its namespace; ``without`` and ``ignoring`` would do something else with it."""
    found = clauses(text)
    assert len(found) > 5
    assert [labels for labels in found if labels and labels.split(", ")[0] != "namespace"] == []
    assert not re.search(r"\b(without|ignoring)\b\s*\(", text)
    wanted = [f"cluster, region, {labels}" if labels else "cluster, region" for labels in found]
    assert clauses(grouped(text, ("cluster", "region"))) == wanted


def test_without_labels_nothing_changes() -> None:
    assert grouped(_TEXT, ()) == _TEXT


def test_prometheus_understands_the_grouped_rules_and_queries(tmp_path: Path) -> None:
    rules, asked = tmp_path / "rules.yaml", tmp_path / "queries.yaml"
    rules.write_text(grouped(_TEXT, ("cluster",)))
    records = [{"record": f"query:{number}", "expr": grouped(query, ("cluster",))} for number, query in enumerate(queries())]
    asked.write_text(yaml.safe_dump({"groups": [{"name": "runbooks", "rules": records}]}))
    command = [str(binaries.path_of("promtool")), "check", "rules", "--lint=all", "--lint-fatal"]
    for file in (rules, asked):
        answer = subprocess.run([*command, str(file)], capture_output=True, text=True, check=False)
        assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.mark.parametrize("engine", [vllm, sglang])
def test_of_two_clusters_with_the_same_deployment_the_collapsed_one_fires(engine: Any, tmp_path: Path) -> None:
    """Acceptance 6.0 in eu and 1.02 in us. Together they would be 3.51, and nothing would fire."""
    series = in_cluster(engine("a", (3000, 5.0, 30)), "eu") | in_cluster(engine("a", (3000, 0.02, 30)), "us")
    labels = DEPLOYMENT | {"revision": "r1", "block_size": "16", "engine": engine.__name__}
    summary = "us/team/qwen: the drafter of r1 has collapsed: 1.02 tokens per verify step (1 means that no draft is accepted)"
    fires = story("two clusters", series, COLLAPSED, "20m", (summary, labels | {"cluster": "us"}))
    silent = story("two clusters, not told apart", series, COLLAPSED, "20m")
    agrees([fires], grouped(_TEXT, ("cluster",)), tmp_path)
    agrees([silent], _TEXT, tmp_path)


def test_the_cluster_whose_operator_is_missing_is_named(tmp_path: Path) -> None:
    up = {f"dflash_build_info{label_set(namespace='dflash-system', pod='o')}": gauge((1, 31))}
    series = in_cluster(vllm("a", (600, 4, 30)) | up, "eu") | in_cluster(vllm("a", (600, 4, 30)), "us")
    fires = story(
        "an operator is missing", series, "DFlashOperatorDown", "20m", ("Prometheus scrapes no DFlash operator", {"cluster": "us"})
    )
    agrees([fires], grouped(_TEXT, ("cluster",)), tmp_path)
