"""A Hugging Face hub on this machine with the endpoints that huggingface_hub uses to list and download a model, and faults on demand."""

from __future__ import annotations

import asyncio
import hashlib
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from aiohttp import web

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LFS_FROM = 100_000
"""Bytes from which a file is kept as LFS, so with a SHA-256."""


def content(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def blob_id(body: bytes) -> str:
    return hashlib.sha1(f"blob {len(body)}\0".encode() + body).hexdigest()


@dataclass
class Request:
    """One GET of a file: where its range begins, and how many bytes were handed to the socket."""

    path: str
    begins: int
    token: str | None
    sent: int = 0


@dataclass
class HubServer:
    """A context manager. ``models`` maps OWNER/NAME to files; every model has the one commit COMMIT.

    Attributes may change while it runs.
    """

    models: dict[str, dict[str, bytes]]
    address: str = "127.0.0.1"
    rate: float | None = None
    """Bytes per second and connection."""
    token: str | None = None
    """Without this token a model is 401; with another one too."""
    gated: set[str] = field(default_factory=set)
    corrupted: set[str] = field(default_factory=set)
    """Paths whose content differs from the listed hash."""
    ignores_ranges: bool = False
    lists_sizes: bool = True
    cut_after: int | None = None
    """Bytes after which each connection is cut."""
    failures: list[int] = field(default_factory=list)
    """Status codes of the next answers, first to last."""
    missing: set[str] = field(default_factory=set)
    """Listed paths that answer 404."""
    relist: Callable[[list[dict[str, Any]]], object] = lambda siblings: None
    """Changes the list of files before it is sent."""
    page: str | None = None
    """An HTML page in place of each file's content, with status 200, as a proxy sends it."""
    lists_page: bool = False
    """The page comes in place of the list too."""
    tells_length: bool = True
    """Whether answers with a file say how long they are."""
    surplus: int = 0
    """Bytes that follow each file."""
    trickles: bool = False
    """Sends byte by byte, a few a second, without end."""
    requests: list[Request] = field(default_factory=list)
    listings: int = 0
    on_bytes: Callable[[], None] = lambda: None
    """Called after each chunk, in the server's thread."""

    def __enter__(self) -> Self:
        started = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, args=(started,), daemon=True)
        self._thread.start()
        assert started.wait(10)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _serve(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        app = web.Application()
        app.router.add_get("/api/models/{owner}/{name}/revision/{revision}", self._list)
        app.router.add_route("*", "/{owner}/{name}/resolve/{revision}/{path:.+}", self._resolve)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        self._loop.run_until_complete(runner.setup())
        site = web.TCPSite(runner, self.address, 0)
        self._loop.run_until_complete(site.start())
        assert site._server is not None
        self.port: int = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        started.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    @property
    def endpoint(self) -> str:
        return f"http://{self.address}:{self.port}"

    def _refusal(self, request: web.Request) -> web.Response | None:
        """Answers as the real hub does: status and X-Error-Code."""
        if self.failures:
            return web.Response(status=self.failures.pop(0))
        model = f"{request.match_info['owner']}/{request.match_info['name']}"
        given = request.headers.get("Authorization", "").removeprefix("Bearer ") or None
        if self.token is not None and given is not None and given != self.token:
            return web.Response(status=401, headers={"X-Error-Message": "Invalid credentials in Authorization header"})
        if self.token is not None and given is None:
            return web.Response(status=401, headers={"X-Error-Message": "Invalid username or password."})
        if model in self.gated:
            return web.Response(status=403 if given else 401, headers={"X-Error-Code": "GatedRepo"})
        if model not in self.models:
            return web.Response(status=404 if given else 401, headers={"X-Error-Code": "RepoNotFound"})
        if request.match_info["revision"] != COMMIT:
            return web.Response(status=404, headers={"X-Error-Code": "RevisionNotFound"})
        return None

    async def _list(self, request: web.Request) -> web.Response:
        self.listings += 1
        if refused := self._refusal(request):
            return refused
        model = f"{request.match_info['owner']}/{request.match_info['name']}"
        siblings: list[dict[str, Any]] = []
        for path, body in self.models[model].items():
            sibling: dict[str, Any] = {"rfilename": path}
            if self.lists_sizes:
                sibling |= {"size": len(body), "blobId": blob_id(body)}
                if len(body) >= LFS_FROM:
                    sibling["lfs"] = {"sha256": hashlib.sha256(body).hexdigest(), "size": len(body), "pointerSize": 134}
            siblings.append(sibling)
        self.relist(siblings)
        if self.lists_page:
            return web.Response(text=self.page or "", content_type="text/html")
        return web.json_response({"id": model, "sha": COMMIT, "siblings": siblings})

    async def _resolve(self, request: web.Request) -> web.StreamResponse:
        if refused := self._refusal(request):
            return refused
        path = request.match_info["path"]
        body = self.models[f"{request.match_info['owner']}/{request.match_info['name']}"].get(path)
        if body is None or path in self.missing:
            return web.Response(status=404, headers={"X-Error-Code": "EntryNotFound"})
        lfs = len(body) >= LFS_FROM
        headers = {"X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes", "X-Xet-Hash": "0" * 64}
        headers |= {"ETag": f'"{blob_id(body)}"'}
        if lfs:
            headers |= {"X-Linked-Etag": f'"{hashlib.sha256(body).hexdigest()}"', "X-Linked-Size": str(len(body))}
        if request.method == "HEAD":
            return web.Response(headers=headers | {"Content-Length": str(len(body))})
        if path in self.corrupted:
            body = bytes([body[0] ^ 1]) + body[1:]
        if self.page is not None:
            body, headers["Content-Type"] = self.page.encode(), "text/html"
        begins, ends = 0, len(body)
        if "Range" in request.headers and not self.ignores_ranges and self.page is None:
            first, _, last = request.headers["Range"].removeprefix("bytes=").partition("-")
            begins, ends = int(first), min(int(last) + 1 if last else ends, ends)
            headers["Content-Range"] = f"bytes {begins}-{ends - 1}/{len(body)}"
        given = request.headers.get("Authorization", "").removeprefix("Bearer ") or None
        record = Request(path, begins, given)
        self.requests.append(record)
        response = web.StreamResponse(status=206 if "Content-Range" in headers else 200, headers=headers)
        if self.tells_length:
            response.content_length = ends - begins
        else:
            response.enable_chunked_encoding()
        await response.prepare(request)
        while self.trickles:
            await response.write(body[record.sent : record.sent + 1])
            record.sent += 1
            self.on_bytes()
            await asyncio.sleep(0.1)
        step = 64 * 1024
        body += bytes(self.surplus)
        ends += self.surplus
        for at in range(begins, ends, step):
            if self.cut_after is not None and at - begins >= self.cut_after:
                assert request.transport is not None
                request.transport.close()
                break
            chunk = body[at : min(at + step, ends)]
            await response.write(chunk)
            record.sent += len(chunk)
            self.on_bytes()
            if self.rate is not None:
                await asyncio.sleep(len(chunk) / self.rate)
        return response
