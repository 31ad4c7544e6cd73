"""The prior's shape of step time over the tokens of a step, used where nothing was measured.

A step reads all weights once and computes in proportion to its tokens: s = a (1 + T / knee). At the knee both take the same time. For dense
BF16 weights the roofline model (Williams et al. 2009) puts the knee at FLOP/s ÷ bytes/s of the accelerator (B200 281, H100 295 tokens).
Attention, which grows with requests, lowers it to the 160 to 290 of ``priors.yaml``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

_LEAST, _MOST = 8.0, 8192.0
_STEPS = 80
_GOLDEN = (math.sqrt(5) - 1) / 2


def log_cost(tokens: float, knee: float) -> float:
    """Returns the logarithm of the step time relative to that of an empty step."""
    return math.log1p(tokens / knee)


def fit_knee(series: Iterable[Sequence[tuple[float, float]]]) -> float:
    """Returns the knee, in tokens, that best fits several series of (tokens, seconds), each with its own level, by least squares in log s.

    Golden-section search on a logarithmic scale from 8 to 8192 tokens. Raises ValueError if no series has two points.
    """
    logs = [[(tokens, math.log(seconds)) for tokens, seconds in points] for points in series if len(points) > 1]
    if not logs:
        raise ValueError("a knee needs two points of one series")

    def misfit(log_knee: float) -> float:
        total = 0.0
        for points in logs:
            rest = [log_s - log_cost(tokens, math.exp(log_knee)) for tokens, log_s in points]
            mean = sum(rest) / len(rest)
            total += sum((value - mean) ** 2 for value in rest)
        return total

    low, high = math.log(_LEAST), math.log(_MOST)
    for _ in range(_STEPS):
        width = (high - low) * _GOLDEN
        if misfit(high - width) <= misfit(low + width):
            high = low + width
        else:
            low = high - width
    return math.exp((low + high) / 2)
