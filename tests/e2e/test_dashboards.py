"""Every query of every dashboard, and every rule, against a real Prometheus that scrapes both engines during a rollout under traffic."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from hack.pictures.scene import ENGINES, RULES, Scene
from monitoring.dashboards import ALL, DIRECTORY
from monitoring.dashboards.queries import EMPTY_BY_NATURE, OF_ONE_ENGINE, UNRECORDED_BY_NATURE, PanelQuery, dashboards, panels, queries
from monitoring.dashboards.samples import WINDOW_S
from monitoring.labels import LABELS
from monitoring.recording_rules import rules
from testbed.cluster import Cluster
from testbed.gates import each_gate
from testbed.operator_process import NAMESPACE, ROOT
from testbed.simulator_process import SimulatorProcess

pytestmark = pytest.mark.long

PATIENT = each_gate(window="10m", interval="1s")
"""A candidate that is judged for so long is still there when the queries are asked."""
STEP_S = 2.0


@dataclass(frozen=True)
class Stage:
    """The scene in the middle of both rollouts."""

    scene: Scene
    start: float
    end: float

    def values(self, deployment: str = ".+") -> dict[str, str]:
        """Of the variables, as Grafana fills them in."""
        whole = max(60, round(self.end - self.start))
        own = {"namespace": self.scene.namespace, "deployment": deployment, "revision": ".+", "operator": NAMESPACE}
        return own | {"__rate_interval": "15s", "__interval": "2s", "__range": f"{whole}s", "__range_s": str(whole)}

    def ask(self, query: PanelQuery, deployment: str = ".+") -> list[dict[str, Any]]:
        """Series of the result, an instant one as a series of one value. Raises PrometheusError where it is refused."""
        expr = query.filled(self.values(deployment))
        if not query.instant:
            return self.scene.prometheus.query_range(expr, self.start, self.end, STEP_S)
        return [{"metric": one["metric"], "values": [one["value"]]} for one in self.scene.prometheus.query(expr, self.end)]


@pytest.fixture(scope="module")
def stage(cluster: Cluster, rights: None, simulator: SimulatorProcess) -> Iterator[Stage]:
    """A deployment of each engine whose candidate has answered requests and whose tuner has predicted speeds."""
    namespace = cluster.create_namespace()
    start = time.time()
    with Scene(cluster, namespace, analysis=PATIENT, modes=dict.fromkeys(ENGINES, "Advise"), startup_s=1.0) as scene:
        scene.load(4)
        both = len(ENGINES)
        scene.wait_series("predictions of both tuners", "count by (deployment) (dflash:tuner_predicted_tokens_per_second offset 6s)", both)
        scene.change_drafter("b" * 40)
        candidates = 'on (namespace, deployment, revision) group_left () dflash:revision_info{role="candidate"}'
        observed = f"dflash:revision_pods offset {WINDOW_S + 6}s * {candidates}"
        scene.wait_series("both candidates observed for the window of a ratio", observed, both)
        for what in ("acceptance_length", 'ttft_seconds{quantile="0.95"}'):
            scene.wait_series("both candidates under traffic", f"dflash:revision_{what} offset 6s * {candidates}", both)
        scene.wait_series("both candidates compared", 'count by (deployment) (dflash:rollout_metric{side="stable"} offset 6s)', both)
        yield Stage(scene, start, time.time())
    cluster.delete_namespace(namespace)


def faults(query: PanelQuery, series: list[dict[str, Any]]) -> list[str]:
    """What is wrong with the result of a query."""
    where = f"{query.dashboard} / {query.panel} / {query.ref}"
    if not series:
        return [] if (query.dashboard, query.panel) in EMPTY_BY_NATURE else [f"{where} has no series: {query.expr}"]
    found = []
    for one in series:
        missing = sorted(label for label in query.labels if not one["metric"].get(label))
        if missing:
            found.append(f"{where}: {one['metric']} lacks {missing}")
        if not any(math.isfinite(float(value)) for _, value in one["values"]):
            found.append(f"{where}: {one['metric']} is never a number")
    return found


@pytest.mark.parametrize("name", ALL)
def test_every_query_of_a_dashboard_returns_what_its_panel_shows(name: str, stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    dashboard = dashboards(ROOT / DIRECTORY)[name]
    asked = queries(dashboard)
    wrong, series = [], 0
    for query in asked:
        answer = stage.ask(query)
        wrong += faults(query, answer)
        series += len(answer)
    with capsys.disabled():
        print(f"\n{name}: {len(panels(dashboard))} panels, {len(asked)} queries, {series} series", end=" ")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", [name for name in ALL if name != "operator"])
def test_both_engines_are_in_every_panel(name: str, stage: Stage) -> None:
    wrong = []
    for query in queries(dashboards(ROOT / DIRECTORY)[name]):
        if "$deployment" not in query.expr or (query.dashboard, query.panel) in EMPTY_BY_NATURE:
            continue
        only, _ = OF_ONE_ENGINE.get((query.dashboard, query.panel), ("", ""))
        for deployment, (engine, _) in ENGINES.items():
            if only in ("", engine):
                wrong += [f"{deployment}: {fault}" for fault in faults(query, stage.ask(query, deployment))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", ALL)
def test_a_table_has_one_row_per_entity(name: str, stage: Stage) -> None:
    """As for made-up series in tests/monitoring/test_panels.py, here for those of real engines and of the operator."""
    tables = [panel for panel in panels(dashboards(ROOT / DIRECTORY)[name]) if panel.kind == "table"]
    for panel in tables:
        answers = [[one["metric"] for one in stage.ask(query)] for query in panel.queries]
        keys = frozenset.intersection(*(frozenset(labels) for found in answers for labels in found))
        for query, found in zip(panel.queries, answers, strict=True):
            rows = Counter(tuple(labels[key] for key in sorted(keys)) for labels in found)
            assert max(rows.values()) == 1, (panel.title, query.ref, rows)
        own = [label for found in answers for label in sorted({label for labels in found for label in labels} - keys)]
        assert len(set(own)) == len(own), (panel.title, own)


def test_candidate_and_stable_are_told_apart(stage: Stage) -> None:
    found = {query.panel: query for query in queries(dashboards(ROOT / DIRECTORY)["rollout"])}
    for panel in ("Acceptance length", "Requests by role", "Pods by role", "Time of a request, p95"):
        sides = {(one["metric"]["deployment"], one["metric"]["role"]) for one in stage.ask(found[panel])}
        assert sides >= {(deployment, role) for deployment in ENGINES for role in ("stable", "candidate")}, panel


def test_the_newest_rollout_is_that_of_the_candidate_and_names_who_asked(stage: Stage) -> None:
    candidate = 'dflash:revision_info{role="candidate"}'
    asked = f"dflash:rollout_info and on (namespace, deployment, revision) {candidate}"
    found = {one["metric"]["deployment"]: one["metric"]["origin"] for one in stage.scene.prometheus.query(asked, stage.end)}
    assert found == dict.fromkeys(ENGINES, "User")


def test_every_rule_is_evaluated_and_recorded_as_it_says(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    evaluated = stage.scene.prometheus.rules()
    assert evaluated, RULES
    failed = {rule["name"]: rule.get("lastError", rule["health"]) for rule in evaluated if rule["health"] != "ok"}
    assert not failed
    wrong, series = [], 0
    for rule in rules():
        answer = stage.scene.prometheus.query(f"last_over_time({rule.record}[{stage.values()['__range']}])", stage.end)
        series += len(answer)
        if not answer and rule.record in UNRECORDED_BY_NATURE:
            continue
        labels = {frozenset(one["metric"]) - {"__name__"} for one in answer}
        if labels != {frozenset(rule.keys)}:
            wrong.append(f"{rule.record} has {labels or 'no series'}")
        wrong += [
            f'{rule.record}{{{label}="{value}"}} is no {LABELS[label].meaning}'
            for one in answer
            for label, value in one["metric"].items()
            if label != "__name__" and not re.fullmatch(LABELS[label].values, value)
        ]
        if answer and not any(math.isfinite(float(one["value"][1])) for one in answer):
            wrong.append(f"{rule.record} is never a number")
    kinds = Counter(rule["type"] for rule in evaluated)
    with capsys.disabled():
        print(f"\nrules: {kinds['recording']} recorded in {series} series, {kinds['alerting']} alerts evaluated", end=" ")
    assert not wrong, "\n".join(wrong)
