"""Which probes run, beside the reconciles that want them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from dflash_controller.model.counters import ProbeRun
from dflash_controller.model.probe import ProbeRequest, ProbeRuns
from dflash_controller.model.snapshot import Key
from dflash_controller.observe.probe.run import ProbeError

AT_MOST = 8
"""Runs at a time over all deployments; each has one request in flight."""
RETRY_S = 60.0
"""From a run that failed to the next attempt, for as long as it is wanted."""

_log = logging.getLogger(__name__)


class Probes(Protocol):
    """``observe.probe.run.Probe``."""

    async def run(self, request: ProbeRequest) -> ProbeRuns: ...

    async def close(self) -> None: ...


@dataclass(slots=True)
class _Job:
    """One deployment's probe: waiting for its turn, running, done, or failed and to be tried again."""

    request: ProbeRequest
    runs: ProbeRuns | None = None
    error: str | None = None
    task: asyncio.Task[None] | None = field(default=None)


class Prober:
    """Runs probes as tasks of the event loop. Nothing is kept beyond the process: a result that is to last is the caller's to store.

    Every reconcile of a deployment says what it wants, and finds the outcome later: ``changed(key)`` is called, on the event loop, whenever
    a run ended, well or not. Deployments that wait for their turn get it in the order they asked.
    """

    def __init__(self, probe: Probes, changed: Callable[[Key], None], *, at_most: int = AT_MOST, retry_s: float = RETRY_S) -> None:
        self._probe = probe
        self._changed = changed
        self._retry_s = retry_s
        self._slots = asyncio.Semaphore(at_most)
        self._jobs: dict[Key, _Job] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def want(self, key: Key, request: ProbeRequest | None) -> None:
        """From now on this run is wanted for the deployment; None: none is, and what was found is forgotten.

        A run for the same work (the same pods and prompts) goes on, or keeps its result; any other is broken off.
        """
        job = self._jobs.get(key)
        if job is not None and request is not None and job.request.work == request.work:
            job.request = request
            return
        if job is not None:
            del self._jobs[key]
            if job.task is not None:
                job.task.cancel()
        if request is not None and not self._closed:
            job = self._jobs[key] = _Job(request)
            job.task = asyncio.create_task(self._work(key, job), name=f"probe of {key}")
            self._tasks.add(job.task)
            job.task.add_done_callback(self._tasks.discard)

    def answers(self, key: Key) -> tuple[ProbeRun, ...]:
        """What the wanted run brought; empty while there is nothing."""
        job = self._jobs.get(key)
        runs = None if job is None else job.runs
        return () if runs is None else tuple(run for run in (runs.candidate, runs.reference) if run is not None)

    def error(self, key: Key) -> str | None:
        """How the last attempt of the wanted run failed; None where it did not, or where there was none yet."""
        job = self._jobs.get(key)
        return None if job is None else job.error

    async def run(self) -> None:
        """Waits until cancelled, then ends every run: a background part of the time in which this process leads."""
        try:
            await asyncio.Event().wait()
        finally:
            await self.close()

    async def close(self) -> None:
        """Break off every run, start no more, and close the connections."""
        self._closed = True
        self._jobs.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._probe.close()

    async def _work(self, key: Key, job: _Job) -> None:
        while job.runs is None:
            try:
                async with self._slots:
                    job.runs = await self._probe.run(job.request)
                job.error = None
            except ProbeError as error:
                job.error = str(error)
            except Exception:
                _log.exception("the probe of %s failed", key)
                job.error = "The probe failed inside the operator; its log says how."
            self._changed(key)
            if job.runs is None:
                await asyncio.sleep(self._retry_s)
