"""What a node agent writes: its Node and Lease, the status of its pods, their end, and Events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from testbed.process_node.pod_status import timestamp
from testbed.watching_api import Object, WatchingApi

_STRATEGIC = "application/strategic-merge-patch+json"
_NODES = "/api/v1/nodes"
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_GONE = (404, 409)
LEASE_S = 40
"""Lease duration, as the kubelet's."""


class Conflict(Exception):
    """Another writer was in the way: the same request may succeed now."""


class NodeApi(WatchingApi):
    """The API server for one node agent. Use it as an async context manager."""

    async def register(self, node: Mapping[str, Any]) -> None:
        """Creates the Node, or brings an existing one to this state."""
        if await self.request("POST", _NODES, node, may=(409,)) == 409:
            path = f"{_NODES}/{node['metadata']['name']}"
            await self.request("PATCH", path, {"metadata": node["metadata"], "spec": node["spec"]}, _STRATEGIC)
        await self.beat(node)

    async def beat(self, node: Mapping[str, Any]) -> None:
        """Reports the Node as Ready and renews its Lease."""
        name = node["metadata"]["name"]
        now = timestamp()
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now}
        await self.request("PATCH", f"{_NODES}/{name}/status", {"status": {**node["status"], "conditions": [ready]}}, _STRATEGIC)
        spec = {"holderIdentity": name, "leaseDurationSeconds": LEASE_S, "renewTime": now.replace("Z", ".000000Z")}
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": spec}
        if await self.request("POST", _LEASES, lease, may=(409,)) == 409:
            await self.request("PATCH", f"{_LEASES}/{name}", {"spec": spec}, "application/merge-patch+json")

    async def write_status(self, pod: Object, status: Mapping[str, Any]) -> None:
        """Writes a pod's status. A pod that is gone, or another of the same name, is left alone. Raises Conflict."""
        body = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}
        if await self.request("PATCH", f"{_path(pod)}/status", body, _STRATEGIC, may=_GONE) == 409:
            await self._check(pod)

    async def remove(self, pod: Object) -> None:
        """Removes a pod whose containers have ended. Raises Conflict."""
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
        if await self.request("DELETE", _path(pod), options, may=_GONE) == 409:
            await self._check(pod)

    async def _check(self, pod: Object) -> None:
        """Raises Conflict if the pod is still there: not another of the same name, but another writer was in the way."""
        found = await self.read(_path(pod))
        if found is not None and found["metadata"]["uid"] == pod["metadata"]["uid"]:
            raise Conflict(_path(pod))

    async def tell(self, pod: Object, node: str, type: str, reason: str, message: str) -> None:
        """Writes an Event about a pod."""
        meta, now = pod["metadata"], timestamp()
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{meta['name'][:50]}.", "namespace": meta["namespace"]},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": meta["namespace"],
                "name": meta["name"],
                "uid": meta["uid"],
            },
            "type": type,
            "reason": reason,
            "message": message[:1024],
            "source": {"component": "process-node", "host": node},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        await self.request("POST", f"/api/v1/namespaces/{meta['namespace']}/events", event, may=(403, 404))

    async def read(self, path: str) -> Object | None:
        """Returns an object; None if there is none."""
        async with self._session.get(path) as response:
            if response.status == 404:
                return None
            response.raise_for_status()
            found: Object = await response.json()
            return found


def _path(pod: Object) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
