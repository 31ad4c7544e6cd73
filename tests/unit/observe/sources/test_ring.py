"""Windows over counters that may fall back to zero at any time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_controller.model.series import PROCESS, LabelledMetric, Scrape, Series
from dflash_controller.observe.sources.scrape.ring import Ring

TOKENS, DRAFTS = LabelledMetric("tokens"), LabelledMetric("drafts")


def page(tokens: float, drafts: float | None = None) -> Scrape:
    return Scrape({TOKENS: tokens} if drafts is None else {TOKENS: tokens, DRAFTS: drafts})


def test_one_page_is_no_window() -> None:
    ring = Ring(300)
    ring.add(0, page(5))
    assert ring.window(1) is None


def test_the_window_reaches_back_to_just_before_its_start() -> None:
    ring = Ring(300)
    for step in range(40):
        ring.add(step * 31.0, page(step * 10.0))
    window = ring.window(39 * 31.0 + 4)
    assert window is not None
    assert 300 <= window.seconds < 331
    assert window.deltas[TOKENS] / window.seconds == pytest.approx(10 / 31)
    assert window.age_s == 4
    assert len(ring.pages) <= 12


def test_a_counter_that_appears_counts_from_zero() -> None:
    ring = Ring(300)
    ring.add(0, page(100))
    ring.add(30, page(160, drafts=10))
    window = ring.window(30)
    assert window is not None
    assert window.deltas == {TOKENS: 60, DRAFTS: 10}


@pytest.mark.parametrize("after", [page(90, drafts=60), page(150), page(150, drafts=40)], ids=["fell", "vanished", "another fell"])
def test_a_restart_starts_all_counters_anew(after: Scrape) -> None:
    ring = Ring(300)
    ring.add(0, page(50, drafts=25))
    ring.add(30, page(100, drafts=50))
    ring.add(60, after)
    assert ring.window(60) is None
    ring.add(90, Scrape({cell: value + 7 for cell, value in after.counters.items()}))
    window = ring.window(90)
    assert window is not None
    assert window.seconds == 30
    assert set(window.deltas.values()) == {7.0}


@given(
    lives=st.lists(st.lists(st.integers(1, 1000), min_size=1, max_size=8), min_size=1, max_size=4),
    window_s=st.integers(30, 300),
)
def test_no_history_of_restarts_invents_or_doubles_tokens(lives: list[list[int]], window_s: int) -> None:
    """Each life counts from zero. A window never holds more than the process has produced, and never less than nothing."""
    ring = Ring(window_s)
    now = 0.0
    for life in lives:
        total = 0.0
        for step in life:
            now += 30
            total += step
            ring.add(now, page(total))
            window = ring.window(now)
            if window is not None:
                assert 0 <= window.deltas[TOKENS] <= total
                assert 0 < window.seconds < window_s + 30


def steps(
    ring: Ring, pages: list[tuple[float, Scrape]], at_least_s: float = 25.0, at_most_s: float = 90.0
) -> list[tuple[float, float] | None]:
    """Length and tokens of each step."""
    told: list[tuple[float, float] | None] = []
    for at, made in pages:
        ring.add(at, made)
        step = ring.step(at_least_s, at_most_s)
        told.append(None if step is None else (step.seconds, step.deltas[TOKENS]))
    return told


def test_steps_follow_each_other_without_overlap() -> None:
    assert steps(Ring(300), [(0, page(0)), (30, page(5)), (60, page(7))]) == [None, (30, 5), (30, 2)]


def test_rounds_that_are_closer_are_taken_together() -> None:
    assert steps(Ring(300), [(i * 10.0, page(i)) for i in range(7)]) == [None, None, None, (30, 3), None, None, (30, 3)]


def test_no_step_covers_a_gap_or_two_lives() -> None:
    assert steps(Ring(300), [(0, page(0)), (120, page(5)), (150, page(6))]) == [None, None, (30, 1)]
    assert steps(Ring(300), [(0, page(9)), (30, page(5)), (60, page(6))]) == [None, None, (30, 1)]
    assert Ring(300).step(25, 90) is None


def test_a_level_of_a_step_is_the_one_its_series_asks_for() -> None:
    ring, wanted = Ring(300), (Series("use", "u", PROCESS, gauge=True, over="max"), Series("queue", "q", PROCESS, gauge=True, over="min"))
    for at, use, queue, block in ((0.0, 0.9, 0.0, 16.0), (30.0, 0.2, 4.0, 8.0)):
        ring.add(at, Scrape({}, {LabelledMetric("use"): use, LabelledMetric("queue"): queue, LabelledMetric("block"): block}))
        step = ring.step(25, 90, wanted)
    assert step is not None
    assert step.levels == {LabelledMetric("use"): 0.9, LabelledMetric("queue"): 0.0, LabelledMetric("block"): 8.0}
