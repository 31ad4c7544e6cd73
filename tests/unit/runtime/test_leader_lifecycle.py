"""The order in which leading begins and ends."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from dflash_controller.model.snapshot import Key
from dflash_controller.runtime.leader_lifecycle import lead, wait_to_lead
from dflash_controller.runtime.metrics import Metrics
from dflash_controller.runtime.queue import WorkQueue
from dflash_controller.runtime.resync import Resync
from dflash_controller.runtime.watch import Watches
from dflash_controller.runtime.worker import Worker
from tests.support.virtual_time import run_in_virtual_time


class Scene:
    """Stand-ins for everything that runs while leading, writing down what happens when."""

    def __init__(self, *, list_s: float = 1.0, lease_s: float = 1e6, watch_fails_at: float | None = None, reconcile_s: float = 5.0) -> None:
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
        await asyncio.sleep(3.0)

    async def hold(self) -> None:
        await asyncio.sleep(self.lease_s)

    async def release(self) -> None:
        self.note("released")

    async def first(self) -> None:
        await asyncio.sleep(self.list_s)
        self.note("listed")
        self.queue.add(Key("ns", "demo"))

    async def run(self) -> None:
        """As resync: lists again, for ever."""
        await asyncio.sleep(1e6)

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
        return await lead(
            self,
            self.stop,
            resync=cast(Resync, self),
            watches=cast(Watches, self.watches()),
            queue=self.queue,
            worker=Worker(self, self.queue, Metrics()),
            workers=1,
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
        assert scene.log == [(2.0, "released")]

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
        assert scene.log[3] == (2.0, "lost")

    run_in_virtual_time(scenario())


def test_a_reconcile_that_hangs_does_not_hold_up_the_end_for_ever() -> None:
    async def scenario() -> None:
        scene = Scene(reconcile_s=1e5)
        scene.stop_at(3.0)
        await scene.play()
        assert scene.log[-1] == (23.0, "released")

    run_in_virtual_time(scenario())


def test_waiting_for_the_lease_ends_with_it_or_with_the_stop() -> None:
    async def scenario() -> None:
        patient, impatient = Scene(), Scene()
        assert await wait_to_lead(patient, patient.stop)
        impatient.stop_at(1.0)
        assert not await wait_to_lead(impatient, impatient.stop)
        assert asyncio.get_running_loop().time() == 4.0

    run_in_virtual_time(scenario())
