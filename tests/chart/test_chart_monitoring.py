"""Monitors, rules and dashboards: there where the cluster knows the kind, and unchanged on their way."""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dflash_controller.api import names
from dflash_controller.render.monitor import pod_monitor
from hack.chart_reference import renewed
from monitoring.links import DOCS
from tests.chart.rendering import CHART, MONITORING, Manifest, manifests, of_kind, parsed, render
from tests.monitoring.grouping import grouped

RULES = """\
groups:
- name: example
  interval: 15s
  rules:
  - record: dflash:example
    expr: |-
      sum by (namespace) (rate(dflash_example_total{code=~"5.."}[2m]))
        / 60
  - alert: DFlashOne
    expr: dflash:example > 1
    for: 5m
    labels: {severity: page}
    annotations:
      summary: '{{ $labels.namespace }} has {{ $value | humanize }} "too many"'
  - alert: DFlashTwo
    expr: dflash:example > 2
- name: small
  rules:
  - alert: DFlashTwo
    expr: vector(1)
"""
DASHBOARD = {"title": "Fleet", "panels": [{"targets": [{"legendFormat": "{{deployment}} of {{ namespace }}"}]}], "uid": "dflash-fleet"}


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart with a file of rules and a dashboard of known content, and no others."""
    copy = tmp_path_factory.mktemp("chart") / "dflash-operator"
    shutil.copytree(CHART, copy)
    for folder, file, text in (("rules", "Example_one.rules.yaml", RULES), ("dashboards", "fleet.json", json.dumps(DASHBOARD, indent=2))):
        shutil.rmtree(copy / "files" / folder, ignore_errors=True)
        (copy / "files" / folder).mkdir()
        (copy / "files" / folder / file).write_text(text)
    for file_, text in renewed(copy).items():
        file_.write_text(text, encoding="utf-8")
    return copy


def rendered(chart: Path, values: dict[str, Any] | None = None) -> list[Manifest]:
    done = render(values or {}, apis=MONITORING, chart=chart)
    assert done.returncode == 0, done.stderr
    return parsed(done.stdout)


KINDS = ("ServiceMonitor", "PodMonitor", "PrometheusRule", "GrafanaDashboard")


@pytest.mark.parametrize("api", MONITORING, ids=KINDS)
def test_a_kind_is_used_only_where_it_is_served(api: str) -> None:
    values = {"metrics": {"enginePodMonitor": {"enabled": api == MONITORING[1]}}}
    found = {manifest["kind"] for manifest in manifests(values, apis=[api])} & set(KINDS)
    assert found == {api.rpartition("/")[2]}
    assert not {manifest["kind"] for manifest in manifests()} & set(KINDS)


def test_rules_arrive_as_they_are_written(chart: Path) -> None:
    [rule] = of_kind(rendered(chart), "PrometheusRule")
    assert rule["metadata"]["name"] == "dflash-operator-example-one-rules"
    assert rule["spec"] == yaml.safe_load(RULES)


def test_alerts_can_be_left_out_and_labelled(chart: Path) -> None:
    values = {
        "prometheusRule": {"disabledAlerts": ["DFlashTwo"], "alertLabels": {"team": "a", "severity": "mine"}, "labels": {"release": "r"}}
    }
    [rule] = of_kind(rendered(chart, values), "PrometheusRule")
    [group] = rule["spec"]["groups"]
    record, alert = group["rules"]
    assert "labels" not in record, "a label would split the recorded series"
    assert (alert["alert"], alert["labels"]) == ("DFlashOne", {"team": "a", "severity": "mine"})
    assert rule["metadata"]["labels"]["release"] == "r"


def test_dashboards_arrive_as_they_are_written(chart: Path) -> None:
    values = {"dashboards": {"folder": "LLM", "namespace": "monitoring", "grafanaOperator": {"instanceSelector": {"grafana": "main"}}}}
    [config] = of_kind(rendered(chart, values), "ConfigMap")
    [dashboard] = of_kind(rendered(chart, values), "GrafanaDashboard")
    assert json.loads(config["data"]["fleet.json"]) == DASHBOARD
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert config["metadata"]["annotations"]["grafana_folder"] == "LLM"
    assert dashboard["spec"]["configMapRef"] == {"name": config["metadata"]["name"], "key": "fleet.json"}
    assert dashboard["spec"]["instanceSelector"] == {"matchLabels": {"grafana": "main"}}
    assert {one["metadata"]["namespace"] for one in (config, dashboard)} == {"monitoring"}
    assert "grafana_dashboard" not in dashboard["metadata"]["labels"]


@pytest.mark.parametrize(
    ("url", "base"),
    [("", "docs"), ("https://git.example/dflash/docs/", "https://git.example/dflash/docs")],
    ids=["unpublished", "published"],
)
def test_every_rule_file_and_dashboard_is_installed_and_its_links_lead_somewhere(url: str, base: str) -> None:
    """Without a place where the documentation is published, an alert names a path, and a dashboard has no link."""
    found = manifests({"docsUrl": url}, apis=MONITORING)
    rules = [
        yaml.safe_load(file.read_text(encoding="utf-8").replace(DOCS, base)) for file in sorted((CHART / "files" / "rules").glob("*.yaml"))
    ]
    assert [one["spec"] for one in of_kind(found, "PrometheusRule")] == rules
    assert any(
        rule["annotations"]["runbook_url"].startswith(f"{base}/runbooks/") for rule in rules[0]["groups"][-1]["rules"] if "alert" in rule
    )
    boards = {file.name: file.read_text(encoding="utf-8") for file in (CHART / "files" / "dashboards").glob("*.json")}
    assert any(DOCS in text for text in boards.values())
    wanted = {name: json.loads(text.replace(DOCS, base)) if url else unlinked(json.loads(text)) for name, text in boards.items()}
    shown = {name: json.loads(text) for one in of_kind(found, "ConfigMap") for name, text in one["data"].items()}
    assert shown == wanted
    assert DOCS not in json.dumps(found)


def unlinked(node: Any) -> Any:
    """A dashboard without its links to the documentation."""
    if isinstance(node, list):
        return [unlinked(one) for one in node if not (isinstance(one, dict) and str(one.get("url")).startswith(DOCS))]
    return {key: unlinked(value) for key, value in node.items()} if isinstance(node, dict) else node


def test_the_alerts_that_can_be_left_out_are_those_of_the_chart() -> None:
    [rules] = of_kind(manifests(apis=MONITORING), "PrometheusRule")
    alerts = {rule["alert"] for group in rules["spec"]["groups"] for rule in group["rules"] if "alert" in rule}
    done = render({"prometheusRule": {"disabledAlerts": sorted(alerts)}}, apis=MONITORING)
    assert done.returncode == 0, done.stderr
    assert "alert: " not in done.stdout
    assert alerts


def test_everything_fits_into_the_secret_in_which_helm_keeps_a_release() -> None:
    """Helm stores chart and manifests compressed, twice encoded in base64; a Secret holds 1 MiB. Half of it is room to grow."""
    files = {str(file.relative_to(CHART)): file.read_text(encoding="utf-8") for file in CHART.rglob("*") if file.is_file()}
    release = json.dumps({"chart": files, "manifest": render({}, apis=MONITORING).stdout})
    assert len(base64.b64encode(base64.b64encode(gzip.compress(release.encode())))) < 2**19


def test_the_monitor_keeps_the_operators_own_namespace_label() -> None:
    [monitor] = of_kind(manifests(apis=MONITORING), "ServiceMonitor")
    [service] = of_kind(manifests(), "Service")
    [endpoint] = monitor["spec"]["endpoints"]
    assert endpoint["honorLabels"] is True
    assert endpoint["port"] == service["spec"]["ports"][0]["name"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["spec"]["namespaceSelector"]["matchNames"] == [service["metadata"]["namespace"]]


def test_the_engine_monitor_chooses_what_answers_requests() -> None:
    values: dict[str, Any] = {"metrics": {"enginePodMonitor": {"enabled": True}}}
    [monitor] = of_kind(manifests(values, apis=MONITORING), "PodMonitor")
    assert monitor["spec"]["selector"]["matchLabels"] == {names.LABEL_ROLE: names.ROLE_ENGINE}
    assert monitor["spec"]["namespaceSelector"] == {"any": True}
    assert monitor["spec"]["podMetricsEndpoints"][0]["port"] == names.HTTP_PORT_NAME
    assert monitor["spec"]["podTargetLabels"] == pod_monitor("qwen", "models")["spec"]["podTargetLabels"]
    [monitor] = of_kind(manifests({**values, "watchNamespaces": ["a"]}, apis=MONITORING), "PodMonitor")
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["a"]}


def test_one_value_groups_all_rules_and_names_the_label_in_alerts() -> None:
    """As ``tests.monitoring.grouping`` does, whose output promtool has tried."""
    (plain,) = of_kind(manifests(apis=MONITORING), "PrometheusRule")
    (by_cluster,) = of_kind(manifests({"metrics": {"groupLabels": ["cluster", "region"]}}, apis=MONITORING), "PrometheusRule")
    text = yaml.safe_dump(plain["spec"], width=1_000_000, allow_unicode=True)
    assert by_cluster["spec"] == yaml.safe_load(grouped(text, ("cluster", "region")))
    assert by_cluster["spec"] != plain["spec"]


def test_labels_of_replicas_reach_rules_and_operator() -> None:
    values = {"metrics": {"replicaLabels": ["ha_pair"]}, "prometheus": {"url": "http://prometheus:9090"}}
    found = manifests(values, apis=MONITORING)
    (rules,) = of_kind(found, "PrometheusRule")
    identities = re.findall(r"prometheus_replica, (\w+)", json.dumps(rules["spec"]))
    assert len(identities) > 50
    assert set(identities) == {"ha_pair"}
    assert '"DFLASH_PROMETHEUS_REPLICA_LABELS"' in json.dumps(found)


def test_the_operator_must_know_its_cluster_where_rules_are_grouped() -> None:
    values: dict[str, Any] = {"metrics": {"groupLabels": ["cluster"]}, "prometheus": {"url": "http://prometheus:9090"}}
    refused = render(values)
    assert refused.returncode != 0
    assert "set prometheus.matcher.cluster to the value of this cluster" in refused.stderr
    values["prometheus"]["matcher"] = {"cluster": "eu-1"}
    assert render(values).returncode == 0


@pytest.mark.parametrize("label", ["namespace", "a-b", "1st", "", "__name__", "severity", "le", "dflash_deployment"])
def test_a_label_that_cannot_group_is_refused(label: str) -> None:
    assert render({"metrics": {"groupLabels": [label]}}).returncode != 0


def _expressions(node: Any) -> Iterator[str]:
    """Every query of a dashboard's panels."""
    if isinstance(node, dict):
        yield from (value for key, value in node.items() if key == "expr")
        node = list(node.values())
    for child in node if isinstance(node, list) else ():
        yield from _expressions(child)


def test_dashboards_show_one_cluster_at_a_time_where_one_store_holds_several() -> None:
    values = {"metrics": {"groupLabels": ["cluster", "region"]}, "dashboards": {"enabled": True}}
    found = [item for item in of_kind(manifests(values, apis=MONITORING), "ConfigMap") if "dashboard" in item["metadata"]["name"]]
    assert len(found) == 6
    for item in found:
        (text,) = item["data"].values()
        dashboard = json.loads(text)
        names = [variable["name"] for variable in dashboard["templating"]["list"]]
        assert names[:3] == ["cluster", "region", "datasource"]
        for variable in dashboard["templating"]["list"][3:]:
            assert 'cluster=~"$cluster", region=~"$region"' in variable["query"]
        expressions = list(_expressions(dashboard))
        assert len(expressions) > 10
        for expression in expressions:
            selectors = re.findall(r"\b(?:dflash|process)[a-zA-Z0-9_:]*(\{[^}]*\})?", expression)
            assert all(selector.startswith('{cluster=~"$cluster", region=~"$region"') for selector in selectors), expression
    plain = of_kind(manifests({"dashboards": {"enabled": True}}, apis=MONITORING), "ConfigMap")
    assert all("$cluster" not in str(item["data"]) for item in plain)
