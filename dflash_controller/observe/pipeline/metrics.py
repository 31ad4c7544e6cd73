"""What the engines of one revision are doing, as shown in status and used by planning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dflash_controller.model.measurement import NO_SERIES, Absent, Error, Measurement, Value
from dflash_controller.model.metric_schema import EngineLoad, MetricSchema, Sums
from dflash_controller.model.series import CounterWindow, LabelledMetric

SPECULATION_OFF = Absent("SpeculationOff")
_NONE = Absent("NotMeasured")
_TOKENS = LabelledMetric("tokens")


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
    request_capacity: Measurement = _NONE
    """Requests that one replica serves at once as far as its memory goes: by its slots of state, or by the cache at the present length."""
    window_s: float = 0.0
    """Seconds of the longest pod window the metrics come from; short after a start, the configured window later."""

    @classmethod
    def failed(cls, error: Error) -> RevisionMetrics:
        """Every figure failed alike, with its source."""
        return cls(error, error, error, error, error, error)


def revision_metrics(
    dialect: MetricSchema, windows: Sequence[CounterWindow], *, expected: int, speculation_on: bool, slots_per_request: int = 0
) -> RevisionMetrics:
    """The metrics of one revision from the windows of its scraped pods; ``expected`` counts all its Ready pods.

    ``slots_per_request`` is how many slots of state the engine counts for a request. Tokens per second are scaled from
    the scraped pods to all of them. Without any window every figure is absent.
    """
    sums = Sums(windows)
    load = dialect.load(sums, speculation_on)
    return RevisionMetrics(
        acceptance_length=load.acceptance_length if speculation_on else SPECULATION_OFF,
        block_size=load.block_size if speculation_on else SPECULATION_OFF,
        concurrency=load.concurrency,
        step_time_s=load.step_time_s,
        tokens_per_second=_tokens_per_second(sums, expected),
        request_capacity=_request_capacity(load, slots_per_request),
        window_s=max((window.seconds for window in windows), default=0.0),
    )


def _request_capacity(load: EngineLoad, slots_per_request: int) -> Measurement:
    """The smaller of what state and cache hold. Only whole requests get slots."""
    slots = load.state_slots
    if not isinstance(slots, Value) or slots_per_request < 1:
        return load.holds
    by_slots = Value(float(slots.value // slots_per_request), 0.0, slots.age_s)
    return min(by_slots, load.holds, key=lambda one: one.value) if isinstance(load.holds, Value) else by_slots


def _tokens_per_second(sums: Sums, expected: int) -> Measurement:
    """Counters appear with their first increment: a pod none of whose counters moved has generated nothing, also if it has none yet."""
    windows = [window for window in sums.windows if window.seconds > 0]
    told = [window for window in windows if _TOKENS in window.deltas or not any(window.deltas.values())]
    if not told:
        return NO_SERIES
    tokens = [window.deltas.get(_TOKENS, 0.0) for window in told]
    rate = sum(count / window.seconds for count, window in zip(tokens, told, strict=True)) / len(told)
    return Value(rate * expected, sum(tokens), sums.age_s)
