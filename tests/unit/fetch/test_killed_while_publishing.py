"""``dflash-fetch`` killed at every step that changes the storage, from the first byte to the end: renames, syncs, links, deletions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash_controller.fetch.selection import parse_manifest
from tests.support.fetching import ROOT
from tests.support.hub_server import COMMIT, HubServer, content

MODEL = "acme/target"
# Two files with one content are two links. The directory has a sync of its own.
FILES = {"a/weights.safetensors": content(200_000, 1), "config.json": b"{}", "weights.safetensors": content(200_000, 1)}
WANTED = [f"--model={MODEL}@{COMMIT}", "--parallel=1", "--termination-log=/dev/null"]
KILLED = -signal.SIGKILL


class Program:
    """The program, that can be told to kill itself."""

    def __init__(self, directory: Path, hub: HubServer) -> None:
        self.directory = directory
        self.hub = hub
        self._runs = 0
        env = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HTTP", "http"))}
        env |= {"PYTHONPATH": str(ROOT), "HF_ENDPOINT": hub.endpoint, "HF_HOME": str(directory / "home"), "no_proxy": "127.0.0.1"}
        env |= {"HF_HUB_DISABLE_XET": "1"}
        command = [sys.executable, "-m", "tests.support.killed_at"]
        self._process = subprocess.Popen(command, env=env, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, into: Path, when: str = "before", number: int = 0) -> tuple[int, list[str]]:
        """Returns the exit code and the steps that it began."""
        self._runs += 1
        log = self.directory / f"steps-{self._runs}"
        asked = {"when": when, "number": number, "log": str(log), "arguments": [f"--into={into}", *WANTED]}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        return code, log.read_text().splitlines() if log.exists() else []

    def storage(self, name: str) -> Path:
        made = self.directory / name / "storage"
        made.mkdir(parents=True)
        return made

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(120)


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    with HubServer({MODEL: FILES}) as hub:
        made = Program(tmp_path, hub)
        yield made
        made.close()


def seen(into: Path) -> dict[str, bytes] | None:
    """What an engine would load; None if the model is not there."""
    published = into / "models" / "acme--target" / COMMIT
    if not published.exists():
        return None
    return {str(path.relative_to(published)): path.read_bytes() for path in published.rglob("*") if path.is_file()}


def whole(into: Path) -> bool:
    found = seen(into) or {}
    manifest = parse_manifest(found.pop(".dflash.json", b"").decode())
    return found == FILES and manifest is not None and (manifest.model, manifest.commit) == (MODEL, COMMIT)


def complete(into: Path) -> set[bytes]:
    """The contents that are completely on the disk, in the staging directory or published."""
    parent = into / "models" / "acme--target"
    return {path.read_bytes() for path in parent.rglob("*") if path.is_file()} & set(FILES.values())


def test_killed_at_every_step_nothing_half_is_seen_and_nothing_complete_is_fetched_again(program: Program) -> None:
    code, steps = program.run(program.storage("reference"))
    assert code == 0
    kinds = [step.partition(" ")[0] for step in steps]
    assert {"mkdir", "fsync", "link", "replace", "write_text", "rename", "rmtree"} <= set(kinds), "each of them is killed at"
    published = kinds.index("rename") + 1
    for number in range(1, len(steps) + 1):
        for when in ("before", "after"):
            told = f"{when} step {number} of {len(steps)}: {steps[number - 1]}"
            into = program.storage(f"{when}-{number}")
            assert program.run(into, when, number)[0] == KILLED, told
            visible = number > published or (number == published and when == "after")
            assert (seen(into) is not None, whole(into)) == (visible, visible), told
            had = complete(into)
            program.hub.requests.clear()
            assert program.run(into)[0] == 0, told
            assert whole(into), told
            assert not had & {FILES[request.path] for request in program.hub.requests}, f"fetched twice after a kill {told}"
            left = [path.name for path in (into / "models" / "acme--target").iterdir() if path.name.endswith(".partial")]
            assert not left or visible, told


def test_killed_at_every_step_of_a_repair_the_next_run_completes_it(program: Program) -> None:
    """The files go into the published directory one by one, the manifest last. Sizes tell what is not there yet."""
    code, number, kills = KILLED, 0, 0
    while code == KILLED:
        number += 1
        into = program.storage(f"repair-{number}")
        assert program.run(into)[0] == 0
        for path in ("a/weights.safetensors", "weights.safetensors"):
            (into / "models" / "acme--target" / COMMIT / path).unlink()
        code, steps = program.run(into, "before", number)
        if code == KILLED:
            kills += 1
            had = complete(into)
            program.hub.requests.clear()
            assert program.run(into)[0] == 0, steps[-1]
            assert not had & {FILES[request.path] for request in program.hub.requests}, steps[-1]
        assert whole(into), steps[-1]
    assert code == 0
    assert kills > 5
