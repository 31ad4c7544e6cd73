"""Accumulated regret: what not changing has cost so far, how long loads last, and what earlier changes gained.

This is the ski-rental problem: without knowledge of the future, buying once the rent paid equals the purchase price never costs more than
twice the optimum (Karlin et al. 1988, competitive snoopy caching). The regret of a block size is the difference of two work functions
(Borodin, Linial and Saks 1992), kept between 0 and a bound: it grows while that block size would be faster and falls while the active one
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
"""Time between two evaluations beyond this does not count, because nothing was observed in it."""
KEPT_STAYS = 8
LEAST_ADVANTAGE = 0.04
"""Advantage in log speed from which the load favours another block size; less is noise."""
SHORTEST_STAY_S = 300.0
FIRST_FACTOR, MOST_FACTOR = 2.0, 16.0
BOUND, LEAST_BOUND_S = 10.0, 600.0
"""Upper bound of the regret: this many times the largest switching cost, and at least this many seconds. Losses of long ago must not
outweigh present gains for ever."""


def relative_gain(log_gain: float) -> float:
    """Returns the gain of a block size over another as a share of the faster one's speed: seconds of full speed per second.

    The measure is antisymmetric. Relative to the speed of a fixed one, loads that come and go would count more where that one is slow, and
    each block size would seem to lose against the other.
    """
    return math.copysign(-math.expm1(-abs(log_gain)), log_gain)


class RegretLedger:
    """Plain state, updated at every evaluation of the planner."""

    def __init__(self) -> None:
        self._at_s: float | None = None
        self._block = 0
        self._regrets: dict[int, float] = {}
        self._largest_cost_s = 0.0
        self._favoured = 0
        self._favoured_since_s = 0.0
        self._left: tuple[int, float] | None = None
        self._stays: dict[int, deque[float]] = {}
        self._factor = FIRST_FACTOR
        self._clean_since_s = 0.0
        self._wasted = 0
        self._previous = 0
        self._changing_to: tuple[int, float] | None = None
        self._balance: float | None = None

    def note(self, now_s: float, block: int, log_gains: Mapping[int, float], cost_s: float, changing_to: int | None) -> None:
        """Records one evaluation.

        ``block`` is active, ``log_gains`` are the log gains of the other block sizes over it, ``cost_s`` is the switching cost in seconds
        of full speed, and ``changing_to`` is the block size of a change that was decided.
        """
        step = min(LONGEST_STEP_S, max(0.0, now_s - self._at_s)) if self._at_s is not None else 0.0
        if self._at_s is None:
            self._clean_since_s = now_s
        self._at_s = now_s
        if block != self._block:
            self._changed(now_s, block)
        self._follow(now_s, block, log_gains)
        self._largest_cost_s = max(self._largest_cost_s, cost_s)
        bound = max(LEAST_BOUND_S, BOUND * self._factor * self._largest_cost_s)
        for candidate_block, gain in log_gains.items():
            self._regrets[candidate_block] = min(bound, max(0.0, self._regrets.get(candidate_block, 0.0) + step * relative_gain(gain)))
        if self._balance is not None and self._previous in log_gains:
            self._balance -= step * relative_gain(log_gains[self._previous])
        if now_s - self._clean_since_s >= DAY_S:
            self._clean_since_s = now_s
            self._factor = max(1.0, self._factor / 2)
        if changing_to is not None:
            self._changing_to = changing_to, cost_s

    def _changed(self, now_s: float, block: int) -> None:
        if self._balance is not None and self._balance < 0:
            self._factor = min(MOST_FACTOR, 2 * self._factor)
            self._clean_since_s = now_s
            self._wasted += 1
        # The tuner keeps no balance of changes that somebody else made.
        self._balance = -self._changing_to[1] if self._changing_to is not None and self._changing_to[0] == block else None
        self._previous, self._block, self._changing_to = self._block, block, None
        self._regrets.clear()
        self._largest_cost_s = 0.0

    def _follow(self, now_s: float, block: int, log_gains: Mapping[int, float]) -> None:
        gains = {block: 0.0, **log_gains}
        best = max(gains, key=lambda candidate_block: gains[candidate_block])
        if self._favoured in gains and gains[best] - gains[self._favoured] < LEAST_ADVANTAGE:
            return
        if best == self._favoured:
            return
        stay = now_s - self._favoured_since_s
        if stay < SHORTEST_STAY_S and self._left is not None and self._left[0] == best:
            # A short excursion across the boundary does not end a stay.
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
            "dearest": round(self._largest_cost_s, 2),
            "favoured": [self._favoured, self._favoured_since_s],
            "left": list(self._left) if self._left else None,
            "stays": [[candidate_block, list(stays)] for candidate_block, stays in self._stays.items()],
            "factor": self._factor,
            "clean": self._clean_since_s,
            "wasted": self._wasted,
            "previous": self._previous,
            "asked": list(self._changing_to) if self._changing_to else None,
            "balance": None if self._balance is None else round(self._balance, 2),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> RegretLedger:
        """The inverse. Raises KeyError, TypeError or ValueError on anything else."""
        ledger = RegretLedger()
        ledger._at_s = None if data["at"] is None else float(data["at"])
        ledger._block = int(data["block"])
        ledger._regrets = {int(candidate_block): float(regret) for candidate_block, regret in data["regrets"]}
        ledger._largest_cost_s = float(data["dearest"])
        ledger._favoured, ledger._favoured_since_s = int(data["favoured"][0]), float(data["favoured"][1])
        ledger._left = (int(data["left"][0]), float(data["left"][1])) if data["left"] else None
        ledger._stays = {
            int(candidate_block): deque((float(stay) for stay in stays), maxlen=KEPT_STAYS) for candidate_block, stays in data["stays"]
        }
        ledger._factor = min(MOST_FACTOR, max(1.0, float(data["factor"])))
        ledger._clean_since_s = float(data["clean"])
        ledger._wasted = int(data["wasted"])
        ledger._previous = int(data["previous"])
        ledger._changing_to = (int(data["asked"][0]), float(data["asked"][1])) if data["asked"] else None
        ledger._balance = None if data["balance"] is None else float(data["balance"])
        return ledger
