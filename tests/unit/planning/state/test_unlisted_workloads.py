"""LeaderWorkerSets that are not listed are not gone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dflash_controller.model.snapshot import Snapshot
from tests.support.planning_world import World

TWO_NODES: dict[str, Any] = {"target": {"model": "Qwen/Qwen3.5-9B"}, "parallelism": {"tensor": 16, "nodes": 2}}
ONE_NODE: dict[str, Any] = {"target": {"model": "Qwen/Qwen3.5-9B"}, "replicas": 2}


class Cluster(World):
    """A cluster whose API server lists LeaderWorkerSets, or serves but does not list them, or does not serve them."""

    listed = True
    served = True

    def snapshot(self) -> Snapshot:
        whole = super().snapshot()
        kind = frozenset({"LeaderWorkerSet"})
        if self.listed and self.served:
            return replace(whole, kinds=kind)
        known = tuple(item for item in whole.workloads if item["kind"] != "LeaderWorkerSet")
        return replace(whole, kinds=frozenset(), workloads=known, unlisted=kind if self.served else frozenset())


def serving(spec: dict[str, Any]) -> Cluster:
    cluster = Cluster(dict(spec))
    cluster.kinds = frozenset({"LeaderWorkerSet"})
    cluster.settle()
    assert cluster.deployment["status"]["stableRevision"]
    return cluster


@pytest.mark.parametrize("change", [{}, {"replicas": 3}, {"parallelism": {}}, {"drafter": {"revision": "b" * 40}}], ids=str)
def test_nothing_of_a_deployment_over_several_nodes_is_touched_while_leader_worker_sets_are_not_listed(change: dict[str, Any]) -> None:
    cluster = serving(TWO_NODES)
    cluster.listed = False
    cluster.edit(lambda spec: spec.update(change))
    before = dict(cluster.children)
    assert cluster.reconcile() == 0
    assert cluster.children == before
    assert (cluster.condition("Stalled"), cluster.reason("Stalled")) == ("True", "LeaderWorkerSetUnlisted")
    cluster.listed = True
    cluster.deployment["spec"] = dict(TWO_NODES)
    cluster.reconcile()
    assert cluster.condition("Stalled") == "False"


def test_a_revision_in_force_over_several_nodes_is_not_touched_while_the_kind_is_not_served() -> None:
    cluster = serving(TWO_NODES)
    cluster.served = False
    cluster.edit(lambda spec: spec.pop("parallelism"))
    assert cluster.reconcile() == 0
    assert (cluster.condition("Stalled"), cluster.reason("Stalled")) == ("True", "LeaderWorkerSetMissing")


@pytest.mark.parametrize("served", [True, False])
def test_a_deployment_on_one_node_goes_on_without_leader_worker_sets(served: bool) -> None:
    cluster = serving(ONE_NODE)
    cluster.listed, cluster.served = False, served
    cluster.edit(lambda spec: spec.update(replicas=3))
    cluster.settle()
    assert cluster.serving() == 3
    assert cluster.condition("Stalled") == "False"
