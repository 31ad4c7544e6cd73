"""Serves the progress over HTTP, because a pod without an API token cannot write it anywhere that the operator could read.

The port is open to everybody. One thread serves all connections, each for a few seconds, and the oldest one gives way when there are many.
So clients that send nothing, or slowly, cost next to nothing and keep nobody from an answer.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from dflash_controller.model.fetch_progress import PATH

PATIENCE_S = 5.0
"""Time for a connection from its first to its last byte. The operator waits as long for the answer."""
MOST_CONNECTIONS = 32
_HEAD_BYTES = 8192
"""Upper limit of a request's head. A request has no body."""


class Listener:
    """Answers ``GET /progress`` with one JSON object until it is closed, or the process ends. Port 0 takes a free one. Raises OSError."""

    def __init__(self, port: int, report: Callable[[], dict[str, Any]], patience_s: float = PATIENCE_S) -> None:
        if socket.has_dualstack_ipv6():
            self._socket = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        else:
            self._socket = socket.create_server(("", port))
        self.port: int = self._socket.getsockname()[1]
        self._report = report
        self._patience_s = patience_s
        self._open: dict[asyncio.Task[None], None] = {}
        """The connections, the oldest one first."""
        self._closed = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True, name="progress")
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Stops listening and ends all connections."""
        self._loop.call_soon_threadsafe(self._closed.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        async with await asyncio.start_server(self._connected, sock=self._socket, limit=_HEAD_BYTES) as server:
            await self._closed.wait()
            server.close()
            connections = [*self._open]
            for connection in connections:
                connection.cancel()
            await asyncio.gather(*connections, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.ensure_future(self._answer(reader, writer))
        self._open[connection] = None

        def ended(connection: asyncio.Task[None]) -> None:
            self._open.pop(connection, None)
            writer.transport.abort()

        connection.add_done_callback(ended)
        if len(self._open) > MOST_CONNECTIONS:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.cancel()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(self._patience_s):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._response(head))
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # The client's fault, and the log is for the download.

    def _response(self, head: bytes) -> bytes:
        asked = head.split(b" ", 2)[:2] == [b"GET", PATH.encode()]
        body = json.dumps(self._report()).encode() if asked else b""
        lines = ("HTTP/1.1 200 OK" if asked else "HTTP/1.1 404 Not Found", "Content-Type: application/json")
        return "\r\n".join([*lines, f"Content-Length: {len(body)}", "Connection: close", "", ""]).encode() + body
