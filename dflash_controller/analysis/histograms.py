"""Quantiles of the observations between two readings."""

from __future__ import annotations

import math
from collections.abc import Iterable

from dflash_controller.model.counters import Histogram


def difference(later: Histogram | None, earlier: Histogram | None) -> Histogram | None:
    """Returns the observations between two readings of one process; None if the engine does not export them.

    A histogram that is missing in the earlier reading had no observation: labelled histograms appear with their first one.
    """
    if later is None or earlier is None:
        return later
    if later.bounds != earlier.bounds:
        return None
    return Histogram(later.bounds, tuple(after - before for after, before in zip(later.counts, earlier.counts, strict=True)))


def total(parts: Iterable[Histogram | None]) -> Histogram | None:
    """Returns the sum over processes. Histograms with other bounds than the first are left out, because they cannot be added."""
    present = [part for part in parts if part is not None]
    if not present:
        return None
    bounds = present[0].bounds
    return Histogram(bounds, tuple(map(sum, zip(*(part.counts for part in present if part.bounds == bounds), strict=True))))


def observations(histogram: Histogram | None) -> float:
    """Returns the number of observations."""
    return histogram.counts[-1] if histogram and histogram.counts else 0.0


def quantile(histogram: Histogram | None, share: float) -> float | None:
    """Returns a quantile by linear interpolation inside a bucket, as PromQL's ``histogram_quantile`` does.

    Returns None without observations, and the highest finite bound if the quantile lies above it.
    """
    count = observations(histogram)
    if histogram is None or count <= 0:
        return None
    wanted = share * count
    low = below = 0.0
    for bound, counted in zip(histogram.bounds, histogram.counts, strict=True):
        if counted >= wanted:
            if math.isinf(bound):
                return low
            return low + (bound - low) * (wanted - below) / (counted - below) if counted > below else bound
        low, below = bound, counted
    return low


def quantile_bounds(histogram: Histogram | None, share: float, deviate: float) -> tuple[float, float]:
    """Returns lower and upper bound of the true quantile, ``deviate`` standard errors of the share to either side.

    The bounds are distribution free, from the binomial count of observations below a value. The upper bound is infinite if it lies beyond
    the last finite bucket or the largest observation. The lower bound is 0 if it lies below the smallest observation.
    """
    count = observations(histogram)
    if histogram is None or count <= 0:
        return 0.0, math.inf
    spread = deviate * math.sqrt(share * (1 - share) / count)
    low = quantile(histogram, share - spread) if share > spread else 0.0
    finite = max((c for b, c in zip(histogram.bounds, histogram.counts, strict=True) if not math.isinf(b)), default=0.0)
    if share + spread >= 1 or (share + spread) * count > finite:
        return low or 0.0, math.inf
    return low or 0.0, quantile(histogram, share + spread) or math.inf
