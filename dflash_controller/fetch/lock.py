"""Lets one process at a time write a model: ``flock`` between pods of one node, a lease between nodes.

``flock`` ends with its process, so a pod that was killed is followed at once. Whether it holds across nodes depends on the file system (NFS
without a lock daemon, Lustre), so the owner also renews a lease in the same directory. Another node takes it over when it has not changed
for ``stale_s`` of the waiter's own clock; clocks of two nodes are never compared. An owner that could not renew its lease for a third of
that time stops writing.

Leases are numbered and the highest number counts. It is never deleted, and a taker creates the next one by a hard link, which fails if the
name is taken, also on NFS. So of several takers one wins.
"""

from __future__ import annotations

import errno
import fcntl
import glob
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
    """A context manager that waits for the lock. ``path`` is the file for flock; the leases are beside it."""

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
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        """``wait`` False: ``acquire`` returns False if another holds it. ``waiting`` is called every second with the owner's name."""
        self.path = path
        self.owner = f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:8]}"
        self._stale_s = stale_s
        self._wait = wait
        self._waiting = waiting
        self._stopped = stopped
        self._kernel = kernel()
        self._flock = flock
        self._clock = clock
        self._pause = pause
        self._descriptor: int | None = None
        self._number = 0
        self._beats = 0
        self._renewed_at = 0.0
        self._lost = False
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if not self.acquire():
            raise FetchError(FetchReason.INTERRUPTED, "Stopped by a signal while another pod fetched; the next attempt continues")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()

    def acquire(self) -> bool:
        """Waits until the lock is ours. Returns False without it only where ``wait`` is False or the program is to stop."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        seen: tuple[tuple[int, str], float] = ((-1, ""), 0.0)
        while not self._stopped():
            local = self._try_flock()
            found = self._current()
            if found != seen[0]:
                seen = (found, self._clock())
            if (
                local is not False
                and self._is_free(*found, flocked=bool(local), unchanged_s=self._clock() - seen[1])
                and self._claim(found[0])
            ):
                self._thread = threading.Thread(target=self._renew_until_end, daemon=True, name="lease")
                self._thread.start()
                return True
            if not self._wait:
                break
            self._waiting(_owner(found[1]) or "another pod")
            self._pause(min(1.0, self._stale_s / 4))
        self._close()
        return False

    def check(self) -> None:
        """Raises FetchError if the lock may have been taken over. To be called before every write."""
        if self._lost or self._clock() - self._renewed_at > self._stale_s / 3:
            raise FetchError(
                FetchReason.LOCK_LOST,
                f"The lease of {self.path} could not be renewed in time, so another pod may have taken over the download. "
                "The storage hung or this pod was paused; the next attempt continues",
            )

    def release(self) -> None:
        self._end.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            with suppress(OSError):
                if self._current()[0] == self._number:
                    self._write(owner="").replace(self._lease(self._number))
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

    def _lease(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}-lease.{number}")

    def _numbers(self) -> list[int]:
        endings = (path.name.rpartition(".")[2] for path in self.path.parent.glob(f"{glob.escape(self.path.name)}-lease.*"))
        return sorted(int(ending) for ending in endings if ending.isdecimal())

    def _current(self) -> tuple[int, str]:
        """Returns the number and the content of the lease that counts; 0 if there never was one."""
        while numbers := self._numbers():
            with suppress(FileNotFoundError):  # It was deleted because a higher one is there.
                return numbers[-1], self._lease(numbers[-1]).read_text()
        return 0, ""

    def _is_free(self, number: int, lease: str, *, flocked: bool, unchanged_s: float) -> bool:
        """Returns whether nobody holds the lease: it was released, or its owner is dead.

        An owner on this kernel whose flock is gone is dead. Without flock, or on another node, only time tells.
        """
        if number == 0 or _owner(lease) == "":
            return True
        return (flocked and _field(lease, "kernel") == self._kernel) or unchanged_s >= self._stale_s

    def _claim(self, number: int) -> bool:
        """Creates the lease that follows ``number``. Returns False if another one was faster."""
        self._renewed_at, self._number = self._clock(), number + 1
        mine, lease = self._write(), self._lease(number + 1)
        try:
            os.link(mine, lease)
        except FileExistsError:
            return False
        finally:
            mine.unlink()
        numbers = self._numbers()
        if numbers[-1] != self._number:
            lease.unlink(missing_ok=True)
            return False
        for lower in numbers[:-1]:
            self._lease(lower).unlink(missing_ok=True)
        return True

    def _write(self, owner: str | None = None) -> Path:
        """Writes a lease to a file of its own. It gets its name when it is whole."""
        path = self.path.with_name(f"{self.path.name}-new-{self.owner.replace('/', '.')}")
        try:
            path.write_text(json.dumps({"owner": self.owner if owner is None else owner, "kernel": self._kernel, "beats": self._beats}))
        except OSError:
            path.unlink(missing_ok=True)  # A full storage: the next attempt has another name, so this file would stay.
            raise
        return path

    def _renew_until_end(self) -> None:
        while not self._end.wait(self._stale_s / 12) and not self._lost:
            self.renew()

    def renew(self) -> None:
        """Renews the lease, unless another owner has taken it over. Called by a thread as long as the lock is held."""
        begun = self._clock()
        try:
            if self._current()[0] != self._number:
                self._lost = True
                return
            self._beats += 1
            self._write().replace(self._lease(self._number))
            self._renewed_at = begun
        except OSError:
            return  # A hanging or full storage: ``check`` ends the work when it lasts.


def _owner(lease: str) -> str | None:
    return _field(lease, "owner")


def _field(lease: str, name: str) -> str | None:
    try:
        return str(json.loads(lease)[name])
    except (ValueError, KeyError, TypeError):
        return None
