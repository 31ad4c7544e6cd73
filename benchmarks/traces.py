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
from benchmarks.traces_machines import VLLM_HYBRID, hybrid_tables
from benchmarks.traces_policies import Hysteresis, Static, Tuner
from benchmarks.traces_schedule import scheduled
from benchmarks.traces_world import DAY, Cell, Trace, prefill_heavy, traces
from benchmarks.tuner_machines import NAMES, reported_tables
from benchmarks.tuner_priors import DATA
from benchmarks.tuner_tables import Series, load
from dflash_controller.tuner.machine import Machine
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
    machine: Machine

    def setting(self, trace: Trace, replicas: int, restart_s: int, blocks: tuple[int, int], start: int) -> Setting:
        """Returns a run of a trace. On hybrids every change of the tuner begins with a trial, as in the operator, and a single replica has
        surge, without which the tuner does not explore."""
        hybrid = uncertain(self.machine)
        candidate_blocks = (OFF, *blocks) if trace.apart else blocks
        return Setting(trace, replicas, restart_s, candidate_blocks, start, hybrid and replicas == 1, self.machine, hybrid)


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
            "kind": self.kind,
            "start": self.setting.start,
            "explorations": len(self.run.explorations),
        }

    @property
    def kind(self) -> str:
        """Engine and kind of target."""
        return f"{self.setting.machine.engine} {self.setting.machine.kind}".strip()

    def first_day(self, oracle: Result) -> float:
        """Returns the score of the first day ÷ that of the oracle."""
        return self._of_oracle(oracle, 0, DAY)

    def after_first_day(self, oracle: Result) -> float:
        return self._of_oracle(oracle, DAY, len(self.run.speeds))

    def _of_oracle(self, oracle: Result, begin: int, end: int) -> float:
        reference = Reference(self.setting)
        return self.run.share_between(reference, begin, end) / oracle.run.share_between(reference, begin, end)


def two_blocks(table: Sequence[Series]) -> tuple[int, int]:
    """Returns the usual block sizes, or the two with the most workloads, ascending. Raises ValueError if there are not two."""
    counts = Counter(block for series in table for block in series.lengths if block > OFF and len(_loads(series, block)) > 1)
    ranked = sorted(counts, key=lambda block: (block not in USUAL, -counts[block], -block))[:2]
    if len(ranked) < 2:
        raise ValueError("the tables have no two block sizes with an acceptance length and two loads each; measure a second block size")
    return min(ranked), max(ranked)


def uncertain(machine: Machine) -> bool:
    """Returns whether the step-time law does not hold on this kind of machine, as far as is known."""
    return machine.hybrid and machine.engine != "sglang"


def hybrids(days: int, *, chosen_on: bool) -> list[Subject]:
    """Returns the simulated machines with hybrid targets on which constants may be chosen, or the others."""
    # Without the card of the machine that was measured: nothing is known of any of them.
    prior = Priors.load().without("Qwen3.5-9B-shape").prior(VLLM_HYBRID)
    found = []
    for series, story in hybrid_tables(chosen_on=chosen_on):
        cell, other, heavy = Cell(series, USUAL), Cell(story, USUAL), Cell(prefill_heavy(series), USUAL)
        found.append(Subject(traces(cell, other, None, USUAL, SEED, days, heavy), cell.name, prior, VLLM_HYBRID))
    return found


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
    heavy = Cell(prefill_heavy(series), blocks)
    return Subject(traces(cell, shifted, broken, blocks, SEED, days, heavy), cell.name, prior, series.machine)


def results(
    found: Sequence[Subject], blocks: tuple[int, int], replicas: Sequence[int], restarts_s: Sequence[int], only: Sequence[str] | None = None
) -> Iterator[Result]:
    """Yields the results of every policy, setting by setting. ``only`` are names of traces; None: all."""
    costs = [(count, restart_s) for count in replicas for restart_s in restarts_s]
    names = list(dict.fromkeys(trace.name for subject in found for trace in subject.traces))
    for row, name in enumerate(names):
        if only and name not in only:
            continue
        for column, (count, restart_s) in enumerate(costs):
            subject = found[(row + column) % len(found)]
            trace = next((trace for trace in subject.traces if trace.name == name), None)
            if trace is not None:
                # What the law gets wrong on a hybrid depends on the block that ran first.
                start = blocks[(row + column) % 2] if uncertain(subject.machine) else max(blocks)
                yield from _compared(subject, subject.setting(trace, count, restart_s, blocks, start), blocks)


def _compared(subject: Subject, setting: Setting, blocks: tuple[int, int]) -> Iterator[Result]:
    reference = Reference(setting)
    runs = {f"static{block}": run(setting.starting_at(block), reference, Static()) for block in blocks}
    runs["hysteresis"] = run(setting, reference, Hysteresis(blocks, setting))
    runs["tuner"] = run(setting, reference, Tuner(setting, blocks, subject.prior, SEED))
    runs["oracle"] = oracle(setting, reference)
    if setting.replicas == 2 and not uncertain(setting.machine) and not setting.trace.prefill:
        runs["schedule"] = scheduled(setting, reference, subject.prior, SEED)
    for policy, done in runs.items():
        yield Result(subject.name, setting, policy, done, done.wasted(reference))


def summary(found: Sequence[Result]) -> dict[str, Any]:
    """Returns the means over the traces that count, over all restart times, by restart time and by kind of target.

    Machines on which the law does not hold are left out of the means over all kinds, so that these can be compared with earlier releases.
    """
    counted = [one for one in found if not one.setting.trace.apart and not one.setting.trace.prefill and one.policy != "schedule"]
    together = [one for one in counted if not uncertain(one.setting.machine)]
    tuner = [one for one in together if one.policy == "tuner"]
    unknown = [one for one in counted if uncertain(one.setting.machine)]
    return {
        "summary": True,
        "mean": _means(together),
        "mean_by_restart_s": {
            str(cost): _means([one for one in together if one.setting.restart_s == cost])
            for cost in sorted({one.setting.restart_s for one in together})
        },
        "mean_by_kind": {kind: _means([one for one in counted if one.kind == kind]) for kind in _kinds(counted)},
        "tokens": _tokens(together),
        "apart": {
            "collapse": _means([one for one in found if one.setting.trace.apart and one.policy != "schedule"]),
            "schedule": _means([one for one in together if one.setting.replicas == 2])
            | _means([one for one in found if one.policy == "schedule" and not one.setting.trace.apart]),
            "prefill_heavy": {
                kind: _means([one for one in found if one.setting.trace.prefill and one.kind == kind])
                for kind in _kinds([one for one in found if one.setting.trace.prefill])
            },
        },
        "tuner_most_wasted": max((one.wasted for one in tuner), default=0),
        "tuner_settings_with_more_than_2_wasted": sum(one.wasted > 2 for one in tuner),
        "tuner_explorations": sum(len(one.run.explorations) for one in tuner),
        "tuner_worst_below_best_baseline": _worst(together),
        **({"hybrids": _hybrids(unknown)} if unknown else {}),
    }


def _kinds(found: Sequence[Result]) -> list[str]:
    return sorted({one.kind for one in found})


def _hybrids(found: Sequence[Result]) -> dict[str, Any]:
    """Returns how soon the tuner is right on targets that it knows nothing of, and what it tries for that."""
    tuner = [one for one in found if one.policy == "tuner"]
    oracles = {id(one.setting): one for one in found if one.policy == "oracle"}
    first = [one.first_day(oracles[id(one.setting)]) for one in tuner]
    later = [one.after_first_day(oracles[id(one.setting)]) for one in tuner if len(one.run.speeds) > DAY]
    early = [sum(begin < DAY for begin, _, _ in one.run.explorations) for one in tuner]
    return {
        "settings": len(tuner),
        "first_day_of_oracle": {"mean": round(sum(first) / len(first), 5), "least": round(min(first), 5)},
        "later_of_oracle": {"mean": round(sum(later) / len(later), 5), "least": round(min(later), 5)} if later else None,
        "settings_at_98_percent_after_the_first_day": sum(share >= 0.98 for share in later),
        "explorations_first_day": {"mean": round(sum(early) / len(early), 2), "most": max(early)},
        "explorations": {
            "all": sum(len(one.run.explorations) for one in tuner),
            "most": max(len(one.run.explorations) for one in tuner),
            "promoted": sum(promoted for one in tuner for _, _, promoted in one.run.explorations),
        },
        "refused_changes": sum(one.run.refusals for one in tuner),
        "most_wasted": max(one.wasted for one in tuner),
        "worst_below_best_baseline": _worst(found),
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
    parser.add_argument(
        "--hybrids",
        choices=("report", "choose", "none"),
        help="beside the tables, simulated machines with hybrid targets: those for reporting, or those on which constants may be chosen "
        "(default: report with the project's tables, else none)",
    )
    parser.add_argument("--only-hybrids", action="store_true", help="leave the tables out")
    parser.add_argument("--trace", action="append", help="only traces of this name; may be repeated")
    options = parser.parse_args(arguments)
    days = options.days or (QUICK_DAYS if options.quick else DAYS)
    try:
        table = reported_tables(options.machines) if options.machines else load(options.tables, options.accept)
        blocks = two_blocks(table)
        chosen = subjects(table, blocks, options.cells, days)
    except ValueError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    half = options.hybrids or ("report" if options.tables == DATA / "seed_tables.csv" and not options.machines else "none")
    simulated = hybrids(days, chosen_on=half == "choose") if half != "none" else []
    known = {trace.name for trace in chosen[0].traces}
    if unknown := sorted(set(options.trace or ()) - known):
        parser.exit(2, f"{parser.prog}: --trace {unknown[0]}: there is no such trace; there are {', '.join(sorted(known))}\n")
    done = []
    replicas, restarts_s = ((2,), (60,)) if options.quick else (REPLICAS, RESTARTS_S)
    for group, candidate_blocks in ((chosen, blocks), (simulated, USUAL)):
        if not group or (group is chosen and options.only_hybrids):
            continue
        for result in results(group, candidate_blocks, replicas, restarts_s, options.trace):
            print(json.dumps(result.line()), flush=True)
            done.append(result)
    print(json.dumps(summary(done)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
