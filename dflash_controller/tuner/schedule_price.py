"""How much longer steps take under an engine's table of block sizes than with a fixed block size, by engine and kind of target.

The draft pass of a table computes the full block, and an engine may lose its full CUDA graphs: vLLM 0.26 falls back to piecewise graphs for
hybrid targets, at every load. So a price that was measured for one kind says nothing about another. Where none is known, it is learned from
a deployment that runs a table and ran fixed block sizes before.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dflash_controller.api.speculation import Schedule
from dflash_controller.model.load_sample import LoadSample
from dflash_controller.tuner.load_kind import is_measured
from dflash_controller.tuner.machine import Machine
from dflash_controller.tuner.points import StepPoint
from dflash_controller.tuner.step_times import StepTimes

ENOUGH_SAMPLES = 40
"""Load samples below the largest block from which a price is known: their mean is then good to about 1 %."""
MOST_SAMPLES = 400
"""Samples count at most this much, so that a price still follows changes."""
MOST_LOG = math.log(3.0)
"""A step that differs by more than this factor is no price."""


@dataclass(frozen=True, slots=True)
class SchedulePrice:
    """How much longer steps take, in percent."""

    below_percent: float
    """Steps with less than the table's largest block."""
    largest_percent: float = 0.0
    """Steps with the largest block."""

    def factor(self, block: int, table: Schedule) -> float:
        """Returns step time under the table ÷ step time with a fixed block of that size."""
        return 1 + (self.below_percent if block < table.max_block_size else self.largest_percent) / 100


MEASURED_PRICE = SchedulePrice(4.5)
"""Measured with vLLM 0.26 on an H100 (dense 8B): 3.4 % fewer tokens per second at 32 requests, 6.1 % at 64, nothing at the largest block.
Ranges without drafts, where the drafter still writes its cache, were not measured and get the same."""
_MEASURED = {("vllm", "dense"): MEASURED_PRICE}


class PriceLearner:
    """Learns the price of one kind. Plain state."""

    def __init__(self) -> None:
        self._sums: dict[bool, tuple[float, float]] = {}
        """By whether the block is the largest: samples, and the mean of log (step time ÷ that with a fixed block)."""

    def take(self, load_samples: Iterable[LoadSample], table: Schedule, fixed: tuple[StepPoint, ...], steps: StepTimes) -> None:
        """Takes load samples under a table. ``fixed`` are points measured with fixed block sizes, and ``steps`` their fit; only loads and
        blocks that were measured that way count."""
        for one in load_samples:
            if one.excluded or one.inconsistent or not (one.concurrency > 0 and one.step_s > 0):
                continue
            if not is_measured(fixed, one.block, one.concurrency):
                continue
            log = math.log(one.step_s / steps.seconds(one.block, one.concurrency))
            if abs(log) > MOST_LOG:
                continue
            largest = one.block >= table.max_block_size
            count, mean = self._sums.get(largest, (0.0, 0.0))
            count = min(MOST_SAMPLES, count + 1)
            self._sums[largest] = count, mean + (log - mean) / count

    @property
    def price(self) -> SchedulePrice | None:
        """Returns the learned price; None while too little was seen below the largest block."""
        count, below = self._sums.get(False, (0.0, 0.0))
        if count < ENOUGH_SAMPLES:
            return None
        seen, largest = self._sums.get(True, (0.0, 0.0))
        # Without steps at the largest block they are taken to cost as much: what every step loses, those lose too.
        return SchedulePrice(_percent(below), _percent(largest if seen >= ENOUGH_SAMPLES else below))

    @property
    def samples(self) -> float:
        return sum(count for count, _ in self._sums.values())

    def to_json(self) -> list[list[float]]:
        return [[float(largest), count, round(mean, 5)] for largest, (count, mean) in sorted(self._sums.items())]

    @staticmethod
    def from_json(data: Any) -> PriceLearner:
        """The inverse; an empty one if the data is missing or malformed."""
        learner = PriceLearner()
        try:
            for largest, count, mean in data or ():
                if 0 < count <= MOST_SAMPLES and abs(mean) <= MOST_LOG:
                    learner._sums[bool(largest)] = float(count), float(mean)
        except (TypeError, ValueError):
            return PriceLearner()
        return learner


def price_of(machine: Machine, learned: Mapping[Machine, PriceLearner]) -> SchedulePrice | None:
    """Returns the price on this kind of machine: as learned, else as measured for a release of the operator; None if it is not known."""
    found = learned.get(machine)
    return (found.price if found is not None else None) or _MEASURED.get((machine.engine, machine.kind))


def _percent(log: float) -> float:
    return round(max(0.0, 100 * math.expm1(log)), 2)
