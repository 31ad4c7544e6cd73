"""Directories of clusters: one per cluster, owned by a running process, removed after its owner died.

An owner holds a lock on its directory as long as it lives. If the lock can be taken, the owner is gone, whatever its pid is used for now. A
*kept* cluster has no owner and stays until it is taken down.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from testbed.binaries import cache_root
from testbed.processes import RecordedProcess

# 127.0.0.0/16 stays free: the servers themselves and resolvers use it.
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")
_SLOTS = range(1, 255)
_PORTS_PER_CLUSTER = 6
_FIRST_PORT = 21000  # 254 times 6 from here stay below the ports that the kernel assigns


ISOLATED = "DFLASH_TESTBED_ISOLATED"
"""Set in namespaces of a run's own (`testbed.real_node`): processes of other runs cannot be seen there, so nothing of them is judged."""


class WorkspaceError(RuntimeError):
    """A cluster's directory is not available; the message says why."""


def clusters_root() -> Path:
    """Returns the directory of all clusters of this user."""
    return cache_root() / "clusters"


@dataclass
class Workspace:
    """One cluster's directory. `slot` numbers its pod network, 127.<slot>.0.0/16, unique among this user's clusters."""

    name: str
    directory: Path
    slot: int
    kept: bool
    _lock: int | None = field(default=None, repr=False)

    @classmethod
    def claim(cls, name: str | None = None) -> Workspace:
        """Returns a fresh directory owned by this process, after removing what dead owners left. Without a name one is generated.

        Raises WorkspaceError if a running or kept cluster has the name, or if it is none that a directory and kwok can have.
        """
        if name is not None and not _NAME.fullmatch(name):
            raise WorkspaceError(f"{name!r} is no name of a cluster: use lower-case letters, digits and '-', at most 40 of them")
        with machine_lock():
            sweep()
            taken = {workspace.slot for workspace in existing()}
            slot = next((slot for slot in _SLOTS if slot not in taken and all(map(_is_free, _ports(slot)))), None)
            if slot is None:
                raise WorkspaceError(f"there are {len(taken)} clusters and no free ports for another")
            workspace = cls(name or f"testbed-{slot}", clusters_root() / (name or f"testbed-{slot}"), slot, kept=False)
            try:
                workspace.directory.mkdir(parents=True)
            except FileExistsError:
                raise WorkspaceError(f"a cluster named {workspace.name} exists: `python -m testbed down --name {workspace.name}`") from None
            workspace._lock = _try_lock(workspace.directory)
            workspace._record()
            return workspace

    @classmethod
    def open(cls, name: str) -> Workspace:
        """Returns the directory of an existing cluster without owning it. Raises WorkspaceError if there is none."""
        for workspace in existing():
            if workspace.name == name:
                return workspace
        raise WorkspaceError(f"there is no cluster named {name}")

    @property
    def ports(self) -> range:
        """Returns the ports of 127.0.0.1 for its control plane, unique among this user's clusters."""
        return _ports(self.slot)

    @property
    def pid_directories(self) -> tuple[Path, Path]:
        """Returns the directories of pid files: kwokctl's for the control plane, and the one for all other processes."""
        return self.control_plane / "pids", self.directory / "pids"

    @property
    def control_plane(self) -> Path:
        """Returns the directory that kwokctl keeps for this cluster."""
        return self.directory / "clusters" / self.name

    def process(self, name: str) -> RecordedProcess:
        """Returns a process of the test bed (not of kwokctl) that belongs to this cluster. Its command line must contain a path in the
        directory."""
        pids = self.directory / "pids"
        pids.mkdir(exist_ok=True)
        return RecordedProcess(pids / f"{name}.pid", str(self.directory))

    def has_owner(self) -> bool:
        """Returns whether a living process owns the directory."""
        if self._lock is not None:
            return True
        lock = _try_lock(self.directory)
        if lock is not None:
            os.close(lock)
        return lock is None

    def is_running(self) -> bool:
        """Returns whether any of its processes lives."""
        return any(process.pid() is not None for process in self._processes())

    def keep(self) -> None:
        """Keeps the cluster: it outlives this process and is never swept."""
        self.kept = True
        self._record()
        self._release()

    def remove(self) -> None:
        """Ends every process recorded in the directory, then deletes the directory."""
        for process in self._processes():
            process.stop(signal.SIGKILL)  # nothing of it is needed any more
        shutil.rmtree(self.directory, ignore_errors=True)
        self._release()

    def _processes(self) -> list[RecordedProcess]:
        return [
            RecordedProcess(pid_file, str(self.directory))
            for pids in self.pid_directories
            if pids.is_dir()
            for pid_file in sorted(pids.glob("*.pid"))
        ]

    def _record(self) -> None:
        record = {"name": self.name, "slot": self.slot, "kept": self.kept}
        unfinished = self.directory / ".cluster.json"
        unfinished.write_text(json.dumps(record))
        unfinished.rename(self.directory / "cluster.json")

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


@contextmanager
def machine_lock() -> Iterator[None]:
    """Holds the lock of this machine while a directory is claimed or swept."""
    clusters_root().mkdir(parents=True, exist_ok=True)
    with (clusters_root() / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def existing() -> list[Workspace]:
    """Returns every cluster directory of this user, running or not."""
    found = []
    for directory in sorted(path for path in clusters_root().glob("*") if path.is_dir()):
        try:
            record = json.loads((directory / "cluster.json").read_text())
        except (OSError, ValueError):
            record = {"slot": 0, "kept": False}  # the owner died between creating the directory and writing the record
        found.append(Workspace(directory.name, directory, int(record["slot"]), bool(record["kept"])))
    return found


def sweep() -> list[str]:
    """Removes clusters whose owner died, and kept ones without a process (after a reboot). Call it under `machine_lock`. Returns their
    names."""
    swept: list[str] = []
    if os.environ.get(ISOLATED):
        return swept
    for workspace in existing():
        abandoned = not workspace.is_running() if workspace.kept else True
        if abandoned and not workspace.has_owner():
            workspace.remove()
            swept.append(workspace.name)
    return swept


def _ports(slot: int) -> range:
    first = _FIRST_PORT + slot * _PORTS_PER_CLUSTER
    return range(first, first + _PORTS_PER_CLUSTER)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _try_lock(directory: Path) -> int | None:
    lock = os.open(directory / ".owner", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock
