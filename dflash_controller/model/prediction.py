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
    exploratory: bool = False
    """Whether the candidate is tried because its gain is not known. Nothing is predicted then, but ``least`` is asked for."""

    @property
    def asks(self) -> bool:
        """Whether the candidate must reach ``least``."""
        return self.exploratory or self.gain > 0
