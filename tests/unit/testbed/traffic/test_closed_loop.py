"""The number of clients of a closed loop, changed while it runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from testbed.traffic.mix import Mix, Shots
from testbed.traffic.over_http import Client, Target
from testbed.traffic.service import ServiceTraffic

SHORT = 5.0
ANSWER = {"choices": [{"finish_reason": "length"}], "usage": {"completion_tokens": 7}}


class Engine:
    """Holds every request until it is told to answer some."""

    def __init__(self) -> None:
        self.held: list[asyncio.Future[None]] = []
        self.most = 0
        self._changed = asyncio.Condition()

    async def complete(self, _: web.Request) -> web.Response:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.held.append(answer)
        self.most = max(self.most, len(self.held))
        async with self._changed:
            self._changed.notify_all()
        await answer
        return web.json_response(ANSWER)

    async def answer(self, number: int) -> None:
        for _ in range(number):
            self.held.pop(0).set_result(None)
        async with self._changed:
            self._changed.notify_all()

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(SHORT), self._changed:
            await self._changed.wait_for(true)


@asynccontextmanager
async def engine() -> AsyncIterator[tuple[Engine, int]]:
    held = Engine()
    app = web.Application()
    app.router.add_post("/v1/completions", held.complete)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield held, runner.addresses[0][1]
    finally:
        for answer in held.held:
            answer.set_result(None)
        await runner.cleanup()


async def test_clients_come_and_go_while_the_loop_runs() -> None:
    async with engine() as (held, port), Client(Target([f"http://127.0.0.1:{port}"], "m"), Shots(Mix())) as client:
        loop = asyncio.create_task(client.closed_loop(1))
        await held.until(lambda: len(held.held) == 1)
        client.resize(32)
        await held.until(lambda: len(held.held) == 32)
        client.resize(3)
        await held.answer(32)
        await held.until(lambda: len(held.held) == 3)
        assert len(client.log.completions) == 32, "those too many had their answers"
        await held.answer(3)
        await held.until(lambda: len(held.held) == 3)
        client.resize(0)
        await held.answer(3)
        client.resize(2)
        await held.until(lambda: len(held.held) == 2)
        client.stop()
        await held.answer(2)
        async with asyncio.timeout(SHORT):
            await loop
        assert held.most == 32
        assert len(client.log.completions) == 40
        assert not client.log.errors


async def test_a_client_that_is_wanted_again_before_its_answer_is_not_doubled() -> None:
    async with engine() as (held, port), Client(Target([f"http://127.0.0.1:{port}"], "m"), Shots(Mix())) as client:
        loop = asyncio.create_task(client.closed_loop(4))
        await held.until(lambda: len(held.held) == 4)
        for clients in (1, 4, 2, 4):
            client.resize(clients)
            await asyncio.sleep(0)
        await held.answer(4)
        await held.until(lambda: len(held.held) == 4)
        client.stop()
        await held.answer(4)
        async with asyncio.timeout(SHORT):
            await loop
        assert (held.most, len(client.log.completions)) == (4, 8)


async def test_a_loop_without_clients_ends_when_its_time_is_over() -> None:
    async with Client(Target([], "m"), Shots(Mix())) as client:
        async with asyncio.timeout(SHORT):
            await client.closed_loop(0, 0.01)
        assert not client.log.completions


def cluster(port: int) -> Any:
    pod = {
        "metadata": {"labels": {"serving.dflash.io/revision": "r1"}},
        "spec": {"containers": [{"ports": [{"containerPort": port}]}]},
        "status": {"podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
    }
    return SimpleNamespace(api=SimpleNamespace(get=lambda _: {"items": [pod]}))


async def test_traffic_on_a_deployment_ramps_up_and_down() -> None:
    async with engine() as (held, port):
        with_traffic = ServiceTraffic(cluster(port), "ns", "chat", model="m", mix=Mix(), concurrency=1)
        entered, leave, left = asyncio.Event(), threading.Event(), []
        here = asyncio.get_running_loop()

        def user() -> None:
            with with_traffic as traffic:
                here.call_soon_threadsafe(entered.set)
                leave.wait(SHORT)
            left.append(traffic.failed)

        using = asyncio.create_task(asyncio.to_thread(user))
        await entered.wait()
        for clients in (1, 32, 1):
            with_traffic.resize(clients)
            if clients < len(held.held):
                # The thread takes the new number with its next look: until then all 32 go on.
                while len(held.held) > clients:
                    await held.answer(1)
                    await asyncio.sleep(0.005)
            await held.until(lambda clients=clients: len(held.held) == clients)
        assert held.most == 32
        leave.set()
        while not using.done():
            if held.held:
                await held.answer(len(held.held))
            await asyncio.sleep(0.005)
        assert left == [0]
        assert with_traffic.answered() == {"r1": len(with_traffic.log.completions)}


def test_traffic_is_of_one_kind() -> None:
    for options in ({}, {"rate": 1.0, "concurrency": 1}):
        with pytest.raises(ValueError, match="either"):
            ServiceTraffic(cluster(1), "ns", "chat", model="m", mix=Mix(), **options)
    with pytest.raises(ValueError, match="no clients"):
        ServiceTraffic(cluster(1), "ns", "chat", model="m", mix=Mix(), rate=1.0).resize(2)
