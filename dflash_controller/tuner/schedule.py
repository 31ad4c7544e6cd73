"""Finds the table of block sizes that an engine follows by itself as its load changes, and predicts the speed of any speculation.

vLLM looks up the number of drafts by the requests in a step. The best block need not be monotone in concurrency, so a table has every range
that gains enough. A table makes steps longer: see ``schedule_price``. The speed of one replica at concurrency c with block B is
c · τ(B) ÷ s(B, c).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dflash_controller.api.speculation import Fixed, Off, Schedule, Speculation
from dflash_controller.tuner.acceptance import Acceptance
from dflash_controller.tuner.recommend import ObservedLoad
from dflash_controller.tuner.schedule_price import MEASURED_PRICE, SchedulePrice
from dflash_controller.tuner.step_times import OFF, StepTimes


@dataclass(frozen=True, slots=True)
class _Run:
    """Concurrencies ``low`` ... ``high``, both included, at one block."""

    low: int
    high: int
    block: int


def best_schedule(
    candidate_blocks: Iterable[int],
    up_to: int,
    acceptance: Acceptance,
    steps: StepTimes,
    *,
    trained_block: int | None,
    min_gain_percent: float,
    loads: Sequence[ObservedLoad] = (),
    price: SchedulePrice = MEASURED_PRICE,
) -> Speculation:
    """Returns the fastest table, whose ranges cover 1 to ``up_to``, or a single block size (or speculation off) that is at least as fast.

    There is one table for every largest block up to ``trained_block``. It takes the fastest block size at each concurrency, overhead
    included. Then, smallest first, each range that gains less than ``min_gain_percent`` over a neighbour's block joins that neighbour; the
    mean gives every doubling of concurrency the same weight. Of the tables and single block sizes, the result is the fastest over ``loads``
    (``mean_log_speed``), or without loads by the mean logarithm of speed over the doublings up to ``up_to``. On a tie it is a single block
    size, then the smaller. Raises ValueError if no block size is legal or ``up_to`` is below 1.
    """
    choices = sorted(
        candidate_block
        for candidate_block in set(candidate_blocks)
        if candidate_block >= OFF and (trained_block is None or candidate_block <= trained_block)
    )
    if not choices or up_to < 1:
        raise ValueError(f"no block size is legal up to a block of {trained_block} and a concurrency of {up_to}")
    least = math.log1p(min_gain_percent / 100)
    alone = {
        candidate_block: [_log_speed(candidate_block, c, acceptance, steps) for c in range(1, up_to + 1)] for candidate_block in choices
    }
    plans = [[_Run(1, up_to, candidate_block)] for candidate_block in choices]
    for largest in choices:
        shared = _under_table(alone, largest, price)
        runs = _merged(_fastest(shared, up_to), shared, least)
        if len(runs) > 1 and largest in {run.block for run in runs}:
            plans.append(runs)

    def score(plan: list[_Run]) -> float:
        if loads:
            return mean_log_speed(_speculation(plan), loads, acceptance, steps, price=price)
        shared = _under_table(alone, max(run.block for run in plan), price) if len(plan) > 1 else alone
        return sum(_sum(shared[run.block], run) for run in plan)

    return _speculation(max(plans, key=score))


def speed(
    speculation: Speculation,
    loads: Sequence[ObservedLoad],
    acceptance: Acceptance,
    steps: StepTimes,
    *,
    price: SchedulePrice = MEASURED_PRICE,
) -> float:
    """Returns the tokens per second of one replica, the mean over the loads by their shares. Raises ValueError if no load has a share.

    A fractional load is a mixture of the two nearest numbers of requests, for which the table may have different blocks.
    """
    weight = sum(load.share for load in loads)
    if not weight > 0:
        raise ValueError("there is no load")
    return sum(load.share * _speed(speculation, load.concurrency, acceptance, steps, price) for load in loads) / weight


def mean_log_speed(
    speculation: Speculation,
    loads: Sequence[ObservedLoad],
    acceptance: Acceptance,
    steps: StepTimes,
    *,
    price: SchedulePrice = MEASURED_PRICE,
) -> float:
    """Returns the mean logarithm of the speed over the loads by their shares. Raises ValueError if no load has a share.

    An hour at low load counts as much as a busy one; in tokens it would hardly count.
    """
    weight = sum(load.share for load in loads)
    if not weight > 0:
        raise ValueError("there is no load")
    logs = (load.share * math.log(_speed(speculation, load.concurrency, acceptance, steps, price)) for load in loads)
    return sum(logs) / weight


def block_at(speculation: Speculation, requests: int) -> int:
    """Returns the block size of a step with ``requests`` requests; 1: no drafts. Beyond a table's last range, that range's counts."""
    if not isinstance(speculation, Schedule):
        return speculation.max_block_size
    drafts = [k for low, _, k in speculation.ranges if low <= requests] or [speculation.ranges[0][2]]
    return drafts[-1] + 1


def true_step_s(seconds: float, block: int, speculation: Speculation, *, price: SchedulePrice = MEASURED_PRICE) -> float:
    """Returns the step time of a fixed block of that size from one measured under ``speculation``, so that one curve fits all data."""
    return seconds / _table_factor(speculation, block, price)


def _table_factor(speculation: Speculation, block: int, price: SchedulePrice) -> float:
    return price.factor(block, speculation) if isinstance(speculation, Schedule) else 1.0


def _speed(speculation: Speculation, concurrency: float, acceptance: Acceptance, steps: StepTimes, price: SchedulePrice) -> float:
    def with_block_of(requests: int) -> float:
        block = block_at(speculation, requests)
        return math.exp(_log_speed(block, concurrency, acceptance, steps)) / _table_factor(speculation, block, price)

    fewer = math.floor(concurrency)
    more = concurrency - fewer
    if fewer < 1 or more == 0:
        return with_block_of(max(1, fewer))
    return (1 - more) * with_block_of(fewer) + more * with_block_of(fewer + 1)


def _log_speed(block: int, concurrency: float, acceptance: Acceptance, steps: StepTimes) -> float:
    return math.log(concurrency * acceptance.length(block).value / steps.seconds(block, concurrency))


def _under_table(alone: dict[int, list[float]], largest: int, price: SchedulePrice) -> dict[int, list[float]]:
    """Returns the log speeds of the block sizes that a table with that largest block can use."""
    table = Schedule(((1, 1, largest - 1),))
    return {
        candidate_block: [log - math.log(price.factor(candidate_block, table)) for log in logs]
        for candidate_block, logs in alone.items()
        if candidate_block <= largest
    }


def _fastest(logs: dict[int, list[float]], up_to: int) -> list[_Run]:
    """Returns the runs of the fastest block by concurrency; on a tie the smaller block."""
    return _joined([_Run(c, c, max(sorted(logs), key=lambda candidate_block: logs[candidate_block][c - 1])) for c in range(1, up_to + 1)])


def _merged(runs: list[_Run], logs: dict[int, list[float]], least: float) -> list[_Run]:
    while len(runs) > 1:
        gains = [min(_neighbours(runs, place, logs)) for place in range(len(runs))]
        place = min(range(len(runs)), key=lambda one: gains[one][0])
        gain, block = gains[place]
        if gain >= least:
            break
        runs = _joined([*runs[:place], _Run(runs[place].low, runs[place].high, block), *runs[place + 1 :]])
    return runs


def _neighbours(runs: list[_Run], place: int, logs: dict[int, list[float]]) -> list[tuple[float, int]]:
    """Returns, for each neighbour, the run's gain in log speed over the neighbour's block, and that block."""
    run = runs[place]
    weight = math.fsum(1 / c for c in range(run.low, run.high + 1))
    blocks = [other.block for other in (*runs[max(0, place - 1) : place], *runs[place + 1 : place + 2])]
    return [((_sum(logs[run.block], run) - _sum(logs[block], run)) / weight, block) for block in blocks]


def _sum(logs: list[float], run: _Run) -> float:
    """Returns the sum over a run in which every doubling of concurrency has the same weight."""
    return math.fsum(logs[c - 1] / c for c in range(run.low, run.high + 1))


def _joined(runs: list[_Run]) -> list[_Run]:
    joined: list[_Run] = []
    for run in runs:
        if joined and joined[-1].block == run.block:
            joined[-1] = _Run(joined[-1].low, run.high, run.block)
        else:
            joined.append(run)
    return joined


def _speculation(plan: list[_Run]) -> Speculation:
    if len(plan) > 1:
        return Schedule(tuple((run.low, run.high, run.block - 1) for run in plan))
    return Fixed(plan[0].block) if plan[0].block > OFF else Off()
