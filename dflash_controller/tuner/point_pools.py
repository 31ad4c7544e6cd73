"""Pools the step times of many load samples into the points of the curve."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dflash_controller.tuner.points import StepPoint
from dflash_controller.tuner.window import load_bin

HALF_LIFE_S = 3 * 86400.0
MOST_WEIGHT = 400.0
"""Maximum weight of a pool in load samples, so that it still follows slow changes."""
MOST_POOLS = 80
ENOUGH_WEIGHT = 3.0
"""A pool below this weight is left out as noise, as long as others make a curve."""
MOVED = 0.005
"""Change of a pool's mean (log) from which the curve is fitted again."""
OUTLIER = math.log(1.25)
"""A step time farther than this from its pool's mean (log) is an outlier, not noise."""
KNOWN_WEIGHT = 5.0
"""Minimum weight of a pool to call a load sample an outlier."""
LASTING = 20
"""This many outliers in a row on one side start a new epoch: different clocks, a different engine build, or different requests."""
PRIOR_WEIGHT = 1.0
"""Weight of a step time of an earlier epoch, in load samples."""
MOST_PRIOR = 40


@dataclass(slots=True)
class _Pool:
    weight: float
    log_c: float
    log_s: float
    at_s: float
    shown: tuple[float, float] | None = None

    def faded(self, now_s: float) -> float:
        return float(self.weight * 0.5 ** (max(0.0, now_s - self.at_s) / HALF_LIFE_S))


_Places = dict[tuple[int, int], _Pool]
"""Pools by block and bin of load."""


class Pools:
    """Geometric means by block and load, with older load samples weighing less.

    Where the current epoch has no data yet, the previous epoch fills in, and then what other deployments of the same pair lent: their
    shape, shifted to the level where both have data.
    """

    def __init__(self) -> None:
        self._pools: _Places = {}
        self._earlier: _Places = {}
        self._borrowed: _Places = {}
        self._apart: list[tuple[int, float, float, float]] = []
        self._points: tuple[StepPoint, ...] | None = ()
        self.epoch = 0

    def add(self, at_s: float, block: int, concurrency: float, step_s: float) -> None:
        log_c, log_s = math.log(concurrency), math.log(step_s)
        pool = self._pools.get((block, load_bin(concurrency)))
        if pool is not None and pool.faded(at_s) >= KNOWN_WEIGHT:
            apart = log_s - pool.log_s
            if abs(apart) > OUTLIER:
                self._outlier(at_s, block, log_c, log_s, apart)
                return
            self._apart.clear()
        self._pour(at_s, block, log_c, log_s)

    def _outlier(self, at_s: float, block: int, log_c: float, log_s: float, apart: float) -> None:
        if self._apart and self._apart[0][3] * apart < 0:
            self._apart.clear()
        self._apart.append((block, log_c, log_s, apart))
        if len(self._apart) < LASTING:
            return
        waiting = self._apart
        self.renew(at_s)
        for known, c, s, _ in waiting:
            self._pour(at_s, known, c, s)

    def renew(self, at_s: float) -> None:
        """Starts a new epoch: what was known becomes prior knowledge."""
        shift = _apart(self._pools, self._earlier)
        before = {at: pool for at, pool in self._earlier.items() if pool.faded(at_s) >= PRIOR_WEIGHT}
        known = {at: replace(pool, log_s=pool.log_s + shift) for at, pool in before.items()}
        known.update({at: pool for at, pool in self._pools.items() if pool.faded(at_s) >= ENOUGH_WEIGHT})
        best = sorted(known, key=lambda at: known[at].faded(at_s), reverse=True)[:MOST_PRIOR]
        self._earlier = {at: known[at] for at in best}
        self._pools, self._apart, self._points = {}, [], None
        self.epoch += 1

    def lend(self) -> list[list[Any]]:
        """Returns what another deployment of the same pair can start from: the sound pools, as ``to_json`` does."""
        now_s = self._now_s()
        sound = [at for at, pool in self._pools.items() if pool.faded(now_s) >= ENOUGH_WEIGHT]
        best = sorted(sound, key=lambda at: self._pools[at].faded(now_s), reverse=True)[:MOST_PRIOR]
        return _reported({at: self._pools[at] for at in best})

    def borrow(self, lent: Iterable[Iterable[Iterable[Any]]]) -> None:
        """Takes what other deployments lent (``lend``), in place of what was borrowed before; nothing if there is nothing.

        The one with the most load samples counts first; the others fill in, shifted to its level. Raises TypeError or ValueError on
        anything else.
        """
        found: _Places = {}
        for pools in sorted(map(_read, lent), key=lambda pools: sum(pool.weight for pool in pools.values()), reverse=True):
            shift = _apart(found, pools)
            found = {**{at: replace(pool, log_s=pool.log_s + shift) for at, pool in pools.items()}, **found}
        best = sorted(found, key=lambda at: found[at].weight, reverse=True)[:MOST_PRIOR]
        if found:
            self._borrowed, self._points = {at: found[at] for at in best}, None

    def forget_borrowed(self) -> None:
        self._borrowed, self._points = {}, None

    def _now_s(self) -> float:
        return max((pool.at_s for pool in self._pools.values()), default=0.0)

    def _pour(self, at_s: float, block: int, log_c: float, log_s: float) -> None:
        key = block, load_bin(math.exp(log_c))
        pool = self._pools.get(key)
        if pool is None:
            self._pools[key] = _Pool(1.0, log_c, log_s, at_s)
            self._points = None
            if len(self._pools) > MOST_POOLS:
                del self._pools[min(self._pools, key=lambda place: self._pools[place].faded(at_s))]
            return
        weight = min(MOST_WEIGHT, pool.faded(at_s) + 1.0)
        pool.log_c += (log_c - pool.log_c) / weight
        pool.log_s += (log_s - pool.log_s) / weight
        pool.weight, pool.at_s = weight, max(at_s, pool.at_s)
        if pool.shown is None or abs(pool.log_s - pool.shown[0]) > MOVED or (weight > 2 * pool.shown[1]):
            self._points = None

    def points(self) -> tuple[StepPoint, ...]:
        """Returns the points by block and load: the same object until a pool has moved."""
        if self._points is None:
            now_s = self._now_s()
            sound = {key: pool for key, pool in self._pools.items() if pool.faded(now_s) >= ENOUGH_WEIGHT}
            for pool in self._pools.values():
                pool.shown = pool.log_s, pool.weight
            prior: _Places = {}
            for older in (self._borrowed, self._earlier):
                shift = _apart(self._pools, older)
                prior.update({key: _Pool(PRIOR_WEIGHT, pool.log_c, pool.log_s + shift, now_s) for key, pool in older.items()})
            own = sound or ({} if prior else self._pools)
            shown = {**prior, **own}
            self._points = tuple(self._point(key[0], pool, now_s, key not in own) for key, pool in sorted(shown.items()))
        return self._points

    def _point(self, block: int, pool: _Pool, now_s: float, prior: bool) -> StepPoint:
        values = (math.exp(pool.log_c), math.exp(pool.log_s), max(1e-3, pool.faded(now_s)))
        concurrency, seconds, weight = (float(f"{value:.5g}") for value in values)
        return StepPoint(block, concurrency, seconds, weight, prior)

    def to_json(self) -> list[list[Any]]:
        return _reported(self._pools)

    def earlier_to_json(self) -> list[list[Any]]:
        """Returns the pools of the previous epoch."""
        return _reported(self._earlier)

    def borrowed_to_json(self) -> list[list[Any]]:
        """Returns the pools that were borrowed. They are kept because the deployment that lent them may be deleted."""
        return _reported(self._borrowed)

    @staticmethod
    def from_json(data: Iterable[Iterable[Any]], earlier: Iterable[Iterable[Any]] = (), borrowed: Iterable[Iterable[Any]] = ()) -> Pools:
        """Returns the pools of ``to_json``, ``earlier_to_json`` and ``borrowed_to_json``.

        Raises TypeError or ValueError on anything else.
        """
        pools = Pools()
        pools._pools, pools._earlier, pools._borrowed, pools._points = _read(data), _read(earlier), _read(borrowed), None
        return pools


def _apart(newer: _Places, older: _Places) -> float:
    """Returns the mean difference of log step times where both have data; 0 if they have no pool in common."""
    both = [(min(newer[at].weight, KNOWN_WEIGHT), newer[at].log_s - old.log_s) for at, old in older.items() if at in newer]
    return sum(weight * apart for weight, apart in both) / sum(weight for weight, _ in both) if both else 0.0


def _reported(pools: Mapping[tuple[int, int], _Pool]) -> list[list[Any]]:
    return [
        [block, round(pool.weight, 2), round(pool.log_c, 4), round(pool.log_s, 4), round(pool.at_s)]
        for (block, _), pool in sorted(pools.items())
    ]


def _read(data: Iterable[Iterable[Any]]) -> _Places:
    found = {}
    for block, weight, log_c, log_s, at_s in data:
        StepPoint(int(block), math.exp(log_c), math.exp(log_s), weight)
        found[int(block), load_bin(math.exp(log_c))] = _Pool(float(weight), float(log_c), float(log_s), float(at_s))
    return found
