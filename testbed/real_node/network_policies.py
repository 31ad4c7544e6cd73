"""Enforces network policies on a real node, with kube-router's controller of policies and nothing else of it."""

from __future__ import annotations

import signal
import subprocess
from types import TracebackType

from testbed import binaries
from testbed.cluster import Cluster
from testbed.control_plane import SERVICE_RANGE
from testbed.processes import RecordedProcess


class NetworkPolicies:
    """While it is entered, packets that no policy allows are refused. Only the node itself reaches every port of its pods.

    Afterwards everything is open again, as without it: the node's network has no other rules in these tables.
    """

    def __init__(self, cluster: Cluster, node: str) -> None:
        self._cluster = cluster
        self._node = node
        self._process: RecordedProcess = cluster.workspace.process("kube-router")
        self.log = cluster.directory / "kube-router.log"

    def __enter__(self) -> NetworkPolicies:
        command = [str(binaries.path_of("kube-router")), "--run-firewall=true", "--run-router=false", "--run-service-proxy=false"]
        command += [f"--kubeconfig={self._cluster.admin_kubeconfig}", f"--hostname-override={self._node}", "--health-port=0"]
        command += [f"--service-cluster-ip-range={SERVICE_RANGE}", "--iptables-sync-period=5s", "--v=1"]
        self._process.start(command, self.log)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.stop(signal.SIGTERM)
        for command in ("iptables -F", "iptables -X", "ip6tables -F", "ip6tables -X", "ipset destroy"):
            subprocess.run(command.split(), check=True, capture_output=True)
