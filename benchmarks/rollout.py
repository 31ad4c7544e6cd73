"""``python -m benchmarks.rollout``: measures how often the analysis decides wrongly, and how long it takes.

Each trial is one rollout with three replicas. Two stable ones and one candidate serve the same kind of traffic at the same time (see
``benchmarks.rollout_traffic``), and their counters are read at the operator's intervals. ``judge`` gets all evidence so far and the default
gates until it promotes or fails the candidate or the deadline of 2 h passes. There is no probe, only users' traffic. There are three
drafters: equal, and with 10 % and 5 % shorter acceptance length at the same step time; 5 % is exactly the default limit.

Scenarios: ``slow`` has 20 requests/min per replica, read every 30 s and judged every 60 s; ``fast`` has 5 requests/s per replica, read
every 15 s and judged every 30 s; ``sticky`` is like slow, but with sessions that stay on one replica. ``HARSHER`` are variants of sticky
with more dependence. The time to a verdict starts when the candidate is Ready, includes the warm-up, and is taken over the equal and the
10 % worse drafter; a trial without a verdict counts as 2 h.

It prints one JSON object to standard output and progress to standard error. Shares are over all scenarios together, with Wilson's 95 %
bounds. The exit status is 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.arguments import positive
from benchmarks.rollout_traffic import BLOCK, Load, Replica, Sessions, per_request_variation
from dflash_controller.analysis.judge import judge
from dflash_controller.analysis.verdict import AnalysisDecision, AnalysisRequest
from dflash_controller.api.defaults import GATES
from dflash_controller.model.counters import Evidence

DEADLINE_S = 7200.0
STABLE, CANDIDATES = 2, 1
QUESTION = AnalysisRequest(GATES, False, 5.0, BLOCK, BLOCK, concurrent=True, warm_up_s=60.0, deadline_s=DEADLINE_S)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Traffic, and how often the analysis runs."""

    name: str
    load: Load
    judged_every_s: float
    median_minutes: float
    p95_minutes: float


SCENARIOS = (
    Scenario("slow", Load(20 / 60, 30.0), 60.0, 45, 120),
    Scenario("fast", Load(5.0, 15.0), 30.0, 10, 20),
    Scenario("sticky", Load(20 / 60, 30.0, Sessions()), 60.0, 45, 120),
)
HARSHER = (
    Scenario("long-sessions", Load(20 / 60, 30.0, Sessions(10.0)), 60.0, 45, 120),
    Scenario("very-long-sessions", Load(20 / 60, 30.0, Sessions(30.0)), 60.0, 45, 120),
    Scenario("heavy-tail", Load(20 / 60, 30.0, Sessions(tail=1.5)), 60.0, 45, 120),
    Scenario("slow-sessions", Load(20 / 60, 30.0, Sessions(5.0, pause_s=180.0)), 60.0, 45, 120),
    Scenario("fast-sessions", Load(5.0, 15.0, Sessions(10.0)), 30.0, 10, 20),
    Scenario("hash-routing", Load(20 / 60, 30.0, clients=200), 60.0, 45, 120),
    Scenario("hash-routing-few", Load(20 / 60, 30.0, clients=50), 60.0, 45, 120),
)
"""Run only by name, and without targets."""
DRAFTERS = {"equal": 1.0, "worse10": 0.9, "worse5": 0.95}


@dataclass(frozen=True, slots=True)
class Result:
    """Result of one trial; ``decision`` is Promote, Fail, or the decision at the deadline."""

    scenario: str
    drafter: str
    decision: AnalysisDecision
    minutes: float
    metric: str
    """The metric that failed the candidate."""


def trial(scenario: Scenario, drafter: str, seed: int) -> Result:
    """Simulates one rollout."""
    seeds = np.random.SeedSequence(seed).spawn(STABLE + CANDIDATES)
    load, until_s = scenario.load, DEADLINE_S + 1
    stable = [Replica(f"stable-{i}", seeds[i], load, until_s, 1.0, ready_s=-3600.0) for i in range(STABLE)]
    candidate = [Replica(f"candidate-{i}", seeds[STABLE + i], load, until_s, DRAFTERS[drafter]) for i in range(CANDIDATES)]
    now_s = 0.0
    while True:
        now_s += scenario.judged_every_s
        evidence = Evidence(tuple(r.counter_series(now_s) for r in candidate), tuple(r.counter_series(now_s) for r in stable))
        judgement = judge(QUESTION, evidence, now_s)
        if judgement.decision in (AnalysisDecision.PROMOTE, AnalysisDecision.FAIL) or now_s >= DEADLINE_S:
            return Result(scenario.name, drafter, judgement.decision, now_s / 60, judgement.message.partition(":")[0])


def wilson(hits: int, trials: int, deviate: float = 1.96) -> tuple[float, float]:
    """Returns Wilson's interval of a share, in percent."""
    if trials == 0:
        return 0.0, 100.0
    share, square = hits / trials, deviate**2
    middle = (share + square / (2 * trials)) / (1 + square / trials)
    half = deviate / (1 + square / trials) * math.sqrt(share * (1 - share) / trials + square / (4 * trials**2))
    return 100 * max(0.0, middle - half), 100 * min(1.0, middle + half)


def summary(results: Sequence[Result]) -> dict[str, Any]:
    """Returns the summary of a set of trials."""
    counts = Counter((r.drafter, r.decision) for r in results)
    trials = Counter(r.drafter for r in results)
    shown: dict[str, Any] = {}
    for name, drafter, decision in (
        ("equal_promoted", "equal", AnalysisDecision.PROMOTE),
        ("equal_rolled_back", "equal", AnalysisDecision.FAIL),
        ("worse10_promoted", "worse10", AnalysisDecision.PROMOTE),
        ("worse10_rolled_back", "worse10", AnalysisDecision.FAIL),
        ("worse5_promoted", "worse5", AnalysisDecision.PROMOTE),
        ("worse5_rolled_back", "worse5", AnalysisDecision.FAIL),
    ):
        hits, among = counts[drafter, decision], trials[drafter]
        low, high = wilson(hits, among)
        shown[f"{name}_pct"] = round(100 * hits / max(1, among), 2)
        shown[f"{name}_wilson_pct"] = [round(low, 2), round(high, 2)]
    return shown


def minutes(results: Iterable[Result]) -> tuple[float, float]:
    """Returns median and 95th percentile of the minutes to a verdict, for the equal and the 10 % worse drafter."""
    times = [
        r.minutes if r.decision in (AnalysisDecision.PROMOTE, AnalysisDecision.FAIL) else DEADLINE_S / 60
        for r in results
        if r.drafter != "worse5"
    ]
    return (float(np.median(times)), float(np.quantile(times, 0.95))) if times else (math.nan, math.nan)


def misses(line: dict[str, Any]) -> list[str]:
    """Returns the targets that were missed."""
    reached = {
        "equal promoted in at least 95 %": line["equal_promoted_pct"] >= 95,
        "equal rolled back in less than 1 %": line["equal_rolled_back_wilson_pct"][1] < 1,
        "10 % worse promoted in less than 1 %": line["worse10_promoted_wilson_pct"][1] < 1,
        "5 % worse promoted in less than 10 %": line["worse5_promoted_wilson_pct"][1] < 10,
        "per-request CV between 0.2 and 0.35": 0.2 <= line["per_request_cv"] <= 0.35,
    }
    for scenario in SCENARIOS:
        reached[f"{scenario.name}: median of {scenario.median_minutes} min"] = (
            line[f"minutes_to_verdict_{scenario.name}"] <= scenario.median_minutes
        )
        reached[f"{scenario.name}: p95 of {scenario.p95_minutes} min"] = (
            line[f"minutes_to_verdict_{scenario.name}_p95"] <= scenario.p95_minutes
        )
    return [target for target, met in reached.items() if not met]


def _batch(work: tuple[Scenario, str, int, int]) -> list[Result]:
    scenario, drafter, first, count = work
    return [trial(scenario, drafter, seed) for seed in range(first, first + count)]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rollout", description=__doc__)
    parser.add_argument("--trials", type=positive, default=3600, metavar="N", help="over all scenarios and drafters (default %(default)s)")
    parser.add_argument("--processes", type=positive, default=2, metavar="P", help="default %(default)s")
    parser.add_argument("--seed", type=positive, default=1, metavar="S", help="default %(default)s")
    parser.add_argument("--scenario", choices=[s.name for s in (*SCENARIOS, *HARSHER)], help="only this one")
    options = parser.parse_args(arguments)
    scenarios = [s for s in (*SCENARIOS, *HARSHER) if s.name == options.scenario] or list(SCENARIOS)
    each = max(1, options.trials // (len(scenarios) * len(DRAFTERS)))
    size = max(1, min(20, each))
    work = []
    for cell, (scenario, drafter) in enumerate((s, d) for s in scenarios for d in DRAFTERS):
        base = options.seed * 10_000_000 + cell * 100_000
        work += [(scenario, drafter, base + first, min(size, each - first)) for first in range(0, each, size)]
    started = time.monotonic()
    results: list[Result] = []
    with ProcessPoolExecutor(options.processes) as pool:
        for index, done in enumerate(pool.map(_batch, work)):
            results += done
            if 10 * (index + 1) // len(work) > 10 * index // len(work):
                print(f"{len(results)} of {each * len(scenarios) * len(DRAFTERS)} trials", file=sys.stderr)
    cv, weighted_cv = per_request_variation(options.seed)
    line: dict[str, Any] = summary(results)
    for scenario in scenarios:
        own = [r for r in results if r.scenario == scenario.name]
        line[f"minutes_to_verdict_{scenario.name}"], line[f"minutes_to_verdict_{scenario.name}_p95"] = minutes(own)
        line[scenario.name] = summary(own)
    failed_by = Counter(f"{r.drafter}:{r.metric}" for r in results if r.decision is AnalysisDecision.FAIL)
    line |= {
        "failed_by": dict(sorted(failed_by.items())),
        "held": sum(r.decision is AnalysisDecision.HOLD for r in results),
        "per_request_cv": round(cv, 3),
        "per_request_cv_weighted_by_steps": round(weighted_cv, 3),
        "replicas": STABLE + CANDIDATES,
        "candidates": CANDIDATES,
        "trials": len(results),
        "seconds": round(time.monotonic() - started, 1),
    }
    print(json.dumps(line), flush=True)
    missed = misses(line) if len(scenarios) == len(SCENARIOS) else []
    for target in missed:
        print(f"missed: {target}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
