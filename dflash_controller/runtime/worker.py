"""What happens around one reconcile: times, failures, and when to look again."""

from __future__ import annotations

import logging
import time
from typing import Protocol

from dflash_controller.cluster.errors import ApiError, LostLeadership, PlanConflict
from dflash_controller.model.snapshot import Key
from dflash_controller.runtime.metrics import Metrics
from dflash_controller.runtime.queue import WorkQueue

CONFLICT_BACKOFF_S = 0.05
"""After a conflict nothing is wrong: the store has been corrected, and only a quarrel that goes on deserves a pause."""

log = logging.getLogger(__name__)


class Reconciler(Protocol):
    """Brings one deployment nearer to what its spec asks for."""

    async def reconcile(self, key: Key) -> float | None:
        """Seconds until another look is wanted, None to wait for a change."""
        ...


class Worker:
    """The ``work`` of the queue: never raises, so that one deployment's failure is its own."""

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
            log.info("%s: planning again in %.1f s: %s", key, delay_s, conflict, extra={"deployment": str(key)})
        except LostLeadership as lost:
            self._metrics.failed("LostLeadership")
            log.warning("%s: left to the next leader: %s", key, lost, extra={"deployment": str(key)})
        except ApiError as error:
            self._failed(key, type(error).__name__, f"the API server: {error}")
        except Exception as error:
            self._failed(key, type(error).__name__, "unexpected error", error)
        finally:
            self._metrics.reconciled(result, time.monotonic() - started)

    def _failed(self, key: Key, reason: str, what: str, error: Exception | None = None) -> None:
        self._metrics.failed(reason)
        delay_s = self._queue.retry(key)
        log.error("%s: %s; next try in %.1f s", key, what, delay_s, exc_info=error, extra={"deployment": str(key)})
