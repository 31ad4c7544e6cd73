"""The checks of ``doctor``: each finds what it is for, and says what to do."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from dflash_controller.api.crd import crd
from dflash_controller.cli import leases, readiness
from dflash_controller.cli.readiness import Result
from dflash_controller.engines import ENGINES

SGLANG = ENGINES["sglang"].metric_schema


def node(product: str | None, gpus: int) -> dict[str, Any]:
    labels = {readiness.PRODUCT: product} if product else {}
    return {"metadata": {"labels": labels}, "status": {"allocatable": {"nvidia.com/gpu": str(gpus)} if gpus else {}}}


@pytest.mark.parametrize(
    ("nodes", "result", "text"),
    [
        ([node("NVIDIA-B200", 8), node("NVIDIA-B200", 8), node(None, 0)], Result.OK, "16 × NVIDIA-B200"),
        ([node(None, 0)], Result.FAILED, "no node has the label"),
        ([node(None, 8)], Result.FAILED, "1 nodes have GPUs and not the label"),
        ([node("NVIDIA-B200", 0)], Result.FAILED, "offer no nvidia.com/gpu"),
        ([node("NVIDIA-X1", 1)], Result.ADVICE, "not known to this release: NVIDIA-X1"),
    ],
)
def test_gpu_nodes(nodes: list[dict[str, Any]], result: Result, text: str) -> None:
    found = readiness.accelerators(nodes)
    assert found.result is result
    assert text in found.text
    assert (found.remedy == "") is (result is Result.OK)


def test_the_definition_must_be_of_this_release() -> None:
    ours = crd({name: engine.owned_flags() for name, engine in ENGINES.items()})
    stored = {**copy.deepcopy(ours), "status": {"conditions": [{"type": "Established", "status": "True"}]}}
    stored["spec"]["conversion"] = {"strategy": "None"}
    assert readiness.definition(stored).result is Result.OK, "what the API server adds does not count"
    del stored["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["blockSize"]
    older = readiness.definition(stored)
    assert older.result is Result.ADVICE
    assert "spec.properties.blockSize differs" in older.text
    assert readiness.definition(None).result is Result.FAILED


def test_old_kubernetes() -> None:
    assert readiness.kubernetes({"major": "1", "minor": "29+", "gitVersion": "v1.29.1"}).result is Result.FAILED
    assert readiness.kubernetes({"major": "1", "minor": "35", "gitVersion": "v1.35.4"}).result is Result.OK
    assert readiness.kubernetes({}).result is Result.UNKNOWN


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("http://prometheus.monitoring:9090", "/api/v1/namespaces/monitoring/services/http:prometheus:9090/proxy"),
        ("https://p.m.svc.cluster.local/select/0/", "/api/v1/namespaces/m/services/https:p:443/proxy/select/0"),
        ("http://prometheus.example.com:9090", None),
        ("http://localhost:9090", None),
    ],
)
def test_a_service_is_asked_through_the_api_server(url: str, path: str | None) -> None:
    assert readiness.proxy_path(url) == path


def test_every_series_that_decisions_need_is_asked_for_and_missed() -> None:
    every = {one.metric for one in (*SGLANG.counters, *SGLANG.histograms)}
    assert all(metric in readiness.names_query(SGLANG) for metric in every)
    assert readiness.series(SGLANG, every).result is Result.OK
    needed = next(one.metric for one in SGLANG.counters if one.since is not None)
    lost = readiness.series(SGLANG, every - {needed})
    assert (lost.result, needed in lost.text) == (Result.FAILED, True)
    assert readiness.series(SGLANG, ()).result is Result.ADVICE


def test_answers_of_prometheus() -> None:
    answer = {"status": "success", "data": {"result": [{"metric": {"__name__": "sglang:x"}, "value": [1, "1"]}]}}
    assert readiness.names_of(json.dumps(answer)) == {"sglang:x"}
    for text in ("<html>", '{"status": "error", "error": "bad"}', "[]"):
        with pytest.raises(ValueError, match=r".+"):
            readiness.names_of(text)


def test_operator_and_its_prometheus() -> None:
    container = {"image": "operator:1", "env": [{"name": "DFLASH_PROMETHEUS_URL", "value": "http://p.m:9090"}]}
    deployment = {
        "metadata": {"name": "dflash-operator", "namespace": "dflash-system"},
        "spec": {"replicas": 2, "template": {"spec": {"containers": [container]}}},
        "status": {"readyReplicas": 2},
    }
    assert readiness.operators([deployment]).result is Result.OK
    assert readiness.operators([{**deployment, "status": {}}]).result is Result.FAILED
    assert readiness.operators([]).result is Result.FAILED
    assert readiness.prometheus_url([deployment]) == "http://p.m:9090"


@pytest.mark.parametrize(
    ("holder", "renewed", "held"),
    [
        ("host-1", "2026-11-29T11:59:55.000000Z", "team/dflash-operator is held by host-1"),
        ("host-1", "2026-11-29T12:00:05.000000Z", "team/dflash-operator is held by host-1"),
        ("host-1", "2026-11-29T11:58:00.000000Z", ""),
        ("", "2026-11-29T11:59:55.000000Z", ""),
        ("host-1", None, ""),
    ],
    ids=["renewed", "renewed by a clock ahead", "expired", "released", "never renewed"],
)
def test_a_lease_tells_of_an_operator_without_a_deployment(holder: str, renewed: str | None, held: str) -> None:
    spec = {"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 15}
    lease = {"metadata": {"name": "dflash-operator", "namespace": "team"}, "spec": spec}
    found = leases.leader([lease], datetime(2026, 11, 29, 12, 0, tzinfo=UTC))
    assert found == held
    check = readiness.operators([], found)
    assert (check.result, held in check.text) == (Result.ADVICE if held else Result.FAILED, True)
    assert readiness.prometheus_url([]) is None


def lease(renewed: str | None, namespace: str = "team", *, holder: str = "host-1", duration: int = 15) -> dict[str, Any]:
    spec = {"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": duration}
    return {"metadata": {"name": "dflash-operator", "namespace": namespace}, "spec": spec}


LAST, FRESH = "2026-11-29T11:58:00.123456Z", "2026-11-29T11:59:55.000000Z"


@pytest.mark.parametrize(
    ("found", "left"),
    [
        ([lease(LAST)], ("team/dflash-operator", "2026-11-29T11:58:00Z")),
        ([lease("2026-11-29T10:00:00.000000Z"), lease(LAST, "other")], ("other/dflash-operator", "2026-11-29T11:58:00Z")),
        ([lease(LAST, holder="", duration=1)], ("team/dflash-operator", "2026-11-29T11:58:00Z")),
        ([lease(LAST), lease(FRESH, "other")], None),
        ([lease(FRESH, holder="", duration=1)], None),
        ([lease(None)], None),
        ([], None),
    ],
    ids=["expired", "the last", "given back", "another is held", "just given back", "never renewed", "none"],
)
def test_an_expired_lease_tells_until_when_an_operator_ran(found: list[dict[str, Any]], left: tuple[str, str] | None) -> None:
    assert leases.abandoned(found, datetime(2026, 11, 29, 12, 0, tzinfo=UTC)) == left


def test_an_operator_that_ran_is_not_to_be_installed() -> None:
    left = ("dflash-system/dflash-operator", "2026-11-29T11:58:00Z")
    gone = readiness.operators([], "", left)
    assert (gone.result, "an operator ran until 2026-11-29T11:58:00Z: no holder since" in gone.text) == (Result.FAILED, True)
    assert "Install" not in gone.remedy
    deployment = {
        "metadata": {"name": "dflash-operator", "namespace": "dflash-system"},
        "spec": {"replicas": 1, "template": {"spec": {"containers": [{"image": "operator:1"}]}}},
    }
    stopped = readiness.operators([deployment], "", left)
    assert (stopped.result, "0 of 1 pods ready" in stopped.text, "no holder since" in stopped.text) == (Result.FAILED, True, True)
    hung = readiness.operators([{**deployment, "status": {"readyReplicas": 1}}], "", left)
    assert (hung.result, "no holder since" in hung.text) == (Result.ADVICE, True)


def test_deployments_whose_metrics_are_not_read_are_named() -> None:
    def measured(name: str, status: str, reason: str) -> dict[str, Any]:
        condition = {"type": "MetricsAvailable", "status": status, "reason": reason, "lastTransitionTime": "2026-11-29T06:07:46Z"}
        return {"metadata": {"name": name, "namespace": "team"}, "status": {"conditions": [condition]}}

    fine = [measured("a", "True", "Measured"), measured("b", "False", "NoPods"), {"metadata": {"name": "c", "namespace": "team"}}]
    assert readiness.metrics(fine).result is Result.OK
    found = readiness.metrics([*fine, measured("d", "False", "PrometheusError")])
    assert (found.result, "team/d: PrometheusError since 2026-11-29T06:07:46Z" in found.text) == (Result.ADVICE, True)
    assert "1 of 4" in found.text
