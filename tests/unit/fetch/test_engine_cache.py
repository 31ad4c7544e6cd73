"""The directory that engines may write: made by the program for the namespace of the deployment, for an engine of any user."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dflash_controller.fetch.engine_cache import prepare
from dflash_controller.model.hub import ENGINE_CACHE
from dflash_controller.render.fetch import GROUP
from tests.support.fetching import run
from tests.support.hub_server import COMMIT, HubServer

WANTED = f"--model=acme/target@{COMMIT}"
FILES = {"config.json": b"{}", "model.safetensors": b"weights"}
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED here: other users and mounts, which need root")


@pytest.fixture(scope="module")
def hub() -> Iterator[HubServer]:
    with HubServer({"acme/target": FILES}) as server:
        yield server


@pytest.fixture
def umask() -> Iterator[Callable[[int], int]]:
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def quiet(message: str) -> None:
    raise AssertionError(message)


def as_user(user: int, directory: Path, program: str) -> subprocess.CompletedProcess[str]:
    """Runs a shell of another user in a directory, which it sees as a mount: not through the directories above."""
    command = ["/bin/sh", "-c", program]
    return subprocess.run(command, cwd=directory, user=user, group=user, extra_groups=[], capture_output=True, text=True, check=False)


def test_the_program_makes_it_for_the_namespace_of_the_deployment(hub: HubServer, into: Path) -> None:
    code, _, log = run(into, WANTED, "--deployment=team-a/chat", endpoint=hub.endpoint)
    assert code == 0, log
    assert [path.name for path in (into / ENGINE_CACHE).iterdir()] == ["team-a"]
    assert mode(into / ENGINE_CACHE / "team-a") == 0o1777
    assert run(into, WANTED, "--deployment=team-b/chat", endpoint=hub.endpoint)[0] == 0, "also where the weights are there"
    assert mode(into / ENGINE_CACHE / "team-b") == 0o1777


def test_nothing_is_made_without_a_deployment_or_for_what_is_no_namespace(hub: HubServer, into: Path) -> None:
    for user in ((), ("--deployment=../chat",), ("--deployment=chat",)):
        assert run(into, WANTED, *user, endpoint=hub.endpoint)[0] == 0
    assert [path.name for path in into.iterdir()] == ["models"]


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_no_umask_takes_a_right_away(into: Path, umask: Callable[[int], int], mask: int) -> None:
    umask(mask)
    prepare(into, "team-a/chat", quiet)
    assert mode(into / ENGINE_CACHE / "team-a") == 0o1777
    assert mode(into / ENGINE_CACHE) & 0o022 == 0, "no engine may replace the directory of another namespace"


def test_one_that_the_kubelet_has_made_gets_the_rights_and_keeps_its_group(into: Path) -> None:
    own = into / ENGINE_CACHE / "team-a"
    own.mkdir(parents=True)
    own.chmod(0o2750)
    prepare(into, "team-a/chat", quiet)
    assert mode(own) == 0o3777


@as_root
def test_on_a_claim_the_group_that_owns_it_makes_it_for_every_user(into: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the kubelet prepares a claim with fsGroup, and the container that fetches is not root."""
    os.chown(into, 0, GROUP)
    into.chmod(0o2775)
    monkeypatch.chdir(into)
    groups = os.getgroups()
    os.setgroups([GROUP])
    os.setegid(GROUP)
    os.seteuid(GROUP)
    try:
        prepare(Path(), "team-a/chat", quiet)
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)
    own = into / ENGINE_CACHE / "team-a"
    assert (own.stat().st_uid, own.stat().st_gid, mode(own)) == (GROUP, GROUP, 0o3777)
    assert mode(own.parent) & 0o055 == 0o055, "the kubelet may have to pass as another user"
    assert as_user(1000, own, "echo x > kernel").returncode == 0


@as_root
def test_engines_of_two_users_can_write_and_neither_replaces_what_the_other_has_written(into: Path) -> None:
    prepare(into, "team-a/chat", quiet)
    own = into / ENGINE_CACHE / "team-a"
    assert as_user(65532, own, "echo mine > kernel").returncode == 0
    other = as_user(1000, own, "echo other > own && mv -f own kernel")
    assert "Operation not permitted" in other.stderr
    assert (own / "kernel").read_text() == "mine\n"


@as_root
def test_other_programs_of_a_node_do_not_reach_what_root_has_made_there(into: Path) -> None:
    prepare(into, "team-a/chat", quiet)
    assert "Permission denied" in as_user(1000, into, f"echo x > {ENGINE_CACHE}/team-a/kernel").stderr


@pytest.mark.parametrize("planted", [ENGINE_CACHE, f"{ENGINE_CACHE}/team-a"])
def test_a_symbolic_link_in_its_place_is_not_followed(into: Path, planted: str) -> None:
    """An engine of an earlier release can write to the whole storage."""
    victim = into / "models"
    victim.mkdir(mode=0o755)
    (into / planted).parent.mkdir(exist_ok=True)
    (into / planted).symlink_to(victim)
    said: list[str] = []
    prepare(into, "team-a/chat", said.append)
    assert (mode(victim), list(victim.iterdir())) == (0o755, [])
    assert len(said) == 1
    assert "mode 1777" in said[0]


@as_root
def test_storage_that_cannot_be_written_but_holds_the_weights_ends_well(hub: HubServer, into: Path) -> None:
    assert run(into, WANTED, endpoint=hub.endpoint)[0] == 0
    mounted = subprocess.run(["mount", "--bind", "-o", "ro", str(into), str(into)], capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"NOT TESTED here: read-only storage, because nothing can be mounted: {mounted.stderr.strip()}")
    try:
        code, message, log = run(into, WANTED, "--deployment=team-a/chat", endpoint=hub.endpoint)
    finally:
        subprocess.run(["umount", "-l", str(into)], capture_output=True, check=False)
    assert (code, message["reason"]) == (0, "Fetched"), log
    assert f"{into / ENGINE_CACHE / 'team-a'} could not be made writable for every user (Read-only file system)" in log
