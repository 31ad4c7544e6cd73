"""Who reaches what of an engine, and what an engine may write, on a node that enforces network policies.

It runs before the tests that end with an uninstallation (files run in alphabetical order).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from testbed.cluster import Cluster, CommandError
from testbed.images import UPSTREAM
from testbed.real_node.network_policies import NetworkPolicies
from testbed.real_node.node import RealNode
from testbed.waiting import wait_until
from tests.node.release import wait_for_series
from tests.support.deployment import UNJUDGED, Deployment
from tests.support.releases import default_release

SGLANG = default_release("sglang")
OTHER_PORT = 5555
"""A port on which an engine listens for its own ranks."""
LISTEN = f"""
import socket, subprocess, sys
program = "import socket, time; s = socket.create_server(('0.0.0.0', {OTHER_PORT})); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                 start_new_session=True)
"""
ANSWERED, CLOSED = "answered", "closed"


@pytest.fixture(scope="module")
def policies(cluster: Cluster, node: RealNode) -> Iterator[None]:
    with NetworkPolicies(cluster, node.name):
        yield


@pytest.fixture
def engine(cluster: Cluster, restricted: str) -> Deployment:
    """One SGLang with a read-only root, in a namespace that enforces the restricted standard."""
    spec = {
        "target": {"model": "Qwen/Qwen3.5-9B", "revision": "f" * 40},
        "drafter": {"revision": "a" * 40},
        "engine": {"name": "sglang", "version": SGLANG},
        "replicas": 1,
        "tuning": {"mode": "Off"},
        "rollout": UNJUDGED,
        "podTemplate": {
            "terminationGracePeriodSeconds": 30,
            "readOnlyRootFilesystem": True,
            "securityContext": {"runAsNonRoot": True},
        },
    }
    deployment = Deployment(cluster, restricted).create(spec)
    deployment.wait_done(300)
    return deployment


def start_client(cluster: Cluster, namespace: str) -> None:
    """A pod of somebody else that can run Python."""
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True}
    container = {
        "name": "client",
        "image": f"{UPSTREAM['sglang']}:v{SGLANG}",
        "command": ["python3", "-c", "import time; time.sleep(3600)"],
        "securityContext": security | {"seccompProfile": {"type": "RuntimeDefault"}},
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "client"}, "spec": {"containers": [container], "nodeName": "real-0"}}
    cluster.apply_yaml([pod], namespace)
    cluster.kubectl("wait", "pod/client", f"--namespace={namespace}", "--for=condition=Ready", "--timeout=240s")


def run(cluster: Cluster, namespace: str, pod: str, program: str, *arguments: str) -> str:
    """What a Python program says that runs in a pod."""
    return cluster.kubectl("exec", f"--namespace={namespace}", pod, "--", "python3", "-c", program, *arguments).strip()


def statuses(cluster: Cluster, pod: tuple[str, str], base: str, asked: list[tuple[str, str]], key: str = "") -> dict[str, int]:
    """HTTP status by path of requests that a pod sends, with a key or without."""
    program = """
import json, sys, urllib.error, urllib.request
base, asked, key = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
found = {}
for method, path in asked:
    headers = {"Content-Type": "application/json", **({"Authorization": "Bearer " + key} if key else {})}
    body = b'{"prompt": "a", "max_tokens": 1}' if method == "POST" else None
    try:
        found[path] = urllib.request.urlopen(urllib.request.Request(base + path, body, headers, method=method), timeout=10).status
    except urllib.error.HTTPError as error:
        found[path] = error.code
print(json.dumps(found))
"""
    answer: dict[str, int] = json.loads(run(cluster, *pod, program, base, json.dumps(asked), key))
    return answer


def connects(cluster: Cluster, pod: tuple[str, str], address: str, port: int) -> str:
    """Whether a pod gets a connection."""
    program = f"""
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=3).close()
    print({ANSWERED!r})
except OSError:
    print({CLOSED!r})
"""
    return run(cluster, *pod, program, address, str(port))


def operator_pod(cluster: Cluster, operator: str) -> dict[str, Any]:
    found: dict[str, Any] = cluster.get("pods", "--namespace", operator, "-lapp.kubernetes.io/name=dflash-operator")["items"][0]
    return found


def test_clients_use_the_api_and_only_the_uid_of_the_pod_administers_it(cluster: Cluster, engine: Deployment, restricted: str) -> None:
    start_client(cluster, restricted)
    client, [pod] = (restricted, "client"), engine.children("pods")
    service = cluster.get("service", engine.name, "--namespace", restricted)["spec"]
    base = f"http://{service['clusterIP']}:{service['ports'][0]['port']}"
    administration = [("GET", "/server_info"), ("GET", "/get_server_info"), ("POST", "/flush_cache"), ("POST", "/set_internal_state")]
    api = [("POST", "/v1/completions"), ("GET", "/v1/models"), ("GET", "/health"), ("GET", "/metrics")]
    assert set(statuses(cluster, client, base, administration).values()) == {401}
    assert set(statuses(cluster, client, base, administration, "sk-client").values()) == {401}
    assert set(statuses(cluster, client, base, api).values()) == {200}
    assert set(statuses(cluster, client, base, administration, pod["metadata"]["uid"]).values()) == {200}


def test_an_engine_writes_to_its_scratch_volumes_and_not_to_its_image(cluster: Cluster, engine: Deployment, restricted: str) -> None:
    [pod] = engine.children("pods")
    name = pod["metadata"]["name"]
    write = "import pathlib, sys; pathlib.Path(sys.argv[1]).expanduser().write_text('x'); print('written')"
    for path in ("~/file", "/tmp/file", "/dev/shm/file"):
        assert run(cluster, restricted, name, write, path) == "written"
    for path in ("/opt/file", "/var/file", "/file"):
        with pytest.raises(CommandError, match=r"Read-only file system|Permission denied"):
            run(cluster, restricted, name, write, path)
    mounts = run(cluster, restricted, name, "print(open('/proc/mounts').read())")
    [root] = [line.split()[3] for line in mounts.splitlines() if line.split()[1] == "/"]
    assert "ro" in root.split(",")
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0


def test_policies_leave_the_serving_port_to_all_and_the_rest_to_nobody(
    cluster: Cluster, operator: str, policies: None, engine: Deployment, restricted: str
) -> None:
    start_client(cluster, restricted)
    client, [pod] = (restricted, "client"), engine.children("pods")
    address, port = pod["status"]["podIP"], pod["spec"]["containers"][0]["ports"][0]["containerPort"]
    here = (restricted, pod["metadata"]["name"])
    run(cluster, *here, LISTEN)
    wait_until(lambda: connects(cluster, here, address, OTHER_PORT) == ANSWERED, "the engine to listen", 180, 0.5)
    wait_until(lambda: connects(cluster, client, address, OTHER_PORT) == CLOSED, "the policy to be enforced", 180, 0.5)
    assert connects(cluster, client, address, port) == ANSWERED
    manager = operator_pod(cluster, operator)
    assert connects(cluster, (operator, manager["metadata"]["name"]), address, OTHER_PORT) == CLOSED
    assert connects(cluster, (operator, manager["metadata"]["name"]), address, port) == ANSWERED
    wait_for_series(cluster, f'up{{namespace="{restricted}"}}==1', 1)

    # Without the policy the same client reaches the port: nothing else closed it.
    opened = f"""
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: open, namespace: {restricted}}}
spec: {{podSelector: {{}}, ingress: [{{}}]}}
"""
    cluster.apply_yaml(opened)
    wait_until(lambda: connects(cluster, client, address, OTHER_PORT) == ANSWERED, "another policy to open the port", 180, 0.5)


def test_the_operator_is_reached_on_its_metrics_port_alone(
    cluster: Cluster, operator: str, policies: None, engine: Deployment, restricted: str
) -> None:
    start_client(cluster, restricted)
    client, manager = (restricted, "client"), operator_pod(cluster, operator)
    address = manager["status"]["podIP"]
    [metrics] = [port["containerPort"] for port in manager["spec"]["containers"][0]["ports"]]
    run(cluster, operator, manager["metadata"]["name"], LISTEN)
    here = (operator, manager["metadata"]["name"])
    wait_until(lambda: connects(cluster, here, address, OTHER_PORT) == ANSWERED, "the operator's pod to listen", 180, 0.5)
    wait_until(lambda: connects(cluster, client, address, OTHER_PORT) == CLOSED, "the policy to be enforced", 180, 0.5)
    assert connects(cluster, client, address, metrics) == ANSWERED
    wait_for_series(cluster, f'up{{namespace="{operator}"}}==1', 2)
