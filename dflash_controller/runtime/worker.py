"""Wraps one reconcile: measures it, handles its failure, and requeues it."""

from __future__ import annotations

import logging
import time
from typing import Protocol

from dflash_controller.cluster.errors import ApiError, LostLeadership, PlanConflict, WriteRefused
from dflash_controller.model.snapshot import Key
from dflash_controller.runtime.metrics import Metrics
from dflash_controller.runtime.queue import WorkQueue

CONFLICT_BACKOFF_S = 0.05
"""First pause after a conflict. It is short, because the store is up to date by then; only repeated conflicts need longer pauses."""

log = logging.getLogger(__name__)


class Reconciler(Protocol):
    """Brings one deployment nearer to what its spec asks for."""

    async def reconcile(self, key: Key) -> float | None:
        """Returns the seconds until the next reconcile, None to wait for a change."""
        ...


class Worker:
    """The ``work`` of the queue. It never raises, so that a failure affects one deployment only."""

    def __init__(self, reconciler: Reconciler, queue: WorkQueue[Key], metrics: Metrics) -> None:
        self._reconciler = reconciler
        self._queue = queue
        self._metrics = metrics

    async def __call__(self, key: Key) -> None:
        started = time.monotonic()
        result = "error"
        try:
            again_s = await self._reconciler.reconcile(key)
            result = "success"
            self._queue.succeeded(key)
            if again_s is not None:
                self._queue.add(key, max(again_s, 0.0))
        except PlanConflict as conflict:
            result = "conflict"
            delay_s = self._queue.retry(key, CONFLICT_BACKOFF_S)
            log.info("%s: conflict, retrying in %.1f s: %s", key, delay_s, conflict, extra={"deployment": str(key)})
        except LostLeadership as lost:
            self._metrics.failed("LostLeadership")
            log.warning("%s: not finished, the next leader continues: %s", key, lost, extra={"deployment": str(key)})
        except WriteRefused as refused:
            self._failed(key, type(refused.error).__name__, f"the API server: {refused}")
            if refused.requeue_after_s is not None:
                self._queue.add(key, refused.requeue_after_s)
        except ApiError as error:
            self._failed(key, type(error).__name__, f"the API server: {error}")
        except Exception as error:
            self._failed(key, type(error).__name__, "unexpected error", error)
        finally:
            self._metrics.reconciled(result, time.monotonic() - started)

    def _failed(self, key: Key, reason: str, what: str, error: Exception | None = None) -> None:
        self._metrics.failed(reason)
        delay_s = self._queue.retry(key)
        log.error("%s: %s; retrying in %.1f s", key, what, delay_s, exc_info=error, extra={"deployment": str(key)})
