"""What not changing has cost so far, how long loads stay, and what earlier changes were worth.

A change is like buying instead of renting: without knowledge of the future, buying once the rent paid equals the price never costs more
than twice the best (Karlin et al. 1988, competitive snoopy caching). The debt to a block size is the difference of two work functions
(Borodin, Linial and Saks 1992), kept between 0 and a bound: it grows while that block size would be faster and falls while the one in force
is.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

from dflash_controller.tuner.learned import Past

DAY_S = 86400.0
LONGEST_STEP_S = 300.0
"""More time between two looks was not seen, and counts for nothing."""
KEPT_STAYS = 8
LEAST_LEAD = 0.04
"""By which (log speed) another block size must lead before the load is said to favour it: less is noise."""
SHORTEST_STAY_S = 300.0
FIRST_FACTOR, MOST_FACTOR = 2.0, 16.0
BOUND, LEAST_BOUND_S = 10.0, 600.0
"""Most debt, in costs of a change at the load that makes it dearest, and at least in seconds: what was lost long ago must not outweigh
what is gained now for ever."""


def won(log_gain: float) -> float:
    """What a block size gains over another, as a share of the faster one's speed: seconds of full speed per second. The one loses what the
    other gains; measured by the speed of one of them, loads that come and go would count more where that one is slow, and each would seem
    to lose against the other."""
    return math.copysign(-math.expm1(-abs(log_gain)), log_gain)


class RegretLedger:
    """Plain state, fed with one look of the planner after the other."""

    def __init__(self) -> None:
        self._at_s: float | None = None
        self._block = 0
        self._regrets: dict[int, float] = {}
        self._dearest_s = 0.0
        self._favoured = 0
        self._favoured_since_s = 0.0
        self._left: tuple[int, float] | None = None
        self._stays: dict[int, deque[float]] = {}
        self._factor = FIRST_FACTOR
        self._clean_since_s = 0.0
        self._wasted = 0
        self._previous = 0
        self._asked: tuple[int, float] | None = None
        self._balance: float | None = None

    def note(self, now_s: float, block: int, log_gains: Mapping[int, float], cost_s: float, asked: int | None) -> None:
        """One look: the block in force, the gain of every other block size over it (log), the cost of a change (seconds of full speed), and
        the block that is being changed to, if one is."""
        step = min(LONGEST_STEP_S, max(0.0, now_s - self._at_s)) if self._at_s is not None else 0.0
        if self._at_s is None:
            self._clean_since_s = now_s
        self._at_s = now_s
        if block != self._block:
            self._changed(now_s, block)
        self._follow(now_s, block, log_gains)
        self._dearest_s = max(self._dearest_s, cost_s)
        bound = max(LEAST_BOUND_S, BOUND * self._factor * self._dearest_s)
        for candidate_block, gain in log_gains.items():
            self._regrets[candidate_block] = min(bound, max(0.0, self._regrets.get(candidate_block, 0.0) + step * won(gain)))
        if self._balance is not None and self._previous in log_gains:
            self._balance -= step * won(log_gains[self._previous])
        if now_s - self._clean_since_s >= DAY_S:
            self._clean_since_s = now_s
            self._factor = max(1.0, self._factor / 2)
        if asked is not None:
            self._asked = asked, cost_s

    def _changed(self, now_s: float, block: int) -> None:
        if self._balance is not None and self._balance < 0:
            self._factor = min(MOST_FACTOR, 2 * self._factor)
            self._clean_since_s = now_s
            self._wasted += 1
        # A change that somebody else made is not the tuner's to answer for.
        self._balance = -self._asked[1] if self._asked is not None and self._asked[0] == block else None
        self._previous, self._block, self._asked = self._block, block, None
        self._regrets.clear()
        self._dearest_s = 0.0

    def _follow(self, now_s: float, block: int, log_gains: Mapping[int, float]) -> None:
        gains = {block: 0.0, **log_gains}
        best = max(gains, key=lambda candidate_block: gains[candidate_block])
        if self._favoured in gains and gains[best] - gains[self._favoured] < LEAST_LEAD:
            return
        if best == self._favoured:
            return
        stay = now_s - self._favoured_since_s
        if stay < SHORTEST_STAY_S and self._left is not None and self._left[0] == best:
            # A flicker at the border is no end of a stay.
            if self._stays.get(best):
                self._stays[best].pop()
            self._favoured, self._favoured_since_s, self._left = best, self._left[1], None
            return
        if self._favoured and stay >= SHORTEST_STAY_S:
            self._stays.setdefault(self._favoured, deque(maxlen=KEPT_STAYS)).append(float(round(stay)))
            self._left = self._favoured, self._favoured_since_s
        else:
            self._left = None
        self._favoured, self._favoured_since_s = best, now_s

    def past(self, now_s: float) -> Past:
        return Past(
            tuple((candidate_block, round(regret, 2)) for candidate_block, regret in sorted(self._regrets.items())),
            self._favoured,
            round(now_s - self._favoured_since_s, 1) if self._favoured else 0.0,
            tuple((candidate_block, tuple(stays)) for candidate_block, stays in sorted(self._stays.items())),
            self._factor,
            self._wasted,
            self._previous,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "at": self._at_s,
            "block": self._block,
            "regrets": [[candidate_block, round(regret, 2)] for candidate_block, regret in self._regrets.items()],
            "dearest": round(self._dearest_s, 2),
            "favoured": [self._favoured, self._favoured_since_s],
            "left": list(self._left) if self._left else None,
            "stays": [[candidate_block, list(stays)] for candidate_block, stays in self._stays.items()],
            "factor": self._factor,
            "clean": self._clean_since_s,
            "wasted": self._wasted,
            "previous": self._previous,
            "asked": list(self._asked) if self._asked else None,
            "balance": None if self._balance is None else round(self._balance, 2),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> RegretLedger:
        """The inverse. Raises KeyError, TypeError or ValueError on anything else."""
        ledger = RegretLedger()
        ledger._at_s = None if data["at"] is None else float(data["at"])
        ledger._block = int(data["block"])
        ledger._regrets = {int(candidate_block): float(regret) for candidate_block, regret in data["regrets"]}
        ledger._dearest_s = float(data["dearest"])
        ledger._favoured, ledger._favoured_since_s = int(data["favoured"][0]), float(data["favoured"][1])
        ledger._left = (int(data["left"][0]), float(data["left"][1])) if data["left"] else None
        ledger._stays = {
            int(candidate_block): deque((float(stay) for stay in stays), maxlen=KEPT_STAYS) for candidate_block, stays in data["stays"]
        }
        ledger._factor = min(MOST_FACTOR, max(1.0, float(data["factor"])))
        ledger._clean_since_s = float(data["clean"])
        ledger._wasted = int(data["wasted"])
        ledger._previous = int(data["previous"])
        ledger._asked = (int(data["asked"][0]), float(data["asked"][1])) if data["asked"] else None
        ledger._balance = None if data["balance"] is None else float(data["balance"])
        return ledger
