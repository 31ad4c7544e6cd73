"""What status shows under steady, changing and missing traffic, in simulated time."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_controller.model.measurement import Absent, Error, Measurement, Value
from dflash_controller.observe.pipeline.metrics import RevisionMetrics
from dflash_controller.observe.status_values.display import Display, DisplaySettings, StatusMetrics, Trail, moved, rounded

SETTINGS = DisplaySettings()


@pytest.mark.parametrize(
    ("shown", "new", "noise", "expected"),
    [
        (None, Value(6.4), 0.0, True),
        (6.4, Value(6.4), 0.0, False),
        (6.4, Value(7.0), 0.0, False),
        (6.4, Value(7.1), 0.0, True),
        (6.4, Value(5.7), 0.0, True),
        (6.4, Value(4.0), 0.5, False),
        (6.4, Value(1.0), 0.5, True),
        (0.0, Value(0.0), 0.0, False),
        (0.0, Value(0.5), 0.0, True),
        (900.0, Value(0.0), 0.0, True),
        (6.4, Value(float("nan")), 0.0, False),
    ],
)
def test_moved(shown: float | None, new: Measurement, noise: float, expected: bool) -> None:
    assert moved(shown, new, noise) is expected


@given(shown=st.none() | st.floats(0, 1e6), reason=st.text())
def test_nothing_measured_never_moves_anything(shown: float | None, reason: str) -> None:
    assert not moved(shown, Absent(reason))
    assert not moved(shown, Error(reason))


@pytest.mark.parametrize(("value", "expected"), [(6.39708, 6.4), (0.0190663, 0.0191), (12803.4, 12800.0), (0.0, 0.0), (16.0, 16.0)])
def test_three_significant_digits(value: float, expected: float) -> None:
    assert rounded(value) == expected


def test_the_noise_of_a_moving_mean_is_told_by_its_steps() -> None:
    """Means over 10 of independent values of deviation 1: standard error 1/√10, and never far below it."""
    rng = random.Random(7)
    values = [rng.gauss(5, 1) for _ in range(4000)]
    trail = Trail(300, 30)
    told = []
    for index in range(10, len(values)):
        trail.add(index * 30.0, sum(values[index - 10 : index]) / 10)
        told.append(trail.standard_error())
    settled = told[60:]
    assert 0.316 < sum(settled) / len(settled) < 1.4 * 0.316
    assert min(settled) > 0.6 * 0.316


def test_a_lasting_change_is_hardly_noise() -> None:
    trail = Trail(300, 30)
    for round_ in range(20):
        trail.add(round_ * 30.0, 8.0 + min(10, max(0, round_ - 5)) / 10 * 24)
    assert 5 * trail.standard_error() < 0.1 * 24


@dataclass
class Status:
    """The status of one deployment, written as told, and what the display is fed with."""

    display: Display = field(default_factory=lambda: Display(SETTINGS))
    shown: dict[str, float] = field(default_factory=dict)
    revision: str = "r1"
    writes: list[tuple[float, Mapping[str, float]]] = field(default_factory=list)

    def feed(self, now: float, metric_values: RevisionMetrics) -> None:
        values = self.display.update(now, StatusMetrics(self.revision, dict(self.shown)), metric_values)
        if values is not None:
            self.shown = dict(values)
            self.writes.append((now, values))


def measured(
    acceptance: float, tokens: float = 800.0, concurrency: float = 8.0, window_s: float = 300.0, samples: float = 1e4
) -> RevisionMetrics:
    return RevisionMetrics(
        acceptance_length=Value(acceptance, samples),
        concurrency=Value(concurrency, samples),
        tokens_per_second=Value(tokens, samples),
        block_size=Value(16.0),
        window_s=window_s,
    )


def test_a_first_value_needs_a_minute_and_enough_steps() -> None:
    status = Status()
    status.feed(30, measured(6.4, window_s=30))
    status.feed(60, measured(6.4, window_s=60, samples=199))
    assert status.shown == {"block_size": 16.0}
    status.feed(120, measured(6.41, window_s=120, samples=200))
    assert status.shown == {"acceptance_length": 6.41, "concurrency": 8.0, "tokens_per_second": 800.0, "block_size": 16.0}


def test_refreshes_are_a_minute_apart() -> None:
    status = Status()
    for now in range(0, 3600, 30):
        status.feed(now, measured(6.4, tokens=1000.0 * 1.2 ** (now / 30)))
    gaps = [later - earlier for (earlier, _), (later, _) in zip(status.writes, status.writes[1:], strict=False)]
    assert len(gaps) > 10
    assert min(gaps) == 60


def test_absent_and_failed_figures_leave_the_shown_ones() -> None:
    status = Status()
    status.feed(0, measured(6.4))
    before = dict(status.shown)
    for now in range(60, 1200, 30):
        status.feed(now, RevisionMetrics(window_s=300) if now % 60 else RevisionMetrics.failed(Error("down")))
    assert status.shown == before
    assert len(status.writes) == 1


def test_a_restarted_operator_waits_a_whole_window_before_it_disagrees() -> None:
    status = Status(shown={"acceptance_length": 6.4, "concurrency": 8.0, "tokens_per_second": 800.0, "block_size": 16.0})
    for now in range(0, 300, 30):
        status.feed(now, measured(4.0, window_s=now))
    assert status.writes == []
    status.feed(300, measured(4.0))
    assert status.shown["acceptance_length"] == 4.0


def test_another_revision_is_shown_by_its_own_figures() -> None:
    status = Status()
    for now in range(0, 600, 30):
        status.feed(now, measured(6.4))
    status.revision, status.shown = "r2", {}
    status.feed(600, measured(3.0))
    assert status.shown["acceptance_length"] == 3.0


def traffic(seed: int, minutes: int, per_interval: float, *, level: Sequence[float]) -> list[RevisionMetrics]:
    """Open traffic: Poisson arrivals of requests of exponential length, acceptance of a request with a deviation of 30 %.

    Metrics are means over ten intervals of 30 s, as from a source with a full window. ``level`` scales the arrivals minute by minute.
    """
    rng = random.Random(seed)
    intervals: list[tuple[float, float, int]] = []
    metric_values = []
    for index in range(minutes * 2):
        tokens = steps = 0.0
        requests, left = 0, rng.expovariate(1)
        while left < per_interval * level[index // 2 % len(level)]:
            left += rng.expovariate(1)
            requests += 1
            work = 20 + rng.expovariate(1 / 40)
            steps += work
            tokens += work * max(1.0, rng.gauss(6.4, 0.3 * 6.4))
        intervals.append((tokens, steps, requests))
        last = intervals[-10:]
        all_tokens, all_steps = sum(one[0] for one in last), sum(one[1] for one in last)
        seconds = len(last) * 30.0
        if all_steps == 0:
            metric_values.append(RevisionMetrics(tokens_per_second=Value(0.0), window_s=seconds))
            continue
        metric_values.append(measured(all_tokens / all_steps, all_tokens / seconds, all_steps * 0.02 / seconds, seconds, all_steps))
    return metric_values


@pytest.mark.parametrize("per_interval", [3, 30, 120])
def test_steady_noisy_traffic_causes_no_write(per_interval: int) -> None:
    """Forty deployments over 50 minutes each after ten to settle, from 6 to 240 requests a minute."""
    writes = 0
    for seed in range(40):
        status = Status()
        for index, metric_values in enumerate(traffic(seed, 60, per_interval, level=[1.0])):
            status.feed(index * 30.0, metric_values)
        writes += sum(now >= 600 for now, _ in status.writes)
    assert writes == 0


def test_a_restart_of_the_operator_under_noisy_traffic_causes_no_write() -> None:
    for seed in range(40):
        before, after = Status(), Status()
        course = traffic(seed, 30, 30, level=[1.0])
        for index, metric_values in enumerate(course[:40]):
            before.feed(index * 30.0, metric_values)
        after.shown = before.shown
        for index, metric_values in enumerate(course[40:]):
            after.feed(index * 30.0, metric_values)
        assert after.writes == []


def test_a_lasting_change_of_load_is_shown_within_seven_minutes() -> None:
    for seed in range(10):
        status = Status()
        for index, metric_values in enumerate(traffic(seed, 60, 60, level=[1.0] * 30 + [4.0] * 30)):
            status.feed(index * 30.0, metric_values)
            if index * 30 == 1800:
                before = status.shown["tokens_per_second"]
            if index * 30 == 1800 + 420:
                assert status.shown["tokens_per_second"] > 2.5 * before


def test_a_collapsed_drafter_is_shown_on_thin_traffic() -> None:
    """Within six minutes that it is bad; once the row is put right, how bad."""
    for seed in range(10):
        status = Status()
        healthy = traffic(seed, 30, 5, level=[1.0])
        for index, metric_values in enumerate(healthy):
            status.feed(index * 30.0, metric_values)
        for late in range(1, 30):
            share = min(1.0, late / 10)
            status.feed((len(healthy) + late) * 30.0, measured(6.4 * (1 - share) + share))
            if late == 12:
                assert status.shown["acceptance_length"] < 4
        assert status.shown["acceptance_length"] == 1.0


def test_the_step_time_is_shown_with_the_others_and_never_causes_a_write() -> None:
    status = Status()
    status.feed(0, replace(measured(6.4), step_time_s=Value(0.02, 1e4)))
    assert (status.shown["step_time_s"], len(status.writes)) == (0.02, 1)
    for now in range(30, 1200, 30):
        status.feed(now, replace(measured(6.4), step_time_s=Value(0.04, 1e4)))
    assert len(status.writes) == 1
    for now in range(1200, 2400, 30):
        status.feed(now, replace(measured(3.2), step_time_s=Value(0.04, 1e4)))
    assert status.shown["step_time_s"] == 0.04
