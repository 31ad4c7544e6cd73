"""``python -m benchmarks.tuner [--tables T.csv … --accept A.csv …]``: rates the tuner's recommendation, cell by cell, on measured tables.

A cell is one workload of one model at one concurrency, with tokens per second measured at two or more blocks. The tuner runs at the start
block, gets a part of the table, and picks a block size. Its regret is how far the pick's measured speed is below that of the best block
size. Only the argmax counts here: there is no minimum gain, no dwell and no switching cost. The parts are:

* ``cold_varied``: the start block at every concurrency of this workload;
* ``cold_single``: the start block at this concurrency;
* ``warm``: all block sizes at this concurrency on the model's other workloads, and of this workload the acceptance length at the start
block;
* ``cold_varied_noise``: as cold_varied, step times with 3 % lognormal noise, 200 draws; mean and 90th percentile of the mean regret.

Priors are the project's own (``dflash_controller/tuner/priors.yaml``), without any card of the model under test; nothing is ever
fitted to the table under test. Start blocks are 16 and 8; a table that lacks one of them starts at its most measured blocks instead.
Several files are one table, for instance those of ``kubectl dflash bench`` with two block sizes.

It prints one JSON object per line. The last is the summary, which has the worse of the two starts. Baselines choose between the two start
blocks: always the smaller, always the larger, the larger at concurrency 1 only, and the threshold that is best for this very table.

*Calibration* is the share of cells whose true log advantage of the other start block lies within 1 and 2 of the stated standard deviations
(68 and 95 % if they are right), and ``rms``, the root mean square of deviation ÷ standard deviation. Without ``--tables`` there is also a
line for each kind of machine, from all measured tables of the project and from made ones (``tuner_machines``), and of the made ones apart
for the half that constants may be chosen on and the half that is only reported.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.tuner_machines import REPORTED, made_machines
from benchmarks.tuner_priors import DATA, TABLES
from benchmarks.tuner_tables import Series, load
from dflash_controller.tuner.acceptance import Acceptance, Decay, decay_between
from dflash_controller.tuner.points import StepPoint
from dflash_controller.tuner.priors import Prior, Priors
from dflash_controller.tuner.recommend import ObservedLoad, recommend
from dflash_controller.tuner.step_times import StepTimes

SEEDS = "seed_tables.csv", "seed_accept.csv"
USUAL_STARTS = (16, 8)
NOISE = 0.03
DRAWS = 200
SEED = 20261128


@dataclass(frozen=True)
class Cell:
    """One choice of a block size."""

    series: Series
    concurrency: int
    candidate_blocks: tuple[int, ...]

    def regret(self, pick: int) -> float:
        """Returns how far ``pick`` is below the best block size's speed, in percent."""
        best = max(self.series.speeds[candidate_block, self.concurrency] for candidate_block in self.candidate_blocks)
        return 100 * (1 - self.series.speeds[pick, self.concurrency] / best)


@dataclass(frozen=True)
class Outcome:
    """Regrets of one protocol from one start block, in percent."""

    protocol: str
    start: int
    regrets: tuple[float, ...]
    deviations: tuple[float, ...] = ()
    """True less predicted log advantage of the other start block, in stated standard deviations."""

    @property
    def mean(self) -> float | None:
        return sum(self.regrets) / len(self.regrets) if self.regrets else None

    @property
    def worst(self) -> float | None:
        return max(self.regrets, default=None)

    def line(self) -> dict[str, Any]:
        return {
            "protocol": self.protocol,
            "start": self.start,
            "cells": len(self.regrets),
            "mean_regret_pct": rounded(self.mean),
            "max_regret_pct": rounded(self.worst),
            "wrong": sum(regret > 0 for regret in self.regrets),
            **calibration(self.deviations),
        }


def calibration(deviations: Sequence[float]) -> dict[str, float | None]:
    """Returns the share of cells within 1 and 2 standard deviations, and the root mean square."""
    count = len(deviations)
    return {
        "within_1_sigma": round(sum(abs(one) <= 1 for one in deviations) / count, 3) if count else None,
        "within_2_sigma": round(sum(abs(one) <= 2 for one in deviations) / count, 3) if count else None,
        "rms_sigmas": round(math.sqrt(sum(one**2 for one in deviations) / count), 3) if count else None,
    }


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


class Benchmark:
    """All protocols on one table."""

    def __init__(self, table: Sequence[Series]) -> None:
        """Raises ValueError if the table has no cell."""
        self._table = table
        found = [
            Cell(series, c, series.candidate_blocks(c))
            for series in table
            for c in series.concurrencies
            if len(series.candidate_blocks(c)) > 1
        ]
        self.cells = [cell for cell in found if any(candidate_block in cell.series.lengths for candidate_block in cell.candidate_blocks)]
        self.without_acceptance = len(found) - len(self.cells)
        if not self.cells:
            raise ValueError(
                "the tables have no cell with two block sizes and an acceptance length; measure a second block size at one load"
            )
        self.starts = self._choose_starts()
        self._priors = {series.model: Priors.load().without(series.model).prior(series.machine) for series in table}

    def _choose_starts(self) -> tuple[int, ...]:
        counts = Counter(candidate_block for cell in self.cells for candidate_block in cell.candidate_blocks)
        usual = [block for block in USUAL_STARTS if block in counts]
        others = sorted((block for block in counts if block not in usual), key=lambda block: (-counts[block], -block))
        return tuple(sorted((usual + others)[:2], reverse=True))

    def cold_varied(self, start: int, disturb: Callable[[], float] = lambda: 1.0) -> Outcome:
        """Runs cold_varied; ``disturb`` returns the factor of a step time's noise."""
        judged: list[Judged] = []
        for series in self._table:
            seen = points(series, [start], series.concurrencies, disturb)
            if seen:
                steps = StepTimes(seen, self._priors[series.model].steps)
                judged += [self._judged(cell, start, steps, self._own(series, start)) for cell in self._of(series, start)]
        return outcome("cold_varied", start, judged)

    def cold_single(self, start: int) -> Outcome:
        judged = []
        for cell in self.cells:
            seen = points(cell.series, [start], [cell.concurrency])
            if seen:
                steps = StepTimes(seen, self._priors[cell.series.model].steps)
                judged.append(self._judged(cell, start, steps, self._own(cell.series, start)))
        return outcome("cold_single", start, judged)

    def warm(self, start: int) -> Outcome:
        judged = []
        for cell in self.cells:
            own = cell.series
            others = [s for s in self._table if (s.source, s.model) == (own.source, own.model) and s.workload != own.workload]
            shown = [points(other, cell.candidate_blocks, [cell.concurrency]) for other in others]
            seen = [point for found in shown if len(found) == len(cell.candidate_blocks) for point in found]
            if seen and start in cell.candidate_blocks and start in own.lengths:
                steps = StepTimes(seen, self._priors[own.model].steps)
                decay = self._priors[own.model].decay.learned(decays(others, cell.candidate_blocks))
                judged.append(self._judged(cell, start, steps, self._own(own, start, decay)))
        return outcome("warm", start, judged)

    def noisy(self, start: int) -> dict[str, Any]:
        """Returns the line of ``cold_varied_noise``."""
        draw = random.Random(SEED)
        outcomes = [self.cold_varied(start, lambda: math.exp(draw.gauss(0.0, NOISE))) for _ in range(DRAWS)]
        means = sorted(outcome.mean for outcome in outcomes if outcome.mean is not None)
        return {
            "protocol": "cold_varied_noise",
            "start": start,
            "cells": len(outcomes[0].regrets),
            "mean_regret_pct": rounded(sum(means) / len(means)) if means else None,
            "p90_regret_pct": rounded(means[min(len(means) - 1, round(0.9 * len(means)))]) if means else None,
            "max_regret_pct": rounded(max((outcome.worst for outcome in outcomes if outcome.worst is not None), default=None)),
            "wrong": round(sum(regret > 0 for outcome in outcomes for regret in outcome.regrets) / DRAWS, 2),
        }

    def baselines(self) -> dict[str, Outcome]:
        """Returns the baselines by name."""
        if len(self.starts) < 2:
            return {}
        large, small = self.starts
        cells = [cell for cell in self.cells if large in cell.candidate_blocks and small in cell.candidate_blocks]

        def threshold(most: float) -> tuple[float, ...]:
            return tuple(cell.regret(large if cell.concurrency <= most else small) for cell in cells)

        best = min((threshold(most) for most in [0, *{cell.concurrency for cell in cells}]), key=sum)
        rules = {
            f"always_{small}": threshold(0),
            f"always_{large}": threshold(math.inf),
            f"{large}_if_c_1": threshold(1),
            "best_threshold": best,
        }
        return {name: Outcome(name, 0, regrets) for name, regrets in rules.items()}

    def _of(self, series: Series, start: int) -> Iterable[Cell]:
        return (cell for cell in self.cells if cell.series is series and start in cell.candidate_blocks)

    def _own(self, series: Series, start: int, decay: Decay | None = None) -> Acceptance:
        return Acceptance({start: series.lengths[start]}, decay or self._prior(series).decay)

    def _prior(self, series: Series) -> Prior:
        return self._priors[series.model]

    def _judged(self, cell: Cell, start: int, steps: StepTimes, acceptance: Acceptance) -> Judged:
        found = recommend(start, cell.candidate_blocks, [ObservedLoad(float(cell.concurrency))], acceptance, steps)
        other = next((block for block in self.starts if block != start and block in cell.candidate_blocks), None)
        if other is None or start not in cell.candidate_blocks:
            return cell.regret(found.block), None
        predicted = found.of(other)
        true = math.log(cell.series.speeds[other, cell.concurrency] / cell.series.speeds[start, cell.concurrency])
        return cell.regret(found.block), (true - predicted.log_gain) / predicted.log_sigma


Judged = tuple[float, float | None]
"""Regret in percent, and the deviation of the other start block's advantage in standard deviations; None if it was not measured."""


def outcome(protocol: str, start: int, judged: Sequence[Judged]) -> Outcome:
    return Outcome(
        protocol, start, tuple(regret for regret, _ in judged), tuple(deviation for _, deviation in judged if deviation is not None)
    )


def kinds() -> list[dict[str, Any]]:
    """Returns the line of every kind of machine: measured, and made on either half. Both starts of cold_varied count together."""
    measured: dict[tuple[str, str, str], list[Outcome]] = defaultdict(list)
    for tables, accept in TABLES:
        by_model: dict[tuple[str, str], list[Series]] = defaultdict(list)
        for series in load(DATA / tables, DATA / accept):
            by_model[series.source, series.model].append(series)
        for found in by_model.values():
            if any(block in series.lengths for series in found for c in series.concurrencies for block in _two(series, c)):
                benchmark = Benchmark(found)
                machine = found[0].machine
                measured[machine.engine, machine.kind, "measured"] += [benchmark.cold_varied(start) for start in benchmark.starts]
    made: dict[tuple[str, str, str], list[Outcome]] = defaultdict(list)
    for machine, number, table in made_machines():
        half = "made, reported" if number % 2 == REPORTED else "made, chosen on"
        benchmark = Benchmark(table)
        made[machine.engine, machine.kind, half] += [benchmark.cold_varied(start) for start in benchmark.starts]
    return [_kind_line(key, outcomes) for key, outcomes in sorted({**measured, **made}.items())]


def _two(series: Series, concurrency: int) -> tuple[int, ...]:
    """Returns the blocks measured at that concurrency, if there are at least two."""
    blocks = series.candidate_blocks(concurrency)
    return blocks if len(blocks) > 1 else ()


def _kind_line(key: tuple[str, str, str], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    engine, kind, machines = key
    regrets = [regret for one in outcomes for regret in one.regrets]
    return {
        "machines": machines,
        "engine": engine,
        "kind": kind,
        "protocol": "cold_varied",
        "cells": len(regrets),
        "mean_regret_pct": rounded(sum(regrets) / len(regrets)),
        "max_regret_pct": rounded(max(regrets)),
        **calibration([deviation for one in outcomes for deviation in one.deviations]),
    }


def points(
    series: Series, blocks: Iterable[int], concurrencies: Sequence[int], disturb: Callable[[], float] = lambda: 1.0
) -> list[StepPoint]:
    """Returns the step times of the table."""
    cells = ((block, c, series.step_s(block, c)) for block in blocks for c in concurrencies)
    return [StepPoint(block, float(c), seconds * disturb()) for block, c, seconds in cells if seconds is not None]


def decays(others: Iterable[Series], candidate_blocks: Sequence[int]) -> list[float]:
    """Returns the drafter's decays from the other workloads' acceptance lengths at the smallest and the largest block size."""
    small, large = candidate_blocks[0], candidate_blocks[-1]
    known = (other.lengths for other in others if small in other.lengths and large in other.lengths)
    return [decay_between(lengths[small], small, lengths[large], large) for lengths in known]


def worse(outcomes: Iterable[float | None]) -> float | None:
    return rounded(max((value for value in outcomes if value is not None), default=None))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tuner", description="Choice quality of the tuner on measured tables.")
    own = [[DATA / name] for name in SEEDS]
    parser.add_argument("--tables", type=Path, nargs="+", default=own[0], help="tokens per second (default: the project's)")
    parser.add_argument("--accept", type=Path, nargs="+", default=own[1], help="acceptance lengths (default: the project's)")
    options = parser.parse_args(arguments)
    try:
        benchmark = Benchmark(load(options.tables, options.accept))
    except ValueError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    summary: dict[str, Any] = {"summary": True}
    for protocol in (benchmark.cold_varied, benchmark.cold_single, benchmark.warm):
        outcomes = [protocol(start) for start in benchmark.starts]
        for found in outcomes:
            print(json.dumps(found.line()), flush=True)
        summary[f"{outcomes[0].protocol}_mean"] = worse(outcome.mean for outcome in outcomes)
        summary[f"{outcomes[0].protocol}_max"] = worse(outcome.worst for outcome in outcomes)
        summary[f"{outcomes[0].protocol}_calibration"] = calibration([one for outcome in outcomes for one in outcome.deviations])
    noisy = [benchmark.noisy(start) for start in benchmark.starts]
    for line in noisy:
        print(json.dumps(line), flush=True)
    summary["cold_varied_noise_mean"] = worse(line["mean_regret_pct"] for line in noisy)
    summary["cold_varied_noise_p90"] = worse(line["p90_regret_pct"] for line in noisy)
    summary["baselines"] = {
        name: {"mean": rounded(outcome.mean), "max": rounded(outcome.worst), "wrong": outcome.line()["wrong"]}
        for name, outcome in benchmark.baselines().items()
    }
    summary["cells_without_acceptance"] = benchmark.without_acceptance
    if options.tables == own[0]:
        for line in kinds():
            print(json.dumps(line), flush=True)
    print(json.dumps(summary))
    return 0


if __name__ == "__main__":
    sys.exit(main())
