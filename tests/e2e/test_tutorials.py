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

import pytest

from testbed.demo_setup import World, world
from testbed.operator_process import ROOT
from testbed.playground import environment
from testbed.waiting import wait_until
from tests.e2e.conftest import Say
from tests.support.shell import Shell

PAGES = ("first-steps", "upgrade-a-drafter", "a-bad-drafter", "tuning")
"""In the order in which a reader follows them."""
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
        else:
            found[-1] = replace(found[-1], output=f"{found[-1].output}{line}\n")
    return found


def by_kind(text: str) -> list[str]:
    """The lines of an output with everything that differs between two right runs replaced by its kind."""
    for pattern, kind in (
        (r"\bqwen-r[a-z0-9]{7}\b", "REVISION"),
        (r"\b\d+(\.\d+){3}\b", "ADDRESS"),
        (r"\b\d{4}-\d\d-\d\d[T ][\d:]+(Z| UTC)?", "TIME"),
        (r"\b(\d+[smhd])+\b", "AGE"),
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


@pytest.mark.parametrize("page", PAGES)
def test_a_tutorial_prints_what_it_says(page: str, shell: Shell, say: Say) -> None:
    def followed(block: re.Match[str]) -> str:
        text = "".join(f"$ {step.command}\n{run(step, shell, say)}" for step in steps(block[1]))
        return f"```console\n{text}```"

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
    ],
)
def test_what_differs_between_two_runs_is_alike(told: str, printed: str) -> None:
    assert by_kind(told) == by_kind(printed)


@pytest.mark.parametrize("printed", ["qwen False 16 2/2", "qwen True 8 2/2", "qwen True 16 1/2", ""])
def test_what_a_page_is_about_is_not(printed: str) -> None:
    assert by_kind("qwen True 16 2/2") != by_kind(printed)
