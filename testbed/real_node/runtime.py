"""containerd with a state of its own: configuration, network of its pods, and the end of all its containers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

from testbed.processes import RecordedProcess
from testbed.real_node.isolation import POD_RANGE
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
_STATE = Path("/run/dflash-containerd")
"""What a reboot forgets."""
_ROOT = Path("/run/dflash-containerd-images")
"""Images and file systems of containers, about 1.5 GB: in memory they are there and gone in no time."""


class ContainerRuntime:
    """containerd of one cluster's real node."""

    def __init__(self, workspace: Workspace) -> None:
        self._directory = workspace.directory / "node" / "containerd"
        self._process: RecordedProcess = workspace.process("containerd")
        self.socket = _STATE / "containerd.sock"
        self._log = self._directory / "containerd.log"

    def start(self) -> None:
        """Starts containerd and waits until it answers."""
        (self._directory / "cni").mkdir(parents=True, exist_ok=True)
        _STATE.mkdir(exist_ok=True)
        text = _CONFIGURATION.format(directory=self._directory, root=_ROOT, state=_STATE, socket=self.socket, pause=PAUSE)
        (self._directory / "config.toml").write_text(text)
        # Routed, not bridged: on a bridge the answer of a Service's pod on the same node would bypass the translation of its address.
        ipam = {
            "type": "host-local",
            "ranges": [[{"subnet": POD_RANGE}]],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": str(_STATE / "addresses"),
        }
        network = {"cniVersion": "0.4.0", "name": "dflash", "plugins": [{"type": "ptp", "ipMasq": False, "mtu": 1500, "ipam": ipam}]}
        (self._directory / "cni" / "10-dflash.conflist").write_text(json.dumps(network))
        self._process.start([_which("containerd"), "--config", str(self._directory / "config.toml")], self._log)
        wait_until(lambda: self.socket.exists() and self._answers(), "containerd to answer", 30)

    def load(self, layout: Path) -> None:
        """Imports every image of an OCI layout."""
        pack = subprocess.Popen(["tar", "-C", str(layout), "-c", "."], stdout=subprocess.PIPE)
        command = [*self._ctr(), "images", "import", "--snapshotter", "overlayfs", "-"]
        subprocess.run(command, stdin=pack.stdout, check=True, capture_output=True)
        if pack.wait() != 0:
            raise RuntimeError(f"{layout} cannot be read")

    def kill(self) -> None:
        """Ends containerd and every container at once, and forgets what a reboot forgets: mounts and addresses."""
        self._process.stop(signal.SIGKILL)
        for pid in _containers():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        wait_until(lambda: not _containers(), "the containers to end", 10)
        for target in _mounts((str(_STATE), "/run/netns", "/var/run/netns", str(self._directory.parent / "kubelet"))):
            subprocess.run(["umount", "--lazy", target], check=False, capture_output=True)
        subprocess.run(["rm", "-rf", str(_STATE)], check=True)
        # A network namespace may outlive its processes for a moment, and its device with a route to an address that a new pod gets.
        for device in _pod_devices():
            subprocess.run(["ip", "link", "delete", device], check=False, capture_output=True)
        wait_until(lambda: not _pod_devices(), "the devices of the pods to go", 10)

    def _answers(self) -> bool:
        return subprocess.run([*self._ctr(), "version"], capture_output=True, check=False).returncode == 0

    def _ctr(self) -> list[str]:
        return ["ctr", "--address", str(self.socket), "--namespace", "k8s.io"]


def _containers() -> list[int]:
    """Returns the processes of all containers and their supervisors: this process namespace has no others that descend from a shim."""
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
            if (entry / "comm").read_text().startswith("containerd-shim"):
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


def _pod_devices() -> list[str]:
    """Returns the node's ends of the pods' network devices."""
    listed = subprocess.run(["ip", "-brief", "link", "show", "type", "veth"], capture_output=True, text=True, check=True).stdout
    return [name for line in listed.splitlines() if not (name := line.split("@")[0].split()[0]).startswith("dfl")]


def _mounts(roots: tuple[str, ...]) -> list[str]:
    """Returns what is mounted below these folders, deepest first."""
    mounted = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [target for target in reversed(mounted) if target.startswith(roots)]


def _which(program: str) -> str:
    return subprocess.run(["sh", "-c", f"command -v {program}"], capture_output=True, text=True, check=True).stdout.strip()
