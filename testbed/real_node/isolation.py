"""Runs a command in network, mount and process namespaces of its own: what it starts ends with it, whatever ends it.

The first process of the process namespace dies with its parent, even if that was killed, and the kernel then kills every process in it.
Addresses, firewall rules, routes and mounts vanish with their namespaces. Left over are only directories of control groups, which are
removed after the command and before the next one.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from testbed.workspace import ISOLATED, machine_lock, sweep

NODES = 2
"""Real nodes that a run may have."""
NODE_ADDRESS = "10.245.0.1"
"""Address of the first node, where pods reach the API server."""
POD_RANGE = "10.246.0.0/16"
"""Addresses of the pods of all nodes."""
_CGROUPS = Path("/sys/fs/cgroup")
_CGROUP_PREFIX = "dflash-node-"
_PROGRAMS = {
    "unshare": "util-linux",
    "ip": "iproute2",
    "nft": "nftables",
    "conntrack": "conntrack",
    "iptables": "iptables",
    "ipset": "ipset",
    "containerd": "containerd",
    "runc": "runc",
    "buildah": "buildah",
    "mmdebstrap": "mmdebstrap",
}
_PACKAGE_FILES = {"/usr/lib/cni/ptp": "containernetworking-plugins"}
_PRIVATE = ("/run", "/var/log/containers", "/var/lib/cni")
"""Folders that container tools use under fixed names: empty ones of our own."""
_PR_SET_PDEATHSIG = 1


class IsolationError(RuntimeError):
    """A real node cannot run here; the message is one line and says why."""


def check() -> None:
    """Raises IsolationError if this machine lacks a program, a right or a feature of the kernel."""
    if os.geteuid() != 0:
        raise IsolationError("a real node needs root")
    missing = sorted({package for program, package in _PROGRAMS.items() if shutil.which(program, path=_path()) is None})
    missing += [package for file, package in _PACKAGE_FILES.items() if not Path(file).exists()]
    if missing:
        raise IsolationError(f"a real node needs these packages: apt-get install {' '.join(missing)}")
    for feature, script in _FEATURES.items():
        command = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-ec", script]
        answer = subprocess.run(command, env={**os.environ, "PATH": _path()}, capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            raise IsolationError(f"this kernel refuses {feature}: {(answer.stderr.strip().splitlines() or ['no reason given'])[-1]}")


_FEATURES = {
    "namespaces of our own": "true",
    "a pair of virtual network devices": "ip link add dfl0 type veth peer name dfl1",
    "nftables with translation of addresses": (
        "nft add table ip t; nft add chain ip t c '{ type nat hook output priority -100; }'; nft add rule ip t c fib daddr type local "
        "ip daddr 10.96.0.1 dnat to 10.245.0.1; nft add rule ip t c numgen random mod 2 vmap '{ 0 : accept, 1 : accept }'"
    ),
    "connection tracking": "conntrack -L",
    "sets of addresses in firewall rules": (
        "ipset create t hash:ip; iptables -A FORWARD -m set --match-set t dst -m mark --mark 1 -j REJECT; "
        "iptables -A FORWARD -m limit --limit 10/minute -j NFLOG --nflog-group 100"
    ),
    "overlay mounts": ("mount -t tmpfs none /mnt; cd /mnt; mkdir l u w m; mount -t overlay overlay -o lowerdir=l,upperdir=u,workdir=w m"),
}
"""What is needed, and a script that fails without it."""


def node_address(number: int) -> str:
    """Returns the address of a node; the first has number 0."""
    return f"10.245.0.{number + 1}"


def pod_range(number: int) -> str:
    """Returns the addresses of one node's pods."""
    return f"10.246.{number}.0/24"


def run(command: Sequence[str]) -> int:
    """Runs a command isolated. Returns its exit status. Raises IsolationError if a real node cannot run here."""
    if os.environ.get(ISOLATED):
        raise IsolationError("this is isolated already: from here other runs cannot be told from dead ones")
    check()
    with machine_lock():
        sweep()
    _remove_cgroups(dead_only=True)
    group = f"{_CGROUP_PREFIX}{os.getpid()}"
    isolated = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private"]
    isolated += [sys.executable, "-m", "testbed.real_node", "inside", "--", *command]
    environment = {**os.environ, ISOLATED: group, "PATH": _path()}
    process = subprocess.Popen(isolated, env=environment, preexec_fn=_die_with_parent)
    # A terminal sends its interrupt to the command too, which may clean up. unshare itself ignores the other signal.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda _number, _frame: process.kill())
    try:
        return process.wait()
    finally:
        process.kill()
        process.wait()
        _remove_cgroups(names=(group,))
        with machine_lock():
            sweep()


def inside(command: Sequence[str]) -> int:
    """Prepares the namespaces, runs the command, and reaps what is orphaned until it ends. It is the first process of its namespace."""
    subprocess.run(["mount", "--make-rshared", "/"], check=True)
    for folder in _PRIVATE:
        Path(folder).mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", folder], check=True)
    Path("/run/lock").mkdir()
    for line in (
        "link set lo up",
        "link add dfl0 type veth peer name dfl1",
        *(f"addr add {node_address(number)}/24 dev dfl0" for number in range(NODES)),
        "link set dfl0 up",
        "link set dfl1 up",
        # A packet to a Service needs a route before its address is translated.
        "route add default dev dfl0",
    ):
        subprocess.run(["ip", *line.split()], check=True)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    _make_cgroups(os.environ[ISOLATED])
    process = subprocess.Popen(command)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        pid, status = os.wait()
        if pid == process.pid:
            return os.waitstatus_to_exitcode(status)


def node_cgroup(node: str) -> str:
    """Returns the control group of one node of this run; a kubelet ends everything in its group that it does not know.

    Raises IsolationError outside of `run`.
    """
    group = os.environ.get(ISOLATED)
    if not group:
        raise IsolationError("a real node runs in namespaces of its own: python -m testbed.real_node run -- COMMAND")
    _make_cgroups(f"{group}/{node}")
    return f"{group}/{node}"


def _hierarchies() -> list[Path]:
    """Returns the mounted hierarchies of control groups: one in version 2, one for each controller in version 1."""
    if (_CGROUPS / "cgroup.controllers").exists():
        return [_CGROUPS]
    return [path for path in sorted(_CGROUPS.iterdir()) if path.is_dir() and not path.is_symlink() and (path / "cgroup.procs").exists()]


def _make_cgroups(name: str) -> None:
    for hierarchy in _hierarchies():
        (hierarchy / name).mkdir(exist_ok=True)
        for file in ("cpuset.cpus", "cpuset.mems"):  # version 1: a new group has none, and no process may join it
            if (hierarchy / file).exists():
                (hierarchy / name / file).write_text((hierarchy / file).read_text())
        if hierarchy == _CGROUPS:  # version 2
            controllers = (hierarchy / name / "cgroup.controllers").read_text().split()
            (hierarchy / name / "cgroup.subtree_control").write_text(" ".join(f"+{each}" for each in controllers))


def _remove_cgroups(names: Sequence[str] = (), *, dead_only: bool = False) -> None:
    """Removes the groups of these runs, or of every run whose process is gone. A group that still has processes stays."""
    for hierarchy in _hierarchies():
        for group in hierarchy.glob(f"{_CGROUP_PREFIX}*"):
            dead = dead_only and not Path(f"/proc/{group.name.removeprefix(_CGROUP_PREFIX)}").exists()
            if not dead and group.name not in names:
                continue
            for folder, _, _ in os.walk(group, topdown=False):
                try:
                    os.rmdir(folder)
                except OSError:
                    break


def _path() -> str:
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"])


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
