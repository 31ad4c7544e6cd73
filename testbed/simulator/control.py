"""The control interface of the fleet, on its own address.

* ``GET /pods``: one entry per pod, with address, phase, argv and faults;
* ``GET /rules``, ``PUT /rules`` (``[{"match": {"drafter_revision": "bad*"}, "faults": {"acceptance": 0}}]``): see ``rules``.
"""

from __future__ import annotations

from aiohttp import web

from testbed.simulator.fleet import Fleet
from testbed.simulator.rules import parse_rules


def control_app(fleet: Fleet) -> web.Application:
    """Returns the aiohttp application."""

    async def pods(_: web.Request) -> web.Response:
        return web.json_response(fleet.pods())

    async def rules(_: web.Request) -> web.Response:
        return web.json_response([{"match": dict(rule.match), "faults": dict(rule.faults)} for rule in fleet.rules])

    async def put_rules(request: web.Request) -> web.Response:
        try:
            fleet.set_rules(parse_rules(await request.json()))
        except ValueError as problem:
            return web.json_response({"error": str(problem)}, status=400)
        return await rules(request)

    app = web.Application()
    app.router.add_get("/pods", pods)
    app.router.add_get("/rules", rules)
    app.router.add_put("/rules", put_rules)
    return app
