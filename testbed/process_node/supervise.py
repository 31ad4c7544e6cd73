"""Process 1 of a container, without the container: starts a program, passes signals on, and leaves no process of it behind.

``python supervise.py MARK -- PROGRAM ARGUMENTS``. MARK is any text; it only tells whose process this is. The standard input is a pipe from
the node agent: each ``K`` kills everything (SIGKILL), and so does its end, because then the agent is gone. Exit status: the program's, or
128 plus the number of the signal that ended it, as container runtimes report it.

It uses nothing but the standard library, and starts in milliseconds with ``python -S -E``.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
START_ERROR = 128
"""Exit status if the program cannot be started, as containerd's StartError."""
KILLED = 128 + signal.SIGKILL


def main(arguments: Sequence[str]) -> int:
    command = list(arguments[arguments.index("--") + 1 :])
    # What the program leaves behind becomes a child of this process, so it can be found and ended.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write)
    pending: list[int] = []
    for expected in (*_PASSED_ON, signal.SIGCHLD):
        signal.signal(expected, lambda received, _: pending.append(received))
    try:
        program = _start(command)
    except OSError as error:
        print(f"cannot start {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        return START_ERROR
    watched = [0, wake_read]
    while True:
        while pending:
            number = pending.pop(0)
            if number != signal.SIGCHLD:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(program, number)
        code = _reap(program)
        if code is not None:
            _end_all()
            return code
        readable, _, _ = select.select(watched, (), ())
        if wake_read in readable:
            os.read(wake_read, 4096)
        if 0 in readable:
            if not os.read(0, 64):
                watched.remove(0)
            _end_all()


def _start(command: list[str]) -> int:
    """Returns the pid of the started program, which gets signals in their default state and no input. Raises OSError."""
    number = (*_PASSED_ON, signal.SIGCHLD)
    nothing = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
    return os.posix_spawnp(command[0], command, os.environ, file_actions=nothing, setsigdef=number)


def _reap(program: int) -> int | None:
    """Reaps every child that has ended. Returns the exit status of the program, None while it runs."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == 0:
            return code
        if pid == program:
            exit_code = os.waitstatus_to_exitcode(status)
            code = exit_code if exit_code >= 0 else 128 - exit_code


def _end_all() -> None:
    """Ends every descendant with SIGKILL. New ones may appear meanwhile, so it looks until there are none that run."""
    while living := _descendants(os.getpid()):
        for pid in living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        select.select((), (), (), 0.01)


def _descendants(root: int) -> list[int]:
    """Returns the descendants of a process that have not ended (a zombie has, and is reaped by its parent)."""
    children: dict[int, list[int]] = {}
    ended = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        children.setdefault(int(parent), []).append(int(entry.name))
        if state in "ZX":
            ended.add(int(entry.name))
    found, unseen = [], [root]
    while unseen:
        for child in children.get(unseen.pop(), ()):
            unseen.append(child)
            if child not in ended:
                found.append(child)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
