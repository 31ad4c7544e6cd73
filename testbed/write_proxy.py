"""A reverse proxy between one operator and the API server that sees every write, and may lose it or its answer.

The operator's own bearer token is passed on, so RBAC applies as without the proxy. Lease renewals are not counted, because they depend on
time and not on work.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import yaml
from aiohttp import ClientSession, ClientTimeout, TCPConnector, web
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

_WRITE_METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_NOT_PASSED_ON = frozenset({"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "host", "content-length"})
_START_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Write:
    """One write. ``number`` counts from 1 in the order of arrival, ``kind`` is the plural (``deployments``), ``name`` is empty in a
    POST."""

    number: int
    method: str
    kind: str
    name: str
    subresource: str
    body: bytes

    def __str__(self) -> str:
        return f"{self.number} {self.method} {'/'.join(part for part in (self.kind, self.name, self.subresource) if part)}"


Before = Callable[[Write], bool]
"""Called before a write is forwarded. False loses it, and the operator waits for an answer that never comes."""
After = Callable[[Write, int], bool]
"""Called after the API server has answered a write with this status. False loses the answer."""


class WriteProxy:
    """A proxy that runs in its own thread during its ``with`` block. The hooks may be set at any time and may block: the write waits.

    ``kubeconfig`` is the operator's, with its certificate authority inside. ``through`` becomes a copy of it that leads to this proxy.
    """

    def __init__(self, kubeconfig: Path, through: Path) -> None:
        self._config = yaml.safe_load(kubeconfig.read_text())
        self.kubeconfig = through
        self.writes: list[Write] = []
        self.answers: list[tuple[Write, int]] = []
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="write-proxy", daemon=True)
        self._listening = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Event | None = None
        self.pass_all()

    def pass_all(self) -> None:
        """Loses nothing from now on."""
        self.before: Before = lambda write: True
        self.after: After = lambda write, status: True

    def __enter__(self) -> WriteProxy:
        self._thread.start()
        if not self._listening.wait(_START_SECONDS):
            raise TimeoutError("the write proxy did not start")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._loop is not None and self._ended is not None:
            self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        cluster = self._config["clusters"][0]["cluster"]
        tls = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
        async with ClientSession(
            cluster["server"], connector=TCPConnector(limit=0, ssl=tls), timeout=ClientTimeout(total=None), auto_decompress=False
        ) as session:

            async def handle(request: web.Request) -> web.StreamResponse:
                return await self._handle(request, session)

            application = web.Application(client_max_size=2**24)
            application.router.add_route("*", "/{path:.*}", handle)
            runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self._write_kubeconfig(runner.addresses[0][1])
            self._listening.set()
            await self._ended.wait()
            await runner.cleanup()

    def _write_kubeconfig(self, port: int) -> None:
        cluster = {"name": self._config["clusters"][0]["name"], "cluster": {"server": f"http://127.0.0.1:{port}"}}
        self.kubeconfig.write_text(yaml.safe_dump({**self._config, "clusters": [cluster]}))
        self.kubeconfig.chmod(0o600)

    async def _handle(self, request: web.Request, session: ClientSession) -> web.StreamResponse:
        body = await request.read()
        write = self._count(request, body)
        if write is not None and not await asyncio.to_thread(self.before, write):
            await _never()
        url = URL(request.raw_path, encoded=True)
        async with session.request(request.method, url, headers=_passed_on(request.headers), data=body or None) as upstream:
            headers = _passed_on(upstream.headers)
            if write is None:
                response = web.StreamResponse(status=upstream.status, headers=headers)
                await response.prepare(request)
                async for chunk in upstream.content.iter_any():
                    await response.write(chunk)
                return response
            answer = await upstream.read()
        self.answers.append((write, upstream.status))
        if not await asyncio.to_thread(self.after, write, upstream.status):
            await _never()
        return web.Response(status=upstream.status, headers=headers, body=answer)

    def _count(self, request: web.Request, body: bytes) -> Write | None:
        kind, name, subresource = [*request.path.partition("/namespaces/")[2].split("/")[1:], "", "", ""][:3]
        if request.method not in _WRITE_METHODS or kind == "leases":
            return None
        write = Write(len(self.writes) + 1, request.method, kind, name, subresource, body)
        self.writes.append(write)
        return write


def _passed_on(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in _NOT_PASSED_ON)


async def _never() -> None:
    """Waits until the other side closes the connection."""
    await asyncio.get_running_loop().create_future()
