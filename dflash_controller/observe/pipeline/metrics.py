"""What the engines of one revision are doing, as shown in status and used by planning."""

from __future__ import annotations

from dataclasses import dataclass, field

from dflash_controller.observe.pipeline.result import Absent, Error, Measurement

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
