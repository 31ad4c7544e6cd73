"""The start-up budget of the next revision follows from how fast weights arrived; what runs keeps the one that it has."""

from __future__ import annotations

import json
import math
from datetime import timedelta
from typing import Any

import pytest

from dflash_controller.api import names
from dflash_controller.engines.resolve import OperatorDefaults
from dflash_controller.model.fetch_report import FetchReason, FetchReport
from dflash_controller.planning.revisions.revision import Revision, read
from dflash_controller.render.startup import COMPILE_S, fetch_s, progress_deadline_s, startup_budget_s
from tests.support.planning_world import World
from tests.unit.planning.test_planner import COMMIT, set_drafter, settled, spec

MODELS: dict[str, Any] = {"target": {"model": "Qwen/Qwen3.5-9B", "revision": "f" * 40}, "drafter": {"revision": "c" * 40}}
CLAIM: dict[str, Any] = {"persistentVolumeClaim": {"claimName": "models"}}
FETCHED = OperatorDefaults(fetch_image="dflash-operator:1")


def newest(world: World) -> Revision:
    records = [found for item in world.of_kind("ControllerRevision") if (found := read(item))]
    return max(records, key=lambda record: record.number)


def rates(record: Revision) -> dict[str, int]:
    found: dict[str, int] = json.loads(record.source["metadata"]["annotations"].get(names.ANNOTATION_RATES, "{}"))
    return found


def started_in(world: World, seconds: float, **more: Any) -> None:
    """The Ready pods of the newest revision have taken so long from the start of the engine."""
    ready = max(pod["ready_since"] for pod in world.pods.values() if pod["ready"])
    world.shown[newest(world).hash] = {"engine_since": ready - timedelta(seconds=seconds), "ready_since": ready, **more}
    world.settle()


def workloads(world: World) -> dict[str, Any]:
    return {item["metadata"]["name"]: json.dumps(item["spec"]["template"], sort_keys=True) for item in world.of_kind("Deployment")}


def probe(world: World, record: Revision) -> int:
    container = world.children["Deployment", record.name]["spec"]["template"]["spec"]["containers"][0]
    return int(container["startupProbe"]["failureThreshold"])


def test_a_start_that_was_measured_decides_the_next_budget_and_changes_nothing_that_runs() -> None:
    world = settled(replicas=2)
    first = newest(world)
    assumed = startup_budget_s(first.resolved)
    size = f"{first.resolved.weight_bytes / 1e9:.1f} GB"
    assert world.deployment["status"]["startupBudgetReason"] == (
        f"{size} at 500.0 MB/s (assumed: no start has been measured yet), times 1.5 for safety, and 600 s to compile"
    )
    before = workloads(world)
    started_in(world, 300)
    assert rates(newest(world)) == {"load": round(first.resolved.weight_bytes / 300)}
    assert workloads(world) == before
    assert world.deployment["status"]["startupBudgetSeconds"] == assumed
    assert world.reconcile() == 0, "it is stored once"

    world.edit(set_drafter(COMMIT))
    world.settle()
    second = newest(world)
    assert second.number == first.number + 1
    assert startup_budget_s(second.resolved) == pytest.approx(300 * 1.5 + COMPILE_S, abs=1)
    assert probe(world, second) == math.ceil(startup_budget_s(second.resolved) / 10)
    assert "measured at the slowest start from this storage" in world.deployment["status"]["startupBudgetReason"]
    assert world.deployment["status"]["startupBudgetSeconds"] == startup_budget_s(second.resolved)


def test_the_slowest_start_counts_and_a_little_slower_is_no_write() -> None:
    world = settled(replicas=2)
    size = newest(world).resolved.weight_bytes
    for seconds, stored in ((200, 200), (100, 200), (210, 200), (400, 400)):
        started_in(world, seconds)
        assert rates(newest(world)) == {"load": round(size / stored)}


@pytest.mark.parametrize(
    ("seconds", "more"), [(100_000.0, {}), (0.0, {}), (300.0, {"restarts": 1})], ids=["Ready once more", "no time", "restarted"]
)
def test_what_is_no_start_is_not_measured(seconds: float, more: dict[str, Any]) -> None:
    world = settled(replicas=2)
    started_in(world, seconds, **more)
    assert rates(newest(world)) == {}


def test_a_start_from_the_page_cache_is_not_believed() -> None:
    world = settled(replicas=2)
    started_in(world, 1)
    assert rates(newest(world)) == {}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"load": -1}', '{"load": "fast"}', '{"load": true}', '{"load": 1e999}'])
def test_a_damaged_record_counts_as_not_measured(text: str) -> None:
    world = settled(replicas=2)
    world.children["ControllerRevision", newest(world).name]["metadata"]["annotations"][names.ANNOTATION_RATES] = text
    world.edit(set_drafter(COMMIT))
    world.settle()
    assert not newest(world).resolved.load_measured
    assert newest(world).resolved.load_bytes_per_s == 500_000_000


def test_another_storage_says_nothing() -> None:
    world = settled(replicas=2, **MODELS)
    started_in(world, 300)
    world.edit(lambda spec: spec.update(storage={"emptyDir": {}}))
    world.settle()
    assert not newest(world).resolved.load_measured


def test_the_rate_of_a_fetch_decides_how_long_the_next_may_take() -> None:
    world = World(spec(replicas=2, storage=CLAIM, **MODELS), defaults=FETCHED)
    world.settle()
    first = newest(world)
    assert fetch_s(first.resolved) > 0
    report = FetchReport(FetchReason.FETCHED, "done", bytes=9 * 10**9, seconds=900.0, rate=10**7)
    world.shown[first.hash] = {"fetched": report}
    world.settle()
    assert rates(newest(world)) == {"fetch": 10**7}
    world.shown[first.hash] = {"fetched": FetchReport(FetchReason.FETCHED, "done", bytes=1000, seconds=1.0, rate=1000)}
    world.settle()
    assert rates(newest(world)) == {"fetch": 10**7}, "of so few bytes it says nothing"

    world.edit(lambda spec: spec.update(replicas=2, podTemplate={"metadata": {"annotations": {"a": "b"}}}))
    world.settle()
    second = newest(world).resolved
    assert (second.fetch_bytes_per_s, second.load_measured) == (10**7, False)
    assert fetch_s(second) == math.ceil(second.weight_bytes / 10**7 * 1.5)
    assert startup_budget_s(second) == startup_budget_s(first.resolved), "the probe begins when the weights are there"
    deployment = world.children["Deployment", newest(world).name]["spec"]
    assert deployment["progressDeadlineSeconds"] == progress_deadline_s(second) > fetch_s(second)
    assert f"up to {fetch_s(second)} s to fetch them at 10.0 MB/s (measured)" in world.deployment["status"]["startupBudgetReason"]


def test_a_fast_fetch_does_not_shorten_what_the_next_may_take() -> None:
    world = World(spec(replicas=2, storage=CLAIM, **MODELS), defaults=FETCHED)
    world.settle()
    first = newest(world)
    world.shown[first.hash] = {"fetched": FetchReport(FetchReason.FETCHED, "done", bytes=18 * 10**9, seconds=10.0, rate=18 * 10**8)}
    world.settle()
    assert rates(newest(world)) == {"fetch": 18 * 10**8}
    world.edit(set_drafter(COMMIT))
    world.settle()
    second = newest(world).resolved
    assert second.fetch_bytes_per_s is None
    assert fetch_s(second) == fetch_s(first.resolved)


def test_an_emptydir_that_cannot_hold_the_weights_is_refused_before_a_pod_is_made() -> None:
    limits = {"resources": {"limits": {"ephemeral-storage": "1Gi"}}}
    for more, field in (
        ({"storage": {"emptyDir": {"sizeLimit": "2Gi"}}}, "spec.storage.emptyDir.sizeLimit: 2.1 GB cannot hold"),
        ({"storage": {"emptyDir": {}}, "podTemplate": limits}, "spec.podTemplate.resources.limits.ephemeral-storage: 1.1 GB cannot hold"),
    ):
        world = settled(replicas=2, **MODELS, **more)
        assert not world.pods
        assert world.reason("Stalled") == "InvalidSpec"
        message = next(item["message"] for item in world.deployment["status"]["conditions"] if item["type"] == "Stalled")
        assert field in message
        assert "Raise it" in message
    assert settled(replicas=2, **MODELS, storage={"emptyDir": {"sizeLimit": "200Gi"}}).serving() == 2
    assert settled(replicas=2, **MODELS, storage=CLAIM, podTemplate=limits).serving() == 2, "a claim is no scratch space"


def test_an_emptydir_with_a_limit_that_runs_is_left_alone() -> None:
    """An earlier operator did not compare. Its revision serves, whatever its limit."""
    world = settled(replicas=2, **MODELS, storage={"emptyDir": {"sizeLimit": "200Gi"}})
    before = workloads(world)
    for item in world.of_kind("ControllerRevision"):
        item["data"]["inputs"]["storage"]["emptyDir"]["sizeLimit"] = "2Gi"
    world.edit(lambda spec: spec.update(storage={"emptyDir": {"sizeLimit": "2Gi"}}))
    world.settle()
    assert (world.serving(), world.condition("Stalled"), workloads(world)) == (2, "False", before)
