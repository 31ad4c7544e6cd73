"""The commands of the tutorials, typed one after the other into one shell of a playground, print what the pages say.

Every ``console`` block is run: a line that begins with ``$`` is a command, the lines below it are its output. Ages, hashes, addresses and
numbers that differ from run to run are compared by kind. ``DFLASH_UPDATE_TUTORIALS=1`` writes what was printed into the pages.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.demo_setup import World, world
from testbed.operator_process import ROOT
from testbed.playground import environment
from testbed.waiting import wait_until
from tests.e2e.conftest import Say
from tests.support.shell import Shell

PAGES = ("first-steps", "upgrade-a-drafter", "a-bad-drafter", "tuning", "gpu-cluster", "large-models")
"""In the order in which a reader follows them. The last two need nothing of the others."""
UPDATE = bool(os.environ.get("DFLASH_UPDATE_TUTORIALS"))
PATIENCE_S = 900.0
LOOKS = re.compile(r"^(kubectl (get|dflash (status|rollout history))|curl) ")
"""Commands that only look: what they print may take a moment to come true."""
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Step:
    command: str
    output: str


def path(page: str) -> Path:
    return ROOT / "docs" / "tutorials" / f"{page}.md"


def steps(block: str) -> list[Step]:
    found: list[Step] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append(Step(line[2:], ""))
        elif found[-1].command.endswith("\\") and not found[-1].output:
            found[-1] = Step(f"{found[-1].command}\n{line}", "")
        else:
            found[-1] = replace(found[-1], output=f"{found[-1].output}{line}\n")
    return found


def by_kind(text: str) -> list[str]:
    """The lines of an output with everything that differs between two right runs replaced by its kind."""
    for pattern, kind in (
        (r"\bqwen(-\d+b)?-r[a-z0-9]{7}(-[a-z0-9]{7,10}-[a-z0-9]{5})?\b", "REVISION"),
        (r"\b\d+(\.\d+){3}\b", "ADDRESS"),
        (r"\b\d{4}-\d\d-\d\d[T ][\d:]+(Z| UTC)?", "TIME"),
        (r"\b(\d+[smhd])+\b", "AGE"),
        (r"(\b[\d.,]+ / [\d.,]+ +)+\d+\b", "LATENCIES ANSWERS"),
        (r"\b\d[\d,]*\.\d+\b|\b\d{3,}\b|\b\d+(,\d{3})+\b", "NUMBER"),
        (r"(over|of) \d+ ", r"\1 NUMBER "),
        (r" +|\t", " "),
    ):
        text = re.sub(pattern, kind, text)
    return [line.strip() for line in text.strip().splitlines()]


@pytest.fixture(scope="module")
def playground() -> Iterator[World]:
    with world() as running:
        yield running


@pytest.fixture(scope="module")
def shell(playground: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    directory = tmp_path_factory.mktemp("tutorials")
    told = {name: value.replace("$PATH", os.environ["PATH"]) for name, value in environment(playground).items()}
    (directory / "examples").symlink_to(ROOT / "examples")
    running = Shell(directory, {**os.environ, **told, "KUBECACHEDIR": str(directory / "kubectl-cache"), "KUBERC": "off"}, directory)
    yield running
    running.close()


def test_pages_without_a_cluster_of_their_own_are_followed() -> None:
    followed = {page.stem for page in path("x").parent.glob("*.md") if _BLOCK.search(page.read_text(encoding="utf-8"))}
    assert followed == set(PAGES)


FAILING: dict[str, dict[str, Any]] = {
    "product": {"accelerator": {"product": "NVIDIA-GB200"}},
    "accelerators": {"parallelism": {"tensor": 16}},
    "path": {"storage": {"hostPath": {"path": "/srv/models"}}},
    "no-claim": {"storage": {"persistentVolumeClaim": {"claimName": "weights"}}},
    "no-volume": {"storage": {"persistentVolumeClaim": {"claimName": "unbound"}}},
    "branch": {"target": {"model": "Qwen/Qwen3.5-9B", "revision": "main"}},
    "no-groups": {"parallelism": {"tensor": 16, "nodes": 2}},
    "rdma": {"accelerator": {"rdma": {"resource": "rdma/hca", "count": 1}}},
}
"""What a reader may have changed in the example, or another cluster may lack: name and fields of the spec."""
CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "unbound"},
    "spec": {"accessModes": ["ReadWriteMany"], "storageClassName": "shared", "resources": {"requests": {"storage": "2Ti"}}},
}


_CONDITIONS = 'jsonpath={range .items[*]}{.metadata.name}{range .status.conditions[*]}{"\\n  "}{.reason}: {.message}{end}{"\\n"}{end}'


def test_first_tries_that_fail_say_what_the_pages_say(playground: World) -> None:
    cluster = playground.cluster
    namespace = cluster.create_namespace("tries")
    example = yaml.safe_load((ROOT / "examples" / "clusters" / "one-b200-node" / "qwen-9b.yaml").read_text(encoding="utf-8"))
    tries = [{**example, "metadata": {"name": name}, "spec": {**example["spec"], "replicas": 1, **spec}} for name, spec in FAILING.items()]
    cluster.apply_yaml([CLAIM, *tries], namespace)
    guarded = cluster.create_namespace("guarded")
    cluster.kubectl("label", "namespace", guarded, "pod-security.kubernetes.io/enforce=baseline")
    cluster.apply_yaml(example, guarded)
    told = [row for page in PAGES for row in first_tries(path(page).read_text(encoding="utf-8"))]
    assert len(told) >= len(FAILING)

    def untold() -> list[str]:
        objects = [one for place in (namespace, guarded) for one in cluster.get("dfd", f"--namespace={place}")["items"]]
        said = [f"{item['reason']} {item['message']}" for one in objects for item in (one.get("status") or {}).get("conditions", ())]
        return [row for row in told if not any(all(part in text for part in re.findall("`(.+?)`", row)) for text in said)]

    try:
        wait_until(lambda: not untold(), "every first try to fail", 120.0)
    except TimeoutError:
        said = cluster.kubectl("get", "dfd", "--all-namespaces", "-o", _CONDITIONS)
        pytest.fail(f"no deployment says {untold()}, but:\n{said}")
    finally:
        for place in (namespace, guarded):
            cluster.delete_namespace(place)


def first_tries(text: str) -> list[str]:
    """The first column of the table of what a page says of first tries that fail."""
    _, _, table = text.partition("<!-- first tries -->\n")
    rows = table.partition("\n\n")[0].splitlines()[2:]
    return [row.split(" | ")[0] for row in rows]


@pytest.mark.parametrize("page", PAGES)
def test_a_tutorial_prints_what_it_says(page: str, shell: Shell, say: Say) -> None:
    def followed(block: re.Match[str]) -> str:
        text = "".join(f"$ {step.command}\n{run(step, shell, say)}" for step in steps(block[1]))
        return re.sub(r"[ \t]+$", "", f"```console\n{text}```", flags=re.MULTILINE)

    told = path(page).read_text(encoding="utf-8")
    printed = _BLOCK.sub(followed, told)
    if UPDATE:
        path(page).write_text(printed, encoding="utf-8")


def run(step: Step, shell: Shell, say: Say) -> str:
    """Types the command, again if it only looks and does not show yet what the page says. Returns what it printed."""
    printed: list[str] = []

    def as_told() -> bool:
        printed.append(shell.type(step.command, PATIENCE_S).output)
        return UPDATE or by_kind(printed[-1]) == by_kind(step.output)

    say(f"  $ {step.command}")
    try:
        wait_until(as_told, "", 120.0 if LOOKS.match(step.command) else 0.0, 0.5)
    except TimeoutError:
        pytest.fail(f"{step.command}\nprinted\n{printed[-1]}and the page says\n{step.output}")
    return printed[-1]


@pytest.mark.parametrize(
    ("told", "printed"),
    [
        ("qwen True 16 5.92 2/2 qwen-r24bnv7i 4m", "qwen True 16 6.01 2/2 qwen-rs4l6otp 4m3s"),
        ("1.01 against 5.92 over 21 requests", "1.04 against 6.12 over 9 requests"),
        ("7.96  13 / 17  1.6 / 1.8  42  0", "8.01  9 / 1,203  1.7 / 1.8  7  0"),
    ],
)
def test_what_differs_between_two_runs_is_alike(told: str, printed: str) -> None:
    assert by_kind(told) == by_kind(printed)


@pytest.mark.parametrize("printed", ["qwen False 16 2/2", "qwen True 8 2/2", "qwen True 16 1/2", ""])
def test_what_a_page_is_about_is_not(printed: str) -> None:
    assert by_kind("qwen True 16 2/2") != by_kind(printed)
