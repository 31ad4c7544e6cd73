"""Processes that are known by a pid file."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.processes import RecordedProcess
from testbed.waiting import wait_until

MARKER = "known-by-this"


@pytest.fixture
def process(tmp_path: Path) -> Iterator[RecordedProcess]:
    recorded = RecordedProcess(tmp_path / "program.pid", MARKER)
    yield recorded
    os.kill(pid := int(recorded.pid_file.read_text()), signal.SIGKILL)  # not by what is tested
    os.waitpid(pid, 0)


def test_a_process_that_replaces_its_program_is_never_taken_for_ended(process: RecordedProcess, tmp_path: Path) -> None:
    """As ``nsenter`` does. Between the two programs a process has no command line."""
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\nexec "$0" "$1"\n')
    program.chmod(0o755)
    process.start([str(program), MARKER], tmp_path / "log")
    started = process.pid()
    assert {process.pid() for _ in range(2_000)} == {started}


def test_an_ended_process_is_known_as_ended_before_its_exit_status_is_read(process: RecordedProcess, tmp_path: Path) -> None:
    process.start(["/bin/sh", "-c", "read line", MARKER], tmp_path / "log")  # its input is empty: it ends at once
    wait_until(lambda: process.pid() is None, "the process to end")
