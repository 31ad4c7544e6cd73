"""Replicas over two real nodes: the real LeaderWorkerSet controller, a leader and a worker as containers of different nodes.

The ranks, which simulators play with the command lines that the operator renders, meet over the network at the leader's name. Both nodes
claim room for two groups of each engine; anti-affinity within a group puts its pods on different nodes.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from testbed.cluster import Cluster
from testbed.leader_worker_set import objects
from testbed.leader_worker_set.processes import LeaderWorkerSets
from testbed.real_node.isolation import NODE_ADDRESS
from testbed.real_node.node import RealNode
from testbed.real_node.runtime import NODE_DIRECTORY
from testbed.waiting import wait_until
from tests.e2e.conftest import Say
from tests.node.conftest import LAYOUT
from tests.node.load import Load
from tests.node.test_real_node import ENGINES, address, drain, in_pod
from tests.support.deployment import UNJUDGED, Deployment
from tests.support.groups import ROLE, groups, uids, wait_for, wait_whole
from tests.support.hub_server import COMMIT, HubServer, content
from tests.support.releases import default_release

MODEL, DRAFTER = "Qwen/Qwen3.5-397B-A17B", "z-lab/Qwen3.5-397B-A17B-DFlash"
GPUS = 8
"""Of one pod."""
MEETING_PORT = {"sglang": 20000, "vllm": 29500}
RATE = 10.0
LEAST_REQUESTS = 600
WAIT_S = 300.0
STORAGE_ACCESS = """
import json, os, sys
def attempt(path):
    try:
        with open(path, "r+b" if os.path.exists(path) else "xb") as file:
            file.write(b"planted")
        return "written"
    except OSError as error:
        return error.strerror
paths = [f"/models/{model}/{name}" for model in ("target", "drafter") for name in ("model.safetensors", ".dflash.json", "planted.py")]
os.makedirs(os.environ["HF_HOME"] + "/modules", exist_ok=True)
os.makedirs(os.environ["TRITON_CACHE_DIR"], exist_ok=True)
caches = [os.environ["HF_HOME"] + "/modules/own.py", os.environ["TRITON_CACHE_DIR"] + "/kernel"]
mounts = [line.split() for line in open("/proc/self/mountinfo")]
print(json.dumps({
    "user": os.getuid(),
    "weights": sorted({attempt(path) for path in paths}),
    "caches": sorted({attempt(path) for path in caches}),
    "mounts": {point: (root, options.split(",")[0]) for _, _, _, root, point, options, *_ in mounts if sys.argv[1] in root},
    "beside": os.listdir("/var/lib/dflash"),
}))
"""
"""Run in an engine's container: what it can change of the weights and of its caches, and the mounts whose source has a name in its path."""


def spec(engine: str, replicas: int = 2, **changes: Any) -> dict[str, Any]:
    """Groups of two pods that are on different nodes, replaced one after the other without being judged."""
    apart = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {"serving.dflash.io/deployment": engine}},
        "matchLabelKeys": [objects.GROUP_KEY],
    }
    return {
        "target": {"model": MODEL, "revision": "f" * 40},
        "drafter": {"revision": "a" * 40},
        "engine": {"name": engine, "version": default_release(engine)},
        "replicas": replicas,
        "parallelism": {"tensor": 2 * GPUS, "nodes": 2},
        "tuning": {"mode": "Off"},
        "rollout": {"maxSurge": 0, "maxUnavailable": 1, **UNJUDGED},
        "scheduling": {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}},
        "podTemplate": {"terminationGracePeriodSeconds": 60, "securityContext": {"runAsNonRoot": True}},
        **changes,
    }


@pytest.fixture(scope="module")
def nodes(cluster: Cluster, node: RealNode, operator: str) -> Iterator[tuple[RealNode, RealNode]]:
    """Two real nodes, and LeaderWorkerSet."""
    room = 2 * GPUS * len(ENGINES)
    with RealNode(cluster, 1, gpus=room) as other:
        other.start(Path(os.environ[LAYOUT]))
        node.set_gpus(room)
        with LeaderWorkerSets(cluster, real=True, containers=True):
            yield node, other
        node.set_gpus(GPUS)


@pytest.fixture(scope="module")
def both(cluster: Cluster, nodes: tuple[RealNode, RealNode]) -> Iterator[list[Deployment]]:
    """A deployment of each engine, with two groups that serve, in a namespace that enforces the restricted Pod Security Standard."""
    with ExitStack() as stack:
        namespace = namespace_of(stack, cluster, "restricted")
        deployments = [Deployment(cluster, namespace, engine).create(spec(engine)) for engine in ENGINES]
        for deployment in deployments:
            wait_whole(deployment, 2, WAIT_S)
        yield deployments


def namespace_of(stack: ExitStack, cluster: Cluster, standard: str) -> str:
    """A fresh namespace that enforces a Pod Security Standard; at the end of the stack no pod is left in it."""
    name = cluster.create_namespace("groups")
    cluster.kubectl("label", "namespace", name, f"pod-security.kubernetes.io/enforce={standard}")
    stack.callback(cluster.delete_namespace, name)
    return name


def pods_of(deployment: Deployment) -> dict[str, dict[str, dict[str, Any]]]:
    """The pods of each group by role."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for pod in deployment.children("pods"):
        labels = pod["metadata"]["labels"]
        found.setdefault(labels[objects.GROUP_KEY], {})[labels[ROLE]] = pod
    return found


def test_a_group_is_on_two_nodes_and_its_worker_joins_the_leader_by_its_name(
    cluster: Cluster, both: list[Deployment], nodes: tuple[RealNode, RealNode]
) -> None:
    program = """
import json, os, socket, struct
def peers():
    for line in open("/proc/net/tcp").readlines()[1:]:
        _, _, remote, state, *_ = line.split()
        address, _, port = remote.partition(":")
        if state == "01":
            yield f"{socket.inet_ntoa(struct.pack('<I', int(address, 16)))}:{int(port, 16)}"
leader = os.environ["LWS_LEADER_ADDRESS"]
print(json.dumps({"name": leader, "address": socket.gethostbyname(leader), "connected": list(peers())}))
"""
    for deployment in both:
        assert len(pods_of(deployment)) == 2
        for group in pods_of(deployment).values():
            leader, worker = group["engine"], group["worker"]
            assert {pod["spec"]["nodeName"] for pod in (leader, worker)} == {node.name for node in nodes}
            name = leader["metadata"]["name"]
            found = json.loads(in_pod(cluster, deployment.namespace, worker["metadata"]["name"], program))
            assert found["name"] == f"{name}.{name.rpartition('-')[0]}.{deployment.namespace}"
            assert found["address"] == leader["status"]["podIP"]
            assert f"{found['address']}:{MEETING_PORT[deployment.name]}" in found["connected"]


def test_a_service_sends_requests_to_leaders_alone(cluster: Cluster, both: list[Deployment]) -> None:
    for deployment in both:
        leaders = {group["engine"]["status"]["podIP"] for group in pods_of(deployment).values()}
        assert endpoints(deployment) == leaders
        with Load(address(cluster, deployment), MODEL, RATE) as load:
            wait_until(lambda load=load: load.answered > 30, "answers", 180)
        assert not load.log.errors


def endpoints(deployment: Deployment) -> set[str]:
    """The addresses behind a deployment's Service."""
    selector = f"labelSelector=kubernetes.io%2Fservice-name%3D{deployment.name}"
    path = f"/apis/discovery.k8s.io/v1/namespaces/{deployment.namespace}/endpointslices?{selector}"
    items = deployment.cluster.api.get(path)["items"]
    return {address for item in items for endpoint in item["endpoints"] or () for address in endpoint["addresses"]}


def test_no_request_fails_while_groups_restart_change_and_leave_a_node(
    cluster: Cluster, both: list[Deployment], nodes: tuple[RealNode, RealNode], say: Say
) -> None:
    """A worker is deleted, the drafter changes, and the node of a worker is drained, one after the other under load.

    Every time a leader needs its worker until it has answered what it has begun.
    """
    with ExitStack() as stack:
        loads = [stack.enter_context(Load(address(cluster, deployment), MODEL, RATE)) for deployment in both]
        before = {deployment.name: groups(deployment) for deployment in both}
        victims = {deployment.name: sorted(before[deployment.name])[0] for deployment in both}
        for deployment in both:
            cluster.kubectl("delete", "pod", f"{victims[deployment.name]}-1", "--namespace", deployment.namespace, "--wait=false")
        for deployment in both:
            wait_gone(deployment, set(before[deployment.name].pop(victims[deployment.name]).values()))
            [untouched] = before[deployment.name]
            assert groups(deployment)[untouched] == before[deployment.name][untouched], "only the worker's own group restarts"
        deleted = tell(say, "a worker deleted", loads)

        old = {deployment.name: uids(deployment) for deployment in both}
        for deployment in both:
            deployment.patch(drafter={"revision": "b" * 40})
        for deployment in both:
            assert deployment.wait_phase("Completed", "RolledBack", "Held", timeout=2 * WAIT_S)["phase"] == "Completed"
            wait_gone(deployment, old[deployment.name])
        changed = tell(say, "drafter changed", loads)

        old = {deployment.name: uids(deployment) for deployment in both}
        drain(cluster, nodes[1], "serving.dflash.io/deployment", 4)
        for deployment in both:
            wait_gone(deployment, old[deployment.name])
        drained = tell(say, "node drained", loads)
        wait_until(lambda: min(load.answered for load in loads) >= LEAST_REQUESTS, "the requests", 180, 0.5)
        assert deleted < changed < drained
    for deployment, load in zip(both, loads, strict=True):
        say(f"{deployment.name}: {load.summary()}")
        assert not load.log.errors, deployment.name
        assert endpoints(deployment) == {group["engine"]["status"]["podIP"] for group in pods_of(deployment).values()}


def wait_gone(deployment: Deployment, pods: set[str]) -> None:
    """Wait until none of these pods is left and two whole groups serve."""
    wait_for(deployment, lambda: not pods & deployment.pod_uids(), "other pods", WAIT_S)
    wait_whole(deployment, 2, WAIT_S)


def tell(say: Say, what: str, loads: list[Load]) -> int:
    """Says how many requests were answered so far, and how many failed. Returns the first."""
    answered, failed = sum(load.answered for load in loads), sum(sum(load.log.errors.values()) for load in loads)
    say(f"{what}: {answered} requests answered so far, {failed} failed")
    return answered


def test_each_node_gets_the_weights_once_and_both_ranks_load_them(
    cluster: Cluster, nodes: tuple[RealNode, RealNode], both: list[Deployment], say: Say
) -> None:
    """With hostPath a node keeps them for the next pod; with emptyDir each pod has its own. Engines can change none of them."""
    for deployment in both:
        deployment.patch(replicas=0)
    for deployment in both:
        wait_until(lambda deployment=deployment: not deployment.children("pods"), "room", WAIT_S, 0.5)
    weights = content(20_000_000)
    models = {name: {"config.json": b"{}", "model.safetensors": weights + name.encode()} for name in (MODEL, DRAFTER)}
    stored = Path("models") / MODEL.replace("/", "--") / COMMIT / "model.safetensors"
    storages = {"sglang": {"hostPath": {"path": f"{NODE_DIRECTORY}/weights"}}, "vllm": {"emptyDir": {}}}
    with ExitStack() as stack, HubServer(models, NODE_ADDRESS) as hub:
        namespace = namespace_of(stack, cluster, "privileged")
        deployments = []
        for engine, storage in storages.items():
            asked = spec(engine, replicas=1, storage=storage, podTemplate={"terminationGracePeriodSeconds": 30})
            asked |= {"target": {"model": MODEL, "revision": COMMIT}, "drafter": {"model": DRAFTER, "revision": COMMIT}}
            asked["engine"]["env"] = [{"name": "HF_ENDPOINT", "value": hub.endpoint}]
            deployments.append(Deployment(cluster, namespace, engine).create(asked))
        for deployment in deployments:
            wait_whole(deployment, 1, WAIT_S)
            [group] = pods_of(deployment).values()
            assert {pod["spec"]["nodeName"] for pod in group.values()} == {node.name for node in nodes}
            for pod in group.values():
                [fetched] = pod["status"]["initContainerStatuses"]
                assert (fetched["name"], fetched["restartCount"]) == ("dflash-fetch", 0)
                program = "import os; print(os.path.getsize('/models/target/model.safetensors'), os.environ['HF_HUB_OFFLINE'])"
                seen = in_pod(cluster, namespace, pod["metadata"]["name"], program).split()
                assert seen == [str(len(models[MODEL]["model.safetensors"])), "1"]
                check_access(cluster, pod, "weights" if deployment.name == "sglang" else "kubernetes.io~empty-dir/storage")
            with Load(address(cluster, deployment), MODEL, RATE) as load:
                wait_until(lambda load=load: load.answered > 10, "answers", 180)
            assert not load.log.errors
        asked_for = [request.path for request in hub.requests].count("model.safetensors")
        say(f"weights: {asked_for} downloads of two files by two pods on two nodes, each with hostPath and with emptyDir")
        assert asked_for == 8
        on_disk = [node.runtime.node_directory / "weights" / stored for node in nodes]
        assert [file.read_bytes() == models[MODEL]["model.safetensors"] for file in on_disk] == [True, True]
        caches = [node.runtime.node_directory / "weights" / "engine-cache" for node in nodes]
        assert [stat.S_IMODE(path.stat().st_mode) for cache in caches for path in (cache, cache / namespace)] == [0o700, 0o1777] * 2
        assert [len(list((cache / namespace).rglob("own.py"))) for cache in caches] == [1, 1]

        [pinned] = [deployment for deployment in deployments if deployment.name == "sglang"]
        before = uids(pinned)
        [worker] = [pod["worker"]["metadata"]["name"] for pod in pods_of(pinned).values()]
        cluster.kubectl("delete", "pod", worker, "--namespace", namespace, "--wait=false")
        wait_for(pinned, lambda: not before & pinned.pod_uids(), "a new group", WAIT_S)
        wait_whole(pinned, 1, WAIT_S)
        assert [request.path for request in hub.requests].count("model.safetensors") == asked_for, "a node keeps its weights"


def check_access(cluster: Cluster, pod: dict[str, Any], storage: str) -> None:
    """Of the storage, whose path on the node contains ``storage``, a program in the engine's container can change its caches alone."""
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    command = ("exec", "--namespace", namespace, name, "--", "python3", "-c", STORAGE_ACCESS, storage)
    found = json.loads(cluster.kubectl(*command))
    assert found["user"] != 0, "an engine of another user than the fetch on hostPath"
    assert set(found["weights"]) <= {"Read-only file system", "Permission denied"}
    assert found["caches"] == ["written"]
    below = {point: (root.partition(storage)[2], access) for point, (root, access) in found["mounts"].items()}
    assert below == {
        "/models/target": (f"/models/{MODEL.replace('/', '--')}/{COMMIT}", "ro"),
        "/models/drafter": (f"/models/{DRAFTER.replace('/', '--')}/{COMMIT}", "ro"),
        "/var/lib/dflash/cache": (f"/engine-cache/{namespace}", "rw"),
    }
    assert found["beside"] == ["cache"]
