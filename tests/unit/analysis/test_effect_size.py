"""Estimates and their errors, against simulation."""

from __future__ import annotations

import math
import random

import pytest

from dflash_controller.analysis.blocks import Counts, Side
from dflash_controller.analysis.confidence import student_deviate
from dflash_controller.analysis.effect_size import Batch, EffectSize, design_effect, effect_size


def _counts(steps: float, committed: float, seconds: float = 30.0, passes: float | None = None) -> Counts:
    return Counts(30.0, 30.0, 0.0, steps, committed, seconds, passes, None, None, None)


def _side(pods: dict[str, list[Counts]]) -> Side:
    return Side((), tuple((pod, tuple(blocks)) for pod, blocks in pods.items()))


def _acceptance(new: Side, old: Side, unseen: float = 0.03) -> EffectSize | None:
    return effect_size(new, old, lambda b: b.committed, lambda b: b.steps, unseen)


def _random_pod(chance: random.Random, blocks: int, level: float = 6.0, memory: float = 0.0) -> list[Counts]:
    found, last = [], 0.0
    for _ in range(blocks):
        steps = chance.uniform(1000, 5000)
        last = memory * last + math.sqrt(1 - memory**2) * chance.gauss(0, 1)
        found.append(_counts(steps, steps * (level + 0.5 * last)))
    return found


@pytest.mark.parametrize("memory", [0.0, 0.25, 0.5])
def test_the_standard_error_is_the_spread_of_the_estimate_over_repetitions(memory: float) -> None:
    chance = random.Random(5)
    found = []
    for _ in range(400):
        new = _side({"n": _random_pod(chance, 20, memory=memory)})
        old = _side({p: _random_pod(chance, 20, memory=memory) for p in "ab"})
        found.append(_acceptance(new, old))
    differences = [f.difference for f in found if f]
    spread = math.sqrt(sum(d * d for d in differences) / len(differences))
    stated = math.sqrt(sum(f.variance for f in found if f) / len(found))
    assert stated == pytest.approx(spread, rel=0.15)


def _alike(memory: float, pods: int = 3, blocks: int = 20, runs: int = 300) -> float:
    """Mean design effect over repetitions, of blocks whose neighbours have the correlation ``memory``."""
    chance = random.Random(5)
    found = 0.0
    for _ in range(runs):
        residuals = []
        for _ in range(pods):
            walk = [chance.gauss(0, 1)]
            for _ in range(blocks - 1):
                walk.append(memory * walk[-1] + math.sqrt(1 - memory**2) * chance.gauss(0, 1))
            residuals.append([value - sum(walk) / blocks for value in walk])
        found += design_effect(residuals)
    return found / runs


def test_independent_blocks_keep_almost_all_their_evidence() -> None:
    assert 1.0 <= _alike(0.0) < 1.25


@pytest.mark.parametrize("memory", [0.3, 0.5])
def test_blocks_that_are_alike_count_for_fewer(memory: float) -> None:
    """Of a first-order autoregression the design effect is (1 + ρ) ÷ (1 − ρ)."""
    assert _alike(memory) == pytest.approx((1 + memory) / (1 - memory), rel=0.15)


def test_correlation_that_lasts_for_many_blocks_is_counted() -> None:
    """Two neighbours alone would account for a design effect of 5 at most."""
    wave = [1.0] * 8 + [-1.0] * 8
    assert design_effect([wave, wave, wave]) > 5


def test_blocks_that_alternate_gain_nothing() -> None:
    assert design_effect([[1.0, -1.0] * 8]) == 1.0
    assert design_effect([[0.0] * 8, [1.0, -1.0]]) == 1.0, "without spread, or with too few blocks, nothing is known"


def test_blocks_that_are_alike_leave_fewer_degrees_of_freedom() -> None:
    """The blocks of each pod in another order: the same values and the same spread, but neighbours resemble each other."""
    chance = random.Random(5)
    pods = {pod: _random_pod(chance, 16) for pod in "nab"}
    ordered = {pod: sorted(blocks, key=lambda b: (b.committed or 0) / (b.steps or 1)) for pod, blocks in pods.items()}
    mixed, alike = (_acceptance(_side({"n": p["n"]}), _side({"a": p["a"], "b": p["b"]})) for p in (pods, ordered))
    assert mixed
    assert alike
    assert alike.difference == pytest.approx(mixed.difference)
    assert alike.variance > 3 * mixed.variance
    assert alike.freedom < mixed.freedom / 3


def _sessions(chance: random.Random, blocks: int, requests: int, mean: float) -> list[Counts]:
    """Blocks of one pod whose requests come in sessions, of geometric length, that agree in their acceptance."""
    found, left, level = [], 0, 6.0
    for _ in range(blocks):
        steps = committed = 0.0
        for _ in range(requests):
            if left == 0:
                left, level = 1 + int(math.log(1 - chance.random()) / math.log(1 - 1 / mean)), chance.uniform(3.0, 9.0)
            left -= 1
            steps += 100
            committed += 100 * level
        found.append(_counts(steps, committed))
    return found


def _excluded(mean: float) -> float:
    """Share of equal candidates whose interval of 95 % excludes 0."""
    chance = random.Random(8)
    outside, runs = 0, 300
    for _ in range(runs):
        pods = [_sessions(chance, 20, 15, mean) for _ in range(3)]
        found = _acceptance(_side({"n": pods[0]}), _side({"a": pods[1], "b": pods[2]}))
        assert found
        outside += abs(found.difference) > student_deviate(1.96, found.freedom) * math.sqrt(found.variance)
    return outside / runs


@pytest.mark.parametrize(("mean", "most"), [(1.001, 0.06), (8.0, 0.08), (15.0, 0.09)])
def test_equal_drafters_are_covered_however_many_requests_a_session_has(mean: float, most: float) -> None:
    assert _excluded(mean) <= most


def test_the_estimate_is_pooled_not_a_mean_of_quotients() -> None:
    new = _side({"n": [_counts(1000, 8000)] + [_counts(100, 200)] * 9})
    found = _acceptance(new, _side({"o": [_counts(100, 500)] * 10}))
    assert found
    assert found.difference == pytest.approx(math.log((8000 + 1800) / 1900 / 5))


def test_what_replicas_differ_by_is_seen_among_two_and_assumed_for_one() -> None:
    chance = random.Random(5)
    new = _side({"n": _random_pod(chance, 20)})
    far = _side({"a": _random_pod(chance, 20, 7.0), "b": _random_pod(chance, 20, 5.0)})
    one = _side({"a": _random_pod(chance, 40)})
    seen, unseen = _acceptance(new, far), _acceptance(new, one)
    assert seen
    assert unseen
    assert unseen.bias == unseen.bias_at_least == pytest.approx(math.sqrt(2) * 0.03)
    assert seen.bias == pytest.approx(math.log(7 / 5) / math.sqrt(2) * math.sqrt(1.5), rel=0.15)
    assert 0 < seen.bias_at_least < seen.bias


def test_replicas_that_are_alike_add_nothing_most_of_the_time() -> None:
    chance = random.Random(5)
    found = [_acceptance(_side({"n": _random_pod(chance, 20)}), _side({p: _random_pod(chance, 20) for p in "ab"})) for _ in range(200)]
    assert sum(f.bias == 0 for f in found if f) > 100
    assert sum(f.bias_at_least == 0 for f in found if f) > 180


def _loaded(batches: list[float], base_s: float, slope: float, acceptance: float = 6.0) -> list[Counts]:
    return [_counts(3000, 3000 * acceptance, 3000 * base_s * batch**slope, 3000 / batch) for batch in batches]


def _speed(new: Side, old: Side) -> EffectSize:
    batch = Batch(lambda b: math.log((b.steps or 0) / (b.passes or 1)), lambda b: b.steps)
    found = effect_size(new, old, lambda b: b.committed, lambda b: b.decode_seconds, 0.05, batch)
    assert found
    return found


def test_speed_is_compared_at_equal_batch() -> None:
    """The candidate happens to have larger batches, on the same step-time curve."""
    new = _side({"n": _loaded([6, 7, 8, 9, 10, 8, 7, 9, 10], 0.01, 0.5)})
    old = _side({"o": _loaded([4, 5, 6, 7, 5, 4, 6, 7, 4], 0.01, 0.5)})
    assert _speed(new, old).difference == pytest.approx(0.0, abs=0.005)


def test_a_slower_step_is_seen_whatever_the_load() -> None:
    new = _side({"n": _loaded([6, 7, 8, 9, 10, 8, 7, 9, 10], 0.012, 0.5)})
    old = _side({"o": _loaded([4, 5, 6, 7, 5, 4, 6, 7, 4], 0.01, 0.5)})
    assert _speed(new, old).difference == pytest.approx(-math.log(1.2), abs=0.005)


def test_loads_apart_that_never_vary_leave_the_price_of_a_batch_uncertain() -> None:
    new, old = _side({"n": _loaded([8.0] * 10, 0.01, 0.5)}), _side({"o": _loaded([4.0] * 10, 0.01, 0.5)})
    found = _speed(new, old)
    assert math.sqrt(found.variance) == pytest.approx(0.3 * math.log(2), rel=0.05)
    assert abs(found.difference) < 2 * math.sqrt(found.variance)


def test_fewer_than_eight_blocks_say_nothing() -> None:
    enough = _side({"n": [_counts(100, 500)] * 8})
    assert _acceptance(enough, _side({"o": [_counts(100, 500)] * 7})) is None
    assert _acceptance(enough, _side({"o": [_counts(100, 500)] * 5, "p": [_counts(100, 500)] * 3})) is not None
