"""Records events about a DFlashDeployment: each at most once an hour, also across restarts. A failure never blocks a reconcile."""

from __future__ import annotations

import datetime
import hashlib
import logging
from collections.abc import Callable, Mapping
from typing import Any

from dflash_controller.api import names
from dflash_controller.cluster.client import Client
from dflash_controller.cluster.errors import AlreadyExists, ApiError, NotFound
from dflash_controller.cluster.kinds import EVENT
from dflash_controller.planning.state.plan import Event

REPEAT_SECONDS = 3600.0
MESSAGE_LENGTH = 1024
_NAME_LENGTH = 253

log = logging.getLogger(__name__)


class EventRecorder:
    """Creates core/v1 Events. ``clock`` returns monotonic seconds, ``now`` the time of day."""

    def __init__(self, client: Client, *, instance: str, clock: Callable[[], float], now: Callable[[], datetime.datetime]) -> None:
        self._client = client
        self._instance = instance
        self._clock = clock
        self._now = now
        self._reported: dict[str, float] = {}

    async def record(self, event: Event, about: Mapping[str, Any]) -> bool:
        """Creates the event unless it was recorded within the hour. Returns whether it was created; a failure is logged, not raised."""
        name = event_name(event, about)
        now = self._clock()
        if now - self._reported.get(name, -REPEAT_SECONDS) < REPEAT_SECONDS:
            return False
        self._reported = {known: at for known, at in self._reported.items() if now - at < REPEAT_SECONDS}
        self._reported[name] = now
        namespace = about["metadata"]["namespace"]
        try:
            if await self._exists(namespace, name):
                return False
            await self._client.create(EVENT, self._manifest(name, event, about))
        except AlreadyExists:
            return False
        except ApiError as error:
            del self._reported[name]
            log.warning("event %s about %s/%s was not recorded: %s", event.reason, namespace, about["metadata"]["name"], error)
            return False
        return True

    async def _exists(self, namespace: str, name: str) -> bool:
        """Returns whether the event was recorded before a restart: the API server keeps events for an hour."""
        try:
            await self._client.get(EVENT, namespace, name)
        except NotFound:
            return False
        return True

    def _manifest(self, name: str, event: Event, about: Mapping[str, Any]) -> dict[str, Any]:
        metadata = about["metadata"]
        stamp = self._now().astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            "apiVersion": EVENT.api_version,
            "kind": EVENT.name,
            "metadata": {"namespace": metadata["namespace"], "name": name},
            "involvedObject": {
                "apiVersion": names.API_VERSION,
                "kind": names.KIND,
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
                "resourceVersion": metadata["resourceVersion"],
            },
            "type": event.type,
            "reason": event.reason,
            "message": _shortened(event.message),
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
            "source": {"component": names.FIELD_MANAGER},
            "reportingComponent": names.FIELD_MANAGER,
            "reportingInstance": self._instance,
        }


def event_name(event: Event, about: Mapping[str, Any]) -> str:
    """Returns the name of the event object: the same for the same message about the same object."""
    metadata = about["metadata"]
    text = "\n".join((metadata["uid"], event.type, event.reason, event.message))
    suffix = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"{metadata['name'][: _NAME_LENGTH - 17]}.{suffix}"


def _shortened(message: str) -> str:
    return message if len(message) <= MESSAGE_LENGTH else f"{message[: MESSAGE_LENGTH - 1]}…"
