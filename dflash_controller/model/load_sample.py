"""What one replica did over one load sample of serving: a point of the curves the tuner learns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoadSample:
    """One engine over 15 to 60 s, told from counters that move with every step."""

    at_s: float
    """Its end, seconds since the epoch."""
    seconds: float
    block: int
    """In use; 1: speculation off. Under an engine's schedule, the mean in use, rounded."""
    concurrency: float
    """Requests in a verify step, mean over the steps; 0 where nothing was served."""
    step_s: float
    """Seconds per verify step; 0 where nothing was served."""
    steps: float
    """Verify steps of requests that ``committed`` belongs to."""
    committed: float
    """Tokens committed in those steps, bonus token included: ``committed`` ÷ ``steps`` is the acceptance length."""
    tokens: float
    """Output tokens."""
    survival: tuple[float, ...] = ()
    """Share of verify steps in which draft 0, 1, … was accepted, where the engine exports it (vLLM with one block)."""
    excluded: str = ""
    """Why its step time is no point of the curve: Prefill, Preemption, CacheFull, Queue, NoGraph, Unsteady (the load moved within it, or
    nothing tells that it did not), Blocks (a schedule used several). Its acceptance still counts."""

    requests: float = 0.0
    """That ended in it."""
    context: float = 0.0
    """Tokens that a request which ended held while it was decoded, mean over those requests: its prompt and half of its answer; 0: not
    known."""

    inconsistent: bool = False
    """Little's law says another concurrency, so this load sample tells nothing about the load. Its acceptance still counts."""

    @property
    def served(self) -> bool:
        """Whether there was traffic at all."""
        return self.steps > 0 or self.tokens > 0
