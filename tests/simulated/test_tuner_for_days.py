"""The tuner in closed loop for whole days: machines on which it knows nothing, and the summary of `make bench-traces`."""

from __future__ import annotations

import json

import pytest

from benchmarks import traces
from benchmarks.traces_fleet import Reference, Setting, oracle, run
from benchmarks.traces_machines import MACHINES, VLLM_HYBRID
from benchmarks.traces_policies import Tuner
from benchmarks.traces_world import DAY, Cell, Trace
from dflash_controller.tuner.priors import Prior, Priors

BLOCKS = (8, 16)


@pytest.fixture(scope="module")
def unknown() -> Prior:
    return Priors.load().without("Qwen3.5-9B-shape").prior(VLLM_HYBRID)


@pytest.mark.parametrize(
    ("name", "load", "start", "right"),
    [
        ("h100", 1.0, 16, 8),
        ("fast", 1.0, 16, 8),
        ("law", 1.0, 8, 16),
        ("eager", 8.0, 8, 16),
        ("slow-state", 1.0, 16, 8),
        ("law", 1.0, 16, 16),
    ],
)
def test_on_a_hybrid_without_any_knowledge_the_right_block_runs_within_a_day(
    unknown: Prior, name: str, load: float, start: int, right: int
) -> None:
    """In the first four the prior is wrong, and without a trial the tuner would stay where it is: at 84 to 93 % of the best."""
    cell = Cell(next(one for one in MACHINES if one.name == name).series(), BLOCKS)
    trace = Trace("steady", [load] * DAY, [cell] * DAY)
    setting = Setting(trace, 2, 60, BLOCKS, start, machine=VLLM_HYBRID, trials=True)
    reference = Reference(setting)
    done = run(setting, reference, Tuner(setting, BLOCKS, unknown, 1))
    assert (done.changes[-1][2] if done.changes else start) == right
    assert len(done.explorations) <= 2
    assert done.share >= 0.98 * oracle(setting, reference).share


def test_scores_are_told_by_kind_of_machine_and_hybrids_apart(capsys: pytest.CaptureFixture[str]) -> None:
    traces.main(["--quick", "--days", "1", "--trace", "steady_32", "--hybrids", "report"])
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert "vllm hybrid" in summary["mean_by_kind"]
    assert any(kind.startswith("sglang") for kind in summary["mean_by_kind"])
    hybrids = summary["hybrids"]
    assert hybrids["settings"] == 1
    assert hybrids["explorations_first_day"]["most"] <= 2
    assert 0 < hybrids["first_day_of_oracle"]["least"] <= 1.0
