"""Background processes identified by a pid file and a marker, so that they are never mistaken for other processes.

After a crash or a reboot a pid alone proves nothing. Each process is therefore looked up together with a *marker*: text that its command
line must contain (the directory of its cluster). A pid whose command line lacks the marker is treated as gone.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


class ProcessError(RuntimeError):
    """A process did not start or did not end."""


@dataclass(frozen=True)
class RecordedProcess:
    """The process whose pid is in `pid_file` and whose command line contains `marker`."""

    pid_file: Path
    marker: str

    def pid(self) -> int | None:
        """Returns the pid, or None if the process is not running. A zombie has no command line and counts as not running."""
        try:
            pid = int(self.pid_file.read_text())
            command_line = _command_line(pid)
        except (OSError, ValueError):
            return None
        return pid if self.marker in command_line.replace(b"\0", b" ").decode(errors="replace") else None

    def adopt(self, pid: int) -> None:
        """Records a process that was started in another way. Raises ProcessError if another one already runs."""
        if self.pid() is not None:
            raise ProcessError(f"{self.pid_file.stem} is already running as pid {self.pid()}")
        self.pid_file.write_text(str(pid))

    def start(self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        """Starts `command` in its own session and appends its output to `log`. Raises ProcessError if it already runs."""
        if self.pid() is not None:
            raise ProcessError(f"{self.pid_file.stem} is already running as pid {self.pid()}")
        opened = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        pid = os.posix_spawn(
            command[0], list(command), dict(os.environ if environment is None else environment), file_actions=opened, setsid=True
        )
        self.pid_file.write_text(str(pid))

    def send(self, number: signal.Signals) -> None:
        """Sends a signal. Raises ProcessError if the process is not running."""
        pid = self.pid()
        if pid is None:
            raise ProcessError(f"{self.pid_file.stem} is not running")
        os.kill(pid, number)

    def stop(self, number: signal.Signals = signal.SIGTERM, timeout: float = 10.0) -> None:
        """Ends the process and waits until it is gone; after `timeout` seconds with SIGKILL. Does nothing if it is not running."""
        pid = self.pid()
        if pid is not None:
            with suppress(ProcessLookupError):  # It may be gone between two signals.
                os.kill(pid, number)
                if number is not signal.SIGKILL:
                    os.kill(pid, signal.SIGCONT)  # a paused process would never receive the signal
            self._wait_gone(pid, timeout)
        self.pid_file.unlink(missing_ok=True)

    def _wait_gone(self, pid: int, timeout: float) -> None:
        kill_at, give_up_at = time.monotonic() + timeout, time.monotonic() + timeout + 10
        killed = False
        while True:
            _reap(pid)
            if self.pid() is None:
                return
            now = time.monotonic()
            if now > give_up_at:
                raise ProcessError(f"{self.pid_file.stem} (pid {pid}) did not end")
            if now > kill_at and not killed:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                killed = True
            time.sleep(0.01)


def _command_line(pid: int) -> bytes:
    """Returns the command line of a process, empty for a zombie. Raises OSError if there is no such process.

    A process that replaces its program has an executable, but no command line until the new one is loaded: up to 0.3 s where the program
    must be read from a disk.
    """
    while True:
        found = Path(f"/proc/{pid}/cmdline").read_bytes()
        if found:
            return found
        try:
            os.readlink(f"/proc/{pid}/exe")  # a zombie has none
        except FileNotFoundError:
            return b""
        time.sleep(0.001)


def _reap(pid: int) -> bool:
    """Reads the exit status of an ended child of this process, so that it does not stay a zombie. Returns whether there was one."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return False
