"""Evidence for tests of the analysis: engines that count as told, without chance unless asked for."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

from dflash_controller.analysis.verdict import AnalysisRequest, Judgement, MetricVerdict
from dflash_controller.api.defaults import GATES
from dflash_controller.api.gates import GATE_SPECS, Gate, Role
from dflash_controller.model.counters import Answer, CounterSeries, CounterSnapshot, Evidence, Histogram, ProbeRun

SECONDS_BOUNDS = (0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0, math.inf)

DRAFTER = AnalysisRequest(dict(GATES), True, 5.0, 16, 16, concurrent=True, warm_up_s=60.0)
"""The drafter changed, at the same block."""
TARGET = replace(DRAFTER, gates={m: GATES[m] for m, spec in GATE_SPECS.items() if spec.role is Role.GUARDRAIL}, text_gates=False)
"""The target changed."""


def gated(**gates: Gate) -> AnalysisRequest:
    """Exactly these gates, no text."""
    return replace(DRAFTER, gates=gates, text_gates=False)


@dataclass
class Engine:
    """One engine process. Each reading adds a number of requests whose acceptance varies by ``spread`` (relative)."""

    pod: str = "pod"
    acceptance: float = 6.0
    step_s: float = 0.01
    batch: float = 4.0
    requests: float = 40.0
    """Per reading."""
    tokens: float = 480.0
    """Per request."""
    failed: float = 0.0
    prompt: float = 500.0
    cached: float = 0.0
    ttft_s: float = 0.04
    spread: float = 0.03
    ready_at_s: float = 0.0
    every_s: float = 30.0
    start_s: float = 0.0
    count: int = 60
    seed: int = 1
    missing: frozenset[str] = frozenset()
    """Fields of a reading that this engine does not export."""

    def trace(self) -> CounterSeries:
        chance = random.Random(self.seed)
        totals = dict.fromkeys(
            ("steps", "committed", "decode_seconds", "passes", "requests", "failed", "prompt_tokens", "cached_tokens", "generated_tokens"),
            0.0,
        )
        readings = [self._reading(self.start_s, totals)]
        for index in range(1, self.count + 1):
            acceptance = self.acceptance * (1 + self.spread * chance.gauss(0, 1))
            tokens = self.requests * self.tokens
            steps = tokens / acceptance
            totals["steps"] += steps
            totals["committed"] += tokens
            totals["generated_tokens"] += tokens
            totals["decode_seconds"] += steps * self.step_s
            totals["passes"] += steps / self.batch
            totals["requests"] += self.requests
            totals["failed"] += self.failed
            totals["prompt_tokens"] += self.requests * self.prompt
            totals["cached_tokens"] += self.requests * self.cached
            readings.append(self._reading(self.start_s + index * self.every_s, totals))
        return CounterSeries(self.pod, self.ready_at_s, tuple(readings))

    def _reading(self, at_s: float, totals: dict[str, float]) -> CounterSnapshot:
        count = totals["requests"]
        values: dict[str, object] = dict(totals)
        values["time_to_first_token"] = observed(self.ttft_s, count)
        values["time_per_token"] = observed(self.step_s * 6, count)
        values["latency"] = observed(self.tokens / self.acceptance * self.step_s, count)
        return CounterSnapshot(at_s, **{name: value for name, value in values.items() if name not in self.missing})  # type: ignore[arg-type]


def observed(value: float, count: float) -> Histogram:
    """So many observations, all in the bucket of one value."""
    return Histogram(SECONDS_BOUNDS, tuple(count if bound >= value else 0.0 for bound in SECONDS_BOUNDS))


def evidence(candidate: Engine | None = None, *stable: Engine, **more: object) -> Evidence:
    """One candidate (default: an equal one) against two stable pods."""
    new = candidate or Engine("new", seed=7)
    old = stable or (Engine("old-1", seed=8, ready_at_s=-9e3), Engine("old-2", seed=9, ready_at_s=-9e3))
    return Evidence((new.trace(),), tuple(engine.trace() for engine in old), **more)  # type: ignore[arg-type]


def runs(
    count: int = 64, acceptance: float = 1.0, speed: float = 1.0, differing: int = 0, ties: int = 0, seed: int = 3
) -> tuple[ProbeRun, ProbeRun]:
    """Candidate's and reference's answers; the first ``ties`` prompts do not repeat themselves and differ."""
    chance = random.Random(seed)
    new, old = [], []
    for index in range(count):
        steps = 256 / chance.uniform(4, 9)
        wobble = 1 + 0.05 * chance.gauss(0, 1)
        old.append(Answer(256, steps, steps * 0.01, f"text {index}", None if index >= ties else False))
        other = index < ties or index < ties + differing
        new.append(Answer(256, steps * wobble / acceptance, steps * wobble * 0.01 / speed, f"other {index}" if other else f"text {index}"))
    return ProbeRun("new", "64x256", tuple(new), 900.0), ProbeRun("old", "64x256", tuple(old), 900.0)


def verdict(judgement: Judgement, metric: str) -> MetricVerdict:
    return next(one for one in judgement.verdicts if one.metric == metric)
