"""``python -m benchmarks.traces [--tables T.csv --accept A.csv | --machines KIND]``: the tuner in closed loop over seven simulated days.

A fleet of replicas serves a trace of load minute by minute. Tokens per second come from a measured table, log-interpolated in concurrency
and clamped. A change restarts one replica after the other; while a replica restarts, its closed-loop clients go to the others. The tuner is
the real learner and policy. It gets noisy measurements (5 % on step time and acceptance), has no other knowledge of the card under test,
starts at the larger block, and decides once a minute. Each combination of trace, replicas and restart time runs on one of a few cells (a
workload of a model), in turn.

The score is the speed ÷ the best block's speed at that minute, averaged over time. *Wasted* changes generated fewer tokens until the next
change than staying would have. ``oracle`` is a dynamic program that knows the whole trace and may change as often as it likes. Traces of a
collapse, and engines that follow a schedule, are scored separately from the means.

It prints one JSON object per line; the last is the summary.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.arguments import positive
from benchmarks.traces_fleet import Reference, Run, Setting, oracle, run
from benchmarks.traces_policies import Hysteresis, Static, Tuner
from benchmarks.traces_schedule import scheduled
from benchmarks.traces_world import Cell, Trace, traces
from benchmarks.tuner_machines import NAMES, reported_tables
from benchmarks.tuner_priors import DATA
from benchmarks.tuner_tables import Series, load
from dflash_controller.tuner.priors import Prior, Priors

USUAL = (8, 16)
OFF = 1
REPLICAS = (1, 2, 8)
RESTARTS_S = (60, 600)
DAYS, QUICK_DAYS = 7, 2
CELLS = 6
SEED = 20261128


@dataclass(frozen=True)
class Subject:
    """One cell with its traces."""

    traces: Sequence[Trace]
    name: str
    prior: Prior


@dataclass(frozen=True)
class Result:
    """The result of one run: one line of the output."""

    cell: str
    setting: Setting
    policy: str
    run: Run
    wasted: int

    def line(self) -> dict[str, Any]:
        return {
            "trace": self.setting.trace.name,
            "policy": self.policy,
            "replicas": self.setting.replicas,
            "restart_s": self.setting.restart_s,
            "score": round(self.run.share, 5),
            "tokens": round(self.run.tokens),
            "changes": len(self.run.changes),
            "wasted_changes": self.wasted,
            "cell": self.cell,
        }


def two_blocks(table: Sequence[Series]) -> tuple[int, int]:
    """Returns the usual block sizes, or the two with the most workloads, ascending. Raises ValueError if there are not two."""
    counts = Counter(block for series in table for block in series.lengths if block > OFF and len(_loads(series, block)) > 1)
    ranked = sorted(counts, key=lambda block: (block not in USUAL, -counts[block], -block))[:2]
    if len(ranked) < 2:
        raise ValueError("the tables have no two block sizes with an acceptance length and two loads each; measure a second block size")
    return min(ranked), max(ranked)


def subjects(table: Sequence[Series], blocks: tuple[int, int], cells: int, days: int) -> list[Subject]:
    """Returns workloads evenly spread over the table. Raises ValueError if none was measured at both blocks."""
    sound = [series for series in table if all(block in series.lengths and len(_loads(series, block)) > 1 for block in blocks)]
    if not sound:
        raise ValueError(f"no workload was measured at both block sizes, {blocks[0]} and {blocks[1]}, at two loads each; measure one")
    count = min(cells, len(sound))
    return [_subject(sound[place * len(sound) // count], sound, blocks, days) for place in range(count)]


def _loads(series: Series, block: int) -> set[int]:
    return {c for known, c in series.speeds if known == block}


def _subject(series: Series, table: Sequence[Series], blocks: tuple[int, int], days: int) -> Subject:
    same = [other for other in table if (other.source, other.model) == (series.source, series.model)]
    large = max(blocks)
    other = max(same, key=lambda one: abs(one.lengths[large] - series.lengths[large]))
    off = _loads(series, OFF)
    candidate_blocks = (OFF, *blocks) if off else blocks
    cell, shifted = Cell(series, candidate_blocks), Cell(other, blocks)
    broken = Cell(series, candidate_blocks, collapsed=True) if off else None
    prior = Priors.load().without(series.model).prior(series.machine)
    return Subject(traces(cell, shifted, broken, blocks, SEED, days), cell.name, prior)


def results(
    found: Sequence[Subject], blocks: tuple[int, int], replicas: Sequence[int], restarts_s: Sequence[int], only: Sequence[str] | None = None
) -> Iterator[Result]:
    """Yields the results of every policy, setting by setting. ``only`` are names of traces; None: all."""
    costs = [(count, restart_s) for count in replicas for restart_s in restarts_s]
    names = [trace.name for trace in found[0].traces]
    for row, name in enumerate(names):
        if only and name not in only:
            continue
        for column, (count, restart_s) in enumerate(costs):
            subject = found[(row + column) % len(found)]
            trace = next((trace for trace in subject.traces if trace.name == name), None)
            if trace is not None:
                candidate_blocks = (OFF, *blocks) if trace.apart else blocks
                yield from _compared(subject, Setting(trace, count, restart_s, candidate_blocks, max(blocks)), blocks)


def _compared(subject: Subject, setting: Setting, blocks: tuple[int, int]) -> Iterator[Result]:
    reference = Reference(setting)
    runs = {f"static{block}": run(setting.starting_at(block), reference, Static()) for block in blocks}
    runs["hysteresis"] = run(setting, reference, Hysteresis(blocks, setting))
    runs["tuner"] = run(setting, reference, Tuner(setting, blocks, subject.prior, SEED))
    runs["oracle"] = oracle(setting, reference)
    if setting.replicas == 2:
        runs["schedule"] = scheduled(setting, reference, subject.prior, SEED)
    for policy, done in runs.items():
        yield Result(subject.name, setting, policy, done, done.wasted(reference))


def summary(found: Sequence[Result]) -> dict[str, Any]:
    """Returns the means over the traces that count, over all restart times and by restart time."""
    together = [one for one in found if not one.setting.trace.apart and one.policy != "schedule"]
    tuner = [one for one in together if one.policy == "tuner"]
    return {
        "summary": True,
        "mean": _means(together),
        "mean_by_restart_s": {
            str(cost): _means([one for one in together if one.setting.restart_s == cost])
            for cost in sorted({one.setting.restart_s for one in together})
        },
        "tokens": _tokens(together),
        "apart": {
            "collapse": _means([one for one in found if one.setting.trace.apart and one.policy != "schedule"]),
            "schedule": _means([one for one in found if one.setting.replicas == 2 and not one.setting.trace.apart]),
        },
        "tuner_most_wasted": max((one.wasted for one in tuner), default=0),
        "tuner_settings_with_more_than_2_wasted": sum(one.wasted > 2 for one in tuner),
        "tuner_worst_below_best_baseline": _worst(together),
    }


def _means(found: Sequence[Result]) -> dict[str, float]:
    shares: dict[str, list[float]] = defaultdict(list)
    for one in found:
        shares[one.policy].append(one.run.share)
    return {policy: round(sum(values) / len(values), 5) for policy, values in shares.items()}


def _tokens(found: Sequence[Result]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for one in found:
        total[one.policy] += round(one.run.tokens)
    return dict(total)


def _worst(found: Sequence[Result]) -> dict[str, Any]:
    """Returns the setting in which the tuner is farthest below the best of the simple rules."""
    rules: dict[tuple[str, int, int], float] = defaultdict(float)
    own: dict[tuple[str, int, int], float] = {}
    for one in found:
        key = one.setting.trace.name, one.setting.replicas, one.setting.restart_s
        if one.policy == "tuner":
            own[key] = one.run.share
        elif one.policy != "oracle":
            rules[key] = max(rules[key], one.run.share)
    if not own:
        return {}
    worst = min(own, key=lambda key: own[key] - rules[key])
    return {"trace": worst[0], "replicas": worst[1], "restart_s": worst[2], "percent": round(100 * (own[worst] / rules[worst] - 1), 2)}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.traces", description="The tuner in closed loop over simulated days.")
    parser.add_argument("--tables", type=Path, default=DATA / "seed_tables.csv", help="tokens per second (default: the project's)")
    parser.add_argument("--accept", type=Path, default=DATA / "seed_accept.csv", help="acceptance lengths (default: the project's)")
    parser.add_argument("--machines", choices=sorted(NAMES), help="made and measured machines of this kind, in place of the tables")
    parser.add_argument("--cells", type=positive, default=CELLS, help=f"workloads to take turns (default {CELLS})")
    parser.add_argument("--days", type=positive, help=f"length of a trace (default {DAYS})")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_DAYS} days, 2 replicas, restarts of 60 s only")
    parser.add_argument("--trace", action="append", help="only traces of this name; may be repeated")
    options = parser.parse_args(arguments)
    days = options.days or (QUICK_DAYS if options.quick else DAYS)
    try:
        table = reported_tables(options.machines) if options.machines else load(options.tables, options.accept)
        blocks = two_blocks(table)
        chosen = subjects(table, blocks, options.cells, days)
    except ValueError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    known = {trace.name for trace in chosen[0].traces}
    if unknown := sorted(set(options.trace or ()) - known):
        parser.exit(2, f"{parser.prog}: --trace {unknown[0]}: there is no such trace; there are {', '.join(sorted(known))}\n")
    done = []
    replicas, restarts_s = ((2,), (60,)) if options.quick else (REPLICAS, RESTARTS_S)
    for result in results(chosen, blocks, replicas, restarts_s, options.trace):
        print(json.dumps(result.line()), flush=True)
        done.append(result)
    print(json.dumps(summary(done)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
