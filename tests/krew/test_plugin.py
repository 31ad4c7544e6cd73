"""The plugin that ``make krew`` has built, as a user meets it: installed by krew from archive and manifest, without our Python."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from dflash_controller.cli import failures
from dflash_controller.cli.program import run
from hack import krew
from testbed import binaries
from tests.unit.cli.test_replay import entry

ROOT = Path(__file__).parents[2]
EXAMPLE = str(ROOT / "examples" / "dflash.yaml")
MANIFEST = ROOT / "dist" / f"{krew.PLUGIN}.yaml"
ARCHIVE = ROOT / "dist" / krew.archive_name()
Kubectl = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a user: krew has installed the plugin, and there is no Python of this project."""
    place = tmp_path_factory.mktemp("krew")
    programs = place / "programs"
    programs.mkdir()
    (programs / "kubectl").symlink_to(binaries.path_of("kubectl"))
    env = {"HOME": str(place), "KREW_ROOT": str(place / "krew"), "KREW_NO_UPGRADE_CHECK": "1"}
    env["PATH"] = f"{place / 'krew' / 'bin'}:{programs}:/usr/bin:/bin"
    command = [str(binaries.path_of("krew")), "install", f"--manifest={MANIFEST}", f"--archive={ARCHIVE}"]
    done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return env


@pytest.fixture
def kubectl(environment: dict[str, str], tmp_path: Path) -> Kubectl:
    """Runs ``kubectl dflash`` in a directory that is empty."""

    def call(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command = ["kubectl", "dflash", *arguments]
        # subprocess looks for the program in the PATH of this process.
        return subprocess.run(
            ["/usr/bin/env", *command], env=environment | variables, cwd=tmp_path, capture_output=True, text=True, check=False
        )

    return call


def test_the_manifest_is_that_of_the_archive() -> None:
    [platform] = yaml.safe_load(MANIFEST.read_text())["spec"]["platforms"]
    assert platform["sha256"] == krew.Archive.of(ARCHIVE).sha256
    with tarfile.open(ARCHIVE) as archive:
        entries = archive.getmembers()
    assert all(item.isfile() or item.isdir() for item in entries), "krew unpacks nothing else"
    assert {"LICENSE", krew.PROGRAM} <= {item.name for item in entries}


def test_it_says_the_same_as_the_package(kubectl: Kubectl, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["validate", EXAMPLE], ["render", EXAMPLE, "-o", "yaml"], ["render", EXAMPLE, "--argv"], ["catalog", "-o", "json"]):
        assert run(arguments) == failures.OK
        done = kubectl(*arguments)
        assert (done.returncode, done.stdout) == (failures.OK, capsys.readouterr().out), done.stderr
    help_ = kubectl("--help").stdout
    assert "Usage: kubectl dflash [OPTIONS] COMMAND" in help_
    invalid = str(ROOT / "tests" / "api" / "invalid" / "engine-unknown.yaml")
    assert kubectl("validate", invalid).returncode == failures.NEGATIVE


def test_it_draws(kubectl: Kubectl, tmp_path: Path) -> None:
    (tmp_path / "operator.log").write_text(json.dumps(entry()), encoding="utf-8")
    done = kubectl("explain", "operator.log", "--plot", "qwen.png")
    assert done.returncode == failures.OK, done.stderr
    assert (tmp_path / "qwen.png").read_bytes().startswith(b"\x89PNG")


def test_programs_for_credentials_have_the_environment_of_the_user(kubectl: Kubectl, tmp_path: Path) -> None:
    program = tmp_path / "credentials"
    program.write_text(f"#!/bin/sh\nenv >{tmp_path / 'seen'}\nexit 1\n")
    program.chmod(0o755)
    execute = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(program), "interactiveMode": "Never"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "one",
        "contexts": [{"name": "one", "context": {"cluster": "one", "user": "one"}}],
        "clusters": [{"name": "one", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "one", "user": {"exec": execute}}],
    }
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps(config))
    for library in ("", "/opt/own"):
        done = kubectl("status", KUBECONFIG=str(file), **({"LD_LIBRARY_PATH": library} if library else {}))
        assert (done.returncode, "Traceback" in done.stderr) == (failures.CLUSTER, False), done.stderr
        seen = dict(line.split("=", 1) for line in (tmp_path / "seen").read_text().splitlines() if "=" in line)
        assert seen.get("LD_LIBRARY_PATH", "") == library
        assert os.path.isfile(seen["SSL_CERT_FILE"])
