"""Which metrics status shows, and when they are worth a write. Pure: the times are given.

A settled deployment under steady noisy traffic must cause no write. So a shown value stays while the new one is within 10 % of it, or
within what the noise of the traffic explains; a value that is absent or failed never replaces a shown one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from dflash_controller.model.measurement import Measurement, Value
from dflash_controller.observe.pipeline.metrics import RevisionMetrics

FIRST_SAMPLES: Mapping[str, float] = {
    "acceptance_length": 200.0,
    "concurrency": 200.0,
    "tokens_per_second": 200.0,
    "step_time_s": 200.0,
    "block_size": 0.0,
    "request_capacity": 0.0,
}
"""The metrics status shows, and the samples (verify steps, tokens) a first value needs: a warm-up request is no traffic."""
_ALONG = frozenset({"step_time_s"})
"""Shown with the others and never worth a write alone: tokens per second tell when it changes, with less noise."""

_BAND = 0.10
_NOISE = 7.0
"""Standard errors. Shown and new value both carry noise, so this is 5 standard errors of their difference: a fleet of hundreds is looked at
thousands of times an hour, and the estimate of the noise is itself noisy (at 5, one deployment in 1,000 was written in every window)."""


@dataclass(frozen=True, slots=True)
class StatusMetrics:
    """What status says now: whose metrics they are, and the values by name. Empty where nothing is shown yet for that revision."""

    revision: str
    values: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DisplaySettings:
    """``window_s`` and ``interval_s`` are those of the collector; ``first_s`` is the part of a window a first value needs."""

    window_s: float = 300.0
    interval_s: float = 30.0
    first_s: float = 60.0
    min_gap_s: float = 60.0
    """Between two refreshes of one deployment."""


def rounded(value: float) -> float:
    """Three significant digits."""
    return float(f"{value:.3g}")


def moved(shown: float | None, new: Measurement, standard_error: float = 0.0) -> bool:
    """Whether ``new`` is worth replacing ``shown``: the first value, or one outside 10 % and outside the noise."""
    if not isinstance(new, Value) or not math.isfinite(new.value):
        return False
    return shown is None or abs(new.value - shown) > max(_BAND * abs(shown), _NOISE * standard_error)


@dataclass(slots=True)
class Trail:
    """The recent course of one figure, a moving mean over ``window_s`` looked at every ``interval_s``."""

    window_s: float
    interval_s: float
    points: deque[tuple[float, float]] = field(default_factory=deque)

    def add(self, at: float, value: float) -> None:
        """Six windows are kept: the noise of fewer is itself too noisy."""
        self.points.append((at, value))
        while self.points[0][0] < at - 6 * self.window_s:
            self.points.popleft()

    @property
    def settled(self) -> bool:
        """Watched for a whole window: what is left of a start, a restart of the operator or an idle spell has left the mean."""
        return bool(self.points) and self.points[-1][0] - self.points[0][0] >= self.window_s - self.interval_s / 2

    def standard_error(self) -> float:
        """Of the mean, told by its own steps.

        With n independent intervals of variance v in the mean its variance is v/n. Each step swaps one interval, so the difference of
        two steps has variance 4v/n² and the standard error is √n/2 times its root mean square. Taking second differences keeps a lasting
        change of level, a straight ramp of the mean, from counting as noise. A jump of the mean itself (pods that come or go) makes
        two large ones, so two are left out. Few steps may happen to be small, which the last factor allows for.
        """
        values = [value for _, value in self.points]
        squares = sorted((values[i + 2] - 2 * values[i + 1] + values[i]) ** 2 for i in range(len(values) - 2))[:-2]
        if not squares:
            return 0.0
        measured = math.sqrt(self.window_s / self.interval_s / 4 * sum(squares) / len(squares))
        return measured * (1 + 3 / math.sqrt(len(squares)))


class Display:
    """Decides for one deployment."""

    def __init__(self, settings: DisplaySettings) -> None:
        self._settings = settings
        self._revision: str | None = None
        self._trails: dict[str, Trail] = {}
        self._refreshed: float | None = None
        self._put_right_at: float | None = None

    def update(self, now: float, shown: StatusMetrics, metric_values: RevisionMetrics) -> Mapping[str, float] | None:
        """Take a round's metrics of the shown revision. Returns the values to show from now on, None to leave status alone.

        One figure that moved refreshes all that are ready, so that a row of status is of one time. That moment may be the middle of a
        change, so once a whole window later the row is put right, where it is off by 10 %, noise or not.
        """
        if shown.revision != self._revision:
            self._revision = shown.revision
            self._trails = {}
            self._put_right_at = None
            # Nothing is shown for it yet: its first metrics need not wait for what was written about another.
            self._refreshed = None
        put_right = self._put_right_at is not None and now >= self._put_right_at
        ready: dict[str, float] = {}
        worth_it = False
        for name, first_samples in FIRST_SAMPLES.items():
            measured: Measurement = getattr(metric_values, name)
            if not isinstance(measured, Value):
                self._trails.pop(name, None)
                continue
            trail = self._trails.setdefault(name, Trail(self._settings.window_s, self._settings.interval_s))
            trail.add(now, measured.value)
            current = shown.values.get(name)
            enough = metric_values.window_s >= self._settings.first_s and measured.samples >= first_samples
            if enough if current is None else trail.settled:
                ready[name] = rounded(measured.value)
                worth_it = worth_it or (name not in _ALONG and moved(current, measured, 0.0 if put_right else trail.standard_error()))
        if self._refreshed is not None and now - self._refreshed < self._settings.min_gap_s:
            return None
        if put_right:
            self._put_right_at = None
        if not worth_it:
            return None
        self._refreshed = now
        if not put_right:
            self._put_right_at = now + self._settings.window_s
        return {**shown.values, **ready}
