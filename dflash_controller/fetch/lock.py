"""Lets one process at a time write a model: ``flock`` between pods of one node, a lease between nodes.

``flock`` ends with its process, so a pod that was killed is followed at once. Whether it holds across nodes depends on the file system (NFS
without a lock daemon, Lustre), so the owner also renews a lease in the same directory. Another node takes it over when it has not changed
for ``stale_s`` of the waiter's own clock; clocks of two nodes are never compared. An owner that could not renew its lease for a third of
that time stops writing.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from dflash_controller.fetch.failures import FetchError
from dflash_controller.model.fetch_report import FetchReason

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Identifies the running kernel. Containers of one node see the same value."""
UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


def kernel() -> str:
    """Returns an identity of the running kernel; one of this process alone where the system tells none."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return uuid.uuid4().hex


class Lock:
    """A context manager that waits for the lock. ``path`` is the file for flock; the lease is beside it."""

    def __init__(
        self,
        path: Path,
        *,
        stale_s: float = 60.0,
        wait: bool = True,
        waiting: Callable[[str], None] = lambda owner: None,
        stopped: Callable[[], bool] = lambda: False,
        kernel: Callable[[], str] = kernel,
        flock: Callable[[int, int], None] = fcntl.flock,
    ) -> None:
        """``wait`` False: ``acquire`` returns False if another holds it. ``waiting`` is called every second with the owner's name."""
        self.path = path
        self.lease = path.with_name(path.name + "-lease")
        self.owner = f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:8]}"
        self._stale_s = stale_s
        self._wait = wait
        self._waiting = waiting
        self._stopped = stopped
        self._kernel = kernel()
        self._flock = flock
        self._descriptor: int | None = None
        self._beats = 0
        self._renewed_at = 0.0
        self._lost = False
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()

    def acquire(self) -> bool:
        """Waits until the lock is ours. Returns False without it only where ``wait`` is False or the program is to stop."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        seen: tuple[str | None, float] = (None, time.monotonic())
        while not self._stopped():
            local = self._try_flock()
            found = self._read()
            if found != seen[0]:
                seen = (found, time.monotonic())
            if local is not False:
                # The owner ran on this kernel and its flock is gone: it is dead. Without flock only time tells.
                dead = found is not None and ((local and self._is_ours(found)) or time.monotonic() - seen[1] >= self._stale_s)
                if (found is None or (dead and self._take(found))) and self._create():
                    self._thread = threading.Thread(target=self._renew_until_end, daemon=True, name="lease")
                    self._thread.start()
                    return True
            if not self._wait:
                break
            self._waiting(_owner(found))
            self._end.wait(min(1.0, self._stale_s / 4))
        self._close()
        return False

    def check(self) -> None:
        """Raises FetchError if the lock may have been taken over. To be called before every write."""
        if self._lost or time.monotonic() - self._renewed_at > self._stale_s / 3:
            raise FetchError(
                FetchReason.LOCK_LOST,
                f"The lease {self.lease} could not be renewed in time, so another pod may have taken over the download. "
                "The storage hung or this pod was paused; the next attempt continues",
            )

    def release(self) -> None:
        self._end.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            with suppress(OSError):
                if _owner(self._read()) == self.owner:
                    self.lease.unlink()
        self._close()

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _try_flock(self) -> bool | None:
        """Returns whether we hold the flock; None where the file system has none."""
        assert self._descriptor is not None
        try:
            self._flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno in UNSUPPORTED:
                return None
            raise
        return True

    def _read(self) -> str | None:
        try:
            return self.lease.read_text()
        except FileNotFoundError:
            return None

    def _is_ours(self, lease: str) -> bool:
        try:
            return bool(json.loads(lease)["kernel"] == self._kernel)
        except (ValueError, KeyError, TypeError):
            return False

    def _content(self) -> str:
        return json.dumps({"owner": self.owner, "kernel": self._kernel, "beats": self._beats})

    def _write(self) -> Path:
        path = self.lease.with_name(f"{self.lease.name}.{self.owner.replace('/', '.')}")
        path.write_text(self._content())
        return path

    def _create(self) -> bool:
        """Creates the lease. A hard link fails if the name is taken, also on NFS, and the lease is never seen empty."""
        self._renewed_at = time.monotonic()
        mine = self._write()
        try:
            os.link(mine, self.lease)
        except FileExistsError:
            return False
        finally:
            mine.unlink()
        return True

    def _take(self, stale: str) -> bool:
        """Removes the lease that we found stale. One renewed or taken over meanwhile is put back."""
        taken = self.lease.with_name(f"{self.lease.name}.stale.{self.owner.replace('/', '.')}")
        try:
            self.lease.rename(taken)
        except FileNotFoundError:
            return True
        try:
            if taken.read_text() == stale:
                return True
            with suppress(FileExistsError):
                os.link(taken, self.lease)
            return False
        finally:
            taken.unlink()

    def _renew_until_end(self) -> None:
        while not self._end.wait(self._stale_s / 12):
            begun = time.monotonic()
            try:
                if _owner(self._read()) != self.owner:
                    self._lost = True
                    return
                self._beats += 1
                self._write().replace(self.lease)
                self._renewed_at = begun
            except OSError:
                continue  # A hanging or full storage: ``check`` ends the work when it lasts.


def _owner(lease: str | None) -> str:
    try:
        return str(json.loads(lease or "")["owner"])
    except (ValueError, KeyError, TypeError):
        return "another pod"
