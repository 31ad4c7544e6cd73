"""Acceptance by position: where in the block a drafter falls behind."""

from __future__ import annotations

from dataclasses import replace

from dflash_controller.analysis.blocks import traffic
from dflash_controller.analysis.positions import by_position
from dflash_controller.analysis.verdict import MetricVerdict, Outcome
from dflash_controller.model.counters import CounterSeries, Evidence
from tests.support.analysis_world import DRAFTER, Engine


def with_positions(trace: CounterSeries, *survival: float) -> CounterSeries:
    readings = tuple(replace(item, accepted_at=tuple(share * (item.steps or 0.0) for share in survival)) for item in trace.readings)
    return replace(trace, readings=readings)


def verdict(candidate: tuple[float, ...], stable: tuple[float, ...]) -> MetricVerdict | None:
    evidence = Evidence(
        candidate=(with_positions(Engine("new").trace(), *candidate),),
        stable=tuple(with_positions(Engine(pod).trace(), *stable) for pod in ("a", "b")),
    )
    return by_position(DRAFTER, traffic(evidence, 60.0, concurrent=True), 5.0)


def test_the_first_position_that_falls_behind_is_named() -> None:
    found = verdict((0.9, 0.8, 0.5, 0.3), (0.9, 0.8, 0.7, 0.6))
    assert found is not None
    assert (found.outcome, round(found.candidate or 0, 3), round(found.stable or 0, 3), found.gates) == (
        Outcome.INCONCLUSIVE,
        0.5,
        0.7,
        False,
    )
    assert "falls behind from position 3 of 4" in found.message


def test_a_drafter_that_keeps_up_everywhere_is_told_so() -> None:
    found = verdict((0.9, 0.8, 0.69), (0.9, 0.8, 0.7))
    assert found is not None
    assert (found.outcome, "keeps up" in found.message) == (Outcome.SUCCESSFUL, True)


def test_an_engine_that_does_not_export_positions_has_no_such_verdict() -> None:
    assert verdict((), ()) is None
    assert verdict((), (0.9, 0.8)) is None


def test_positions_of_different_blocks_are_not_compared() -> None:
    evidence = Evidence((with_positions(Engine("new").trace(), 0.9),), (with_positions(Engine("a").trace(), 0.9),))
    assert by_position(replace(DRAFTER, candidate_block=8), traffic(evidence, 60.0, concurrent=True), 5.0) is None
