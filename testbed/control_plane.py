"""etcd, API server, controller manager, scheduler and kwok of one cluster: creation and outages.

kwokctl writes the configuration and starts the processes. Afterwards each process is a pid file and a command line, so that it can be
killed, paused and restarted alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from testbed import binaries
from testbed.api import AdminApi
from testbed.processes import RecordedProcess
from testbed.waiting import wait_until
from testbed.workspace import Workspace

_AUDIT_POLICY = Path(__file__).parent / "kwok" / "audit-policy.yaml"
_PORT_OPTIONS = ("etcdPort", "etcdPeerPort", "kubeApiserverPort", "kubeControllerManagerPort", "kubeSchedulerPort", "kwokControllerPort")
_PROGRAM_FLAGS = {
    "etcd": "--etcd-binary",
    "kube-apiserver": "--kube-apiserver-binary",
    "kube-controller-manager": "--kube-controller-manager-binary",
    "kube-scheduler": "--kube-scheduler-binary",
    "kwok": "--kwok-controller-binary",
}
SERVICE_RANGE = "10.96.0.0/16"
_API_SERVICE = "10.96.0.1"
# The API refuses endpoints with loopback addresses, and the pods have 127.x: these controllers would retry forever.
_NO_ENDPOINTS = "kube-controller-manager=controllers=*,-endpoints-controller,-endpointslice-controller,-endpointslice-mirroring-controller"
_EXTRA_ARGUMENTS = (
    # One instance each, so no election: a restart acts at once, not after the previous holder's lease of 15 s.
    "kube-controller-manager=leader-elect=false",
    "kube-scheduler=leader-elect=false",
    # Time until a failed node is tainted.
    "kube-controller-manager=node-monitor-period=1s",
    # The default, a /24, has room for only 254 Services.
    f"kube-apiserver=service-cluster-ip-range={SERVICE_RANGE}",
    # Nothing here has to survive a power failure.
    "etcd=unsafe-no-fsync=true",
)
# Only the nodes that nodes.py makes: a process node has an agent of its own. From the first restart on, which comes before any node
# (kwokctl 0.8.0 crashes on --extra-args of kwok's controller).
_KWOK_ARGUMENTS = ("--manage-all-nodes=false", "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake")
# Their informers back off for up to a minute during an outage. Not kwok: a new one may give a pod the address of another.
_CONTROLLERS = ("kube-controller-manager", "kube-scheduler")


class ControlPlaneError(RuntimeError):
    """The control plane did not start; the message contains the output of its programs."""


class ControlPlane:
    """The servers of the cluster in `workspace`."""

    def __init__(self, workspace: Workspace, node_address: str = "", feature_gates: str = "") -> None:
        """`node_address`: where the pods of a real node reach the API server; empty without one, and everything stays on loopback.

        `feature_gates`: those of the API server that differ from its release, as `Name=false`.
        """
        self._workspace = workspace
        self._feature_gates = feature_gates
        self._node_address = node_address
        self.admin_kubeconfig = workspace.directory / "admin.kubeconfig"
        self.audit_log = workspace.control_plane / "logs" / "audit.log"

    @property
    def api(self) -> AdminApi:
        """Returns the API server as administrator."""
        return AdminApi(self.admin_kubeconfig)

    def create(self, timeout: float = 60.0) -> None:
        """Starts everything and waits until the API server is ready. Raises ControlPlaneError after `timeout` seconds or if a program
        ends."""
        programs = binaries.paths_of((*_PROGRAM_FLAGS, "kwokctl", "kubectl"))
        command = [str(programs["kwokctl"]), "create", "cluster", "--name", self._workspace.name, "--runtime", "binary"]
        command += ["--config", str(self._write_configuration()), "--kube-audit-policy", str(_AUDIT_POLICY)]
        command += ["--kubeconfig", str(self.admin_kubeconfig), "--enable-crds", "Stage", "--disable-qps-limits"]
        for program, flag in _PROGRAM_FLAGS.items():
            command += [flag, str(programs[program])]
        gates = [f"kube-apiserver=feature-gates={self._feature_gates}"] if self._feature_gates else []
        for argument in for_kwokctl([*self._network_arguments(), *_EXTRA_ARGUMENTS, *gates]):
            command += ["--extra-args", argument]
        # kwokctl creates its kinds with a kubectl from PATH, and would download one.
        path = os.pathsep.join([str(programs["kubectl"].parent), *filter(None, [os.environ.get("PATH")])])
        environment = {**os.environ, "PATH": path, "KWOK_WORKDIR": str(self._workspace.directory)}
        try:
            answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=timeout)
        except subprocess.TimeoutExpired:
            raise ControlPlaneError(f"kwokctl did not finish within {timeout:.0f} s; its logs: {self.audit_log.parent}") from None
        if answer.returncode != 0:
            raise ControlPlaneError(f"kwokctl failed; its logs: {self.audit_log.parent}\n{answer.stderr.strip()}")
        self._wait_ready(timeout)
        # On a busy machine the controllers give up waiting for the API server after 10 s. A kubelet starts them again.
        for component in self.components():
            if self.process(component).pid() is None:
                self.start(component)
        for component in self.components():
            if self.process(component).pid() is None:
                log = self.audit_log.with_name(f"{component}.log")
                last = "\n".join(log.read_text(errors="replace").splitlines()[-10:])
                raise ControlPlaneError(f"{component} ended at once:\n{last}")

    def _write_configuration(self) -> Path:
        # Loopback only: etcd has neither TLS nor passwords here. Ports of the cluster's own: kwokctl would take the highest free ones,
        # and with them those of a server that another cluster has down for a moment.
        options: dict[str, Any] = {"bindAddress": "127.0.0.1", **dict(zip(_PORT_OPTIONS, self._workspace.ports, strict=True))}
        if self._node_address:
            options["kubeApiserverCertSANs"] = [_API_SERVICE, self._node_address]
        path = self._workspace.directory / "kwokctl.yaml"
        path.write_text(yaml.safe_dump({"apiVersion": "config.kwok.x-k8s.io/v1alpha1", "kind": "KwokctlConfiguration", "options": options}))
        return path

    def _network_arguments(self) -> list[str]:
        if not self._node_address:
            return [_NO_ENDPOINTS]
        pki = self._workspace.control_plane / "pki"
        return [
            "kube-apiserver=bind-address=0.0.0.0",
            f"kube-apiserver=advertise-address={self._node_address}",
            # By its name a node is not found here: `kubectl exec` and `logs` would fail.
            "kube-apiserver=kubelet-preferred-address-types=InternalIP",
            f"kube-apiserver=kubelet-client-certificate={pki / 'admin.crt'}",
            f"kube-apiserver=kubelet-client-key={pki / 'admin.key'}",
        ]

    def components(self) -> dict[str, list[str]]:
        """Returns the command line of each server, by name."""
        configuration = next(yaml.safe_load_all((self._workspace.control_plane / "kwok.yaml").read_text()))
        commands = {component["name"]: [component["binary"], *component["args"]] for component in configuration["components"]}
        commands["kwok-controller"] += _KWOK_ARGUMENTS
        return commands

    def process(self, component: str) -> RecordedProcess:
        """Returns the process of one server: etcd, kube-apiserver, kube-controller-manager, kube-scheduler or kwok-controller."""
        return RecordedProcess(self._workspace.control_plane / "pids" / f"{component}.pid", str(self._workspace.directory))

    def kill_apiserver(self) -> None:
        """Ends the API server with SIGKILL: client connections are reset and refused. Its state stays in etcd."""
        self.process("kube-apiserver").stop(signal.SIGKILL)

    def start_apiserver(self, timeout: float = 60.0) -> None:
        """Starts a killed API server again, and restarts its controllers so that they act at once. Returns when it is ready.

        kwok reconnects by itself, after half a minute at most.
        """
        self.start("kube-apiserver")
        self._wait_ready(timeout)
        for component in _CONTROLLERS:
            self.process(component).stop(signal.SIGKILL)
            self.start(component)

    def pause_apiserver(self) -> None:
        """Pauses the API server without closing a connection, so clients time out."""
        self.process("kube-apiserver").send(signal.SIGSTOP)

    def resume_apiserver(self) -> None:
        """Resumes the API server after `pause_apiserver`."""
        self.process("kube-apiserver").send(signal.SIGCONT)

    def start(self, component: str) -> None:
        """Starts one stopped server with its previous flags."""
        self.process(component).start(self.components()[component], self.audit_log.with_name(f"{component}.log"))

    def _wait_ready(self, timeout: float) -> None:
        wait_until(self.api.is_ready, "the API server to become ready", timeout)


def for_kwokctl(arguments: Sequence[str]) -> list[str]:
    """Returns extra arguments with the first one of each component in front: kwokctl 0.8.0 gives others to a wrong component."""
    components = [argument.partition("=")[0] for argument in arguments]
    first = [components.index(component) for component in dict.fromkeys(components)]
    return [arguments[index] for index in first] + [each for index, each in enumerate(arguments) if index not in first]
