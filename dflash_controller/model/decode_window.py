"""What the counters of one pod say about decoding in a window, in the terms all engines share. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dflash_controller.model.series import CounterWindow, LabelledMetric

CACHE_USE = 0.9
"""Share of the cache in use, beyond which requests wait for it."""

PooledAcceptance = Callable[[float, float], float | None]
"""Tokens per verify step from the tokens and steps of the requests that ended in a window and, as far as needed, before it."""


@dataclass(frozen=True, slots=True)
class EndedRequests:
    """Requests that ended in a window."""

    requests: float
    prompt: float
    """Their tokens."""
    generated: float
    lived_s: float | None
    """For how long they were decoded, in all; None: not exported, or not known while requests queue."""

    @property
    def context(self) -> float:
        """Tokens that one of them held while it was decoded: all of its prompt, and on average half of its answer."""
        return (self.prompt + self.generated / 2) / self.requests if self.requests > 0 else 0.0


@dataclass(frozen=True, slots=True)
class DecodeWindow:
    """What the counters of a window say. Its seconds ÷ ``passes`` would be the mean step time, were the engine never idle."""

    block: int
    batch: float
    """Requests in a step, mean over the steps; 0 where nothing was decoded."""
    passes: float
    request_steps: float
    """Of all requests together."""
    told: tuple[float, float]
    """Seconds that steps took for the requests in them, and how many steps those were."""
    life_s: float
    """Mean duration of the requests that ``told`` is told by; 0 where they tell it step by step."""
    steps: float
    committed: float
    tokens: float
    survival: tuple[float, ...]
    prefilled: float
    excluded: str
    ended: EndedRequests
    prefill_s: float | None = None
    """Seconds of prefill that lengthened the steps which ``told`` tells of; None where the metrics do not tell."""
    queued: bool = False
    """Whether requests waited for a slot at every look, in every data-parallel group."""
    at_once: float | None = None
    """Requests that entered without a wait, where ``told`` is what is left of latency without the wait of those that entered. It is right
    then only while the wait stays the same. Infinite: not known. None: ``told`` does not depend on the queue."""

    @property
    def own_step_s(self) -> float | None:
        """Seconds a step took for the requests in it; None where none tells."""
        seconds, steps = self.told
        return seconds / steps if seconds > 0 and steps > 0 else None


def queued(window: CounterWindow) -> bool:
    """Whether requests waited for their turn at every look, in every group that the engine tells of."""
    return min(_waiting(window), default=0.0) > 0


def crowded(window: CounterWindow, evicted: bool) -> str:
    """Why steps do not tell the step time at the mean load, as load samples name it; empty where they do. ``evicted``: requests lost their
    place.

    A queue alone is no reason: what decodes is the batch. But where one data-parallel group has a queue and another has none, their batches
    are unequal, and the larger one decides how long a step lasts.
    """
    if evicted:
        return "Preemption"
    if window.levels.get(LabelledMetric("cache_use"), 0.0) > CACHE_USE:
        return "CacheFull"
    return "Queue" if max(_waiting(window), default=0.0) > 0 and not queued(window) else ""


def _waiting(window: CounterWindow) -> list[float]:
    """The fewest requests that waited at a look, for each group that the engine tells of."""
    return [level for metric, level in window.levels.items() if metric.quantity == "waiting"]
