"""Runs the operator, as a standby and as the leader: what runs, what ends it, and in which order it stops."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from dflash_controller.model.snapshot import Key
from dflash_controller.runtime.queue import WorkQueue
from dflash_controller.runtime.resync import Resync
from dflash_controller.runtime.watch import Watches
from dflash_controller.runtime.worker import Worker

DRAIN_SECONDS = 20.0
"""Time for running reconciles to finish at a stop; the pod's terminationGracePeriodSeconds must be longer."""
AT_ONCE_SECONDS = 1.0
"""Time in which a process that finds the Lease free has it."""

log = logging.getLogger(__name__)


class Candidate(Protocol):
    """``cluster.lease.Elector`` or ``SoleCandidate``."""

    def is_leader(self) -> bool: ...
    async def acquire(self) -> None: ...
    async def hold(self) -> None: ...
    async def release(self) -> None: ...


def exit_at_once() -> None:
    """Ends the process without finishing anything, because another process may lead already and nothing more may be written."""
    os._exit(1)


async def serve(
    candidate: Candidate,
    stop: asyncio.Event,
    *,
    resync: Resync,
    watches: Watches,
    queue: WorkQueue[Key],
    worker: Worker,
    workers: int,
    leading: Callable[[], None],
    background: tuple[Coroutine[Any, Any, None], ...] = (),
    lost: Callable[[], None] = exit_at_once,
) -> bool:
    """Lists and watches, waits for the Lease, then reconciles until ``stop`` is set. Returns False if a part failed instead.

    A standby only reads: nothing takes deployments from the queue before this process leads. ``leading`` is called when it does, and
    ``background`` (the collection of metrics) runs from then on. At the end it stops the watches, lets running reconciles finish, and only
    then releases the Lease. If the Lease is lost it calls ``lost``.
    """
    stopping = asyncio.create_task(stop.wait(), name="stop")
    acquiring = asyncio.create_task(candidate.acquire(), name="acquisition of the lease")
    # Whoever leads at once lists afterwards: then one list is enough.
    await asyncio.wait((acquiring, stopping), timeout=AT_ONCE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    relisting = asyncio.create_task(resync.run(), name="resync")
    watching = asyncio.create_task(_once(resync.filled, watches.run()), name="watches")
    parts, cancelled_at_stop, ends = [relisting, watching], [relisting], [stopping, relisting, watching]
    if not acquiring.done():
        await asyncio.wait((acquiring, *ends), return_when=asyncio.FIRST_COMPLETED)
    holding: asyncio.Task[None] | None = None
    if acquiring.done() and not any(part.done() for part in ends):
        acquiring.result()
        holding = asyncio.create_task(candidate.hold(), name="lease")
        leading()
        resync.lead()
        working = asyncio.create_task(_once(resync.filled, queue.run(workers, worker)), name="workers")
        others = [asyncio.create_task(_once(resync.filled, part), name="background") for part in background]
        parts, cancelled_at_stop = [*parts, working, *others], [*cancelled_at_stop, *others]
        await asyncio.wait((holding, stopping, *parts), return_when=asyncio.FIRST_COMPLETED)
        if holding.done():
            lost()
    else:
        for part in background:
            part.close()
    clean = stopping.done()
    watches.stop()
    queue.close()
    stopping.cancel()
    await _cancelled(acquiring)
    for task in cancelled_at_stop if resync.filled.is_set() else parts:
        task.cancel()
    _, late = await asyncio.wait(parts, timeout=DRAIN_SECONDS)
    for task in late:
        log.warning("%s did not stop within %g s", task.get_name(), DRAIN_SECONDS)
    for task in parts:
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed", task.get_name(), exc_info=error)
            clean = False
    if holding is not None:
        await _cancelled(holding)
    await candidate.release()
    return clean


async def _once(ready: asyncio.Event, part: Coroutine[Any, Any, None]) -> None:
    """Runs the part as soon as ``ready`` is set."""
    try:
        await ready.wait()
    except asyncio.CancelledError:
        part.close()
        raise
    await part


async def _cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait((task,))
