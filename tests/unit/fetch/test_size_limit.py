"""A directory that may hold less than its file system has free: an emptyDir with a size limit."""

from __future__ import annotations

from pathlib import Path

from dflash_controller.fetch.storage import RESERVE, used_bytes
from dflash_controller.model.fetch_progress import LIMIT_VARIABLE
from tests.support.fetching import PATIENCE_S, run, start
from tests.support.hub_server import COMMIT, HubServer, content

FILES = {"config.json": b"{}", "model.safetensors": content(3_000_000, 1)}
WANTED = f"--model=acme/target@{COMMIT}"
NEEDED = 3_000_002 + RESERVE


def test_too_small_a_limit_is_told_before_the_first_byte(into: Path) -> None:
    with HubServer({"acme/target": FILES}) as hub:
        code, message, _ = run(into, WANTED, endpoint=hub.endpoint, **{LIMIT_VARIABLE: str(NEEDED - 1)})
        assert (code, message["reason"]) == (14, "NoSpace")
        assert "spec.storage.emptyDir.sizeLimit" in message["message"]
        assert hub.requests == []


def test_what_others_have_put_there_counts(into: Path) -> None:
    (into / "cache").mkdir()
    (into / "cache" / "kernels").write_bytes(bytes(1_000_000))
    (into / "cache" / "again").hardlink_to(into / "cache" / "kernels")
    used = used_bytes(into)
    assert 1_000_000 <= used < 1_100_000, "a file with two names is one"
    with HubServer({"acme/target": FILES}) as hub:
        assert run(into, WANTED, endpoint=hub.endpoint, **{LIMIT_VARIABLE: str(NEEDED + used - 1)})[0] == 14
        # The lock's own files take a few blocks.
        assert run(into, WANTED, endpoint=hub.endpoint, **{LIMIT_VARIABLE: str(NEEDED + used + 100_000)})[0] == 0
        assert run(into, WANTED, endpoint=hub.endpoint, **{LIMIT_VARIABLE: "1"})[0] == 0, "nothing is missing any more"


def test_a_limit_that_is_no_number_is_named(into: Path) -> None:
    process = start(into, WANTED, endpoint="http://127.0.0.1:9", **{LIMIT_VARIABLE: "10Gi"})
    _, log = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2
    assert f"{LIMIT_VARIABLE}: '10Gi' is not a number of bytes" in log
