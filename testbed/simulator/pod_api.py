"""Follows the pods of a cluster and writes their annotations."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from testbed.watching_api import Object, WatchingApi

Pod = Object


@dataclass(frozen=True, slots=True)
class PodEvent:
    """One event. ``kind`` is ADDED, MODIFIED or DELETED; a complete list arrives as LISTED with all pods."""

    kind: str
    pods: tuple[Pod, ...]


class PodApi(WatchingApi):
    """All pods of a cluster, by the current context of a kubeconfig. Use it as an async context manager."""

    async def events(self) -> AsyncIterator[PodEvent]:
        """Yields all events, forever. After a lost connection or an expired version it starts with a fresh LISTED."""
        async for kind, pods in self.watch("/api/v1/pods"):
            yield PodEvent(kind, pods)

    async def annotate(self, pod: Pod, annotations: Mapping[str, str | None]) -> None:
        """Sets annotations of a pod; None removes one. A pod that is gone, or another with the same name, is left unchanged."""
        meta = pod["metadata"]
        body = {"metadata": {"uid": meta["uid"], "annotations": dict(annotations)}}
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        await self.request("PATCH", path, body, "application/merge-patch+json", may=(404, 409))
