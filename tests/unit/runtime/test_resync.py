"""When the cluster is listed anew."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any, cast

import pytest

from dflash_controller.cluster import kinds
from dflash_controller.cluster.errors import Unavailable
from dflash_controller.cluster.executor import Executor
from dflash_controller.cluster.reader import Reader
from dflash_controller.cluster.store import Store
from dflash_controller.model.snapshot import Key
from dflash_controller.runtime.backlog import Backlog
from dflash_controller.runtime.metrics import Metrics
from dflash_controller.runtime.queue import WorkQueue
from dflash_controller.runtime.resync import Resync
from tests.support.virtual_time import run_in_virtual_time

KEY, OTHER = Key("ns", "demo"), Key("ns", "other")


class Scene:
    """A reader that writes down when it lists what, and the store and executor of a fleet of two."""

    def __init__(self, failures: int = 0) -> None:
        self.log: list[tuple[float, str]] = []
        self.failures = failures
        self.pruned = 0
        self.unlisted: frozenset[kinds.Kind] = frozenset()
        self.failing: frozenset[tuple[kinds.Kind, str | None]] = frozenset()
        self.unwatched: frozenset[tuple[kinds.Kind, str | None]] = frozenset()
        self.queue: WorkQueue[Key] = WorkQueue()
        self.metrics = Metrics()
        self.backlog = Backlog(self.queue)
        self.resync_loop = Resync(cast(Reader, self), cast(Store, self), cast(Executor, self), self.backlog, self.metrics, interval_s=300.0)

    def keys(self) -> frozenset[Key]:
        return frozenset({KEY, OTHER})

    def prune(self) -> None:
        self.pruned += 1

    async def resync(self) -> frozenset[Key]:
        self._note("all")
        return frozenset()

    def watch_began(self, kind: kinds.Kind) -> None:
        self.unwatched = frozenset(place for place in self.unwatched if place[0] is not kind)

    async def catch_up(self, kind: kinds.Kind, namespace: str | None) -> frozenset[Key]:
        self._note(f"{kind.name} in {namespace}")
        return frozenset({KEY})

    def _note(self, what: str) -> None:
        self.log.append((asyncio.get_running_loop().time(), what))
        if self.failures:
            self.failures -= 1
            raise Unavailable(503, "ServiceUnavailable", "later")


def test_the_first_list_waits_out_failures_and_has_every_deployment_looked_at() -> None:
    async def scenario() -> None:
        scene = Scene(failures=3)
        scene.resync_loop.lead()
        running = asyncio.create_task(scene.resync_loop.run())
        await scene.resync_loop.filled.wait()
        assert [at for at, _ in scene.log] == [0.0, 1.0, 3.0, 7.0]
        assert scene.queue.depth == 2
        running.cancel()

    run_in_virtual_time(scenario())


def test_everything_is_listed_once_per_interval_and_looked_at_over_a_fifth_of_it() -> None:
    async def scenario() -> None:
        scene = Scene()
        scene.backlog.leads = True
        running = asyncio.create_task(scene.resync_loop.run())
        await asyncio.sleep(1000.0)
        running.cancel()
        times = [at for at, _ in scene.log]
        gaps = [later - earlier for earlier, later in pairwise(times)]
        assert len(times) == 4
        assert all(270.0 <= gap <= 330.0 for gap in gaps)
        assert scene.pruned == 3
        assert scene.queue.depth == 2

    run_in_virtual_time(scenario())


def test_a_kind_whose_watch_began_anew_is_listed_at_once() -> None:
    async def scenario() -> None:
        scene = Scene()
        running = asyncio.create_task(scene.resync_loop.run())
        await scene.resync_loop.filled.wait()
        scene.backlog.leads = True
        scene.log.clear()
        await asyncio.sleep(10.0)
        scene.resync_loop.watch_opened(kinds.SERVICE, "ns")
        await asyncio.sleep(1.0)
        assert scene.log == [(10.0, "Service in ns")]
        assert scene.queue.depth == 1
        scene.failures = 1
        scene.resync_loop.watch_opened(kinds.POD, None)
        await asyncio.sleep(1.0)
        assert scene.log[1:] == [(11.0, "Pod in None")]
        assert not running.done()
        running.cancel()

    run_in_virtual_time(scenario())


def test_an_optional_kind_is_looked_for_until_its_watch_begins() -> None:
    async def scenario() -> None:
        scene = Scene()
        scene.unwatched = frozenset({(kinds.LEADER_WORKER_SET, None)})
        running = asyncio.create_task(scene.resync_loop.run())
        await asyncio.sleep(50.0)
        assert scene.log[1:] == [(20.0, "LeaderWorkerSet in None"), (40.0, "LeaderWorkerSet in None")]
        scene.resync_loop.watch_opened(kinds.LEADER_WORKER_SET, None)
        await asyncio.sleep(100.0)
        assert scene.log[3:] == [(50.0, "LeaderWorkerSet in None")]
        running.cancel()

    run_in_virtual_time(scenario())


def test_lists_that_keep_failing_are_a_matter_for_the_liveness_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        scene = Scene()
        loop: Any = asyncio.get_running_loop()
        monkeypatch.setattr("dflash_controller.runtime.resync.time.monotonic", loop.time)
        assert scene.resync_loop.overdue() is None
        running = asyncio.create_task(scene.resync_loop.run())
        await scene.resync_loop.filled.wait()
        scene.failures = 1000
        await asyncio.sleep(900.0)
        assert scene.resync_loop.overdue() is None
        await asyncio.sleep(100.0)
        assert scene.resync_loop.overdue() == "the last complete list is 1000 s old: 503 ServiceUnavailable: later"
        running.cancel()

    run_in_virtual_time(scenario())


def test_a_first_list_that_never_ends_is_a_matter_for_the_liveness_probe_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        loop: Any = asyncio.get_running_loop()
        monkeypatch.setattr("dflash_controller.runtime.resync.time.monotonic", loop.time)
        scene = Scene(failures=1000)
        listing = asyncio.create_task(scene.resync_loop.run())
        await asyncio.sleep(960.0)
        assert scene.resync_loop.overdue() is None
        await asyncio.sleep(1.0)
        assert scene.resync_loop.overdue() == "there was no complete list in 961 s: 503 ServiceUnavailable: later"
        listing.cancel()

    run_in_virtual_time(scenario())


def test_optional_kinds_that_fail_are_listed_again_with_growing_pauses_until_they_do_not() -> None:
    async def scenario() -> None:
        scene = Scene()
        scene.failing = frozenset({(kinds.POD_MONITOR, None)})
        running = asyncio.create_task(scene.resync_loop.run())
        await scene.resync_loop.filled.wait()
        scene.log.clear()
        await asyncio.sleep(20.0)
        assert scene.log == [(at, "PodMonitor in None") for at in (1.0, 3.0, 7.0, 15.0)]
        scene.failing = frozenset()
        await asyncio.sleep(200.0)
        assert scene.log[4:] == []
        running.cancel()

    run_in_virtual_time(scenario())


def test_a_kind_left_out_is_shown_as_a_metric() -> None:
    async def scenario() -> None:
        scene = Scene()
        scene.unlisted = frozenset({kinds.POD_MONITOR})
        running = asyncio.create_task(scene.resync_loop.run())
        await scene.resync_loop.filled.wait()
        running.cancel()
        page = scene.metrics.page().decode()
        assert 'dflash_optional_kind_unavailable{kind="PodMonitor"} 1.0' in page
        assert 'dflash_optional_kind_unavailable{kind="LeaderWorkerSet"} 0.0' in page

    run_in_virtual_time(scenario())


def test_a_standby_queues_nothing_and_has_everything_looked_at_when_it_leads_the_latest_news_first() -> None:
    async def scenario() -> None:
        scene = Scene()
        running = asyncio.create_task(scene.resync_loop.run())
        await asyncio.sleep(1000.0)
        assert scene.queue.depth == 0
        scene.backlog.add_all([OTHER, KEY, OTHER])
        assert scene.queue.depth == 0
        scene.log.clear()
        scene.resync_loop.lead()
        await asyncio.sleep(6.0)
        assert scene.log == [(1005.0, "all")], "what happened in the last moments may be missing"
        order: list[Key] = []

        async def work(key: Key) -> None:
            order.append(key)
            if len(order) == 2:
                scene.queue.close()

        await scene.queue.run(1, work)
        assert order == [OTHER, KEY]
        running.cancel()

    run_in_virtual_time(scenario())


def test_a_list_that_began_before_this_process_led_is_followed_by_another() -> None:
    async def scenario() -> None:
        scene = Scene(failures=1)
        running = asyncio.create_task(scene.resync_loop.run())
        await asyncio.sleep(0.5)
        scene.resync_loop.lead()
        await asyncio.sleep(100.0)
        assert [at for at, _ in scene.log] == [0.0, 1.0, 5.5]
        assert scene.queue.depth == 2
        running.cancel()

    run_in_virtual_time(scenario())
