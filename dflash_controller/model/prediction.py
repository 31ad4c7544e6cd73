"""The tuner's prediction for a change of the block size."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prediction:
    """Logarithms of the speed ratio of candidate to stable. 0: no prediction."""

    gain: float = 0.0
    """The predicted gain."""
    least: float = 0.0
    """The minimum gain at which the change is worth its cost."""
