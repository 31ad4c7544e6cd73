"""Acceptance length at other block sizes."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.tuner_priors import DATA
from benchmarks.tuner_tables import load
from dflash_controller.tuner.acceptance import (
    BETWEEN_WORKLOADS,
    Acceptance,
    Decay,
    decay_between,
    first_chance,
    mean_length,
)

DECAY = Decay(0.993)
PUBLISHED = [series.lengths for series in load(DATA / "seed_tables.csv", DATA / "seed_accept.csv") if {8, 16} <= set(series.lengths)]


def test_a_block_accepts_the_known_token_and_the_drafts_that_survive() -> None:
    assert mean_length(0.5, 1.0, 4) == pytest.approx(1 + 0.5 + 0.25 + 0.125)
    assert mean_length(0.5, 0.8, 3) == pytest.approx(1 + 0.5 + 0.5 * 0.4)
    assert mean_length(0.0, 0.99, 16) == 1.0


@given(st.integers(2, 32), st.floats(0.0, 1.0), st.floats(0.95, 1.02))
def test_the_first_chance_gives_the_length_back(block: int, share: float, decay: float) -> None:
    length = 1.0 + share * (block - 1)
    assert mean_length(first_chance(length, decay, block), decay, block) == pytest.approx(length, rel=1e-6)


@given(st.floats(0.3, 0.95), st.floats(0.95, 1.02), st.sampled_from([(8, 16), (16, 8), (4, 7)]))
def test_two_lengths_give_the_decay_that_made_them(first: float, decay: float, blocks: tuple[int, int]) -> None:
    one, other = blocks
    found = decay_between(mean_length(first, decay, one), one, mean_length(first, decay, other), other)
    assert found == pytest.approx(decay, abs=1e-3) or first * decay ** max(blocks) > 1


@pytest.mark.parametrize(("known", "asked", "most"), [(16, 8, 0.03), (8, 16, 0.045)])
def test_published_lengths_predict_the_other_block_within_the_stated_uncertainty(known: int, asked: int, most: float) -> None:
    misses = []
    for lengths in PUBLISHED:
        told = Acceptance({known: lengths[known]}, DECAY).length(asked)
        misses.append(math.log(told.value / lengths[asked]) / told.log_sigma)
        assert abs(math.log(told.value / lengths[asked])) < most
    assert len(misses) == 16
    assert math.sqrt(sum(miss**2 for miss in misses) / len(misses)) < 1.1


def test_what_was_measured_is_believed() -> None:
    both = Acceptance({8: 5.0, 16: 6.0}, DECAY)
    assert both.length(8).value == 5.0
    assert both.length(16).value == 6.0
    assert both.length(8).log_sigma < Acceptance({16: 6.0}, DECAY).length(8).log_sigma


def test_counts_by_position_tell_a_shorter_block_without_a_curve() -> None:
    survival = (0.9, 0.5, 0.45, 0.44, 0.1, 0.05, 0.01)
    told = Acceptance({8: 1 + sum(survival)}, DECAY, survival)
    assert told.length(4).value == pytest.approx(1 + 0.9 + 0.5 + 0.45)
    assert told.length(16).value > told.length(8).value
    assert told.length(16).value < told.length(8).value + 8 * 0.01, "no draft survives more often than the one before it"
    assert Acceptance({}, DECAY, survival).length(16) == told.length(16)


def test_a_longer_block_is_always_less_certain_than_a_shorter_one() -> None:
    told = Acceptance({8: 5.0}, DECAY)
    assert told.length(16).log_sigma >= 0.03
    assert Acceptance({8: 1.3}, DECAY).length(16).log_sigma == 0.03, "where the decay hardly matters"
    assert told.length(16).log_sigma > told.length(4).log_sigma > told.length(8).log_sigma


def test_speculation_off_commits_one_token() -> None:
    assert Acceptance({16: 6.0}, DECAY).length(1).value == 1.0


def test_a_collapsed_drafter_is_collapsed_at_every_block() -> None:
    told = Acceptance({16: 1.0}, DECAY)
    assert [told.length(block).value for block in (4, 8, 16, 32)] == pytest.approx([1.0] * 4, abs=1e-9)


def test_other_workloads_move_the_decay_the_more_of_them_were_seen() -> None:
    one, many = DECAY.learned([0.98]), DECAY.learned([0.98] * 20)
    assert 0.98 < many.mean < one.mean < DECAY.mean
    assert many.sigma < one.sigma < DECAY.sigma
    assert many.workload_sigma > BETWEEN_WORKLOADS
    assert DECAY.learned([]) == DECAY


@given(st.floats(1.0, 15.9), st.sampled_from([8, 16]))
def test_lengths_grow_with_the_block_and_stay_possible(length: float, known: int) -> None:
    told = Acceptance({known: min(length, known)}, DECAY)
    lengths = [told.length(block).value for block in range(1, 33)]
    assert all(a <= b + 1e-9 for a, b in pairwise(lengths))
    assert all(1.0 <= value <= block + 1e-9 for block, value in enumerate(lengths, start=1))


@pytest.mark.parametrize(
    ("lengths", "survival"),
    [
        ({}, ()),
        ({8: 0.9}, ()),
        ({8: 9.0}, ()),
        ({8: math.nan}, ()),
        ({1: 1.0}, ()),
        ({8: 3.0}, (0.5, 0.6)),
        ({8: 3.0}, (1.1,)),
        ({}, (math.nan,)),
    ],
)
def test_impossible_measurements_are_refused(lengths: dict[int, float], survival: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"accept"):
        Acceptance(lengths, DECAY, survival)


def test_one_block_twice_tells_no_decay() -> None:
    with pytest.raises(ValueError, match="do not tell"):
        decay_between(5.0, 8, 5.1, 8)
