"""The recommendation on published tables, and where its priors are from."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks import tuner, tuner_priors
from benchmarks.tuner_machines import made_machines
from benchmarks.tuner_priors import DATA
from benchmarks.tuner_tables import load, machine_of
from dflash_controller.tuner.acceptance import mean_length
from dflash_controller.tuner.machine import Machine
from dflash_controller.tuner.priors import Card, Priors
from dflash_controller.tuner.recommend import ObservedLoad, recommend
from dflash_controller.tuner.step_times import StepTimes

PUBLISHED = tuner.Benchmark(load(DATA / "seed_tables.csv", DATA / "seed_accept.csv"))
H100 = tuner.Benchmark(load(DATA / "h100_vllm_dense.csv", DATA / "h100_vllm_dense_accept.csv"))


@pytest.fixture
def table(tmp_path: Path) -> list[str]:
    """Arguments for a table of another model, with other blocks and concurrencies, made by the law itself."""
    rows = ["model,workload,concurrency,block_size,method,tok_per_s,notes"]
    lengths = {block: mean_length(0.88, 0.993, block) for block in (4, 5, 10)}
    for workload in ("code", "chat"):
        for c in (2, 6, 12, 24, 96):
            rows.append(f"Other,{workload},{c},1,AR,{c / 0.004},")
            blocks = (4, 5) if c == 24 else (5, 10)
            rows += [f"Other,{workload},{c},{b},DFlash,{c * lengths[b] / (0.005 * (1 + b * c / 120))},first" for b in blocks]
            rows.append(f"Other,{workload},{c},{blocks[1]},DFlash,1,another run of the same cell")
    accept = ["model,workload,block_size,method,accept_len"]
    accept += [f"Other,{workload},{b},DFlash,{t}" for workload in ("code", "chat") for b, t in lengths.items()]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    (tmp_path / "a.csv").write_text("\n".join(accept))
    return ["--tables", str(tmp_path / "t.csv"), "--accept", str(tmp_path / "a.csv")]


def ran(arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    monkeypatch.setattr(tuner, "DRAWS", 3)
    assert tuner.main(arguments) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("start", [16, 8])
def test_the_choice_is_as_good_as_promised_on_the_published_tables(start: int) -> None:
    limits = {PUBLISHED.cold_varied: (0.25, 5.1), PUBLISHED.cold_single: (0.5, 11.0), PUBLISHED.warm: (0.10, 2.0)}
    for protocol, (mean, worst) in limits.items():
        outcome = protocol(start)
        assert len(outcome.regrets) == 54
        assert outcome.mean is not None
        assert outcome.mean <= mean
        assert outcome.worst is not None
        assert outcome.worst <= worst


@pytest.mark.parametrize("start", [16, 8])
def test_varied_load_on_another_engine_and_gpu_gives_no_wrong_choice(start: int) -> None:
    assert H100.cold_varied(start).regrets == (0.0,) * 7


def test_noisy_step_times_cost_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "DRAWS", 10)
    for start in PUBLISHED.starts:
        line = PUBLISHED.noisy(start)
        assert 0 < line["mean_regret_pct"] <= 0.35
        assert line["p90_regret_pct"] <= 0.6


def test_baselines_are_those_known_of_the_tables() -> None:
    found = {name: (outcome.mean, outcome.worst) for name, outcome in PUBLISHED.baselines().items()}
    assert found["best_threshold"] == pytest.approx((0.17, 3.4), abs=0.05)
    assert found["16_if_c_1"] == pytest.approx((1.07, 11.0), abs=0.05)
    assert found["always_8"] == pytest.approx((4.26, 20.6), abs=0.05)
    assert found["always_16"] == pytest.approx((5.62, 26.6), abs=0.05)


def test_the_stated_uncertainty_is_that_of_the_tables() -> None:
    """Deviations over what was stated: at most 1 on average, and none that would be a surprise."""
    for benchmark in (PUBLISHED, H100):
        for start in (16, 8):
            misses = []
            for cell in benchmark.cells:
                series, other = cell.series, 24 - start
                steps = StepTimes(tuner.points(series, [start], series.concurrencies), benchmark._priors[series.model].steps)
                load_ = ObservedLoad(float(cell.concurrency))
                told = recommend(start, [other], [load_], benchmark._own(series, start), steps).of(other)
                true = math.log(series.speeds[other, cell.concurrency] / series.speeds[start, cell.concurrency])
                misses.append((true - told.log_gain) / told.log_sigma)
            assert 0.4 < math.sqrt(sum(miss**2 for miss in misses) / len(misses)) < 1.0
            assert max(map(abs, misses)) < 2.5


@pytest.fixture(scope="module")
def kinds() -> dict[tuple[str, str, str], dict[str, Any]]:
    return {(line["machines"], line["engine"], line["kind"]): line for line in tuner.kinds()}


def test_the_stated_errors_cover_every_kind_of_machine(kinds: dict[tuple[str, str, str], dict[str, Any]]) -> None:
    assert {engine for _, engine, _ in kinds} == {"sglang", "vllm"}
    assert {kind for _, _, kind in kinds} == {"dense", "mixture", "hybrid", "hybrid mixture"}
    assert ("measured", "vllm", "hybrid") in kinds
    for line in kinds.values():
        assert line["within_2_sigma"] >= 0.95
        assert line["within_1_sigma"] >= 0.6
        assert line["rms_sigmas"] > 0.3, "an error that is stated far too large hides what is known"


def test_machines_that_no_constant_was_chosen_on_are_decided_as_well(kinds: dict[tuple[str, str, str], dict[str, Any]]) -> None:
    for (machines, _, kind), line in kinds.items():
        if machines == "made, reported":
            assert line["mean_regret_pct"] <= (1.5 if kind != "hybrid" else 2.0)
        if machines == "measured":
            assert line["mean_regret_pct"] <= 0.25
            assert line["max_regret_pct"] <= 5.1


def test_made_machines_of_the_halves_differ_and_are_the_same_at_every_run() -> None:
    first, second = ({table[0].source: table[0].speeds for _, _, table in made_machines()} for _ in range(2))
    assert first == second
    assert len({tuple(speeds.items()) for speeds in first.values()}) == len(first) == 6 * 12


@pytest.mark.parametrize(
    ("model", "said", "machine"),
    [
        ("Qwen3.5-9B", "card; SGLang, 1x B200", Machine("sglang", hybrid=True)),
        ("Qwen3.5-35B-A3B", "SGLang", Machine("sglang", hybrid=True, mixture=True)),
        ("Qwen3-30B-A3B-shape", "vLLM 0.26.0", Machine("vllm", mixture=True)),
        ("Qwen3-8B", "own run", Machine()),
        ("Another-7B", "vllm hybrid", Machine("vllm", hybrid=True)),
        ("Qwen3.5-9B", "vllm dense", Machine("vllm")),
    ],
)
def test_engine_and_kind_are_what_the_table_or_the_name_says(model: str, said: str, machine: Machine) -> None:
    assert machine_of(model, said) == machine


def test_a_table_with_columns_for_them_needs_no_name(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("model,workload,concurrency,block_size,method,tok_per_s,engine,kind\nX,w,1,16,DFlash,9,vllm,hybrid\n")
    (tmp_path / "a.csv").write_text("model,workload,block_size,method,accept_len\nX,w,16,DFlash,6\n")
    assert load(tmp_path / "t.csv", tmp_path / "a.csv")[0].machine == Machine("vllm", hybrid=True)


def test_any_table_with_these_columns_is_judged(
    table: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    *lines, summary = ran(table, capsys, monkeypatch)
    assert {(line["protocol"], line["start"]) for line in lines} == {
        (protocol, start) for protocol in ("cold_varied", "cold_single", "warm", "cold_varied_noise") for start in (10, 5)
    }
    for line in lines:
        assert {"protocol", "start", "cells", "mean_regret_pct", "max_regret_pct", "wrong"} <= set(line)
        assert line["cells"] == (10 if line["start"] == 5 else 8), "at 24 block 10 was not measured"
    assert all(line["wrong"] == 0 for line in lines if line["protocol"] != "cold_varied_noise"), "the table follows the law"
    assert summary["summary"] is True
    assert {"cold_varied_mean", "cold_varied_max", "cold_single_mean", "warm_mean", "warm_max", "baselines"} <= set(summary)
    assert summary["cold_varied_calibration"]["within_2_sigma"] == 1.0
    assert summary["baselines"]["always_10"]["max"] > 1, "the table has a choice to make, and the first row of a cell counts"


def test_a_table_of_one_workload_says_that_there_is_nothing_to_warm_up_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = ["--tables", str(DATA / "h100_vllm_dense.csv"), "--accept", str(DATA / "h100_vllm_dense_accept.csv")]
    *_, summary = ran(files, capsys, monkeypatch)
    assert summary["warm_mean"] is None
    assert summary["cold_varied_max"] == 0.0


def test_priors_are_what_the_project_s_tables_say() -> None:
    assert tuner_priors.TARGET.read_text(encoding="utf-8") == tuner_priors.text(), "run python -m benchmarks.tuner_priors"


def test_no_prior_knows_the_model_under_test() -> None:
    for model in ("Qwen3.5-9B", "Qwen/Qwen3.5-9B", "qwen3.5-9b-FP8"):
        kept = {card.model for card in Priors.load().without(model).cards}
        assert kept == {"Qwen3.5-27B", "Qwen3.5-35B-A3B", "Qwen3-8B-shape", "Qwen3-30B-A3B-shape"}, "nor its shape on another engine"
    assert len(Priors.load().without("Qwen3.5-4B").cards) == len(Priors.load().cards)


def test_the_benchmark_leaves_the_model_s_own_card_out() -> None:
    whole = Priors.load().prior()
    for series in PUBLISHED._table:
        if "397B" not in series.model:
            assert PUBLISHED._priors[series.model] != whole


def test_priors_without_a_card_are_refused() -> None:
    with pytest.raises(ValueError, match="no card"):
        Priors([Card("a", "b", None, 0.7, 0.99)]).prior()
