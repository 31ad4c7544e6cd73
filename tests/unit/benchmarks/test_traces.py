"""The tuner in closed loop, on small fleets and short traces."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import traces
from benchmarks.traces_fleet import TRIAL_NOISE, Reference, Run, Setting, oracle, run, verdict
from benchmarks.traces_fleet import Trial as Tried
from benchmarks.traces_machines import MACHINES, gain_percent, hybrid_tables
from benchmarks.traces_policies import Hysteresis, Static, Tuner
from benchmarks.traces_world import DAY, Cell, Trace, prefill_heavy
from benchmarks.tuner_tables import Series
from dflash_controller.tuner.acceptance import mean_length
from dflash_controller.tuner.priors import Prior, Priors

BLOCKS = (8, 16)
LENGTHS = {1: 1.0, **{block: mean_length(0.88, 0.993, block) for block in BLOCKS}}
SERIES = Series(
    "",
    "Dense",
    "code",
    {(block, c): c * LENGTHS[block] / (0.008 * (1 + block * c / 180)) for block in (1, *BLOCKS) for c in (1, 4, 8, 16, 32)},
    LENGTHS,
)
CELL = Cell(SERIES, (1, *BLOCKS))
BROKEN = Cell(SERIES, (1, *BLOCKS), collapsed=True)


@pytest.fixture(scope="module")
def prior() -> Prior:
    return Priors.load().prior()


def steady(load: float, hours: int = 6, name: str = "steady") -> Trace:
    return Trace(name, [load] * (hours * 60), [CELL] * (hours * 60))


def tuned(trace: Trace, prior: Prior, replicas: int = 2, restart_s: int = 60, start: int = 16) -> tuple[Run, Reference]:
    setting = Setting(trace, replicas, restart_s, (1, *BLOCKS) if trace.apart else BLOCKS, start)
    reference = Reference(setting)
    return run(setting, reference, Tuner(setting, BLOCKS, prior, 1)), reference


@pytest.mark.parametrize(("load", "start"), [(1.0, 16), (32.0, 8)])
def test_noise_alone_changes_nothing(prior: Prior, load: float, start: int) -> None:
    assert tuned(steady(load, 12), prior, start=start)[0].changes == []


def test_near_the_border_noise_alone_changes_nothing(prior: Prior) -> None:
    border = min((2 ** (place / 8) for place in range(41)), key=lambda c: abs(CELL.speed(8, c) / CELL.speed(16, c) - 1))
    assert tuned(steady(border, 12), prior)[0].changes == []


def test_a_lasting_step_is_followed_once_it_has_cost_as_much_as_the_change(prior: Prior) -> None:
    trace = Trace("step", [1.0] * 120 + [32.0] * 240, [CELL] * 360)
    result, reference = tuned(trace, prior)
    assert [(before, after) for _, before, after in result.changes] == [(16, 8)]
    assert 121 < result.changes[0][0] < 180
    assert result.wasted(reference) == 0


def test_a_broken_drafter_is_switched_off_for_good(prior: Prior) -> None:
    trace = Trace("collapse", [8.0] * 480, [CELL] * 240 + [BROKEN] * 240, apart=True)
    result, _ = tuned(trace, prior)
    assert result.changes[-1][2] == 1
    assert 240 < result.changes[-1][0] < 300


def test_without_metrics_nothing_is_changed(prior: Prior) -> None:
    trace = Trace("gap", [1.0] * 120 + [32.0] * 240, [CELL] * 360, gaps=frozenset(range(115, 300)))
    result, _ = tuned(trace, prior)
    assert all(begin >= 300 for begin, _, _ in result.changes)


def test_a_fleet_that_changes_serves_less_meanwhile_and_its_clients_move() -> None:
    setting = Setting(steady(4.0, 1), 2, 600, BLOCKS, 16)
    reference = Reference(setting)
    speeds = run(setting, reference, _At({5: 8})).speeds
    assert speeds[:5] == [2 * CELL.speed(16, 4.0)] * 5
    assert speeds[5:15] == [CELL.speed(16, 8.0)] * 10
    assert speeds[15:25] == [CELL.speed(8, 8.0)] * 10
    assert speeds[25:] == [2 * CELL.speed(8, 4.0)] * 35
    alone = Setting(steady(4.0, 1), 1, 600, BLOCKS, 16)
    assert run(alone, Reference(alone), _At({5: 8})).speeds[5:15] == [0.0] * 10


def test_a_change_is_wasted_if_it_brought_fewer_tokens_than_staying() -> None:
    setting = Setting(steady(32.0, 2), 1, 60, BLOCKS, 16)
    reference = Reference(setting)
    assert run(setting, reference, _At({5: 8})).wasted(reference) == 0
    assert run(setting, reference, _At({5: 8, 7: 16})).wasted(reference) == 2
    assert run(setting, reference, _At({118: 8})).wasted(reference) == 1


def test_nobody_beats_the_oracle(prior: Prior) -> None:
    loads = ([1.0] * 90 + [32.0] * 90) * 3
    trace = Trace("square", loads, [CELL] * len(loads))
    for replicas, restart_s in ((1, 60), (2, 600), (3, 120)):
        setting = Setting(trace, replicas, restart_s, BLOCKS, 16)
        reference = Reference(setting)
        best = oracle(setting, reference)
        policies = [Static(), Hysteresis(BLOCKS, setting), Tuner(setting, BLOCKS, prior, 1), _At({20: 8}), _At({95: 8, 200: 16})]
        assert all(run(setting, reference, policy).share <= best.share + 1e-9 for policy in policies)
    assert best.changes


def test_the_command_prints_a_line_for_each_policy_and_then_the_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, accept = ["model,workload,concurrency,block_size,method,tok_per_s"], ["model,workload,block_size,method,accept_len"]
    for block in (4, 10):
        rows += [f"Other,code,{c},{block},DFlash,{c * block / 2 / (0.01 * (1 + block * c / 100))}" for c in (1, 8, 24)]
        accept.append(f"Other,code,{block},DFlash,{block / 2}")
    (tmp_path / "t.csv").write_text("\n".join(rows))
    (tmp_path / "a.csv").write_text("\n".join(accept))
    files = ["--tables", str(tmp_path / "t.csv"), "--accept", str(tmp_path / "a.csv")]
    traces.main([*files, "--quick", "--days", "1", "--trace", "square_2h"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"trace", "policy", "replicas", "restart_s", "score", "tokens", "changes", "wasted_changes"} <= set(lines[0])
    assert {line["policy"] for line in lines[:-1]} == {"static4", "static10", "hysteresis", "tuner", "oracle", "schedule"}
    assert lines[-1]["summary"] is True
    assert set(lines[-1]["mean"]) == {"static4", "static10", "hysteresis", "tuner", "oracle"}
    assert all(0 < line["score"] <= 1.0 for line in lines[:-1])


class _At:
    """Changes at given minutes."""

    def __init__(self, wishes: dict[int, int]) -> None:
        self._wishes = wishes
        self._wanted: int | None = None

    def observe(self, minute: int, block: int, load: float, serving: object) -> None:
        """Nothing is made of it."""

    def wish(self, minute: int, block: int) -> int:
        self._wanted = self._wishes.get(minute, self._wanted)
        return block if self._wanted is None else self._wanted


def test_all_traces_are_as_long_as_asked() -> None:
    for trace in traces.traces(CELL, CELL, BROKEN, BLOCKS, 1, days=2):
        assert len(trace.loads) == len(trace.cells) == 2 * DAY


class _Tries:
    """Tries a block at one minute and is told what became of it."""

    def __init__(self, minute: int, block: int, least: float) -> None:
        self._minute, self._block, self._least = minute, block, least
        self.observed: list[tuple[int, tuple[int, ...]]] = []
        self.ended: list[bool] = []

    def observe(self, minute: int, block: int, load: float, serving: Sequence[int]) -> None:
        self.observed.append((minute, tuple(serving)))

    def wish(self, minute: int, block: int) -> int | Tried:
        if minute != self._minute:
            return block
        return Tried(self._block, self._least, True, lambda _, promoted: self.ended.append(promoted))


@pytest.mark.parametrize("surge", [False, True])
def test_a_trial_costs_one_replica_its_restart_there_and_back(surge: bool) -> None:
    setting = Setting(steady(4.0, 4), 2, 600, BLOCKS, 16, surge)
    reference, policy = Reference(setting), _Tries(5, 8, 1.0)
    done = run(setting, reference, policy)
    assert (policy.ended, done.changes, done.explorations) == ([False], [], [(5, 8, False)])
    starting = CELL.speed(16, 4.0) * 2 if surge else CELL.speed(16, 8.0)
    assert done.speeds[5:15] == [starting] * 10
    measured = [minute for minute, serving in policy.observed if 8 in serving]
    assert measured[0] == 15
    mixed = (2 * CELL.speed(16, 4.0) + CELL.speed(8, 4.0)) * 2 / 3 if surge else CELL.speed(16, 4.0) + CELL.speed(8, 4.0)
    assert done.speeds[15] == pytest.approx(mixed)
    after = measured[-1] + 1
    assert done.speeds[after : after + 10] == [starting] * 10
    assert done.speeds[after + 10 :] == [2 * CELL.speed(16, 4.0)] * (240 - after - 10)


def test_a_trial_that_is_faster_changes_the_others_and_counts_from_its_begin() -> None:
    setting = Setting(steady(32.0, 4), 3, 60, BLOCKS, 16)
    reference, policy = Reference(setting), _Tries(5, 8, math.log(1.05))
    done = run(setting, reference, policy)
    assert (policy.ended, done.changes, done.explorations) == ([True], [(5, 16, 8)], [(5, 8, True)])
    assert done.speeds[-1] == pytest.approx(3 * CELL.speed(8, 32.0))
    assert done.wasted(reference) == 0


@pytest.mark.parametrize("gain", [-0.2, 0.0, 0.03])
def test_a_block_that_gains_too_little_is_never_promoted(gain: float) -> None:
    draws = [random.Random(seed) for seed in range(40)]
    ends = []
    for draw in draws:
        ratios: list[float] = []
        while (found := verdict(ratios, math.log(1.15))) is None:
            ratios.append(gain + draw.gauss(0.0, TRIAL_NOISE))
        ends.append(found)
    assert not any(ends)


def test_prefill_takes_half_of_the_time_at_the_largest_load_and_brings_the_blocks_together() -> None:
    heavy = prefill_heavy(SERIES)
    assert heavy.speeds[16, 32] == pytest.approx(SERIES.speeds[16, 32] / 2)
    assert heavy.speeds[8, 32] / heavy.speeds[16, 32] < SERIES.speeds[8, 32] / SERIES.speeds[16, 32]
    assert heavy.speeds[16, 1] > 0.8 * SERIES.speeds[16, 1]


def test_the_first_machine_is_like_the_measured_one() -> None:
    """Steps without prefill took 14.7 / 15.3 / 27.9 ms at block 16 and 10.3 / 11.7 / 17.9 ms at block 8."""
    machine = next(one for one in MACHINES if one.name == "h100")
    found = [1e3 * replace(machine, prefill_s=0.0).step_s(block, load) for block in (16, 8) for load in (1, 8, 32)]
    assert found == pytest.approx([14.7, 15.3, 27.9, 10.3, 11.7, 17.9], rel=0.3)
    assert gain_percent(machine, 1) == pytest.approx(9, abs=3)


def test_both_halves_of_the_machines_are_different_ones() -> None:
    halves = [{series.model for series, _ in hybrid_tables(chosen_on=half)} for half in (True, False)]
    assert not halves[0] & halves[1]
    assert all(len(half) == 10 for half in halves)
