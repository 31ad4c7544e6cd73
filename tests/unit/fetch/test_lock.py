"""Who may write a model: pods of one node by flock, nodes by a lease, whatever the file system can do."""

from __future__ import annotations

import errno
import json
import threading
import time
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


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def lock(tmp_path: Path, node: str = "n1", *, stale_s: float = 3600, flock: Callable[[int, int], None] | None = None, **more: Any) -> Lock:
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
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", "lock-lease.2"]


@pytest.mark.parametrize("flock", [None, no_flock, everybody], ids=["local", "none", "within a node"])
def test_an_owner_that_renews_is_never_taken_over(tmp_path: Path, flock: Callable[[int, int], None] | None) -> None:
    clock, owners = Clock(), []

    def pause(seconds: float) -> None:
        clock.now += 3599
        first.renew()

    with lock(tmp_path, "n1", flock=flock) as first:
        waiter = lock(tmp_path, "n2", flock=flock, clock=clock, pause=pause, stopped=lambda: clock.now > 20 * 3600, waiting=owners.append)
        assert not waiter.acquire()
        first.check()
        assert set(owners) == {first.owner}


def test_a_paused_owner_of_the_same_node_is_not_taken_over(tmp_path: Path) -> None:
    """Its process lives, so its flock does, however old its lease is."""
    clock = Clock()
    with lock(tmp_path, "n1"):
        waiter = lock(tmp_path, "n1", clock=clock, pause=lambda _: clock.advance(3600), stopped=lambda: clock.now > 10 * 3600)
        assert not waiter.acquire()


def test_a_killed_owner_of_the_same_node_is_followed_at_once(tmp_path: Path) -> None:
    first = lock(tmp_path)
    first.acquire()
    abandon(first)
    second = lock(tmp_path, wait=False)
    assert second.acquire()
    second.release()


@pytest.mark.parametrize("flock", [None, no_flock, everybody], ids=["local", "none", "within a node"])
def test_a_killed_owner_of_another_node_is_taken_over_after_its_time(tmp_path: Path, flock: Callable[[int, int], None] | None) -> None:
    first = lock(tmp_path, "n1", flock=flock)
    first.acquire()
    abandon(first)
    assert not lock(tmp_path, "n2", flock=flock, wait=False).acquire(), "not before"
    clock = Clock()
    second = lock(tmp_path, "n2", flock=flock, clock=clock, pause=clock.advance)
    assert second.acquire()
    assert clock.now >= 3600
    second.check()
    second.release()


def test_of_many_waiters_one_takes_over(tmp_path: Path) -> None:
    dead = lock(tmp_path, "n0", flock=no_flock)
    dead.acquire()
    abandon(dead)
    inside, most, guard = 0, 0, threading.Lock()

    def work(number: int) -> None:
        nonlocal inside, most
        clock = Clock()

        def pause(seconds: float) -> None:
            """Time passes while the dead owner holds it; the living ones are waited for. A taker is there before the dead lease goes."""
            held = {path.suffix for path in tmp_path.glob("lock-lease.*")}
            clock.advance(3600 if held == {".1"} else 0)
            time.sleep(0.001)

        with lock(tmp_path, f"n{number}", flock=no_flock, clock=clock, pause=pause) as held:
            with guard:
                inside += 1
                most = max(most, inside)
            held.check()
            held.renew()
            with guard:
                inside -= 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert most == 1


def test_a_taker_that_comes_late_gives_way(tmp_path: Path) -> None:
    """It found the lease of number 1 dead, and meanwhile two others had the lock."""
    for _ in range(3):
        with lock(tmp_path):
            pass
    late = lock(tmp_path)
    assert not late._claim(1)
    assert not late._claim(2)
    assert [path.name for path in tmp_path.glob("lock-lease.*")] == ["lock-lease.3"]


def test_an_owner_that_was_replaced_stops_writing(tmp_path: Path) -> None:
    first = lock(tmp_path, flock=no_flock)
    first.acquire()
    newer = tmp_path / "lock-lease.2"
    newer.write_text(json.dumps({"owner": "n2/1/x", "kernel": "n2", "beats": 0}))
    first.renew()
    with pytest.raises(FetchError, match="taken over") as raised:
        first.check()
    assert raised.value.exit_code == 20
    first.release()
    assert json.loads(newer.read_text())["owner"] == "n2/1/x", "the lease of the new owner stays"


def test_an_owner_that_cannot_renew_stops_before_it_is_taken_over(tmp_path: Path) -> None:
    clock = Clock()
    first = lock(tmp_path, flock=no_flock, clock=clock)
    first.acquire()
    clock.advance(1200)
    first.check()
    clock.advance(1)
    with pytest.raises(FetchError):
        first.check()
    first.renew()
    first.check()
    first.release()


def test_a_full_storage_leaves_no_half_written_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, text: str) -> None:
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space"):
        lock(tmp_path).acquire()
    assert {path.name for path in tmp_path.iterdir()} == {"lock"}
