"""Storage that is too small, fills up, or is read-only: real file systems of a few MB. Needs the right to mount."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.fetching import PATIENCE_S, run, start
from tests.support.hub_server import COMMIT, HubServer, content

WANTED = f"--model=acme/target@{COMMIT}"
FILES = {"config.json": b"{}", "model-1.safetensors": content(50_000_000, 1), "model-2.safetensors": content(50_000_000, 2)}
MB = 1024 * 1024


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a tmpfs with the given options."""
    into = tmp_path / "storage"
    into.mkdir()

    def mount(options: str) -> Path:
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(into)], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(
                f"NOT TESTED here: what a full or read-only disk does, because no file system can be mounted: {done.stderr.strip()}"
            )
        return into

    yield mount
    subprocess.run(["umount", "-l", str(into)], capture_output=True, check=False)


@pytest.fixture(scope="module")
def hub() -> Iterator[HubServer]:
    with HubServer({"acme/target": FILES}) as server:
        yield server


@pytest.fixture(autouse=True)
def _forget(hub: HubServer) -> None:
    hub.requests.clear()
    hub.on_bytes = lambda: None
    hub.rate = None


def test_too_little_space_is_told_before_the_first_byte(hub: HubServer, mounted: Callable[[str], Path]) -> None:
    into = mounted(f"size={150 * MB}")
    code, message, _ = run(into, WANTED, endpoint=hub.endpoint)
    assert (code, message["reason"]) == (14, "NoSpace")
    assert "need 100000002 bytes (100.0 MB) more" in message["message"]
    found = os.statvfs(into)
    assert f"has {found.f_bavail * found.f_frsize} bytes" in message["message"]
    assert hub.requests == []


def test_what_is_on_the_disk_is_not_counted_again(hub: HubServer, mounted: Callable[[str], Path]) -> None:
    """The disk holds the model and the reserve once; counting the file that is there again would ask for more."""
    into = mounted(f"size={165 * MB}")
    parts = into / "models" / "acme--target" / f".{COMMIT}.partial" / "files"
    parts.mkdir(parents=True)
    (parts / "model-1.safetensors").write_bytes(FILES["model-1.safetensors"])
    code, _, log = run(into, WANTED, endpoint=hub.endpoint)
    assert code == 0, log
    assert "model-1.safetensors" not in {request.path for request in hub.requests}


def test_a_disk_that_fills_up_meanwhile_ends_it_and_the_next_one_continues(hub: HubServer, mounted: Callable[[str], Path]) -> None:
    into = mounted(f"size={200 * MB}")
    hub.rate = 20_000_000
    process = start(into, WANTED, "--parallel=1", endpoint=hub.endpoint)
    ballast = into / "of-somebody-else"
    filled: list[int] = []

    def fill() -> None:
        if not filled and sum(request.sent for request in hub.requests) > 5_000_000:
            filled.append(ballast.write_bytes(bytes(150 * MB)))

    hub.on_bytes = fill
    _, log = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 14, log
    assert "something else fills it" in log
    assert not list(into.glob(f"models/*/{COMMIT}"))
    ballast.unlink()
    hub.rate = None
    hub.requests.clear()
    assert run(into, WANTED, endpoint=hub.endpoint)[0] == 0
    assert any(request.begins > 0 for request in hub.requests)


def test_a_read_only_file_system_is_named(hub: HubServer, mounted: Callable[[str], Path]) -> None:
    code, message, _ = run(mounted("ro"), WANTED, endpoint=hub.endpoint)
    assert (code, message["reason"]) == (19, "StorageNotWritable")
    assert "Mount it writable" in message["message"]
