"""Which pods the collector is asked to measure, and what the runtime gets of the stable revision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from dflash_controller.api import names
from dflash_controller.api.conditions import Reason
from dflash_controller.cluster import kinds
from dflash_controller.cluster.store import Store
from dflash_controller.model.series import CounterWindow, LabelledMetric, Span
from dflash_controller.observe.pipeline.source import Round, Target
from dflash_controller.observe.status_values.display import DisplaySettings
from dflash_controller.planning.revisions.roles import read_stored
from dflash_controller.runtime.measurements import Measurements
from tests.support.planning_world import KEY, World

SERVING = CounterWindow(
    30,
    {
        LabelledMetric("passes"): 1000.0,
        LabelledMetric("tokens"): 8000.0,
        LabelledMetric("generated"): 48_000.0,
        LabelledMetric("verify_steps"): 8000.0,
    },
    {LabelledMetric("block"): 8.0},
    totals={LabelledMetric("passes"): 1000.0},
)


class Source:
    """Every pod answers."""

    failed_reason, where = Reason.METRICS_UNREACHABLE, "The source"

    def __init__(self) -> None:
        self.asked: Sequence[Target] = ()

    async def collect(self, targets: Sequence[Target]) -> Round:
        self.asked = targets
        uids = [target.uid for target in targets]
        return Round(answered=frozenset(uids), spans={uid: (Span(4e9, SERVING),) for uid in uids})

    async def close(self) -> None:
        """Nothing to close."""


class Fleet:
    """A deployment with one ready pod, as the operator made it, in the store."""

    def __init__(self, tuning: dict[str, Any] | None) -> None:
        world = World({"target": {"model": "Qwen/Qwen3.5-9B"}, "engine": {"name": "sglang"}} | ({"tuning": tuning} if tuning else {}))
        world.settle()
        self.store, self.source = Store(), Source()
        snapshot = world.snapshot()
        assert snapshot.deployment is not None
        deployment = snapshot.deployment
        deployment["metadata"].setdefault("labels", {})
        self.store.put(kinds.DFLASH_DEPLOYMENT, deployment)
        for revision in snapshot.revisions:
            self.store.put(kinds.CONTROLLER_REVISION, revision)
        stable = read_stored(snapshot.revisions).stable
        assert stable is not None
        self.stable = stable.hash
        labels = {names.LABEL_REVISION: self.stable, names.LABEL_ROLE: "engine", names.LABEL_BLOCK_SIZE: "16"}
        owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": f"{KEY.name}-{self.stable}", "uid": "set", "controller": True}
        self.store.put(
            kinds.POD,
            {
                "metadata": {
                    "namespace": KEY.namespace,
                    "name": "demo-x",
                    "uid": "x",
                    "resourceVersion": "1",
                    "ownerReferences": [owner],
                    "labels": names.child_labels(KEY.name) | labels,
                },
                "spec": {"nodeName": "n1"},
                "status": {"podIP": "127.0.0.1", "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
            },
        )
        self.deployment = deployment
        self.measurements = Measurements(self.store, self.source, lambda _: None, DisplaySettings(), 60.0)


@pytest.mark.parametrize(
    ("tuning", "tuned"), [(None, True), ({"mode": "Advise"}, True), ({"mode": "Auto"}, True), ({"mode": "Off"}, False)]
)
async def test_pods_are_tuned_unless_the_user_says_off(tuning: dict[str, Any] | None, tuned: bool) -> None:
    fleet = Fleet(tuning)
    await fleet.measurements.collector.round()
    assert [(target.pod, target.tuned) for target in fleet.source.asked] == [("demo-x", tuned)]


async def test_stretches_and_measured_pods_are_those_of_the_stable_revision() -> None:
    fleet = Fleet(None)
    assert fleet.measurements.measured(KEY, fleet.stable) == 0
    await fleet.measurements.collector.round()
    assert fleet.measurements.measured(KEY, fleet.stable) == 1
    assert fleet.measurements.measured(KEY, "other") == 0
    (told,) = fleet.measurements.load_samples(KEY, fleet.stable)
    assert (told.block, told.committed, told.steps) == (8, 48_000, 8000)
    assert told.excluded == "WarmUp", "1,000 passes are less than a minute of load"
    assert fleet.measurements.load_samples(KEY, fleet.stable) == []


async def test_the_pods_of_a_candidate_are_told_apart() -> None:
    fleet = Fleet(None)
    await fleet.measurements.collector.round()
    assert [target.candidate for target in fleet.source.asked] == [False]
    (stored,) = fleet.store.revisions()
    fleet.store.put(
        kinds.CONTROLLER_REVISION,
        stored
        | {
            "metadata": stored["metadata"]
            | {"annotations": stored["metadata"]["annotations"] | {names.ANNOTATION_STATE: "Candidate"}, "resourceVersion": "1000000"}
        },
    )
    await fleet.measurements.collector.round()
    assert [(target.candidate, target.on_trial) for target in fleet.source.asked] == [(True, True)]


async def test_the_stable_revision_is_measured_also_where_the_status_was_lost() -> None:
    fleet = Fleet(None)
    lost = {key: value for key, value in fleet.deployment.items() if key != "status"}
    fleet.store.put(kinds.DFLASH_DEPLOYMENT, lost | {"metadata": fleet.deployment["metadata"] | {"resourceVersion": "1000000"}})
    assert "status" not in (fleet.store.snapshot(KEY).deployment or {})
    await fleet.measurements.collector.round()
    assert len(fleet.measurements.load_samples(KEY, fleet.stable)) == 1
