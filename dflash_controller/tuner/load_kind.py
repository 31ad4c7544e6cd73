"""What counts as the same kind of load, and as measured at it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from dflash_controller.tuner.points import StepPoint

SAME_LOAD_DOUBLINGS = 0.5
"""Loads whose concurrency differs by at most this many doublings (a factor of 1.4) are of one kind."""
MEASURED_WEIGHT = 3.0
"""Least weight, in load samples, of a point that counts as measured. One of an earlier epoch or another deployment does not count."""


def same_kind(first: float, second: float) -> bool:
    """Returns whether two concurrencies are the same kind of load."""
    return abs(math.log2(first / second)) <= SAME_LOAD_DOUBLINGS


def is_measured(points: Iterable[StepPoint], block: int, concurrency: float) -> bool:
    """Returns whether this block size ran at this kind of load, so that its step time is known by measurement and not by inference."""
    return any(
        point.block == block and not point.prior and point.weight >= MEASURED_WEIGHT and same_kind(point.concurrency, concurrency)
        for point in points
    )
