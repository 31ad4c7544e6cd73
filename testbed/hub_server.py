"""A model hub on this machine: the routes of huggingface.co that the operator asks, with repositories that a test changes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from aiohttp import web


def commit_of(text: str) -> str:
    """Returns a commit that is always the same for a text."""
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


@dataclass
class Repository:
    """One model. ``refs`` are its branches and tags; every commit has its own files."""

    refs: dict[str, str] = field(default_factory=dict)
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: bool = False
    """Its files need a token; its description does not, as on huggingface.co."""


class HubServer:
    """Serves ``/api/models/{id}/revision/{rev}`` and ``/{id}/resolve/{rev}/{path}`` from a thread of its own, on 127.0.0.1."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.asked: Counter[str] = Counter()
        """Requests by path, as sent."""
        self.status: int | None = None
        """Answers every request with this status; None: as a hub does."""
        self.silent = False
        """Requests get no answer at all."""
        self._loop = asyncio.new_event_loop()
        self._runner: web.AppRunner | None = None
        self._port = 0
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def publish(self, model: str, commit: str, files: Mapping[str, Any], *, ref: str = "main") -> str:
        """Adds a commit and lets a branch or tag name it. A file that is no bytes is stored as JSON. Returns the commit."""
        repository = self.repositories.setdefault(model, Repository())
        repository.files[commit] = {
            path: content if isinstance(content, bytes) else json.dumps(content).encode() for path, content in files.items()
        }
        repository.refs[ref] = commit
        return commit

    def __enter__(self) -> HubServer:
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
        asyncio.run_coroutine_threadsafe(self._end_silence(), self._loop).result(timeout=10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        if self._thread is not None:
            self._thread.join()
        self._loop.close()

    def start(self) -> None:
        """Listens; after a stop, on the same port again."""
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(timeout=10)

    def stop(self) -> None:
        """Refuses connections from now on."""
        if self._runner is not None:
            asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(timeout=10)
            self._runner = None

    async def _listen(self) -> None:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def _end_silence(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = request.rel_url.raw_path
        self.asked[path] += 1
        if self.silent:
            await asyncio.sleep(3600)
        if self.status is not None:
            return web.Response(status=self.status)
        decoded = request.match_info["path"]
        if decoded.startswith("api/models/") and "/revision/" in decoded:
            model, _, ref = decoded.removeprefix("api/models/").partition("/revision/")
            return self._describe(model, ref)
        model, _, rest = decoded.partition("/resolve/")
        ref, _, file = rest.partition("/")
        return self._file(model, ref, file)

    def _describe(self, model: str, ref: str) -> web.Response:
        found = self._find(model, ref)
        if isinstance(found, web.Response):
            return found
        repository, commit = found
        siblings = [{"rfilename": path, "size": len(content)} for path, content in repository.files[commit].items()]
        return web.json_response({"id": model, "sha": commit, "siblings": siblings, "gated": "manual" if repository.gated else False})

    def _file(self, model: str, ref: str, path: str) -> web.Response:
        found = self._find(model, ref)
        if isinstance(found, web.Response):
            return found
        repository, commit = found
        if repository.gated:
            return _error(401, "GatedRepo")
        content = repository.files[commit].get(path)
        return _error(404, "EntryNotFound") if content is None else web.Response(body=content)

    def _find(self, model: str, ref: str) -> tuple[Repository, str] | web.Response:
        repository = self.repositories.get(model)
        if repository is None:
            return _error(401, "RepoNotFound")
        commit = repository.refs.get(ref, ref)
        return (repository, commit) if commit in repository.files else _error(404, "RevisionNotFound")


def _error(status: int, code: str) -> web.Response:
    return web.json_response({"error": code}, status=status, headers={"X-Error-Code": code})
