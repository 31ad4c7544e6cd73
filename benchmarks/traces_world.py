"""The simulated world: speed by block and load from a measured table, and the loads of a week minute by minute."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from benchmarks.tuner_tables import Series

DAY = 1440
"""Minutes per day."""
LOW, HIGH = 1.0, 32.0
COLLAPSED = 1.02
"""Tokens per verify step with a broken drafter."""


class Cell:
    """One workload of one model: tokens per second of a replica, log-interpolated in concurrency, clamped at both ends."""

    def __init__(self, series: Series, candidate_blocks: Iterable[int], collapsed: bool = False) -> None:
        """``collapsed`` means that the drafter is broken: steps take as long as before, and hardly any draft is accepted."""
        self.name = f"{series.model}/{series.workload}"
        self.machine = series.machine
        self.lengths = {
            candidate_block: COLLAPSED if collapsed and candidate_block > 1 else series.lengths[candidate_block]
            for candidate_block in candidate_blocks
        }
        self._curves: dict[int, tuple[list[float], list[float]]] = {}
        for candidate_block in candidate_blocks:
            loads = sorted(c for block, c in series.speeds if block == candidate_block)
            scale = self.lengths[candidate_block] / series.lengths[candidate_block]
            self._curves[candidate_block] = (
                [math.log(c) for c in loads],
                [math.log(series.speeds[candidate_block, c] * scale) for c in loads],
            )
        self.speed = lru_cache(maxsize=65536)(self._speed)

    def _speed(self, candidate_block: int, load: float) -> float:
        xs, ys = self._curves[candidate_block]
        x = math.log(load) if load > 0 else -math.inf
        if x <= xs[0]:
            return math.exp(ys[0])
        if x >= xs[-1]:
            return math.exp(ys[-1])
        right = bisect_right(xs, x)
        return math.exp(ys[right - 1] + (ys[right] - ys[right - 1]) * (x - xs[right - 1]) / (xs[right] - xs[right - 1]))

    def step_s(self, candidate_block: int, load: float) -> float:
        return load * self.lengths[candidate_block] / self.speed(candidate_block, load)


@dataclass(frozen=True)
class Trace:
    """Load per replica and cell of the traffic, by minute."""

    name: str
    loads: Sequence[float]
    cells: Sequence[Cell]
    gaps: frozenset[int] = frozenset()
    """Minutes without metrics."""
    noisy: bool = False
    """Whether the first replica's step times have six times the noise."""
    apart: bool = False
    """Whether it is left out of the means, and speculation off is a choice."""
    prefill: bool = False
    """Whether its traffic is prefill-heavy. It is left out of the means too."""


def _square(period: int) -> Callable[[int], float]:
    return lambda minute: HIGH if minute % period >= period // 2 else LOW


def _day_curve(minute: int) -> float:
    """Returns the load of a minute: low at midnight, high at noon, symmetric in the logarithm."""
    share = (1 - math.cos(2 * math.pi * minute / DAY)) / 2
    return float(f"{LOW * (HIGH / LOW) ** share:.3g}")


def _bursts(seed: int, minutes: int) -> list[float]:
    """Returns loads with a dozen bursts a day, 10 minutes each on average, above a load of 2."""
    draw, loads, minute = random.Random(seed), [2.0] * minutes, 0
    while minute < minutes:
        minute += 1 + round(draw.expovariate(1 / 110))
        length = 1 + round(draw.expovariate(1 / 9))
        for busy in range(minute, min(minutes, minute + length)):
            loads[busy] = HIGH
        minute += length
    return loads


def _between(cells: tuple[Cell, Cell], candidate_blocks: tuple[int, int]) -> float:
    """Returns the load at which two workloads differ most in their best block."""

    def apart(load: float) -> float:
        leads = [math.log(cell.speed(candidate_blocks[1], load) / cell.speed(candidate_blocks[0], load)) for cell in cells]
        return min(abs(lead) for lead in leads) if leads[0] * leads[1] < 0 else -1.0

    return max((2 ** (place / 4) for place in range(21)), key=apart)


def prefill_heavy(series: Series) -> Series:
    """Returns the series of traffic with long prompts: at the largest load and block half of the time goes into prefill.

    Prefill stops decoding and takes the same time for every request, so it adds to each step in proportion to the tokens committed in it.
    """
    block, load = max(series.speeds, key=lambda key: (key[1], key[0]))
    per_token_s = 1 / series.speeds[block, load]
    return replace(series, speeds={key: 1 / (1 / speed + per_token_s) for key, speed in series.speeds.items()})


def traces(
    cell: Cell,
    other: Cell,
    broken: Cell | None,
    candidate_blocks: tuple[int, int],
    seed: int,
    days: int = 7,
    heavy: Cell | None = None,
) -> list[Trace]:
    """Returns all traces on one cell.

    ``other`` is another workload of the same model, ``broken`` the cell with a broken drafter, if the target's speed without one is known,
    ``heavy`` the cell with prefill-heavy traffic.
    """
    minutes = days * DAY
    half, third = minutes // 2, minutes * 3 // 7
    cells = [cell] * minutes

    def of(name: str, load: Callable[[int], float], gaps: frozenset[int] = frozenset(), noisy: bool = False) -> Trace:
        return Trace(name, [load(minute) for minute in range(minutes)], cells, gaps, noisy)

    shift = _between((cell, other), candidate_blocks)
    gaps = frozenset((*range(third - 480, third), *range(half + 300, half + 480)))
    found = [
        of("steady_1", lambda _: LOW),
        of("steady_32", lambda _: HIGH),
        of("step_up", lambda minute: LOW if minute < half else HIGH),
        of("step_down", lambda minute: HIGH if minute < half else LOW),
        of("square_20m", _square(20)),
        of("square_2h", _square(120)),
        of("square_24h", _square(DAY)),
        of("day_curve", _day_curve),
        Trace("bursts", _bursts(seed, minutes), cells),
        Trace("mix_shift", [shift] * minutes, [cell if minute < half else other for minute in range(minutes)]),
        of("metrics_gap", _day_curve, gaps),
        of("noisy_replica", _square(DAY), noisy=True),
    ]
    if broken is not None:
        collapsing = [cell if minute < third else broken for minute in range(minutes)]
        found.append(Trace("collapse", [8.0] * minutes, collapsing, apart=True))
    if heavy is not None:
        found.append(Trace("prefill_heavy", [_day_curve(minute) for minute in range(minutes)], [heavy] * minutes, prefill=True))
    return found
