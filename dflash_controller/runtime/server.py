"""Serves ``/metrics``, ``/healthz`` and ``/readyz`` on every replica, leader or not."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from dflash_controller.runtime.metrics import Metrics

Check = Callable[[], str | None]
"""Returns what is wrong, None if the check passes."""


class HealthServer:
    """Runs on the operator's event loop: a loop that hangs fails its liveness probe."""

    def __init__(self, metrics: Metrics, *, host: str | None, port: int) -> None:
        self._metrics = metrics
        self._host = host
        self._port = port
        self._checks: dict[str, dict[str, Check]] = {"/healthz": {}, "/readyz": {}}
        app = web.Application()
        app.router.add_get("/metrics", self._page)
        for path in self._checks:
            app.router.add_get(path, self._answer)
        self._runner = web.AppRunner(app, access_log=None)

    def live_while(self, name: str, check: Check) -> None:
        """Adds a liveness check: the kubelet restarts the process when it fails."""
        self._checks["/healthz"][name] = check

    def ready_while(self, name: str, check: Check) -> None:
        """Adds a readiness check: the pod is removed from its Services while it fails."""
        self._checks["/readyz"][name] = check

    @property
    def port(self) -> int:
        """The port in use, also if 0 was configured."""
        return int(self._runner.addresses[0][1])

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port).start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._runner.cleanup()

    async def _page(self, request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.page(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _answer(self, request: web.Request) -> web.Response:
        results = {name: check() for name, check in self._checks[request.path].items()}
        lines = [f"[-] {name}: {wrong}" if wrong else f"[+] {name}" for name, wrong in results.items()] or ["[+] running"]
        return web.Response(text="\n".join(lines) + "\n", status=503 if any(results.values()) else 200)
