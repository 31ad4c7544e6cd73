"""The supervisor of a container: exit codes, signals, and nothing left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from testbed.process_node import supervise
from testbed.waiting import wait_until

SUPERVISOR = Path(supervise.__file__)
HOLDS_ON = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"


@contextmanager
def supervised(*program: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-S", "-E", str(SUPERVISOR), "mark", "--", *program]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", code)


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("code", [0, 3])
def test_its_exit_code_is_the_programs(code: int) -> None:
    with supervised(*python(f"raise SystemExit({code})")) as process:
        assert process.wait(120) == code


def test_a_program_ended_by_a_signal_counts_128_plus_its_number() -> None:
    with supervised(*python("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")) as process:
        assert process.wait(120) == 137


def test_sigterm_reaches_the_program() -> None:
    waits = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(5)); print('up', flush=True); signal.pause()"
    with supervised(*python(waits)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 5


def test_a_program_that_ignores_sigterm_is_killed_on_demand() -> None:
    with supervised(*python(HOLDS_ON)) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        process.stdin.write("K")
        process.stdin.flush()
        assert process.wait(120) == 137


def test_a_program_that_cannot_be_started_ends_with_128_and_says_why() -> None:
    with supervised("/nowhere/engine") as process:
        output, _ = process.communicate(timeout=120)
        assert process.returncode == supervise.START_ERROR
    assert output == "cannot start /nowhere/engine: No such file or directory\n"


LEAVES_ONE = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-S", "-c", {HOLDS_ON!r}], start_new_session=True, stdout=subprocess.PIPE, text=True)
child.stdout.readline()
print(child.pid, flush=True)
"""


def test_what_a_program_leaves_behind_in_a_session_of_its_own_ends_with_it() -> None:
    with supervised(*python(LEAVES_ONE)) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert process.wait(120) == 0
        assert not alive(child)


def test_everything_ends_when_the_node_agent_is_gone() -> None:
    with supervised(*python(LEAVES_ONE + "import time; time.sleep(60)")) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        child = int(process.stdout.readline())
        process.stdin.close()
        assert process.wait(120) == 137
        wait_until(lambda: not alive(child), "the child to end")
