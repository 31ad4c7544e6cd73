"""One container as a process of this machine: start, signals, end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from pathlib import Path

from testbed.process_node.pod_status import termination_message
from testbed.process_node.programs import Program

_SUPERVISOR = Path(__file__).with_name("supervise.py")


class ContainerProcess:
    """A started container. Its supervisor ends whatever it leaves behind."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self.log = log
        self.pid = process.pid

    @classmethod
    async def start(cls, program: Program, log: Path, mark: str) -> ContainerProcess:
        """Starts a program; its output goes into ``log``. ``mark`` is shown in the supervisor's command line."""
        command = (sys.executable, "-S", "-E", str(_SUPERVISOR), mark, "--", *program.command)
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                cwd=program.directory,
                env=dict(program.env),
                start_new_session=True,
            )
        return cls(process, log)

    async def wait(self) -> int:
        """Returns the exit code once no process of the container is left: the program's, or 128 plus a signal."""
        return await self._process.wait()

    def terminate(self) -> None:
        """Sends SIGTERM to the program."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends every process of the container with SIGKILL."""
        if self._process.stdin is not None and self._process.returncode is None:
            with contextlib.suppress(ConnectionError):
                self._process.stdin.write(b"K")

    def last_words(self) -> str:
        """Returns the end of its log, as a termination message."""
        return termination_message(self.log.read_bytes()[-65536:])
