"""What the tuner predicts of a change of the block size."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prediction:
    """Logarithms of speed, candidate over stable. 0: nothing is predicted."""

    gain: float = 0.0
    least: float = 0.0
    """The smallest gain with which the change was worth its cost."""
