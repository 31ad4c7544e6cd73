"""Nodes that look like GPU servers and are simulated by kwok.

Node n of a cluster owns the pod addresses 127.<slot>.<n>.0/24. A pod's address is therefore a loopback address that a local server can
answer, and no two clusters of one machine share any.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

# Products a node can claim: memory of one GPU in MiB, CUDA compute capability, architecture (as in the labels of GPU feature discovery).
_PRODUCTS = {
    "NVIDIA-B200": (183359, "10.0", "blackwell"),
    "NVIDIA-H200": (143771, "9.0", "hopper"),
    "NVIDIA-H100-80GB-HBM3": (81559, "9.0", "hopper"),
}
GPU_RESOURCE = "nvidia.com/gpu"
_MOST_NODES = 256


@dataclass(frozen=True)
class NodePool:
    """`count` equal nodes named `<name>-<n>`. With `gpus` 0 they are plain CPU nodes without GPU labels and taint."""

    name: str
    count: int
    gpus: int = 8
    product: str = "NVIDIA-B200"
    resources: dict[str, str] = field(default_factory=dict)
    """Other extended resources, such as RDMA devices: name to quantity."""


DEFAULT_POOLS = (NodePool("b200", 8), NodePool("cpu", 1, gpus=0))


def memory_bytes(product: str) -> int | None:
    """Returns the memory of one accelerator; None if no node can claim this product."""
    known = _PRODUCTS.get(product)
    return None if known is None else known[0] << 20


def node_manifests(pools: Iterable[NodePool], slot: int) -> Iterator[dict[str, Any]]:
    """Yields the node objects of all pools, in order. Raises ValueError beyond 256 nodes, the size of a cluster's pod network."""
    index = 0
    for pool in pools:
        for number in range(pool.count):
            if index == _MOST_NODES:
                raise ValueError(f"a cluster has room for {_MOST_NODES} nodes")
            yield _node(pool, number, f"127.{slot}.{index}")
            index += 1


def _node(pool: NodePool, number: int, network: str) -> dict[str, Any]:
    name = f"{pool.name}-{number}"
    labels = {"type": "kwok", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    capacity = {"cpu": "224", "memory": "2Ti", "ephemeral-storage": "20Ti", "pods": "110", **pool.resources}
    if pool.gpus:
        labels |= _gpu_labels(pool)
        capacity[GPU_RESOURCE] = str(pool.gpus)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": {"kwok.x-k8s.io/node": "fake"}},
        "spec": {
            "podCIDR": f"{network}.0/24",
            "podCIDRs": [f"{network}.0/24"],
            "taints": [{"key": GPU_RESOURCE, "value": "present", "effect": "NoSchedule"}] if pool.gpus else [],
        },
        # No Hostname address: kwok adds the one under which the API server reaches the fake kubelet.
        "status": {
            "addresses": [{"type": "InternalIP", "address": f"{network}.254"}],
            "capacity": capacity,
            "allocatable": capacity,
            "nodeInfo": dict.fromkeys(_NODE_INFO, "") | {"architecture": "amd64", "operatingSystem": "linux"},
        },
    }


_NODE_INFO = (
    "machineID",
    "systemUUID",
    "bootID",
    "kernelVersion",
    "osImage",
    "containerRuntimeVersion",
    "kubeletVersion",
    "kubeProxyVersion",
)


def _gpu_labels(pool: NodePool) -> dict[str, str]:
    labels = {f"{GPU_RESOURCE}.present": "true", f"{GPU_RESOURCE}.product": pool.product, f"{GPU_RESOURCE}.count": str(pool.gpus)}
    if pool.product in _PRODUCTS:
        memory, capability, family = _PRODUCTS[pool.product]
        major, minor = capability.split(".")
        labels |= {
            f"{GPU_RESOURCE}.memory": str(memory),
            f"{GPU_RESOURCE}.family": family,
            f"{GPU_RESOURCE}.compute.major": major,
            f"{GPU_RESOURCE}.compute.minor": minor,
        }
    return labels
