"""Measured step times."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepPoint:
    """The step time of one load sample, or of several pooled, at one block size."""

    block: int
    """1: speculation off."""
    concurrency: float
    """Requests in a step, mean over the load sample."""
    seconds: float
    """Step time: seconds per verify step."""
    weight: float = 1.0
    """Number of load samples pooled in it."""
    prior: bool = False
    """Measured with other prompts before, or by another deployment of the same pair: knowledge to start from."""

    def __post_init__(self) -> None:
        """Raises ValueError if a value is not a positive number."""
        for figure in (self.block, self.concurrency, self.seconds, self.weight):
            if not (math.isfinite(figure) and figure > 0):
                raise ValueError(f"{self} has a figure that is not a positive number")

    @property
    def tokens(self) -> float:
        """Tokens verified per step, T."""
        return self.block * self.concurrency


def pooled(points: Iterable[StepPoint], per_doubling: int = 8) -> tuple[StepPoint, ...]:
    """Returns the points with neighbours in concurrency at one block replaced by their geometric mean.

    ``per_doubling`` is the number of bins per doubling of concurrency. Live load samples repeat nearly the same load for days. Pooling
    keeps the curve over them small and free of their noise.
    """
    bins: dict[tuple[int, int], list[StepPoint]] = {}
    for point in points:
        bins.setdefault((point.block, round(per_doubling * math.log2(point.concurrency))), []).append(point)
    return tuple(_mean(block, found) for (block, _), found in sorted(bins.items()))


def _mean(block: int, points: list[StepPoint]) -> StepPoint:
    weight = sum(point.weight for point in points)
    concurrency = math.exp(sum(point.weight * math.log(point.concurrency) for point in points) / weight)
    seconds = math.exp(sum(point.weight * math.log(point.seconds) for point in points) / weight)
    return StepPoint(block, concurrency, seconds, weight)
