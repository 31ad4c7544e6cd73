"""A stand-in for the LeaderWorkerSet controller. Kubernetes' own StatefulSet controller makes the pods."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any

import aiohttp

from testbed.leader_worker_set import objects
from testbed.leader_worker_set.groups import MERGE, Groups, Key
from testbed.leader_worker_set.objects import Object
from testbed.watching_api import WatchingApi

log = logging.getLogger(__name__)

_APPLY = "application/apply-patch+yaml"
_APPLY_OPTIONS = f"?fieldManager={objects.FIELD_MANAGER}&force=true"
_RETRY_S = 0.5
_AS_GROUP = ("RecreateGroupOnPodRestart", "RecreateGroupAfterStart")


class StandIn:
    """Plays the controller for every LeaderWorkerSet of a cluster."""

    def __init__(self, api: WatchingApi, groups: Groups) -> None:
        self._api = api
        self._groups = groups
        self._changed: asyncio.Queue[Key] = asyncio.Queue()
        self._waiting: set[Key] = set()
        self._restarted: asyncio.Queue[Object] = asyncio.Queue()
        groups.seen, groups.set_changed = self._look_at, self._note

    async def run(self) -> None:
        """Runs forever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reconcile_changed())
            group.create_task(self._delete_leaders())

    def _note(self, key: Key) -> None:
        if key not in self._waiting:
            self._waiting.add(key)
            self._changed.put_nowait(key)

    def _look_at(self, pod: Object) -> None:
        """Begins the recreation of a group whose pod ends or has restarted: its leader is deleted, with all that it owns."""
        labels, namespace = pod["metadata"]["labels"], pod["metadata"]["namespace"]
        lws = self._groups.sets.get((namespace, labels[objects.NAME]))
        if lws is None or not objects.group_restarts(pod):
            return
        policy = lws["spec"]["leaderWorkerTemplate"].get("restartPolicy", _AS_GROUP[0])
        if policy not in _AS_GROUP or (policy == _AS_GROUP[1] and not objects.started(self._groups.group_of(pod), objects.size_of(lws))):
            return
        leader: Object | None = pod
        if labels.get(objects.WORKER_INDEX) != "0":
            leader = self._groups.pods.get((namespace, pod["metadata"]["annotations"][objects.LEADER_NAME]))
            workers = self._groups.stateful_sets.get((namespace, pod["metadata"]["annotations"][objects.LEADER_NAME]))
            if leader is None or workers is None or not (_owned(pod, workers) and _owned(workers, leader)):
                return  # a worker of the group before
        if leader is not None and "deletionTimestamp" not in leader["metadata"]:
            self._restarted.put_nowait(leader)

    async def _delete_leaders(self) -> None:
        while True:
            metadata = (await self._restarted.get())["metadata"]
            log.info("%s/%s: the group is recreated", metadata["namespace"], metadata["name"])
            body = {"propagationPolicy": "Foreground", "preconditions": {"uid": metadata["uid"]}}
            await self._api.request("DELETE", _path(metadata["namespace"], "/api/v1", "pods", metadata["name"]), body, may=(404, 409))

    async def _reconcile_changed(self) -> None:
        while True:
            key = await self._changed.get()
            self._waiting.discard(key)
            lws = self._groups.sets.get(key)
            if lws is None or "deletionTimestamp" in lws["metadata"]:
                continue
            try:
                await self._reconcile(key, lws)
            except aiohttp.ClientResponseError as error:
                log.warning("%s/%s: %s, trying again", *key, error)
                asyncio.get_running_loop().call_later(_RETRY_S, self._note, key)

    async def _reconcile(self, key: Key, lws: Object) -> None:
        namespace, name = key
        known = {item["metadata"]["name"]: item for item in self._groups.of_set(self._groups.stateful_sets, key)}
        if "deletionTimestamp" in known.get(name, {"metadata": ()})["metadata"]:
            return  # its end is a change
        if name not in known:
            await self._create(namespace, "/apis/apps/v1", "controllerrevisions", objects.controller_revision(lws))
        path = _path(namespace, "/apis/apps/v1", "statefulsets", name)
        await self._api.request("PATCH", path + _APPLY_OPTIONS, objects.leader_stateful_set(lws), _APPLY)
        if name not in known:
            await self._create(namespace, "/api/v1", "services", objects.headless_service(lws))
        leaders = self._groups.leaders(key)
        for leader in leaders:
            missing = leader["metadata"]["name"] not in known and "deletionTimestamp" not in leader["metadata"]
            if missing and objects.size_of(lws) > 1:
                await self._create(namespace, "/apis/apps/v1", "statefulsets", objects.worker_stateful_set(lws, leader))
        await self._write_status(lws, objects.status(lws, leaders, known))

    async def _create(self, namespace: str, group: str, kind: str, body: Object) -> None:
        await self._api.request("POST", _path(namespace, group, kind), body, may=(409,))

    async def _write_status(self, lws: Object, status: dict[str, Any]) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for condition in status["conditions"]:
            condition["lastTransitionTime"] = condition["lastTransitionTime"] or now
        if {**(lws.get("status") or {}), **status} != {**dict.fromkeys(status), **(lws.get("status") or {})}:
            path = _path(lws["metadata"]["namespace"], f"/apis/{objects.API_VERSION}", "leaderworkersets", lws["metadata"]["name"])
            await self._api.request("PATCH", f"{path}/status", {"status": status}, MERGE, may=(404,))


def _owned(item: Object, owner: Object) -> bool:
    return any(reference["uid"] == owner["metadata"]["uid"] for reference in item["metadata"].get("ownerReferences") or ())


def _path(namespace: str, group: str, *parts: str) -> str:
    return "/".join((group, "namespaces", namespace, *parts))
