"""The node agent: registers a Node and runs the pods that are bound to it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any

import aiohttp

from testbed.nodes import GPU_RESOURCE
from testbed.process_node.gpus import Gpu
from testbed.process_node.pod_runner import NodeFacts, PodRunner
from testbed.watching_api import Object

log = logging.getLogger(__name__)

LABEL = "testbed.dflash.io/process-node"
"""Label of nodes whose pods are processes."""
_BEAT_S = 10.0
_OVER = ("Succeeded", "Failed")


def node_object(name: str, address: str, gpus: list[Gpu], capacity: int, cores: int, memory_bytes: int) -> dict[str, Any]:
    """Returns the Node to register. Without the annotation of kwok's nodes, so kwok leaves it and its pods alone."""
    amounts = {"cpu": str(cores), "memory": str(memory_bytes), "ephemeral-storage": "1Ti", "pods": "110", GPU_RESOURCE: str(capacity)}
    labels = {LABEL: "true", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    if gpus:
        first = gpus[0]
        labels |= {f"{GPU_RESOURCE}.present": "true", f"{GPU_RESOURCE}.product": first.product, f"{GPU_RESOURCE}.count": str(len(gpus))}
        labels |= {f"{GPU_RESOURCE}.memory": str(first.memory_mib)} if first.memory_mib else {}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": [{"key": GPU_RESOURCE, "value": "present", "effect": "NoSchedule"}]},
        "status": {
            "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
            "capacity": amounts,
            "allocatable": amounts,
        },
    }


class Agent:
    """Runs the pods of one node until it is cancelled; then it ends all their processes at once."""

    def __init__(self, node: NodeFacts, manifest: dict[str, Any], network: str) -> None:
        """``network`` is the first three parts of its pods' addresses, such as ``127.5.250``."""
        self._node = node
        self._manifest = manifest
        # The longest unused address first: a client may still use one that was just given back.
        self._addresses = deque(f"{network}.{number}" for number in range(1, 254))
        self._runners: dict[str, PodRunner] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.registered = asyncio.Event()

    async def run(self) -> None:
        await self._node.api.register(self._manifest)
        self.registered.set()
        beating = asyncio.create_task(self._beat())
        try:
            async for kind, pods in self._node.api.watch("/api/v1/pods", fieldSelector=f"spec.nodeName={self._node.name}"):
                self._take_in(kind, pods)
        finally:
            beating.cancel()
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(beating, *self._tasks.values(), return_exceptions=True)

    def _take_in(self, kind: str, pods: tuple[Object, ...]) -> None:
        seen = {pod["metadata"]["uid"]: pod for pod in pods}
        if kind == "LISTED":
            for uid in self._runners.keys() - seen.keys():
                self._runners[uid].gone()
        for uid, pod in seen.items():
            if kind == "DELETED":
                if uid in self._runners:
                    self._runners[uid].gone()
            elif uid in self._runners:
                self._runners[uid].update(pod)
            elif (pod.get("status") or {}).get("phase") not in _OVER or pod["metadata"].get("deletionTimestamp"):
                self._start(uid, pod)

    def _start(self, uid: str, pod: Object) -> None:
        address = self._address_of(pod)
        runner = self._runners[uid] = PodRunner(pod, address, self._node)
        task = self._tasks[uid] = asyncio.create_task(runner.run(), name=runner.key)

        def ended(task: asyncio.Task[None]) -> None:
            del self._runners[uid], self._tasks[uid]
            self._addresses.append(address)
            if not task.cancelled() and (error := task.exception()):
                log.error("%s: %r", runner.key, error, exc_info=error)

        task.add_done_callback(ended)

    def _address_of(self, pod: Object) -> str:
        """Returns the address that a pod has from an earlier agent, or else a free one."""
        earlier = str((pod.get("status") or {}).get("podIP"))
        if earlier in self._addresses:
            self._addresses.remove(earlier)
            return earlier
        return self._addresses.popleft()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_BEAT_S)
            try:
                await self._node.api.beat(self._manifest)
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                log.warning("heartbeat: %s", error)
