"""The table of how-to/move-from-a-deployment.md is so: a flag that has a field is refused in extraArgs, and the others are not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.planning_world import World

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "move-from-a-deployment.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line[1:-1].split("|")] for line in PAGE.splitlines() if re.match(r"\| `--", line)]
FLAGS = [
    (engine, flag)
    for sglang, vllm, field in ROWS
    for engine, cell in (("sglang", sglang), ("vllm", vllm))
    for flag in re.findall(r"`(--[a-z-]+)`", cell)
    if "extraArgs" not in field
]


def refused(engine: str, flag: str) -> str:
    spec: dict[str, Any] = {
        "target": {"model": "Qwen/Qwen3.5-9B"},
        "engine": {"name": engine, "extraArgs": [f"{flag}=2"]},
    }
    world = World(spec)
    world.settle()
    return world.reason("Stalled") if world.condition("Stalled") == "True" else ""


def test_there_are_enough_flags() -> None:
    assert len(FLAGS) >= 15


@pytest.mark.parametrize(("engine", "flag"), FLAGS)
def test_a_flag_with_a_field_is_refused(engine: str, flag: str) -> None:
    assert refused(engine, flag) == "InvalidSpec"


@pytest.mark.parametrize(
    ("engine", "flag"), [("sglang", "--data-parallel-size"), ("sglang", "--pp-size"), ("vllm", "--data-parallel-size")]
)
def test_what_is_said_not_to_work_is_refused(engine: str, flag: str) -> None:
    assert refused(engine, flag) == "EngineUnsupported"


@pytest.mark.parametrize(("engine", "flag"), [("sglang", "--page-size"), ("vllm", "--block-size")])
def test_another_flag_is_not(engine: str, flag: str) -> None:
    assert refused(engine, flag) == ""
