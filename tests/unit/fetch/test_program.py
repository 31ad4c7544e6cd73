"""The program as a process against a hub: what it puts where, and how each failure ends."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.fetching import PATIENCE_S, run, start
from tests.support.hub_server import COMMIT, HubServer, blob_id, content

TARGET, DRAFTER = "acme/target", "acme/drafter"
WANTED = (f"--model={TARGET}@{COMMIT}", f"--model={DRAFTER}@{COMMIT}")
INDEX = json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}).encode()
SHARDS = {"model-1.safetensors": content(3_000_000, 1), "model-2.safetensors": content(2_000_000, 2)}
SKIPPED = {"original/params.bin": b"again", "pytorch_model.bin": b"again", ".gitattributes": b"*"}
FILES = {"config.json": b"{}", "model.safetensors.index.json": INDEX, "code/empty.py": b"", **SHARDS}


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer({TARGET: FILES | SKIPPED, DRAFTER: {"config.json": b"{}", "model.safetensors": content(500_000, 3)}}) as server:
        yield server


def final(into: Path, model: str = TARGET) -> Path:
    return into / "models" / model.replace("/", "--") / COMMIT


def found(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def leftovers(into: Path) -> list[str]:
    return sorted(path.name for path in (into / "models").glob("*/.*") if ".lock" not in path.name and not path.name.endswith(".users"))


def wait_until(hub: HubServer, condition: Callable[[], bool]) -> None:
    """Waits for a condition that is looked at after each chunk the hub sends."""
    reached = threading.Event()
    hub.on_bytes = lambda: reached.set() if condition() else None
    assert reached.wait(60)
    hub.on_bytes = lambda: None


def test_both_models_are_put_below_the_directory_as_plain_files(hub: HubServer, into: Path) -> None:
    code, message, log = run(into, *WANTED, endpoint=hub.endpoint)
    assert code == 0, log
    files = found(final(into))
    assert files.pop(".dflash.json")
    assert files == FILES, "without what engines do not load"
    assert found(final(into, DRAFTER))["model.safetensors"] == content(500_000, 3)
    assert (message["reason"], message["bytes"]) == ("Fetched", sum(map(len, FILES.values())) + 500_002)
    assert leftovers(into) == []


def test_what_is_there_needs_no_request(hub: HubServer, into: Path) -> None:
    run(into, *WANTED, endpoint=hub.endpoint)
    hub.requests.clear()
    hub.listings = 0
    for environment in ({}, {"HF_HUB_OFFLINE": "1"}):
        code, message, _ = run(into, *WANTED, endpoint=hub.endpoint, **environment)
        assert (code, message["bytes"]) == (0, 0)
    assert (hub.listings, hub.requests) == (0, [])


def test_allow_and_ignore_patterns_choose_the_files(hub: HubServer, into: Path) -> None:
    code, _, log = run(into, WANTED[0], "--allow=*.json", "--allow=original/*", "--ignore=*.index.json", endpoint=hub.endpoint)
    assert code == 0, log
    assert set(found(final(into))) == {"config.json", "original/params.bin", ".dflash.json"}


def test_a_cut_connection_is_continued_where_it_ended(hub: HubServer, into: Path) -> None:
    hub.cut_after = 1_000_000
    code, message, log = run(into, WANTED[0], "--parallel=1", endpoint=hub.endpoint)
    assert code == 0, log
    assert found(final(into))["model-1.safetensors"] == SHARDS["model-1.safetensors"]
    begins = [request.begins for request in hub.requests if request.path == "model-1.safetensors"]
    assert begins == sorted(begins)
    assert len(begins) >= 3
    assert message["bytes"] == sum(map(len, FILES.values())), "no byte twice"


def test_a_server_that_ignores_ranges_is_read_from_the_start(hub: HubServer, into: Path) -> None:
    part = into / "models" / "acme--target" / f".{COMMIT}.partial" / "parts"
    part.mkdir(parents=True)
    digest = hashlib.sha256(SHARDS["model-1.safetensors"]).hexdigest()
    (part / digest).write_bytes(SHARDS["model-1.safetensors"][:1_000_000])
    hub.ignores_ranges = True
    code, _, log = run(into, WANTED[0], endpoint=hub.endpoint)
    assert code == 0, log
    assert found(final(into))["model-1.safetensors"] == SHARDS["model-1.safetensors"]


def test_a_damaged_part_is_fetched_again_and_a_good_one_continued(hub: HubServer, into: Path) -> None:
    parts = into / "models" / "acme--target" / f".{COMMIT}.partial" / "parts"
    parts.mkdir(parents=True)
    for path, damage in (("model-1.safetensors", b"\0\0"), ("model-2.safetensors", b"")):
        body = SHARDS[path]
        (parts / hashlib.sha256(body).hexdigest()).write_bytes(damage + body[len(damage) : 1_000_000])
    code, _, log = run(into, WANTED[0], endpoint=hub.endpoint)
    assert code == 0, log
    assert {path: found(final(into))[path] for path in SHARDS} == SHARDS
    begins: dict[str, list[int]] = {path: [request.begins for request in hub.requests if request.path == path] for path in SHARDS}
    assert begins == {"model-1.safetensors": [1_000_000, 0], "model-2.safetensors": [1_000_000]}


@pytest.mark.parametrize("path", ["model-1.safetensors", "config.json"])
def test_a_wrong_hash_ends_without_a_visible_model(hub: HubServer, into: Path, path: str) -> None:
    hub.corrupted = {path}
    code, message, _ = run(into, WANTED[0], endpoint=hub.endpoint)
    assert (code, message["reason"]) == (15, "HashMismatch")
    assert path in message["message"]
    assert "HF_ENDPOINT" in message["message"]
    assert not final(into).exists()
    hub.corrupted = set()
    assert run(into, WANTED[0], endpoint=hub.endpoint)[0] == 0


@pytest.mark.parametrize("given", [None, "wrong", "right"])
def test_the_token_is_read_from_its_file(hub: HubServer, into: Path, tmp_path: Path, given: str | None) -> None:
    hub.token = "right"
    environment = {}
    if given is not None:
        (tmp_path / "token").write_text(given + "\n")
        environment = {"HF_TOKEN_PATH": str(tmp_path / "token")}
    code, message, _ = run(into, *WANTED, endpoint=hub.endpoint, **environment)
    if given == "right":
        assert code == 0
        assert {request.token for request in hub.requests} == {"right"}
        return
    assert (code, message["reason"]) == (10, "Unauthorized")
    assert "spec.huggingFace.tokenSecretRef" in message["message"]


@pytest.mark.parametrize("token", [{}, {"HF_TOKEN": "of-somebody-else"}], ids=["no token", "token without access"])
def test_a_gated_model_names_its_page_and_the_secret(hub: HubServer, into: Path, token: dict[str, str]) -> None:
    hub.gated = {DRAFTER}
    code, message, _ = run(into, *WANTED, endpoint=hub.endpoint, **token)
    assert (code, message["reason"]) == (11, "GatedModel")
    assert f"{hub.endpoint}/{DRAFTER}" in message["message"]
    assert token or "spec.huggingFace.tokenSecretRef" in message["message"]
    assert not hub.requests, "no byte before it is known that all models can be had"


def test_a_model_or_commit_that_does_not_exist_is_named(hub: HubServer, into: Path) -> None:
    code, message, _ = run(into, f"--model=acme/none@{COMMIT}", endpoint=hub.endpoint, HF_TOKEN="t")
    assert (code, message["reason"]) == (12, "ModelNotFound")
    assert "acme/none" in message["message"]
    code, message, _ = run(into, f"--model={TARGET}@{'f' * 40}", endpoint=hub.endpoint)
    assert (code, message["reason"]) == (13, "RevisionNotFound")
    assert "f" * 40 in message["message"]


def test_without_a_token_a_model_that_does_not_exist_looks_private(hub: HubServer, into: Path) -> None:
    code, message, _ = run(into, f"--model=acme/none@{COMMIT}", endpoint=hub.endpoint)
    assert (code, message["reason"]) == (10, "Unauthorized")
    assert "does not exist" in message["message"]


def test_a_busy_hub_is_asked_again_and_one_that_stays_away_ends_it(hub: HubServer, into: Path) -> None:
    hub.failures = [503, 429]
    assert run(into, WANTED[1], endpoint=hub.endpoint)[0] == 0
    code, message, log = run(into, WANTED[0], "--retry-seconds=1", endpoint="http://127.0.0.1:9")
    assert (code, message["reason"]) == (16, "HubUnreachable")
    assert "Retries in" in log
    assert "HTTPS_PROXY" in message["message"]


def test_offline_says_what_is_missing_and_asks_nothing(hub: HubServer, into: Path) -> None:
    run(into, WANTED[0], endpoint=hub.endpoint)
    hub.listings = 0
    code, message, _ = run(into, *WANTED, endpoint=hub.endpoint, HF_HUB_OFFLINE="1")
    assert (code, message["reason"], hub.listings) == (17, "WeightsMissing", 0)
    assert DRAFTER in message["message"]
    assert TARGET not in message["message"]


def test_a_directory_that_somebody_copied_there_is_used_if_it_is_whole(hub: HubServer, into: Path) -> None:
    final(into).mkdir(parents=True)
    for path in ("config.json", "model.safetensors.index.json", "model-1.safetensors"):
        (final(into) / path).write_bytes(FILES[path])
    code, message, _ = run(into, WANTED[0], endpoint=hub.endpoint)
    assert (code, message["reason"]) == (18, "IncompleteModel")
    assert "model-2.safetensors" in message["message"]
    (final(into) / "model-2.safetensors").write_bytes(b"x")
    assert run(into, WANTED[0], endpoint=hub.endpoint)[0] == 0
    assert (hub.listings, hub.requests) == (0, [])


def test_a_published_file_that_was_lost_or_cut_is_fetched_again_alone(hub: HubServer, into: Path) -> None:
    run(into, WANTED[0], endpoint=hub.endpoint)
    hub.requests.clear()
    (final(into) / "config.json").unlink()
    os.truncate(final(into) / "model-2.safetensors", 10)
    assert run(into, WANTED[0], endpoint=hub.endpoint)[0] == 0
    assert sorted(request.path for request in hub.requests) == ["config.json", "model-2.safetensors"]
    assert found(final(into)) | FILES == found(final(into))


def test_files_in_the_cache_of_earlier_engines_are_not_fetched_again(hub: HubServer, into: Path) -> None:
    blobs = into / "huggingface" / "hub" / "models--acme--target" / "blobs"
    blobs.mkdir(parents=True)
    good, bad = SHARDS["model-1.safetensors"], SHARDS["model-2.safetensors"]
    (blobs / hashlib.sha256(good).hexdigest()).write_bytes(good)
    (blobs / hashlib.sha256(bad).hexdigest()).write_bytes(b"\0" * len(bad))
    assert run(into, WANTED[0], endpoint=hub.endpoint)[0] == 0
    fetched = {request.path for request in hub.requests}
    assert "model-1.safetensors" not in fetched
    assert "model-2.safetensors" in fetched
    assert {path: found(final(into))[path] for path in SHARDS} == SHARDS


def test_a_mirror_that_lists_no_sizes_is_asked_for_each_file(hub: HubServer, into: Path) -> None:
    hub.lists_sizes = False
    code, _, log = run(into, WANTED[0], endpoint=hub.endpoint)
    assert code == 0, log
    assert {path: found(final(into))[path] for path in SHARDS} == SHARDS


def test_a_path_that_leads_out_of_the_directory_is_refused(hub: HubServer, into: Path) -> None:
    hub.models[TARGET] = FILES | {"../../escaped": b"x"}
    code, message, _ = run(into, WANTED[0], endpoint=hub.endpoint)
    assert (code, message["reason"]) == (1, "UnexpectedError")
    assert "../../escaped" in message["message"]


def test_two_at_once_download_once(hub: HubServer, into: Path) -> None:
    hub.rate = 4_000_000
    both = [start(into, WANTED[0], endpoint=hub.endpoint) for _ in range(2)]
    logs = [process.communicate(timeout=PATIENCE_S)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], logs
    assert sorted(request.path for request in hub.requests) == sorted(path for path, body in FILES.items() if body)
    assert sum("Waits for" in log for log in logs) == 1


def test_sigterm_ends_it_soon_and_the_next_one_continues(hub: HubServer, into: Path) -> None:
    hub.rate = 500_000
    process = start(into, WANTED[0], endpoint=hub.endpoint)
    wait_until(hub, lambda: sum(request.sent for request in hub.requests) > 1_000_000)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 143
    assert not final(into).exists()
    hub.rate = None
    hub.requests.clear()
    assert run(into, WANTED[0], endpoint=hub.endpoint)[0] == 0
    assert any(request.begins > 0 for request in hub.requests)


def test_progress_is_served_and_logged(hub: HubServer, into: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    hub.rate = 1_000_000
    arguments = (WANTED[0], f"--listen={port}", "--progress-seconds=0.5", "--log-format=json", "--parallel=1")
    process = start(into, *arguments, endpoint=hub.endpoint)
    wait_until(hub, lambda: sum(request.sent for request in hub.requests) > 1_500_000)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/progress", timeout=10) as answer:
        reading = json.load(answer)
    _, log = process.communicate(timeout=PATIENCE_S)
    total = sum(map(len, FILES.values()))
    assert reading["total"] == total
    assert 0 < reading["done"] < total
    assert reading["left"] > 0
    lines = [json.loads(line) for line in log.splitlines()]
    assert any(line.get("phase") == f"Fetching {TARGET}" and 0 < line["done"] < total for line in lines)
    assert lines[-1]["reason"] == "Fetched"


def test_a_model_that_no_deployment_uses_any_more_is_deleted(hub: HubServer, into: Path) -> None:
    for user in ("a/chat", "b/chat"):
        assert run(into, *WANTED, f"--deployment={user}", endpoint=hub.endpoint)[0] == 0
    foreign = into / "models" / "acme--other" / COMMIT
    foreign.mkdir(parents=True)
    (foreign / "config.json").write_text("{}")
    (foreign / "model.safetensors").write_text("x")
    run(into, f"--model=acme/other@{COMMIT}", "--deployment=a/chat", endpoint=hub.endpoint)

    unused: tuple[str, ...] = ()

    def pruned(user: str, *keep: str) -> set[str]:
        code, _, log = run(into, "--prune", f"--deployment={user}", *keep, *unused, endpoint=hub.endpoint)
        assert code == 0, log
        return {path.parent.name for path in (into / "models").glob(f"*/{COMMIT}")}

    everything = {"acme--target", "acme--drafter", "acme--other"}
    assert pruned("a/chat") == everything, "used a moment ago"
    unused = ("--unused-hours=0",)
    assert pruned("c/none") == everything
    assert pruned("a/chat", f"--keep={TARGET}@{COMMIT}") == everything, "b/chat uses both"
    assert pruned("b/chat", f"--keep={TARGET}@{COMMIT}") == everything - {"acme--drafter"}
    assert pruned("b/chat") == {"acme--target", "acme--other"}, "a/chat keeps it"
    assert pruned("a/chat") == {"acme--other"}, "not made by the program"


def test_wrong_arguments_are_refused(into: Path) -> None:
    for arguments in ((f"--model={TARGET}@main",), ("--model=target",), (), ("--prune",), (f"--model=../x@{COMMIT}",)):
        code, _, log = run(into, *arguments, endpoint="http://127.0.0.1:9")
        assert code == 2, log
        assert log.startswith("usage:")


def test_a_listed_file_that_the_mirror_lacks_is_named(hub: HubServer, into: Path) -> None:
    hub.missing = {"model-2.safetensors"}
    code, message, _ = run(into, WANTED[0], endpoint=hub.endpoint)
    assert (code, message["reason"]) == (13, "RevisionNotFound")
    assert "mirror" in message["message"]


def test_small_files_are_checked_by_their_git_hash() -> None:
    assert blob_id(b"hello\n") == "ce013625030ba8dba906f756967f9e9ca394464a", "as git hash-object says"


def test_a_proxy_is_used(hub: HubServer, into: Path) -> None:
    """The hub's name resolves nowhere, so every request went through the proxy, which here is the hub itself."""
    code, _, log = run(into, WANTED[0], endpoint="http://hub.invalid", HTTP_PROXY=hub.endpoint, http_proxy=hub.endpoint)
    assert code == 0, log
    assert {path: found(final(into))[path] for path in SHARDS} == SHARDS
