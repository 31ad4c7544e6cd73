"""A bash that is typed into, as a reader of the documentation would."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Answer:
    """What a command printed."""

    command: str
    output: str
    errors: str


class Shell:
    """One bash that is typed into, with what it started in the background. Everything it has started ends with it."""

    def __init__(self, directory: Path, environment: dict[str, str], working: Path) -> None:
        self._directory = directory
        self._count = 0
        self._status, told = os.pipe()
        self._reported = told
        # With job control, as a person's shell: `kill %1` ends all that a command in the background has started.
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc", "-m"],
            stdin=subprocess.PIPE,
            pass_fds=(told,),
            env=environment,
            cwd=working,
            start_new_session=True,
        )

    def type(self, command: str, timeout_s: float) -> Answer:
        """Runs it to its end. Fails the test where its exit status is not 0."""
        self._count += 1
        output, errors = (self._directory / f"{self._count}.{kind}" for kind in ("out", "err"))
        assert self._bash.stdin is not None
        self._bash.stdin.write(f"{{ {command}\n}} >{output} 2>{errors}\necho $? >&{self._reported}\n".encode())
        self._bash.stdin.flush()
        ended, _, _ = select.select([self._status], [], [], timeout_s)
        answer = Answer(command, output.read_text(), errors.read_text())
        assert ended, f"{command}\ndid not end within {timeout_s:.0f} s\n{answer.output}\n{answer.errors}"
        status = os.read(self._status, 100).decode().strip()
        assert status == "0", f"{command}\nexit {status}\n{answer.output}\n{answer.errors}"
        return answer

    def close(self) -> None:
        for pid in self._session():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._bash.wait()
        for end in (self._status, self._reported):
            os.close(end)

    def _session(self) -> list[int]:
        """Returns the processes of its session: with job control, what it starts is in process groups of their own."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                if int(stat.read_text().rpartition(")")[2].split()[3]) == self._bash.pid:
                    found.append(int(stat.parent.name))
        return found
