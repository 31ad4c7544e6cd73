"""What kopf's requests tell, and what a refused one does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from dflash_controller.cluster.kinds import LEADER_WORKER_SET, POD, POD_MONITOR, Kind
from dflash_controller.runtime.watch import observe_requests


class Server:
    """Answers every request with ``status`` and notes which watches were seen to begin anew."""

    def __init__(self) -> None:
        self.status = 200
        self.opened: list[tuple[Kind, str | None]] = []

    async def answer(self, request: web.Request) -> web.Response:
        return web.Response(status=self.status)

    @asynccontextmanager
    async def session(self, *namespaces: str | None) -> AsyncIterator[aiohttp.ClientSession]:
        app = web.Application()
        app.router.add_get("/{path:.*}", self.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            base = f"http://127.0.0.1:{runner.addresses[0][1]}"
            observe = observe_requests("", namespaces, lambda kind, place: self.opened.append((kind, place)), pause_s=0.0)
            async with aiohttp.ClientSession(base, middlewares=(observe,)) as session:
                yield session
        finally:
            await runner.cleanup()


async def test_a_refused_optional_kind_is_a_lost_connection_which_kopf_survives() -> None:
    server = Server()
    async with server.session(None) as session:
        for server.status in (403, 404, 500, 503):
            for kind in (POD_MONITOR, LEADER_WORKER_SET):
                with pytest.raises(aiohttp.ClientConnectionError, match=f"{kind.name} cannot be read: HTTP status {server.status}"):
                    await session.get(kind.path())
            assert (await session.get(POD.path())).status == server.status
        for server.status in (401, 410, 429):
            assert (await session.get(POD_MONITOR.path())).status == server.status, "kopf handles it"


async def test_only_a_watch_that_follows_a_list_begins_anew() -> None:
    server = Server()
    async with server.session("ns") as session:
        await session.get(POD.path("ns"))
        await session.get(POD.path("ns"), params={"watch": "true"})
        await session.get(POD.path("ns"), params={"watch": "true"})
        await session.get(POD_MONITOR.path("other"))
        await session.get(POD_MONITOR.path("other"), params={"watch": "true"})
    assert server.opened == [(POD, "ns")]
