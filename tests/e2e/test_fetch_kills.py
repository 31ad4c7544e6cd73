"""``dflash-fetch`` killed at random moments: never a part of a model is visible, it always finishes, and nothing is fetched twice."""

from __future__ import annotations

import hashlib
import random
import signal
import threading
from pathlib import Path

import pytest

from tests.support.fetching import run, start
from tests.support.hub_server import COMMIT, HubServer, content

pytestmark = pytest.mark.long

MODEL = "acme/target"
MB = 1_000_000
FILES = {"config.json": b"{}", "tokenizer.json": content(2 * MB, 9)} | {f"model-{n}.safetensors": content(75 * MB, n) for n in range(4)}
KILLS = 20
RATE = 60 * MB
"""Bytes per second of the whole server: throttled, so that the kills are spread over the download."""


def on_disk(into: Path) -> dict[str, int]:
    """Returns how much of each content is there: whole files by path, parts by hash."""
    partial = into / "models" / "acme--target" / f".{COMMIT}.partial"
    return {path.name: path.stat().st_size for path in partial.rglob("*") if path.is_file()}


@pytest.mark.parametrize("seed", [1, 2])
def test_killed_twenty_times_it_finishes_and_fetches_nothing_twice(tmp_path: Path, seed: int) -> None:
    choice = random.Random(seed)
    into = tmp_path / "storage"
    into.mkdir()
    published = into / "models" / "acme--target" / COMMIT
    total = sum(map(len, FILES.values()))
    arguments = (f"--model={MODEL}@{COMMIT}", "--deployment=a/chat")
    with HubServer({MODEL: FILES}, rate=RATE / 4) as hub:
        names = {hub_digest(path): path for path in FILES}
        for kill in range(KILLS):
            before = on_disk(into)
            hub.requests.clear()
            process = start(into, *arguments, endpoint=hub.endpoint)
            moment = threading.Event()
            # Most kills while bytes arrive; some before the first byte, so that starts are hit as well.
            after = 0 if kill % 5 == 4 else choice.randrange(total // KILLS)
            hub.on_bytes = lambda after=after, moment=moment: (  # type: ignore[misc]
                moment.set() if sum(request.sent for request in hub.requests) > after else None
            )
            if kill % 5 == 4:
                moment.wait(choice.random())
            else:
                assert moment.wait(60), process.stderr and process.stderr.read()
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=30)
            hub.on_bytes = lambda: None
            assert_whole_if_visible(published)
            assert_continued(hub, before, names)
        before = on_disk(into)
        hub.requests.clear()
        hub.rate = None
        code, message, log = run(into, *arguments, endpoint=hub.endpoint)
        assert code == 0, log
        assert_continued(hub, before, names)
        assert message["bytes"] == total - sum(before.values())
    assert published.exists()
    assert_whole_if_visible(published)


def assert_whole_if_visible(published: Path) -> None:
    if published.exists():
        found = {str(path.relative_to(published)): path.read_bytes() for path in published.rglob("*") if path.name != ".dflash.json"}
        assert found == FILES


def assert_continued(hub: HubServer, before: dict[str, int], names: dict[str, str]) -> None:
    """Every request begins where the part on disk ended, and whole files are not asked for."""
    parts = {names[name]: size for name, size in before.items() if name in names}
    whole = {name for name in before if name not in names}
    for request in hub.requests:
        assert request.path not in whole
        assert request.begins == parts.get(request.path, 0)


def hub_digest(path: str) -> str:
    """Returns the name of a file's part on disk: its hash."""
    body = FILES[path]
    return hashlib.sha256(body).hexdigest() if len(body) >= 100_000 else hashlib.sha1(f"blob {len(body)}\0".encode() + body).hexdigest()


def test_two_pods_one_of_them_killed_download_once(tmp_path: Path) -> None:
    """The second waits, takes over as soon as the first is killed, and continues what it has left."""
    into = tmp_path / "storage"
    into.mkdir()
    total = sum(map(len, FILES.values()))
    with HubServer({MODEL: FILES}, rate=RATE / 4) as hub:
        processes = [start(into, f"--model={MODEL}@{COMMIT}", endpoint=hub.endpoint) for _ in range(2)]
        moment = threading.Event()
        hub.on_bytes = lambda: moment.set() if sum(request.sent for request in hub.requests) > total // 2 else None
        assert moment.wait(60)
        hub.on_bytes = lambda: None
        owner = next(path for path in into.glob("models/*/.*lease.*")).read_text()
        first = next(process for process in processes if f"/{process.pid}/" in owner)
        [second] = [process for process in processes if process is not first]
        first.kill()
        first.communicate(timeout=30)
        had = on_disk(into)
        requests = len(hub.requests)
        hub.rate = None
        _, log = second.communicate(timeout=120)
        assert second.returncode == 0, log
        assert "Waits for" in log
        names = {hub_digest(path): path for path in FILES}
        hub.requests = hub.requests[requests:]
        assert_continued(hub, had, names)
