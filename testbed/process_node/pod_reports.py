"""What a pod's runner tells others: the status and Events at the API server, and a record of its processes in a file."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import aiohttp

from testbed.process_node.container import Container
from testbed.process_node.node_api import Conflict, NodeApi
from testbed.process_node.process import ContainerProcess
from testbed.process_node.programs import Program
from testbed.watching_api import Object

log = logging.getLogger(__name__)

_RETRY_S = 1.0


class PodReports:
    """Reports of one pod. ``status`` returns its current status; it is written whenever ``changed`` was called."""

    def __init__(self, api: NodeApi, node: str, directory: Path, pod: Object, status: Callable[[], Mapping[str, Any]]) -> None:
        self._api = api
        self._node = node
        self._pod = pod
        self._status = status
        self._changed = asyncio.Event()
        self._ran: list[dict[str, Any]] = []
        meta = pod["metadata"]
        self.key = f"{meta['namespace']}/{meta['name']}"
        self._file = directory / f"{meta['namespace']}_{meta['name']}.json"

    def changed(self) -> None:
        """Tells that the status is another one."""
        self._changed.set()

    @contextlib.asynccontextmanager
    async def writing(self) -> Any:
        """Writes statuses during the block."""
        writer = asyncio.create_task(self._write_statuses())
        try:
            yield
        finally:
            writer.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await writer

    async def end(self, status: Mapping[str, Any]) -> None:
        """Writes the last status and removes the object."""
        await self._patiently(lambda: self._api.write_status(self._pod, status))
        await self._patiently(lambda: self._api.remove(self._pod))

    async def tell(self, type: str, reason: str, message: str) -> None:
        """Writes an Event, if the API server answers."""
        log.info("%s: %s: %s", self.key, reason, message)
        try:
            await self._api.tell(self._pod, self._node, type, reason, message)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            log.warning("%s: event not written: %s", self.key, error)

    def started(self, container: Container, program: Program, process: ContainerProcess) -> None:
        """Records a started process: its command line and how it differs from the pod's."""
        self._ran.append(
            {
                "pod": self.key,
                "container": container.name,
                "labels": self._pod["metadata"].get("labels") or {},
                "pid": process.pid,
                "log": str(process.log),
                "podCommand": list(container.command),
                "podEnv": dict(container.env),
                "command": list(program.command),
                "gpus": program.env.get("CUDA_VISIBLE_DEVICES"),
                "changes": [asdict(change) for change in program.changes],
                "startedAt": time.time(),
            }
        )
        self._write_record()

    def note(self, process: ContainerProcess, moment: str, **more: Any) -> None:
        """Records the first time that something happened to a process, and what else is known then."""
        for ran in self._ran:
            if ran["pid"] == process.pid:
                ran.setdefault(moment, time.time())
                ran |= more
        self._write_record()

    async def _write_statuses(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._patiently(lambda: self._api.write_status(self._pod, self._status()))

    async def _patiently(self, write: Callable[[], Awaitable[None]]) -> None:
        """Writes, again and again while the API server does not answer."""
        while True:
            try:
                await write()
            except aiohttp.ClientResponseError as error:
                log.error("%s: refused: %s", self.key, error)
                if error.status < 500:
                    return
            except (aiohttp.ClientError, OSError, TimeoutError, Conflict) as error:
                log.warning("%s: not written, trying again: %s", self.key, error)
            else:
                return
            await asyncio.sleep(_RETRY_S)

    def _write_record(self) -> None:
        unfinished = self._file.with_suffix(".new")
        unfinished.write_text(json.dumps(self._ran, indent=1))
        unfinished.rename(self._file)
