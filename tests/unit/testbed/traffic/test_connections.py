"""Connections of the load generator: kept as libraries keep them, or one per request as a Service spreads them."""

from __future__ import annotations

import pytest
from aiohttp import web

from testbed.traffic.mix import Mix, Shots
from testbed.traffic.over_http import Client, Target


@pytest.mark.parametrize(("keep_alive", "connections"), [(True, 1), (False, 5)])
async def test_a_client_keeps_its_connection_only_where_it_is_to(keep_alive: bool, connections: int) -> None:
    peers: set[str] = set()

    async def answer(request: web.Request) -> web.Response:
        assert request.transport is not None
        peers.add(str(request.transport.get_extra_info("peername")))
        return web.json_response({"choices": [{}], "usage": {"completion_tokens": 1}})

    app = web.Application()
    app.router.add_post("/v1/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        shots = Shots(Mix(max_tokens=1))
        async with Client(Target([url], "m", keep_alive=keep_alive), shots) as client:
            for _ in range(5):
                await client._send(shots.next())
        assert len(client.log.completions) == 5
        assert len(peers) == connections
    finally:
        await runner.cleanup()
