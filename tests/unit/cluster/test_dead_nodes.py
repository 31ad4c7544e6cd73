"""Nodes of terminating pods: asked about one by one, seldom, and taken to live unless the API server says otherwise."""

from __future__ import annotations

from typing import Any, cast

import pytest

from dflash_controller.api import names
from dflash_controller.cluster import kinds
from dflash_controller.cluster.client import Client
from dflash_controller.cluster.errors import Forbidden, NotFound, Unavailable
from dflash_controller.cluster.kinds import Kind
from dflash_controller.cluster.reader import NODE_SECONDS, Reader
from dflash_controller.cluster.store import Store
from dflash_controller.model.snapshot import Key

KEY = Key("ns", "demo")


def node(ready: str | None) -> dict[str, Any]:
    pressure = {"type": "MemoryPressure", "status": "True"}
    return {"status": {"conditions": [pressure, *([{"type": "Ready", "status": ready}] if ready else [])]}}


class Nodes:
    """An API server with nodes only, which counts what it is asked."""

    def __init__(self, **nodes: dict[str, Any] | Exception) -> None:
        self.nodes = nodes
        self.asked: list[str] = []
        self.time = 0.0

    async def get(self, kind: Kind, namespace: str | None, name: str) -> dict[str, Any]:
        assert (kind, namespace) == (kinds.NODE, None)
        self.asked.append(name)
        answer = self.nodes.get(name, NotFound(404, "NotFound", name))
        if isinstance(answer, Exception):
            raise answer
        return answer

    def reader(self, store: Store) -> Reader:
        return Reader(cast(Client, self), store, clock=lambda: self.time)


def store_of(*pods: tuple[str, str | None, bool], deployment: str = "demo") -> Store:
    """Pods by name, node, and whether they are terminating."""
    store = Store()
    for name, at, terminating in pods:
        metadata = {"namespace": "ns", "name": name, "uid": name, "resourceVersion": "1", "labels": names.child_labels(deployment)}
        owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": f"{deployment}-raaaaaaa", "uid": "set", "controller": True}
        metadata["ownerReferences"] = [owner]
        gone = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if terminating else {}
        store.put(kinds.POD, {"metadata": metadata | gone, "spec": {"nodeName": at} if at else {}})
    return store


async def test_nodes_are_asked_about_for_terminating_pods_alone() -> None:
    api = Nodes()
    store = store_of(("a", "n1", False), ("b", None, True))
    assert await api.reader(store).dead_nodes(KEY) == frozenset()
    assert api.asked == []


@pytest.mark.parametrize(
    ("answer", "dead"),
    [
        (node("True"), False),
        (node("False"), True),
        (node("Unknown"), True),
        (node(None), True),
        ({}, True),
        (NotFound(404, "NotFound", "n1"), True),
        (Forbidden(403, "Forbidden", "nodes is forbidden"), False),
        (Unavailable(0, "NoAnswer", "timeout"), False),
    ],
    ids=["ready", "not ready", "silent", "never said", "no status", "gone", "may not ask", "no answer"],
)
async def test_a_node_is_dead_when_it_is_gone_or_not_ready(answer: dict[str, Any] | Exception, dead: bool) -> None:
    api = Nodes(n1=answer)
    assert await api.reader(store_of(("a", "n1", True))).dead_nodes(KEY) == ({"n1"} if dead else frozenset())


async def test_a_snapshot_is_filled_in_and_nothing_else_of_it_changed() -> None:
    api = Nodes(n1=node("True"), n2=node("Unknown"))
    store = store_of(("a", "n1", True), ("b", "n2", True), ("c", "n2", True), ("d", "n3", False))
    before = store.snapshot(KEY)
    after = await api.reader(store).with_dead_nodes(before)
    assert after.dead_nodes == {"n2"}
    assert (after.pods, after.key, after.live) == (before.pods, before.key, before.live)
    assert sorted(api.asked) == ["n1", "n2"]


async def test_an_answer_is_remembered_for_a_while_and_then_asked_for_again() -> None:
    api = Nodes(n1=node("True"))
    reader = api.reader(store_of(("a", "n1", True)))
    await reader.dead_nodes(KEY)
    api.nodes["n1"] = node("Unknown")
    api.time = NODE_SECONDS - 0.1
    assert await reader.dead_nodes(KEY) == frozenset()
    api.time = NODE_SECONDS
    assert await reader.dead_nodes(KEY) == {"n1"}
    assert api.asked == ["n1", "n1"]
