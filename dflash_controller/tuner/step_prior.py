"""What is known of step times before anything was measured, by engine and kind of target; and where an engine's CUDA graphs end."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepPrior:
    """Prior from other targets (``priors``), used where nothing was measured."""

    knee_tokens: float
    off_ratio: float
    """Step time without drafter ÷ that of the curve at the same number of tokens: no draft pass, no verification."""
    position_share: float = 0.0
    """Time that each position of a block adds whatever the load, relative to a step without tokens. Recurrent layers that advance position
    by position cause it: 0.05 adds 80 % at block 16."""
    position_sigma: float = 0.0
    """Standard deviation of ``position_share`` between targets and releases."""
    request_share: float = 0.0
    """Time that each request adds beside its tokens, relative to a step without tokens: attention, scheduling, and prefill, which is done
    in some steps and counts in the mean."""
    request_sigma: float = 0.0
    """Standard deviation of ``request_share`` between targets, engines and lengths of prompts and answers."""
    end_weight: float = 0.5
    """Share of the curve's own slope in its continuation above the data; the rest is the prior's shape."""
    below_sigma: float = 0.10
    """Uncertainty (log s) of the curve per doubling of T below the data."""
    spread: float = 1.0
    """Factor on the uncertainty of the law."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes up to which the engine has CUDA graphs, ascending, from its command line. The curve is not extrapolated across them."""

    tokens: tuple[float, ...] = ()
    """In T: vLLM captures by tokens."""
    concurrency: tuple[float, ...] = ()
    """In c: SGLang captures by requests."""

    def regime(self, block: int, concurrency: float) -> tuple[int, int]:
        """Returns on which side of every limit a step lies. A step at the limit still has a graph."""
        return bisect_left(self.tokens, block * concurrency), bisect_left(self.concurrency, concurrency)
