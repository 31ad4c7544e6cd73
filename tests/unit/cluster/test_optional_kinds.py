"""Optional kinds that exist but cannot be listed: they are left out, and everything else goes on."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable
from typing import Any, cast

import pytest

from dflash_controller.api import names
from dflash_controller.cluster import kinds
from dflash_controller.cluster.client import Client
from dflash_controller.cluster.errors import ApiError, Forbidden, NotFound, Unavailable
from dflash_controller.cluster.kinds import LEADER_WORKER_SET, POD_MONITOR, Kind
from dflash_controller.cluster.reader import FAILING_SECONDS, Reader
from dflash_controller.cluster.store import Store
from dflash_controller.model.snapshot import Key

KEY = Key("ns", "demo")
BROKEN = Unavailable(500, "InternalError", "conversion webhook failed")


class Api:
    """An API server that serves both optional kinds, and fails to list the kinds in ``errors``."""

    def __init__(self) -> None:
        self.errors: dict[Kind, ApiError] = {}
        self.discovery: ApiError | None = None
        self.served_kinds = frozenset(kinds.OPTIONAL)
        self.lists: list[tuple[Kind, str | None]] = []
        self.time = 0.0
        self.store = Store()

    def reader(self, *namespaces: str) -> Reader:
        return Reader(cast(Client, self), self.store, namespaces, clock=lambda: self.time)

    async def served(self, asked: Iterable[Kind]) -> frozenset[Kind]:
        if self.discovery is not None:
            raise self.discovery
        return self.served_kinds & frozenset(asked)

    async def pages(self, kind: Kind, namespace: str | None, *, selector: str | None) -> AsyncIterator[tuple[list[dict[str, Any]], str]]:
        self.lists.append((kind, namespace))
        if kind in self.errors:
            raise self.errors[kind]
        of_revision = kind in (*kinds.WORKLOADS, kinds.CONTROLLER_REVISION)
        labels = names.child_labels("demo") | ({names.LABEL_REVISION: "raaaaaaa"} if of_revision else {})
        name = "demo-raaaaaaa" if of_revision else "demo"
        metadata = {"namespace": "ns", "name": name, "uid": kind.name, "resourceVersion": "1", "labels": labels}
        yield [{"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata, "spec": {}, "data": {"inputs": {}}}], "2"

    async def get(self, kind: Kind, namespace: str, name: str) -> dict[str, Any]:
        return {"metadata": {"namespace": namespace, "name": name, "uid": "1", "resourceVersion": "1"}, "spec": {}}


ERRORS = [BROKEN, Forbidden(403, "Forbidden", "no"), NotFound(404, "", "no"), Unavailable(0, "NoAnswer", "timeout")]


@pytest.mark.parametrize("error", ERRORS)
async def test_an_optional_kind_that_cannot_be_listed_is_left_out_and_all_others_are_read(error: ApiError) -> None:
    api = Api()
    api.errors[POD_MONITOR] = error
    reader = api.reader()
    assert await reader.resync() == {KEY}
    snapshot = api.store.snapshot(KEY)
    assert (snapshot.kinds, snapshot.unlisted) == ({"LeaderWorkerSet"}, {"PodMonitor"})
    assert [item["kind"] for item in snapshot.workloads] == ["Deployment", "LeaderWorkerSet"]
    assert reader.failing == {(POD_MONITOR, None)}


async def test_a_kind_left_out_comes_back_when_it_is_listed_again_and_every_deployment_is_looked_at(
    caplog: pytest.LogCaptureFixture,
) -> None:
    api = Api()
    api.errors[LEADER_WORKER_SET] = BROKEN
    reader = api.reader()
    with caplog.at_level(logging.INFO, logger="dflash_controller.cluster.reader"):
        for _ in range(3):
            await reader.resync()
        assert api.store.snapshot(KEY).unlisted == {"LeaderWorkerSet"}
        del api.errors[LEADER_WORKER_SET]
        assert await reader.relist(LEADER_WORKER_SET, None) == {KEY}
    assert api.store.snapshot(KEY).kinds == {"LeaderWorkerSet", "PodMonitor"}
    assert api.store.snapshot(KEY).unlisted == frozenset()
    assert reader.failing == frozenset()
    assert [record.message for record in caplog.records] == [
        "LeaderWorkerSet cannot be listed and is left out: 500 InternalError: conversion webhook failed",
        "LeaderWorkerSet is no longer left out: it is listed",
    ]


async def test_a_kind_listed_before_is_left_out_only_when_its_lists_keep_failing() -> None:
    api = Api()
    reader = api.reader()
    await reader.resync()
    api.errors[LEADER_WORKER_SET] = BROKEN
    assert await reader.relist(LEADER_WORKER_SET, None) == frozenset()
    assert "LeaderWorkerSet" in api.store.snapshot(KEY).kinds
    api.time += FAILING_SECONDS
    assert await reader.relist(LEADER_WORKER_SET, None) == {KEY}
    snapshot = api.store.snapshot(KEY)
    assert (snapshot.kinds, snapshot.unlisted) == ({"PodMonitor"}, {"LeaderWorkerSet"})
    assert "LeaderWorkerSet" in [item["kind"] for item in snapshot.workloads], "what is known stays known"


async def test_a_kind_is_left_out_when_one_of_the_namespaces_refuses_it() -> None:
    api = Api()
    reader = api.reader("ns", "other")
    await reader.resync()
    api.errors[POD_MONITOR] = BROKEN
    await reader.relist(POD_MONITOR, "other")
    api.time += FAILING_SECONDS
    del api.errors[POD_MONITOR]
    await reader.relist(POD_MONITOR, "ns")
    assert api.store.snapshot(KEY).unlisted == {"PodMonitor"}
    await reader.relist(POD_MONITOR, "other")
    assert api.store.snapshot(KEY).unlisted == frozenset()


async def test_a_kind_that_is_no_longer_served_is_not_unlisted() -> None:
    api = Api()
    api.errors[POD_MONITOR] = NotFound(404, "", "no")
    reader = api.reader()
    await reader.resync()
    api.served_kinds = frozenset({LEADER_WORKER_SET})
    await reader.resync()
    snapshot = api.store.snapshot(KEY)
    assert (snapshot.kinds, snapshot.unlisted) == ({"LeaderWorkerSet"}, frozenset())
    assert reader.failing == frozenset()


async def test_where_discovery_fails_the_lists_decide() -> None:
    api = Api()
    api.discovery = BROKEN
    api.errors[POD_MONITOR] = BROKEN
    await api.reader().resync()
    snapshot = api.store.snapshot(KEY)
    assert (snapshot.kinds, snapshot.unlisted) == ({"LeaderWorkerSet"}, {"PodMonitor"})


async def test_a_live_read_without_an_optional_kind_says_so() -> None:
    api = Api()
    reader = api.reader()
    await reader.resync()
    api.errors[LEADER_WORKER_SET] = BROKEN
    snapshot = await reader.refresh(KEY)
    assert snapshot.live
    assert (snapshot.kinds, snapshot.unlisted) == ({"PodMonitor"}, {"LeaderWorkerSet"})
    api.errors = {kinds.POD: BROKEN}
    with pytest.raises(Unavailable, match="Pod: conversion"):
        await reader.refresh(KEY)


async def test_a_required_kind_that_cannot_be_listed_is_named() -> None:
    api = Api()
    api.errors[kinds.CONTROLLER_REVISION] = Forbidden(403, "Forbidden", "may not list")
    with pytest.raises(Forbidden, match="ControllerRevision in ns: may not list"):
        await api.reader("ns").resync()


async def test_a_kind_that_is_installed_later_is_found_with_or_without_a_watch() -> None:
    api = Api()
    api.served_kinds = frozenset({POD_MONITOR})
    reader = api.reader("ns", "other")
    await reader.resync()
    reader.watch_began(POD_MONITOR)
    assert api.store.snapshot(KEY).kinds == {"PodMonitor"}
    assert reader.unwatched == {(LEADER_WORKER_SET, "ns")}, "one question for all namespaces"
    assert await reader.catch_up(LEADER_WORKER_SET, "ns") == frozenset()
    api.served_kinds = frozenset(kinds.OPTIONAL)
    api.lists.clear()
    assert await reader.catch_up(LEADER_WORKER_SET, "ns") == {KEY}, "every deployment is looked at"
    assert api.lists == [(LEADER_WORKER_SET, "ns"), (LEADER_WORKER_SET, "other")]
    snapshot = api.store.snapshot(KEY)
    assert snapshot.kinds == {"PodMonitor", "LeaderWorkerSet"}
    assert [item["kind"] for item in snapshot.workloads] == ["Deployment", "LeaderWorkerSet"]
    assert reader.unwatched == {(LEADER_WORKER_SET, "ns"), (LEADER_WORKER_SET, "other")}, "it is listed until a watch begins"
    reader.watch_began(LEADER_WORKER_SET)
    assert reader.unwatched == frozenset()


@pytest.mark.parametrize("first", [LEADER_WORKER_SET, POD_MONITOR], ids=lambda kind: kind.name)
async def test_a_kind_that_is_found_while_another_is_looked_for_is_not_missed(first: Kind) -> None:
    api = Api()
    api.served_kinds = frozenset()
    reader = api.reader()
    await reader.resync()
    api.served_kinds = frozenset({LEADER_WORKER_SET})
    assert await reader.catch_up(first, None) == {KEY}, "every deployment is looked at"
    assert api.store.snapshot(KEY).kinds == {"LeaderWorkerSet"}
    assert (LEADER_WORKER_SET, None) in api.lists


async def test_a_kind_that_fails_is_not_looked_for_too() -> None:
    api = Api()
    api.errors[POD_MONITOR] = BROKEN
    reader = api.reader()
    await reader.resync()
    assert reader.unwatched == {(LEADER_WORKER_SET, None)}
