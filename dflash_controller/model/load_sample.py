"""Load samples: measurements of one replica from which the tuner learns its curves."""

from __future__ import annotations

from dataclasses import dataclass

WARM_UP = "WarmUp"
"""Why a load sample is excluded in which the engine process was still compiling kernels, or may have been."""
PREFILL = "Prefill"
"""Why a load sample is excluded whose time was mostly prefill."""
WAITED = frozenset({"Preemption", "CacheFull", "Queue"})
"""Why one is excluded in which requests waited for a slot or for memory, be it in the middle of their decoding."""


@dataclass(frozen=True, slots=True)
class LoadSample:
    """Load and speed of one engine over 15 to 60 s, from counters that advance with every step."""

    at_s: float
    """End of the sample, seconds since the epoch."""
    seconds: float
    """Length of the sample."""
    block: int
    """Block size in use; 1: speculation off. Under an engine's schedule, the rounded mean."""
    concurrency: float
    """Requests in a verify step, mean over the steps; 0 without traffic."""
    step_s: float
    """Seconds per verify step; 0 without traffic."""
    steps: float
    """Verify steps of the requests counted in ``committed``."""
    committed: float
    """Tokens committed in those steps, bonus token included: ``committed`` ÷ ``steps`` is the acceptance length."""
    tokens: float
    """Output tokens."""
    survival: tuple[float, ...] = ()
    """Share of verify steps in which draft 0, 1, … was accepted, if the engine exports it (vLLM with a fixed block size)."""
    excluded: str = ""
    """Why its step time is not a point of the curve: WarmUp (kernels may have been compiled meanwhile), Prefill (most of the time),
    Preemption, CacheFull, Queue (of some data-parallel groups and not of others), NoGraph, Unsteady (the load changed during the sample, or
    may have), Blocks (a schedule used several). Its acceptance still counts."""

    requests: float = 0.0
    """Requests that ended during the sample."""
    context: float = 0.0
    """Mean context of those requests during decoding, in tokens: the prompt and half of the answer; 0: not known."""

    prefill_share: float = 0.0
    """Part of the time of its steps that prefill took beside decoding. ``step_s`` includes it."""

    inconsistent: bool = False
    """Whether Little's law gives a different concurrency, so that the load is unknown. The acceptance still counts."""

    queued: bool = False
    """Whether requests waited for a slot throughout. Its step time counts nevertheless."""

    @property
    def waited(self) -> bool:
        """Whether requests waited for a slot or for memory."""
        return self.queued or self.excluded in WAITED

    @property
    def decode_step_s(self) -> float:
        """Seconds per verify step without prefill: the point of the curve."""
        return self.step_s * (1.0 - self.prefill_share)

    @property
    def served(self) -> bool:
        """Whether there was any traffic."""
        return self.steps > 0 or self.tokens > 0
