"""Who may write a model: pods of one node by flock, nodes by a lease, whatever the file system can do."""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dflash_controller.fetch.failures import FetchError
from dflash_controller.fetch.lock import Lock


def no_flock(descriptor: int, operation: int) -> None:
    """Behaves as NFS without a lock daemon."""
    raise OSError(errno.ENOLCK, "No locks available")


def everybody(descriptor: int, operation: int) -> None:
    """Behaves as a file system whose flock holds within a node only: of two nodes, both get it."""


def lock(tmp_path: Path, node: str = "n1", *, stale_s: float = 0.4, flock: Callable[[int, int], None] | None = None, **more: Any) -> Lock:
    if flock is not None:
        more["flock"] = flock
    return Lock(tmp_path / "lock", stale_s=stale_s, kernel=lambda: node, **more)


def abandon(held: Lock) -> None:
    """Leaves the lock as a killed process does: the kernel closes its files, the lease stays."""
    held._end.set()
    assert held._thread is not None
    held._thread.join()
    held._close()


@pytest.mark.parametrize("flock", [None, no_flock, everybody], ids=["local", "none", "within a node"])
def test_one_holds_it_at_a_time(tmp_path: Path, flock: Callable[[int, int], None] | None) -> None:
    first, second = lock(tmp_path, "n1", flock=flock), lock(tmp_path, "n2", flock=flock, wait=False)
    assert first.acquire()
    assert not second.acquire()
    first.check()
    first.release()
    assert second.acquire()
    second.release()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock"]


@pytest.mark.parametrize("flock", [None, no_flock, everybody], ids=["local", "none", "within a node"])
def test_an_owner_that_renews_is_never_taken_over(tmp_path: Path, flock: Callable[[int, int], None] | None) -> None:
    """The waiter stops after many times the time after which a silent owner is dead."""
    looks = 0
    owners: list[str] = []

    def stopped() -> bool:
        nonlocal looks
        looks += 1
        return looks > 20

    with lock(tmp_path, "n1", flock=flock) as first:
        waiter = lock(tmp_path, "n2", flock=flock, stopped=stopped, waiting=owners.append)
        assert not waiter.acquire()
        first.check()
        assert set(owners) == {first.owner}


def test_a_killed_owner_of_the_same_node_is_followed_at_once(tmp_path: Path) -> None:
    first = lock(tmp_path, stale_s=3600)
    first.acquire()
    abandon(first)
    second = lock(tmp_path, stale_s=3600, wait=False)
    assert second.acquire()
    second.release()


@pytest.mark.parametrize("flock", [None, no_flock, everybody], ids=["local", "none", "within a node"])
def test_a_killed_owner_of_another_node_is_taken_over_after_its_time(tmp_path: Path, flock: Callable[[int, int], None] | None) -> None:
    first = lock(tmp_path, "n1", flock=flock)
    first.acquire()
    abandon(first)
    assert not lock(tmp_path, "n2", flock=flock, wait=False).acquire(), "not before"
    second = lock(tmp_path, "n2", flock=flock)
    assert second.acquire()
    second.check()
    second.release()


def test_of_many_waiters_one_takes_over(tmp_path: Path) -> None:
    dead = lock(tmp_path, "n0", flock=no_flock)
    dead.acquire()
    abandon(dead)
    inside, most, guard = 0, 0, threading.Lock()

    def work(number: int) -> None:
        nonlocal inside, most
        with lock(tmp_path, f"n{number}", flock=no_flock) as held:
            with guard:
                inside += 1
                most = max(most, inside)
            held.check()
            with guard:
                inside -= 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert most == 1


def test_an_owner_that_was_replaced_stops_writing(tmp_path: Path) -> None:
    first = lock(tmp_path, flock=no_flock)
    first.acquire()
    first.lease.write_text(json.dumps({"owner": "n2/1/x", "kernel": "n2", "beats": 0}))
    assert first._thread is not None
    first._thread.join(10)
    with pytest.raises(FetchError, match="LockLost|taken over") as raised:
        first.check()
    assert raised.value.exit_code == 20
    first.release()
    assert json.loads(first.lease.read_text())["owner"] == "n2/1/x", "the lease of the new owner stays"


def test_an_owner_that_cannot_renew_stops_before_it_is_taken_over(tmp_path: Path) -> None:
    first = lock(tmp_path, flock=no_flock)
    first.acquire()
    first._renewed_at -= 0.4 / 3 + 3600
    first._end.set()
    with pytest.raises(FetchError):
        first.check()
    first.release()
