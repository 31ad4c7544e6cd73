"""Whatever ends the command that runs isolated, nothing of it is left. Runs outside of the isolation."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from testbed.real_node import isolation
from testbed.waiting import wait_until

MARK = "dflash-isolation-test"
_SLEEP = f"[sys.executable, '-c', 'import time; time.sleep(600)', '{MARK}']"
DAEMON = f"import subprocess, sys, time; subprocess.Popen({_SLEEP}, start_new_session=True)"


def isolated(program: str) -> list[str]:
    return [sys.executable, "-m", "testbed.real_node", "run", "--", sys.executable, "-c", program]


def left() -> list[str]:
    """Command lines of processes with the mark."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().split(b"\0")
        except OSError:
            continue
        if MARK.encode() in command:
            found.append(b" ".join(command).decode())
    return found


def groups() -> list[Path]:
    return list(Path("/sys/fs/cgroup").glob("**/dflash-node-*"))


def test_a_daemon_ends_with_the_command_that_started_it() -> None:
    assert subprocess.run(isolated(f"{DAEMON}; sys.exit(7)"), check=False).returncode == 7, "the status is the command's"
    assert left() == []


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
def test_everything_ends_with_an_owner_that_is_killed(kill: signal.Signals) -> None:
    owner = subprocess.Popen(isolated(f"{DAEMON}; time.sleep(600)"))
    wait_until(left, "the daemon to run")
    owner.send_signal(kill)
    owner.wait()
    wait_until(lambda: not left(), "the daemon to end")


def test_the_control_groups_of_a_killed_run_go_with_the_next_run() -> None:
    owner = subprocess.Popen(isolated(f"{DAEMON}; time.sleep(600)"))
    wait_until(left, "the daemon to run")
    name = f"dflash-node-{owner.pid}"
    assert name in {group.name for group in groups()}
    owner.kill()
    owner.wait()
    wait_until(lambda: not left(), "the daemon to end")
    subprocess.run(isolated("pass"), check=True)
    assert name not in {group.name for group in groups()}


def test_its_addresses_mounts_and_rules_are_not_the_machines() -> None:
    program = "import subprocess; subprocess.run(['nft', 'add', 'table', 'ip', 'dflash_test'], check=True); open('/run/dflash-test', 'w')"
    subprocess.run(isolated(program), check=True)
    assert not Path("/run/dflash-test").exists()
    assert "dflash_test" not in subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=False).stdout
    assert isolation.NODE_ADDRESS not in subprocess.run(["ip", "addr"], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda patch: patch.setattr(os, "geteuid", lambda: 1000), "a real node needs root"),
        (lambda patch: patch.setitem(isolation._PROGRAMS, "no-such-program", "its-package"), "apt-get install its-package"),
        (lambda patch: patch.setitem(isolation._FEATURES, "flying", "echo 'no wings' >&2; exit 1"), "this kernel refuses flying: no wings"),
    ],
    ids=["not root", "a package is missing", "the kernel lacks a feature"],
)
def test_a_machine_that_cannot_run_a_node_is_refused_in_one_line(
    change: Callable[[pytest.MonkeyPatch], None], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(monkeypatch)
    with pytest.raises(isolation.IsolationError) as refused:
        isolation.check()
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


def test_this_machine_can_run_a_node() -> None:
    isolation.check()
