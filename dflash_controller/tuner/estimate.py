"""A positive quantity and its uncertainty."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Estimate:
    """``value`` in its own unit; ``log_sigma`` is the standard deviation of its natural logarithm (0.03: about 3 %)."""

    value: float
    log_sigma: float

    def __post_init__(self) -> None:
        """Raises ValueError if the value is not a positive number or the deviation is negative or not a number."""
        if not (math.isfinite(self.value) and self.value > 0):
            raise ValueError(f"{self.value} is not a positive number")
        if not (math.isfinite(self.log_sigma) and self.log_sigma >= 0):
            raise ValueError(f"{self.log_sigma} is not a standard deviation")

    @property
    def log(self) -> float:
        return math.log(self.value)
