"""Step times and acceptance from tables."""

from __future__ import annotations

import csv

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_controller.model.measured_tables import Speed
from testbed.simulator.acceptance import AcceptanceCurve, Sampler, solve
from testbed.simulator.table import DATA, SEED_TABLES, Table, seed_table


def _rows() -> list[dict[str, str]]:
    with SEED_TABLES.open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["method"] == "DFlash"]


def test_every_published_cell_comes_back_exactly() -> None:
    table = seed_table()
    for row in _rows():
        model, workload, block, c = row["model"], row["workload"], int(row["block_size"]), int(row["concurrency"])
        known = table.model(model)
        rate = c * known.acceptance(workload, block).length(block) / known.step_time_s(workload, block, c)
        assert rate == pytest.approx(float(row["tok_per_s"]), rel=1e-6), row


def test_published_acceptance_lengths_come_back_and_predict_the_other_block() -> None:
    model = seed_table().model("Qwen3.5-9B")
    assert model.acceptance("math500", 16).length(16) == pytest.approx(7.34)
    assert model.acceptance("math500", 8).length(8) == pytest.approx(5.67)
    assert model.acceptance("math500", 16).length(8) == pytest.approx(5.67, rel=0.025)


@given(st.integers(2, 32), st.floats(0.0, 1.0))
def test_solving_inverts_the_mean_length(block: int, share: float) -> None:
    length = 1 + share * (block - 1)
    assert solve(length, block).length(block) == pytest.approx(length, abs=1e-6)


def test_a_length_outside_the_block_is_refused() -> None:
    with pytest.raises(ValueError, match="outside"):
        solve(9.0, 8)


def test_factor_zero_is_acceptance_length_one() -> None:
    assert AcceptanceCurve(0.9).length(16, factor=0.0) == 1.0


def test_draws_have_the_survival_of_the_curve_at_every_position() -> None:
    survival = AcceptanceCurve(0.85).survival(8)
    sampler = Sampler(survival)
    draws = [sampler.accepted((i + 0.5) / 10_000) for i in range(10_000)]
    assert max(draws) == 7
    for position, chance in enumerate(survival):
        assert sum(draw > position for draw in draws) / 10_000 == pytest.approx(chance, abs=2e-4)


def test_step_time_rises_with_concurrency_and_goes_on_past_the_table() -> None:
    model = seed_table().model("Qwen3.5-9B")
    steps = [model.step_time_s("gsm8k", 16, c) for c in (1, 2, 8, 16, 24, 32, 64)]
    assert steps == sorted(steps)
    assert steps[-1] > 1.3 * steps[-2]


def test_a_block_without_rows_follows_the_law_of_verified_tokens() -> None:
    model = seed_table().model("Qwen3.5-9B")
    assert model.step_time_s("gsm8k", 4, 16) == pytest.approx(model.step_time_s("gsm8k", 8, 8))
    assert model.step_time_s("gsm8k", 32, 16) == pytest.approx(model.step_time_s("gsm8k", 16, 32))


def test_a_block_with_one_row_follows_the_law_through_that_row() -> None:
    table = seed_table()
    model = table.model("Qwen3.5-397B-A17B")
    assert model.blocks("humaneval") == (1, 8, 16)
    c32 = 32 * model.acceptance("humaneval", 8).length(8) / 6666.0
    assert model.step_time_s("humaneval", 8, 32) == pytest.approx(c32)
    ratio = c32 / model.step_time_s("humaneval", 16, 16)
    assert model.step_time_s("humaneval", 8, 8) == pytest.approx(ratio * model.step_time_s("humaneval", 16, 4))


def test_speculation_off_uses_the_rows_without_drafter() -> None:
    assert seed_table().model("Qwen3.5-9B").step_time_s("math500", 1, 8) == pytest.approx(8 / 1472)


@pytest.mark.parametrize(
    ("names", "model"),
    [
        (("Qwen/Qwen3.5-27B", "x"), "Qwen3.5-27B"),
        (("Qwen/Qwen3.5-35B-A3B-FP8", "x"), "Qwen3.5-35B-A3B"),
        (("/models/target", "Qwen/Qwen3.5-397B-A17B"), "Qwen3.5-397B-A17B"),
        (("meta-llama/Llama-3.1-8B-Instruct", "llama"), "Qwen3.5-9B"),
    ],
)
def test_models_are_found_by_the_last_part_of_their_name(names: tuple[str, str], model: str) -> None:
    assert seed_table().match(*names).name == model


def test_another_table_of_the_same_columns_and_its_first_row_per_cell() -> None:
    table = Table.load(DATA / "h100_vllm_dense.csv", DATA / "h100_vllm_dense_accept.csv")
    assert table.models == ("Qwen3-8B-shape",)
    assert table.match("anything").name == "Qwen3-8B-shape"
    assert table.throughput("Qwen3-8B-shape", "synthetic", 16, 32) == 8180.6
    assert table.match("anything").workload("gsm8k") == "synthetic"
    # the cliff at 512 verified tokens, where this engine ran out of captured graphs
    model = table.match("anything")
    assert model.step_time_s("synthetic", 16, 32) > 2 * model.step_time_s("synthetic", 16, 16)


def test_the_measured_hybrid_has_a_step_that_goes_with_the_block_and_not_with_its_tokens_alone() -> None:
    table = Table.load(DATA / "h100_vllm_hybrid.csv", DATA / "h100_vllm_hybrid_accept.csv")
    model = table.match("Qwen/Qwen3.5-9B", "chat")
    assert model.name == "Qwen3.5-9B-shape"
    assert model.step_time_s("synthetic", 16, 8) == pytest.approx(8 * 6.4219 / 1855.2, rel=1e-3)
    assert model.step_time_s("synthetic", 16, 1) > 1.3 * model.step_time_s("synthetic", 8, 1), "a law of tokens says 1.04"
    assert model.step_time_s("synthetic", 16, 4) > 1.15 * model.step_time_s("synthetic", 8, 8), "the same tokens"


def test_throughput_without_acceptance_is_refused() -> None:
    with pytest.raises(ValueError, match="no acceptance length"):
        Table([Speed("", "m", "w", 1, 8, 10.0)], []).model("m")
