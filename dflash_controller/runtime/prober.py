"""Runs probes in the background, as reconciles request them."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from dflash_controller.model.counters import ProbeRun
from dflash_controller.model.probe import ProbeRequest, ProbeRuns
from dflash_controller.model.snapshot import Key
from dflash_controller.observe.probe.run import ProbeError

WAITED_STEP_S = 300.0
"""The time spent waiting for slots is rounded up to whole steps, so that the deadline in the status seldom moves."""
RETRY_S = 60.0
"""Time from a failed run to the next attempt, while the run is still requested."""

_log = logging.getLogger(__name__)


class Probes(Protocol):
    """``observe.probe.run.Probe``."""

    async def run(self, request: ProbeRequest) -> ProbeRuns: ...

    def waited_s(self, key: Key) -> float: ...

    def forget(self, key: Key) -> None: ...

    async def close(self) -> None: ...


@dataclass(slots=True)
class _Job:
    """One deployment's probe: running, done, or failed and waiting for the next attempt."""

    request: ProbeRequest
    runs: ProbeRuns | None = None
    error: str | None = None
    task: asyncio.Task[None] | None = field(default=None)


class Prober:
    """Runs probes as tasks of the event loop. It stores no results: the caller must store what a restart should not lose.

    Every reconcile of a deployment requests a run and reads the result later. ``changed(key)`` is called on the event loop whenever a run
    has ended, with or without success. All runs go on at once; the probe itself limits and shares out their requests.
    """

    def __init__(self, probe: Probes, changed: Callable[[Key], None], *, retry_s: float = RETRY_S) -> None:
        self._probe = probe
        self._changed = changed
        self._retry_s = retry_s
        self._candidates: dict[Key, str] = {}
        self._jobs: dict[Key, _Job] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def want(self, key: Key, request: ProbeRequest | None) -> None:
        """Requests this run for the deployment; None cancels the current run and drops its result.

        A run for the same work (the same pods and prompts) continues, or keeps its result; any other is cancelled.
        """
        job = self._jobs.get(key)
        if job is not None and request is not None and job.request.work == request.work:
            job.request = request
            return
        if job is not None:
            del self._jobs[key]
            if job.task is not None:
                job.task.cancel()
        if request is not None and request.candidate is not None and self._candidates.get(key) != request.candidate.revision:
            self._candidates[key] = request.candidate.revision
            self._probe.forget(key)
        if request is not None and not self._closed:
            job = self._jobs[key] = _Job(request)
            job.task = asyncio.create_task(self._work(key, job), name=f"probe of {key}")
            self._tasks.add(job.task)
            job.task.add_done_callback(self._tasks.discard)

    def forget(self, key: Key) -> None:
        """Drops everything about a deployment that was deleted."""
        self.want(key, None)
        self._candidates.pop(key, None)
        self._probe.forget(key)

    def answers(self, key: Key) -> tuple[ProbeRun, ...]:
        """Returns the results of the requested run; empty until there are any."""
        job = self._jobs.get(key)
        runs = None if job is None else job.runs
        return () if runs is None else tuple(run for run in (runs.candidate, runs.reference) if run is not None)

    def error(self, key: Key) -> str | None:
        """Returns why the last attempt of the requested run failed; None if it did not fail or there was none yet."""
        job = self._jobs.get(key)
        return None if job is None else job.error

    def waited_s(self, key: Key) -> Mapping[str, float]:
        """Returns for how many seconds the probe of the last candidate, by its revision, has waited because others were asked.

        It does not wait by its own fault, so its deadline should be as much later. This process does not know what it waited in another.
        """
        revision, waited_s = self._candidates.get(key), self._probe.waited_s(key)
        if revision is None or waited_s < 1.0:
            return {}
        return {revision: math.ceil(waited_s / WAITED_STEP_S) * WAITED_STEP_S}

    async def run(self) -> None:
        """Waits until cancelled, then ends every run. It runs in the background while this process leads."""
        try:
            await asyncio.Event().wait()
        finally:
            await self.close()

    async def close(self) -> None:
        """Cancels every run, starts no more, and closes the connections."""
        self._closed = True
        self._jobs.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._probe.close()

    async def _work(self, key: Key, job: _Job) -> None:
        while job.runs is None:
            try:
                job.runs = await self._probe.run(job.request)
                job.error = None
            except ProbeError as error:
                job.error = str(error)
            except Exception:
                _log.exception("the probe of %s failed", key)
                job.error = "The probe failed because of an internal error; see the operator's log."
            self._changed(key)
            if job.runs is None:
                await asyncio.sleep(self._retry_s)
