"""The loop of ``make gpu``, with the engine simulator as the process: what it does without a GPU is what it does with one."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from testbed.gpu_loop import phases
from testbed.gpu_loop.report import compared
from testbed.gpu_loop.run import Run, collect, running
from testbed.gpu_loop.setup import BLOCKS, Setup
from testbed.waiting import wait_until
from tests.e2e.conftest import Say

pytestmark = pytest.mark.long

LOAD = 8
BUDGET_S = 600.0
NEAR_PERCENT = 10.0
"""The clients share two processors with the engines that they measure."""


def test_the_loop_on_processes_serves_changes_refuses_and_drains_without_a_failed_request(tmp_path: Path, say: Say) -> None:
    setup = Setup(engine="vllm", model="hybrid", out=tmp_path, layers=12, simulator=True, share=3, levels=(LOAD,), grace_s=32)
    with running(setup, budget_s=BUDGET_S, level_s=4.0, prometheus=True, keep=None, tell=lambda _: None) as run, ExitStack() as stack:
        run.report.add("serve", phases.serve(run))
        run.begin_load(stack)
        phases.load(run)  # it reports each level by itself
        crash(run)
        run.report.add("change by hand", phases.change_by_hand(run))
        run.report.add("collapse", phases.collapse(run))
        run.report.add("drain", phases.drain(run))
        collect(run)
    content = json.loads((tmp_path / "report.json").read_text())
    say((tmp_path / "report.md").read_text().partition("## Time line")[0])

    found = content["phases"]
    assert found["serve"]["ready"]
    (level,) = found[f"load at block {BLOCKS[0]}"]["levels"]
    assert level["block"] == BLOCKS[0]
    assert abs(compared(level)["tokens_per_second"] or NEAR_PERCENT) < NEAR_PERCENT
    assert (found["change by hand"]["ended"], found["collapse"]["ended"]) == ("Completed", "RolledBack")
    assert found["collapse"]["ready_again"]
    assert (found["drain"]["ended"], found["drain"]["whole"], found["drain"]["exit_code"]) == (
        "pod gone",
        found["drain"]["requests_under_way"],
        0,
    )
    assert content["failed"] == 0
    assert content["answered"] > 100
    # The crash, the block that was replaced, the drafter that was refused, the block that was drained.
    assert sorted(item["exitCode"] for item in content["processes"]) == [0, 0, 0, 42]
    assert all(item["ready_s"] for item in content["processes"])
    assert not any(item["killed"] for item in content["processes"])


def crash(run: Run) -> None:
    """Ends the engine's process with exit code 42, while nobody asks it, and waits until the pod is Ready again."""
    run.load.resize(0)
    url, name = run.deployment.urls()[0], run.deployment.pods()[0]["metadata"]["name"]
    wait_until(lambda: idle(url), "the last answers")
    body = json.dumps({"code": 42}).encode()
    with urlopen(Request(f"{url}/sim/crash", body, {"Content-Type": "application/json"}), timeout=10):
        pass
    wait_until(lambda: status(run)["restartCount"] == 1, "the restart")
    assert status(run)["lastState"]["terminated"]["exitCode"] == 42
    assert not status(run)["ready"]
    wait_until(lambda: status(run)["ready"], "the engine to be Ready again", 60)
    assert run.deployment.pods()[0]["metadata"]["name"] == name
    run.load.resize(LOAD)


def idle(url: str) -> bool:
    with urlopen(f"{url}/sim/state", timeout=10) as answer:
        state = json.load(answer)
    return bool(state["running"] == state["waiting"] == 0)


def status(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = run.deployment.pods()[0]["status"]["containerStatuses"][0]
    return found
