"""containerd of one node: its own state, network of its pods and directories of the node, and the end of all its containers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from testbed.processes import ProcessError, RecordedProcess
from testbed.real_node.node_images import PAUSE
from testbed.waiting import wait_until
from testbed.workspace import Workspace

_CONFIGURATION = """\
version = 2
root = "{root}"
state = "{state}"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper"]
[grpc]
address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
# Where root lacks CAP_SYS_RESOURCE, runc cannot lower the score, and no container would start.
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{directory}/cni"
"""
NODE_DIRECTORY = "/run/dflash-disk"
"""What pods of different nodes see under this path are different directories, as all of a real node's."""


class ContainerRuntime:
    """containerd of one real node, in a mount namespace of the node's own."""

    def __init__(self, workspace: Workspace, node: str, pod_range: str) -> None:
        self._directory = workspace.directory / "nodes" / node / "containerd"
        self._node = node
        self._pod_range = pod_range
        self._process: RecordedProcess = workspace.process(f"containerd-{node}")
        self._state = Path(f"/run/dflash-{node}")
        """What a reboot forgets."""
        self._images = Path(f"/run/dflash-{node}-images")
        """Images and file systems of containers, about 1.5 GB: in memory they are there and gone in no time."""
        self.node_directory = self._directory.parent / "disk"
        """What the node's pods see as NODE_DIRECTORY."""
        self.socket = self._state / "containerd.sock"
        self._log = self._directory / "containerd.log"

    def start(self) -> None:
        """Starts containerd and waits until it answers."""
        for folder in (self._directory / "cni", self.node_directory, Path(NODE_DIRECTORY), self._state):
            folder.mkdir(parents=True, exist_ok=True)
        text = _CONFIGURATION.format(directory=self._directory, root=self._images, state=self._state, socket=self.socket, pause=PAUSE)
        configuration = self._directory / "config.toml"
        configuration.write_text(text)
        # Routed, not bridged: on a bridge the answer of a Service's pod on the same node would bypass the translation of its address.
        ipam = {
            "type": "host-local",
            "ranges": [[{"subnet": self._pod_range}]],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": str(self._state / "addresses"),
        }
        network = {"cniVersion": "0.4.0", "name": self._node, "plugins": [{"type": "ptp", "ipMasq": False, "mtu": 1500, "ipam": ipam}]}
        (self._directory / "cni" / "10-dflash.conflist").write_text(json.dumps(network))
        # What the kubelet mounts containers must see, so within the node mounts are shared.
        script = f'mount --make-rshared / && mount --bind "$0" {NODE_DIRECTORY} && exec "$@"'
        command = [_which("unshare"), "--mount", "--propagation", "private", "sh", "-c", script, str(self.node_directory)]
        self._process.start([*command, _which("containerd"), "--config", str(configuration)], self._log)
        wait_until(lambda: self.socket.exists() and self._answers(), f"containerd of {self._node} to answer", 180)

    def on_node(self, command: Sequence[str]) -> list[str]:
        """Returns a command that runs where the node's mounts are. Raises ProcessError if containerd does not run."""
        pid = self._process.pid()
        if pid is None:
            raise ProcessError(f"containerd of {self._node} is not running")
        return [_which("nsenter"), f"--mount=/proc/{pid}/ns/mnt", *command]

    def load(self, layout: Path) -> None:
        """Imports every image of an OCI layout."""
        pack = subprocess.Popen(["tar", "-C", str(layout), "-c", "."], stdout=subprocess.PIPE)
        command = [*self._ctr(), "images", "import", "--snapshotter", "overlayfs", "-"]
        subprocess.run(command, stdin=pack.stdout, check=True, capture_output=True)
        if pack.wait() != 0:
            raise RuntimeError(f"{layout} cannot be read")

    def kill(self) -> None:
        """Ends containerd and every container at once, and forgets what a reboot forgets: mounts, which end with their namespace, and
        addresses."""
        self._process.stop(signal.SIGKILL)
        for pid in self._containers():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        wait_until(lambda: not self._containers(), "the containers to end", 180)
        subprocess.run(["rm", "-rf", str(self._state)], check=True)
        # A network namespace may outlive its processes for a moment, and its device with a route to an address that a new pod gets.
        for device in self._pod_devices():
            subprocess.run(["ip", "link", "delete", device], check=False, capture_output=True)
        wait_until(lambda: not self._pod_devices(), "the devices of the pods to go", 180)

    def _containers(self) -> list[int]:
        """Returns the processes of all containers of this node and their supervisors."""
        return _below_shims(str(self.socket))

    def _pod_devices(self) -> list[str]:
        """Returns the devices to which the addresses of the node's pods are routed."""
        command = ["ip", "-json", "route", "show", "root", self._pod_range]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return [route["dev"] for route in json.loads(listed or "[]")]

    def _answers(self) -> bool:
        return subprocess.run([*self._ctr(), "version"], capture_output=True, check=False).returncode == 0

    def _ctr(self) -> list[str]:
        return ["ctr", "--address", str(self.socket), "--namespace", "k8s.io"]


def _below_shims(socket: str) -> list[int]:
    """Returns the supervisors that a containerd has started, and every process that descends from one."""
    parents: dict[int, int] = {}
    shims = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(") ")[2].split()
            if fields[0] == "Z":
                continue
            parents[int(entry.name)] = int(fields[1])
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if "containerd-shim" in words[0] and socket in words:
                shims.add(int(entry.name))
        except (OSError, IndexError):
            continue

    def below_shim(pid: int) -> bool:
        while pid in parents:
            if pid in shims:
                return True
            pid = parents[pid]
        return False

    return [pid for pid in parents if below_shim(pid)]


def _which(program: str) -> str:
    return subprocess.run(["sh", "-c", f"command -v {program}"], capture_output=True, text=True, check=True).stdout.strip()
