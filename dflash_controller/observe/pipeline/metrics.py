"""What the engines of one revision are doing, as shown in status and used by planning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dflash_controller.model.measurement import NO_SERIES, Absent, Error, Measurement, Value
from dflash_controller.model.metric_schema import MetricSchema, Sums
from dflash_controller.model.series import CounterWindow

SPECULATION_OFF = Absent("SpeculationOff")
_NONE = Absent("NotMeasured")


@dataclass(frozen=True, slots=True)
class RevisionMetrics:
    """Over the last window, all scraped pods of one revision together (sums before quotients)."""

    acceptance_length: Measurement = _NONE
    """Tokens committed per verify step, bonus token included: 1 ... B."""
    concurrency: Measurement = _NONE
    """Requests in service per replica while busy, from per-step counters."""
    tokens_per_second: Measurement = _NONE
    """Output tokens per second, sum over the revision's pods."""
    block_size: Measurement = _NONE
    """Block size the engine itself reports."""
    step_time_s: Measurement = _NONE
    """Seconds per verify step."""
    ttft_s: Measurement = _NONE
    """Mean time to the first token, where the engine measures it at the first token (see the dialect)."""
    requests: Measurement = _NONE
    """Requests finished within the window, on the pods scraped."""
    window_s: float = 0.0
    """Seconds of the longest pod window the metrics come from; short after a start, the configured window later."""
    pods_scraped: int = 0
    pods_expected: int = 0
    acceptance_by_position: tuple[float, ...] = field(default=())
    """Share of drafts still accepted at each position, where the engine exports it (vLLM)."""

    @classmethod
    def failed(cls, error: Error, pods_expected: int) -> RevisionMetrics:
        """Every figure failed alike, with its source."""
        return cls(error, error, error, error, error, error, error, pods_expected=pods_expected)


def revision_metrics(dialect: MetricSchema, windows: Sequence[CounterWindow], *, expected: int, speculation_on: bool) -> RevisionMetrics:
    """The metrics of one revision from the windows of its scraped pods; ``expected`` counts all its Ready pods.

    Tokens per second are scaled from the scraped pods to all of them. Without any window every figure is absent.
    """
    sums = Sums(windows)
    load = dialect.load(sums, speculation_on)
    return RevisionMetrics(
        acceptance_length=load.acceptance_length if speculation_on else SPECULATION_OFF,
        acceptance_by_position=load.acceptance_by_position if speculation_on else (),
        block_size=load.block_size if speculation_on else SPECULATION_OFF,
        concurrency=load.concurrency,
        step_time_s=load.step_time_s,
        tokens_per_second=_tokens_per_second(sums, expected),
        ttft_s=sums.ratio("ttft_seconds", "ttft_requests"),
        requests=_requests(sums),
        window_s=max((window.seconds for window in windows), default=0.0),
        pods_scraped=len(windows),
        pods_expected=expected,
    )


def _tokens_per_second(sums: Sums, expected: int) -> Measurement:
    rate, tokens = sums.rate("tokens"), sums.of("tokens")
    if rate is None or tokens is None:
        return NO_SERIES
    return Value(rate * expected, tokens[0], sums.age_s)


def _requests(sums: Sums) -> Measurement:
    requests = sums.of("requests")
    return NO_SERIES if requests is None else Value(requests[0], requests[0], sums.age_s)
