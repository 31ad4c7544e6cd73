"""Follows LeaderWorkerSets, their StatefulSets and their pods, and lets leaders become Ready once their workers are.

kwok makes a leader Ready without its workers, which no engine over several nodes is. A leader is therefore created with an annotation that
keeps it from being Ready (`admission`), and the annotation is removed here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from testbed.leader_worker_set import objects
from testbed.leader_worker_set.objects import Object
from testbed.stages import READY
from testbed.watching_api import WatchingApi

Key = tuple[str, str]
"""Namespace and name."""
_SETS = f"/apis/{objects.API_VERSION}/leaderworkersets"
_STATEFUL_SETS, _PODS = "/apis/apps/v1/statefulsets", "/api/v1/pods"
MERGE = "application/merge-patch+json"


class Groups:
    """All of them in a cluster. ``seen`` is called with every change of a pod before it is taken in; ``sets_changed`` afterwards with the
    LeaderWorkerSet concerned."""

    def __init__(self, api: WatchingApi) -> None:
        self._api = api
        self.sets: dict[Key, Object] = {}
        self.stateful_sets: dict[Key, Object] = {}
        self.pods: dict[Key, Object] = {}
        self.seen: Callable[[Object], None] = lambda pod: None
        self.set_changed: Callable[[Key], None] = lambda key: None
        self._released: set[str] = set()
        self._to_release: deque[Object] = deque()
        self._some_to_release = asyncio.Event()

    async def run(self) -> None:
        """Runs forever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow(_SETS, self.sets))
            group.create_task(self._follow(_STATEFUL_SETS, self.stateful_sets, labelSelector=objects.NAME))
            group.create_task(self._follow(_PODS, self.pods, labelSelector=objects.NAME))
            group.create_task(self._release())

    def leaders(self, key: Key) -> list[Object]:
        """Returns the leaders of a LeaderWorkerSet."""
        return [pod for pod in self.of_set(self.pods, key) if pod["metadata"]["labels"].get(objects.WORKER_INDEX) == "0"]

    def group_of(self, pod: Object) -> list[Object]:
        """Returns the pods of the group that a pod belongs to."""
        index = pod["metadata"]["labels"].get(objects.GROUP_INDEX)
        members = self.of_set(self.pods, _set_of(pod))
        return [member for member in members if member["metadata"]["labels"].get(objects.GROUP_INDEX) == index]

    @staticmethod
    def of_set(store: dict[Key, Object], key: Key) -> list[Object]:
        """Returns the objects of one LeaderWorkerSet."""
        return [item for item in store.values() if _set_of(item) == key]

    async def _follow(self, path: str, store: dict[Key, Object], **params: str) -> None:
        async for kind, changed in self._api.watch(path, **params):
            if kind == "LISTED":
                store.clear()
            for item in changed:
                if store is self.pods:
                    self.seen(item)
                key = item["metadata"]["namespace"], item["metadata"]["name"]
                if kind == "DELETED":
                    store.pop(key, None)
                else:
                    store[key] = item
                self._changed(key if store is self.sets else _set_of(item))

    def _changed(self, key: Key) -> None:
        for leader in self.leaders(key):
            workers = self.stateful_sets.get((key[0], leader["metadata"]["name"]))
            uid = leader["metadata"]["uid"]
            if uid not in self._released and objects.held(leader) and objects.workers_available(leader, workers):
                self._released.add(uid)
                self._to_release.append(leader)
                self._some_to_release.set()
        self.set_changed(key)

    async def _release(self) -> None:
        while await self._some_to_release.wait():
            while self._to_release:
                metadata = self._to_release.popleft()["metadata"]
                body: dict[str, Any] = {"metadata": {"uid": metadata["uid"], "annotations": {READY: None}}}
                path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
                await self._api.request("PATCH", path, body, MERGE, may=(404, 409))
            self._some_to_release.clear()


def _set_of(item: Object) -> Key:
    return item["metadata"]["namespace"], item["metadata"]["labels"].get(objects.NAME, "")
