"""The load at which two block sizes are equally fast."""

from __future__ import annotations

import math
from collections.abc import Mapping

from dflash_controller.tuner.acceptance import Acceptance
from dflash_controller.tuner.step_times import StepTimes

_PER_DOUBLING = 4
_BISECTIONS = 12


def crossover(speeds: Mapping[int, float], acceptance: Acceptance, steps: StepTimes, up_to: int, near: float) -> float | None:
    """Returns the predicted requests per replica at which the two fastest block sizes are equally fast.

    Of several such loads it is the one nearest to ``near``. None if one of the two is faster from 1 to ``up_to`` requests, the loads that
    the engine serves, or if there is only one block size. ``speeds`` are predicted tokens per second by block size at the current loads.
    """
    best = sorted(speeds, key=lambda candidate_block: speeds[candidate_block], reverse=True)[:2]
    return between(best[0], best[1], acceptance, steps, up_to, near) if len(best) == 2 else None


def between(one: int, other: int, acceptance: Acceptance, steps: StepTimes, up_to: int, near: float) -> float | None:
    """Returns the same for two given block sizes."""

    def lead(log_load: float) -> float:
        load = math.exp(log_load)
        return fixed + math.log(steps.seconds(other, load) / steps.seconds(one, load))

    fixed = math.log(acceptance.length(one).value / acceptance.length(other).value)
    pieces = max(1, math.ceil(_PER_DOUBLING * math.log2(max(up_to, 1))))
    places = [math.log(max(up_to, 1)) * piece / pieces for piece in range(pieces + 1)]
    ahead = [lead(place) > 0 for place in places]
    turns = [place for place in range(pieces) if ahead[place] != ahead[place + 1]]
    if not turns:
        return None
    turn = min(turns, key=lambda place: abs((places[place] + places[place + 1]) / 2 - math.log(max(near, 1e-3))))
    low, high = places[turn], places[turn + 1]
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if (lead(middle) > 0) == ahead[turn]:
            low = middle
        else:
            high = middle
    return round(math.exp((low + high) / 2), 2)
