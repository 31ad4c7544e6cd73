"""What a standby and a leader do, and the order in which leading begins and ends."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from dflash_controller.model.snapshot import Key
from dflash_controller.runtime.leader_lifecycle import serve
from dflash_controller.runtime.metrics import Metrics
from dflash_controller.runtime.queue import WorkQueue
from dflash_controller.runtime.resync import Resync
from dflash_controller.runtime.watch import Watches
from dflash_controller.runtime.worker import Worker
from tests.support.virtual_time import run_in_virtual_time


class Scene:
    """Stand-ins for everything that runs, writing down what happens when."""

    def __init__(
        self,
        *,
        acquire_s: float = 0.0,
        list_s: float = 1.0,
        lease_s: float = 1e6,
        watch_fails_at: float | None = None,
        reconcile_s: float = 5.0,
    ) -> None:
        self.acquire_s = acquire_s
        self.filled = asyncio.Event()
        self.leads = False
        self.log: list[tuple[float, str]] = []
        self.list_s, self.lease_s, self.watch_fails_at, self.reconcile_s = list_s, lease_s, watch_fails_at, reconcile_s
        self.stop = asyncio.Event()
        self.stopped_watching = asyncio.Event()
        self.queue: WorkQueue[Key] = WorkQueue()
        self.background_ended = False

    def note(self, what: str) -> None:
        self.log.append((asyncio.get_running_loop().time(), what))

    def is_leader(self) -> bool:
        return True

    async def acquire(self) -> None:
        await asyncio.sleep(self.acquire_s)

    async def hold(self) -> None:
        await asyncio.sleep(self.lease_s)

    async def release(self) -> None:
        self.note("released")

    async def run(self) -> None:
        """As resync: lists, and goes on for ever."""
        await asyncio.sleep(self.list_s)
        self.note("listed")
        self.filled.set()
        if self.leads:
            self.queue.add(Key("ns", "demo"))
        await asyncio.sleep(1e6)

    def lead(self) -> None:
        """As resync."""
        self.leads = True
        self.note("leads")
        if self.filled.is_set():
            self.queue.add(Key("ns", "demo"))

    async def background(self) -> None:
        try:
            await asyncio.sleep(1e6)
        finally:
            self.background_ended = True

    async def reconcile(self, key: Key) -> float | None:
        self.note("reconcile begins")
        await asyncio.sleep(self.reconcile_s)
        self.note("reconcile ends")
        return None

    def watches(self) -> Any:
        scene = self

        class Fake:
            async def run(self) -> None:
                scene.note("watching")
                waiting = asyncio.create_task(scene.stopped_watching.wait())
                await asyncio.wait((waiting,), timeout=scene.watch_fails_at)
                if not waiting.done():
                    waiting.cancel()
                    raise RuntimeError("watch refused")
                scene.note("watch ended")

            def stop(self) -> None:
                scene.stopped_watching.set()

        return Fake()

    async def play(self) -> bool:
        return await serve(
            self,
            self.stop,
            resync=cast(Resync, self),
            watches=cast(Watches, self.watches()),
            queue=self.queue,
            worker=Worker(self, self.queue, Metrics()),
            workers=1,
            leading=lambda: None,
            background=(self.background(),),
            lost=lambda: self.note("lost"),
        )

    def stop_at(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self.stop.set)


def test_a_stop_ends_watches_lets_reconciles_finish_and_then_releases() -> None:
    async def scenario() -> None:
        scene = Scene()
        scene.stop_at(3.0)
        assert await scene.play()
        assert scene.log == [
            (0.0, "leads"),
            (1.0, "listed"),
            (1.0, "watching"),
            (1.0, "reconcile begins"),
            (3.0, "watch ended"),
            (6.0, "reconcile ends"),
            (6.0, "released"),
        ]
        assert scene.background_ended

    run_in_virtual_time(scenario())


def test_a_stop_during_the_first_list_does_not_wait_for_it() -> None:
    async def scenario() -> None:
        scene = Scene(list_s=1000.0)
        scene.stop_at(2.0)
        assert await scene.play()
        assert scene.log == [(0.0, "leads"), (2.0, "released")]

    run_in_virtual_time(scenario())


def test_a_watch_that_fails_ends_the_process_in_good_order() -> None:
    async def scenario() -> None:
        scene = Scene(watch_fails_at=1.0)
        assert not await scene.play()
        assert scene.log[-2:] == [(6.0, "reconcile ends"), (6.0, "released")]

    run_in_virtual_time(scenario())


def test_a_lost_lease_is_acted_on_before_anything_else() -> None:
    async def scenario() -> None:
        scene = Scene(lease_s=2.0)
        assert not await scene.play()
        assert scene.log[4] == (2.0, "lost")

    run_in_virtual_time(scenario())


def test_a_reconcile_that_hangs_does_not_hold_up_the_end_for_ever() -> None:
    async def scenario() -> None:
        scene = Scene(reconcile_s=1e5)
        scene.stop_at(3.0)
        await scene.play()
        assert scene.log[-1] == (23.0, "released")

    run_in_virtual_time(scenario())


def test_a_standby_lists_and_watches_and_reconciles_nothing_until_it_leads() -> None:
    async def scenario() -> None:
        scene = Scene(acquire_s=100.0)
        scene.queue.add(Key("ns", "demo"))
        scene.stop_at(102.0)
        assert await scene.play()
        assert scene.log == [
            (2.0, "listed"),
            (2.0, "watching"),
            (100.0, "leads"),
            (100.0, "reconcile begins"),
            (102.0, "watch ended"),
            (105.0, "reconcile ends"),
            (105.0, "released"),
        ]

    run_in_virtual_time(scenario())


def test_a_standby_that_leads_before_its_first_list_has_ended_waits_for_it() -> None:
    async def scenario() -> None:
        scene = Scene(acquire_s=3.0, list_s=10.0)
        scene.stop_at(20.0)
        assert await scene.play()
        assert scene.log[:4] == [(3.0, "leads"), (11.0, "listed"), (11.0, "watching"), (11.0, "reconcile begins")]

    run_in_virtual_time(scenario())


def test_a_standby_stops_at_once_and_well() -> None:
    async def scenario() -> None:
        for at, list_s in ((0.5, 1.0), (4.0, 10.0), (50.0, 1.0)):
            started = asyncio.get_running_loop().time()
            scene = Scene(acquire_s=1e6, list_s=list_s)
            scene.stop_at(at)
            assert await scene.play()
            assert asyncio.get_running_loop().time() - started == at

    run_in_virtual_time(scenario())


def test_a_standby_whose_watch_fails_ends() -> None:
    async def scenario() -> None:
        scene = Scene(acquire_s=1e6, watch_fails_at=5.0)
        assert not await scene.play()
        assert scene.log == [(2.0, "listed"), (2.0, "watching"), (7.0, "released")]

    run_in_virtual_time(scenario())
