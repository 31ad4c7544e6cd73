"""Runs the operator while this process is the leader: what runs, what ends it, and in which order it stops."""

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


async def wait_to_lead(candidate: Candidate, stop: asyncio.Event) -> bool:
    """Waits for the Lease or the stop signal. Returns whether this process leads now."""
    acquiring, stopping = asyncio.create_task(candidate.acquire()), asyncio.create_task(stop.wait())
    await asyncio.wait((acquiring, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not acquiring.done():
        await _cancelled(acquiring)
        return False
    acquiring.result()
    return True


async def lead(
    candidate: Candidate,
    stop: asyncio.Event,
    *,
    resync: Resync,
    watches: Watches,
    queue: WorkQueue[Key],
    worker: Worker,
    workers: int,
    background: tuple[Coroutine[Any, Any, None], ...] = (),
    lost: Callable[[], None] = exit_at_once,
) -> bool:
    """Lists everything, then watches, reconciles and lists again until ``stop`` is set. Returns False if a part failed instead.

    At the end it stops the watches, lets running reconciles finish, and only then releases the Lease. If the Lease is lost it calls
    ``lost``. ``background`` (the collection of metrics) runs alongside and is cancelled at the end.
    """
    holding = asyncio.create_task(candidate.hold(), name="lease")
    stopping = asyncio.create_task(stop.wait(), name="stop")
    first = asyncio.create_task(resync.first(), name="first list")
    await asyncio.wait((holding, stopping, first), return_when=asyncio.FIRST_COMPLETED)
    parts: list[asyncio.Task[None]] = [first]
    cancelled_at_stop: list[asyncio.Task[None]] = [first]
    if first.done() and not holding.done():
        first.result()
        watching = asyncio.create_task(watches.run(), name="watches")
        working = asyncio.create_task(queue.run(workers, worker), name="workers")
        relisting = asyncio.create_task(resync.run(), name="resync")
        others = [asyncio.create_task(part, name="background") for part in background]
        parts, cancelled_at_stop = [watching, working, relisting, *others], [relisting, *others]
        await asyncio.wait((holding, stopping, *parts), return_when=asyncio.FIRST_COMPLETED)
    else:
        for part in background:
            part.close()
    if holding.done():
        lost()
    clean = stopping.done()
    watches.stop()
    queue.close()
    stopping.cancel()
    for task in cancelled_at_stop:
        task.cancel()
    _, late = await asyncio.wait(parts, timeout=DRAIN_SECONDS)
    for task in late:
        log.warning("%s did not stop within %g s", task.get_name(), DRAIN_SECONDS)
    for task in parts:
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed", task.get_name(), exc_info=error)
            clean = False
    await _cancelled(holding)
    await candidate.release()
    return clean


async def _cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait((task,))
