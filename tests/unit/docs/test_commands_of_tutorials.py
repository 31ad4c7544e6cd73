"""The commands of the tutorials that need GPUs, a registry, the hub or a kubelet, and that no test runs: programs take them as written.

``tests/e2e/test_tutorials.py`` runs the others.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed import binaries
from testbed.images import operator_image
from testbed.operator_process import ROOT

PAGES = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
EXAMPLE = ROOT / "examples" / "clusters" / "one-b200-node"


def commands(program: str = "") -> list[list[str]]:
    """The words of every command in an ``sh`` block; with ``program`` those of it alone."""
    found = []
    for page in PAGES:
        for block in re.findall(r"^```sh\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            lines = block.replace("\\\n", " ").splitlines()
            found += [words for line in lines if (words := shlex.split(line.removesuffix(" &"), comments=True))]
    return [words for words in found if program in ("", words[0])]


def run(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(binaries.path_of(program)), *words]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "KUBECONFIG": "/dev/null"}, capture_output=True, text=True, check=False)


def installed() -> list[dict[str, Any]]:
    """The objects that the only ``helm install`` makes."""
    [words] = commands("helm")
    assert words[1] == "install"
    done = run("helm", "template", *words[2:], "--kube-version=1.35")
    assert done.returncode == 0, done.stderr
    return [item for item in yaml.safe_load_all(done.stdout) if item]


def operator() -> dict[str, Any]:
    [found] = [item for item in installed() if item["kind"] == "Deployment"]
    return found


def test_every_program_is_checked_here() -> None:
    """``make`` targets are checked with the other pages."""
    assert {words[0] for words in commands()} <= {"make", "docker", "helm", "kubectl", "git", "sed", "URL=http://127.0.0.1:30000"}


def mistake(words: list[str]) -> str:
    """What kubectl says to a verb or a flag that it does not have; empty if it has them."""
    done = run("kubectl", *words, "--help")
    verbs = words[2:] if words[0] == "-n" else words
    verbs = verbs[: 2 if verbs[0] == "rollout" else 1]
    if done.returncode == 0 and f"Usage:\n  kubectl {' '.join(verbs)} " not in done.stdout:
        return f"kubectl has no {' '.join(verbs)}"
    return done.stderr


def test_kubectl_knows_the_verbs_and_their_flags() -> None:
    found = [words[1:] for words in commands("kubectl") if words[1] != "dflash"]  # checked with the other pages
    assert len(found) >= 3
    assert {" ".join(words): said for words in found if (said := mistake(words))} == {}


@pytest.mark.parametrize("wrong", ["logs --selektor=a", "-n a logz -l a", "rollout state deployment/a"])
def test_a_mistake_is_seen(wrong: str) -> None:
    assert mistake(wrong.split())


def test_the_image_that_is_pushed_is_built_and_installed() -> None:
    [build] = [words for words in commands("make") if words[1] == "images"]
    [push] = commands("docker")
    [container] = operator()["spec"]["template"]["spec"]["containers"]
    assert build[2].startswith("REPOSITORY=")
    assert push[:2] == ["docker", "push"]
    assert push[2] == container["image"] == operator_image(build[2].removeprefix("REPOSITORY=")).tag


def test_the_operator_that_is_waited_for_is_installed_and_allows_what_the_example_needs() -> None:
    made = operator()
    [wait] = [words for words in commands("kubectl") if "rollout" in words]
    assert wait[1:] == ["-n", made["metadata"]["namespace"], "rollout", "status", f"deployment/{made['metadata']['name']}"]
    variables = {item["name"]: item.get("value") for item in made["spec"]["template"]["spec"]["containers"][0]["env"]}
    files = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(EXAMPLE.glob("qwen-*.yaml"))]
    assert {item["spec"]["storage"]["hostPath"]["path"] for item in files} == {variables["DFLASH_ALLOWED_HOST_PATHS"]}
    assert variables["DFLASH_PROMETHEUS_URL"] == "http://prometheus.monitoring:9090"


def test_the_repositories_that_are_asked_are_those_of_the_example() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in EXAMPLE.glob("qwen-*.yaml"))
    asked = commands("git")
    assert asked
    for words in asked:
        assert words[1] == "ls-remote"
        assert f"model: {Path(words[2]).parent.name}/{Path(words[2]).name}\n" in text


def test_sed_replaces_every_placeholder(tmp_path: Path) -> None:
    seen = set()
    for words in commands("sed"):
        source = ROOT / words[-1]
        copied = tmp_path / source.name
        copied.write_bytes(source.read_bytes())
        target, drafter = "a" * 40, "b" * 40
        script = words[2].replace("TARGET", target).replace("DRAFTER", drafter)
        subprocess.run([*words[:2], script, copied], check=True)
        before, after = (yaml.safe_load(path.read_text(encoding="utf-8"))["spec"] for path in (source, copied))
        assert (after["target"].pop("revision"), after["drafter"].pop("revision")) == (target, drafter)
        assert before["target"].pop("revision") == before["drafter"].pop("revision")
        assert after == before
        seen.add(source)
    assert seen == set(EXAMPLE.glob("qwen-*.yaml"))
