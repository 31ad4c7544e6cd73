"""What is counted, and how it is cut."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dflash_controller.analysis.blocks import BLOCK_REQUESTS, MOST_BLOCKS, traffic
from dflash_controller.model.counters import CounterSeries, CounterSnapshot, Evidence
from tests.support.analysis_world import Engine, evidence


def _blocks(engine: Engine, warm_up_s: float = 60.0) -> list[tuple[float | None, float]]:
    """Requests and seconds of the candidate's blocks."""
    sides = traffic(Evidence((engine.trace(),)), warm_up_s, concurrent=True)
    return [(block.requests, block.seconds) for _, blocks in sides.candidate.blocks for block in blocks]


def test_a_block_holds_thirty_requests_at_least() -> None:
    assert BLOCK_REQUESTS == 30
    assert _blocks(Engine(requests=11.0, count=11)) == [(33.0, 90.0)] * 3
    assert _blocks(Engine(requests=30.0, count=5)) == [(30.0, 30.0)] * 3


def test_what_is_left_over_joins_the_last_block() -> None:
    assert _blocks(Engine(requests=11.0, count=13)) == [(33.0, 90.0), (33.0, 90.0), (55.0, 150.0)]
    assert _blocks(Engine(requests=11.0, count=4)) == []


def test_a_block_is_three_tail_latencies_long_at_least() -> None:
    """Requests of about 40 s, in the bucket from 30 s on: the warm-up is as long as their 95th percentile, a block three times that."""
    blocks = _blocks(Engine(requests=40.0, tokens=2400.0, step_s=0.02, count=20), warm_up_s=0.0)
    assert all(seconds >= 3 * 5.0 for _, seconds in blocks)
    slow = Engine(requests=40.0, tokens=9000.0, step_s=0.005, count=20)
    assert {seconds for _, seconds in _blocks(slow, warm_up_s=0.0)} <= {30.0, 60.0}
    assert len(_blocks(slow, warm_up_s=0.0)) < 20


def test_neighbours_are_merged_and_nothing_is_lost() -> None:
    blocks = _blocks(Engine(count=242), warm_up_s=60.0)
    assert MOST_BLOCKS / 2 <= len(blocks) <= MOST_BLOCKS
    assert sum(requests or 0.0 for requests, _ in blocks) == 240 * 40


def test_the_warm_up_lasts_at_least_the_tail_latency() -> None:
    quick, slow = Engine(), Engine(tokens=60000.0)
    for engine, start_s in ((quick, 60.0), (slow, 60.0)):
        assert traffic(Evidence((engine.trace(),)), 60.0, concurrent=True).start_s == start_s
    assert traffic(Evidence((slow.trace(),)), 0.0, concurrent=True).start_s == 30.0, "10 s, the largest finite bound"


def test_stable_is_counted_over_the_candidates_span_only() -> None:
    old = Engine("old", start_s=-3000.0, ready_at_s=-9e3, count=300)
    sides = traffic(evidence(Engine("new", count=20), old), 60.0, concurrent=True)
    assert (sides.start_s, sides.end_s) == (60.0, 600.0)
    assert sides.stable.total("requests") == 18 * 40
    assert traffic(evidence(Engine("new", count=20), old), 60.0, concurrent=False).stable.total("requests") == 300 * 40


def test_a_stable_process_that_begins_meanwhile_warms_up_too() -> None:
    old = Engine("old", start_s=300.0, ready_at_s=300.0, count=10)
    assert traffic(evidence(Engine("new", count=20), old), 60.0, concurrent=True).stable.total("requests") == 8 * 40


def test_a_counter_that_appears_later_was_zero_before() -> None:
    """Engines export labelled counters with their first increment."""
    trace = Engine(count=20, failed=1.0).trace()
    first = [replace(r, failed=None, steps=None, requests=None) if r.at_s <= 90 else r for r in trace.readings]
    sides = traffic(Evidence((CounterSeries("pod", 0.0, tuple(first)),)), 60.0, concurrent=True)
    assert sides.candidate.total("requests") == 20 * 40
    assert sides.candidate.total("failed") == 20


def test_an_incomplete_reading_in_between_is_skipped() -> None:
    trace = Engine(count=20).trace()
    holes = tuple(CounterSnapshot(r.at_s) if r.at_s in (60.0, 300.0, 600.0) else r for r in trace.readings)
    sides = traffic(Evidence((CounterSeries("pod", 0.0, holes),)), 60.0, concurrent=True)
    assert (sides.start_s, sides.candidate.total("requests")) == (90.0, 16 * 40)


def test_counters_that_begin_again_are_another_trace_of_the_same_pod() -> None:
    lives = (Engine(count=10).trace(), Engine(count=10, start_s=400.0, ready_at_s=400.0).trace())
    sides = traffic(Evidence(lives), 60.0, concurrent=True)
    assert sides.candidate.total("requests") == pytest.approx(2 * 8 * 40)
    assert [(pod, len(blocks)) for pod, blocks in sides.candidate.blocks] == [("pod", 16)]
