"""Where deployments go that something happened to: into the queue of the leader, or into the notes of a standby."""

from __future__ import annotations

import random
from collections.abc import Iterable

from dflash_controller.model.snapshot import Key
from dflash_controller.runtime.queue import WorkQueue


class Backlog:
    """Notes deployments in the order of their last event until this process leads, and queues them from then on.

    The last leader has probably dealt with most of what a standby has noted, but not with what happened after its end.
    """

    def __init__(self, queue: WorkQueue[Key]) -> None:
        self._queue = queue
        self._noted: dict[Key, None] = {}
        self.leads = False

    def add(self, key: Key) -> None:
        """Adds one deployment, due now."""
        if self.leads:
            self._queue.add(key)
            return
        self._noted.pop(key, None)
        self._noted[key] = None

    def add_all(self, keys: Iterable[Key]) -> None:
        """Adds deployments that are due now."""
        for key in keys:
            self.add(key)

    def spread(self, keys: Iterable[Key], seconds: float) -> None:
        """Adds deployments that are due at random times within so many seconds. A standby does not note them, since nothing happened."""
        if self.leads:
            for key in sorted(keys):
                self._queue.add(key, random.uniform(0.0, seconds))

    def lead(self, keys: Iterable[Key]) -> None:
        """Queues ``keys``, which are all deployments, from now on. Those with the latest events come first."""
        self.leads = True
        self._queue.add_all([*reversed(self._noted), *sorted(set(keys) - self._noted.keys())])
        self._noted.clear()
