"""Clusters beside each other, crashed owners, clusters left to people, and resets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from testbed import workspace
from testbed.__main__ import main
from testbed.cluster import Cluster
from testbed.nodes import NodePool
from testbed.processes import RecordedProcess
from testbed.waiting import wait_until

SMALL = (NodePool("b200", 1),)
POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, "spec": {"containers": [{"name": "engine", "image": "engine"}]}}
TOLERANT = {**POD, "spec": {**POD["spec"], "tolerations": [{"operator": "Exists"}]}}  # type: ignore[dict-item]


@pytest.fixture(scope="module")
def second() -> Iterator[Cluster]:
    with Cluster(pools=SMALL) as running:
        yield running


def test_two_clusters_run_side_by_side_and_share_nothing(cluster: Cluster, second: Cluster) -> None:
    assert cluster.server != second.server
    assert cluster.directory != second.directory
    addresses = []
    for one in (cluster, second):
        one.apply_yaml(TOLERANT, namespace="default")
        addresses.append(wait_until(lambda one=one: one.get("pod", "one")["status"].get("podIP"), "a pod address"))  # type: ignore[misc]
        assert ip_address(addresses[-1]) in ip_network(one.pod_network)
        one.kubectl("delete", "pod", "one")
    assert addresses[0] != addresses[1]


def test_every_server_listens_on_loopback_only(second: Cluster) -> None:
    pids = {second.control_plane.process(name).pid() for name in second.control_plane.components()}
    assert None not in pids
    sockets = {link for pid in pids for link in _sockets(Path(f"/proc/{pid}/fd"))}
    listening = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                listening.append(fields[1].split(":")[0])
    assert len(listening) >= 5
    assert set(listening) == {"0100007F"}


def _sockets(descriptors: Path) -> Iterator[str]:
    for descriptor in descriptors.iterdir():
        try:
            yield os.readlink(descriptor)
        except FileNotFoundError:
            continue


def test_what_a_killed_run_left_is_removed_by_the_next_start(second: Cluster) -> None:
    name = f"crashed-{os.getpid()}"
    script = (
        "import os, signal; from testbed.cluster import Cluster; from testbed.nodes import NodePool\n"
        f"cluster = Cluster('{name}', pools=[NodePool('b200', 1)]).start(); cluster.kubectl('version')\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    crashed = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, timeout=90)
    assert crashed.returncode == -signal.SIGKILL, crashed.stderr
    left = workspace.Workspace.open(name)
    servers = [RecordedProcess(file, str(left.directory)) for file in (left.control_plane / "pids").glob("*.pid")]
    pids = [server.pid() for server in servers]
    assert len(pids) == 5
    assert None not in pids

    with workspace.machine_lock():
        assert name in workspace.sweep()

    assert not left.directory.exists()
    wait_until(lambda: all(not _command_line(pid) for pid in pids), "the servers to be gone")
    assert second.api.is_ready()


def _command_line(pid: int | None) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def test_a_recorded_pid_that_now_belongs_to_somebody_else_is_left_alone(tmp_path: Path) -> None:
    pid_file = tmp_path / "kube-apiserver.pid"
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        pid_file.write_text(str(stranger.pid))
        recorded = RecordedProcess(pid_file, str(tmp_path))
        assert recorded.pid() is None
        recorded.stop(signal.SIGKILL)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_name_in_use_is_refused(second: Cluster) -> None:
    with pytest.raises(workspace.WorkspaceError, match=rf"a cluster named {second.name} exists"):
        Cluster(second.name).start()
    assert second.api.is_ready()


@pytest.mark.parametrize("name", ["Bad Name", "", "a/b", "../a", "-a", "a" * 41])
def test_a_name_that_is_none_is_refused_before_anything_starts(name: str) -> None:
    with pytest.raises(workspace.WorkspaceError, match="is no name of a cluster"):
        Cluster(name).start()
    assert name not in {existing.name for existing in workspace.existing()}


def test_a_cluster_left_running_stays_until_it_is_taken_down(capsys: pytest.CaptureFixture[str]) -> None:
    name = f"kept-{os.getpid()}"
    assert main(["up", "--name", name, "--nodes", "1", "--cpu-nodes", "0", "--product", "NVIDIA-H200"]) == 0
    try:
        with workspace.machine_lock():
            assert name not in workspace.sweep()
        node = Cluster.attach(name).get("nodes")["items"][0]
        assert node["metadata"]["labels"]["nvidia.com/gpu.product"] == "NVIDIA-H200"
        assert main(["status", "--name", name]) == 0
        assert "ready, kept" in capsys.readouterr().out
    finally:
        assert main(["down", "--name", name]) == 0
    assert main(["status", "--name", name]) == 1
    assert main(["down", "--name", name]) == 1


@pytest.mark.parametrize("kubeconfig", [None, "/nowhere/kubeconfig"])
def test_leader_worker_sets_are_added_to_a_cluster_of_the_test_bed_only(
    kubeconfig: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    if kubeconfig:
        monkeypatch.setenv("KUBECONFIG", kubeconfig)
    assert main(["leader-worker-set"]) == 1
    assert "KUBECONFIG names no cluster of the test bed" in capsys.readouterr().err


def test_reset_leaves_nodes_and_stages_as_they_were_and_no_workload(second: Cluster) -> None:
    namespace = second.create_namespace()
    second.apply_yaml({**TOLERANT, "metadata": {"name": "stuck", "annotations": {"sim/frozen": "true"}}}, namespace)
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "engines"},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"app": "engines"}},
            "template": {"metadata": {"labels": {"app": "engines"}}, "spec": TOLERANT["spec"]},
        },
    }
    second.apply_yaml(deployment, namespace)
    second.apply_yaml(deployment, "default")
    second.kubectl("rollout", "status", "deployment/engines", "--namespace", namespace)
    second.kubectl("delete", "stage", "pod-ready")
    second.kubectl("cordon", "b200-0")
    second.set_nodes((*SMALL, NodePool("extra", 2)))

    second.reset()

    assert second.get("pods", "--all-namespaces")["items"] == []
    assert second.get("deployments", "--all-namespaces")["items"] == []
    assert [node["metadata"]["name"] for node in second.get("nodes")["items"]] == ["b200-0"]
    assert "unschedulable" not in second.get("node", "b200-0")["spec"]
    second.apply_yaml(TOLERANT, second.create_namespace())
    second.kubectl("wait", "pod", "--all", "--all-namespaces", "--for=condition=Ready", "--timeout=60s")
