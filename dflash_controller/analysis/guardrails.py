"""Guardrails: coarse limits for time to first token, time per output token, errors and restarts.

They catch what the primary metrics miss. Each limit is wide and must be exceeded by more than chance. Time is cut into disjoint windows
from the first counted reading on. A window lasts at least the gate's ``window`` and grows in steps of its ``interval`` until it holds the
minimum of samples on both sides. Overlapping windows would count one burst several times. The candidate fails if more windows fail than the
failure limit allows. A guardrail that cannot be judged neither blocks nor fails the candidate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from dflash_controller.analysis import histograms
from dflash_controller.analysis.blocks import TAIL, Side, Traffic
from dflash_controller.analysis.formatting import against
from dflash_controller.analysis.verdict import MetricVerdict, Outcome
from dflash_controller.api.gates import ERRORS, RESTARTS, Gate
from dflash_controller.model.counters import CounterSnapshot, Evidence, Histogram

_TAIL_DEVIATE = 1.64
"""Standard errors between the 95th percentile and its bound. The candidate's lower bound must exceed the limit above stable's upper bound.
This fails 1 % of windows for a candidate exactly at the limit, and far fewer for an equal one."""
_CHANCE = 0.005
"""A window fails for errors only if that many would occur by chance with at most this probability in a candidate at the limit."""

Histograms = Callable[[CounterSnapshot], Histogram | None]
"""Returns the histogram of one metric in a reading; None if it is not exported."""
_Window = tuple[float, float]


def quantile_guard(metric: str, part: Histograms, gate: Gate, traffic: Traffic, differs: str | None, *, concurrent: bool) -> MetricVerdict:
    """Fails if the 95th percentile of a histogram is more than ``limit`` percent above stable's. Values are seconds over the whole
    trial."""
    whole = [_observed(side, part, None) for side in (traffic.candidate, traffic.stable)]
    new, old = (histograms.quantile(found, TAIL) for found in whole)
    samples, stable_samples = (histograms.observations(found) if found else None for found in whole)

    def verdict(outcome: Outcome, message: str) -> MetricVerdict:
        return MetricVerdict(metric, outcome, message, new, old, gate.limit, samples, stable_samples)

    if new is None or old is None:
        return verdict(Outcome.INCONCLUSIVE, f"the {'candidate' if new is None else 'stable'} side exports no observation")
    values = against(new, old, " s") + f" at the 95th percentile; at most {gate.limit:g} % more is allowed"
    if differs:
        return verdict(Outcome.INCONCLUSIVE, f"{values}; not comparable: {differs}")

    def counted(window: _Window) -> float:
        sides = (traffic.candidate, traffic.stable) if concurrent else (traffic.candidate,)
        return min(histograms.observations(_observed(side, part, window)) for side in sides)

    def failed(window: _Window) -> bool:
        low, _ = histograms.quantile_bounds(_observed(traffic.candidate, part, window), TAIL, _TAIL_DEVIATE)
        _, high = histograms.quantile_bounds(_observed(traffic.stable, part, window if concurrent else None), TAIL, _TAIL_DEVIATE)
        return low > high * (1 + gate.limit / 100)

    results = [failed(window) for window, complete in _windows(gate, traffic, counted) if complete]
    return verdict(*_count(results, gate, values))


def errors_guard(gate: Gate, traffic: Traffic, *, concurrent: bool) -> MetricVerdict:
    """Fails if failed ÷ finished requests is more than ``limit`` percentage points above stable's. Values are percent over the whole trial.

    The current window is judged as soon as it holds enough samples, so a candidate that fails everything is stopped without a wait of five
    minutes.
    """
    whole = [_failures(side, None) for side in (traffic.candidate, traffic.stable)]
    shares = [100 * found[0] / found[1] if found and found[1] > 0 else None for found in whole]
    samples = [found[1] if found else None for found in whole]

    def verdict(outcome: Outcome, message: str) -> MetricVerdict:
        return MetricVerdict(ERRORS, outcome, message, shares[0], shares[1], gate.limit, samples[0], samples[1])

    if shares[0] is None or shares[1] is None:
        return verdict(Outcome.INCONCLUSIVE, f"no finished request of the {'candidate' if shares[0] is None else 'stable'} side is counted")
    values = against(shares[0], shares[1], " %") + f" of requests failed; at most {gate.limit:g} points more are allowed"
    overall = shares[1] / 100

    def counted(window: _Window) -> float:
        sides = (traffic.candidate, traffic.stable) if concurrent else (traffic.candidate,)
        return min(found[1] if (found := _failures(side, window)) else 0.0 for side in sides)

    def failed(window: _Window) -> bool:
        new, old = _failures(traffic.candidate, window), _failures(traffic.stable, window if concurrent else None)
        if new is None or old is None:
            return False
        # Stable's share is itself uncertain: assume one more failure than it had (Laplace), and at least its share over the whole trial.
        expected = max((old[0] + 1) / (old[1] + 2), overall) + gate.limit / 100
        return improbable(new[0], new[1], expected)

    results = [found for window, complete in _windows(gate, traffic, counted) if (found := failed(window)) or complete]
    return verdict(*_count(results, gate, values))


def restarts_guard(gate: Gate, evidence: Evidence, warm_up_s: float, now_s: float) -> MetricVerdict:
    """Counts container restarts of the candidate's pods. They are known from the cluster, so unreadable metrics do not matter here."""
    count = evidence.candidate_restarts
    pods = len({trace.pod for trace in evidence.candidate if now_s >= trace.ready_at_s + warm_up_s})
    text = f"{count} container restarts of the candidate; at most {gate.limit:g} are allowed"
    if count > gate.limit:
        outcome = Outcome.FAILED
    elif pods >= gate.min_samples:
        outcome = Outcome.SUCCESSFUL
    else:
        outcome, text = Outcome.INCONCLUSIVE, f"{text}; fewer than {gate.min_samples} pods are past their warm-up"
    return MetricVerdict(RESTARTS, outcome, text, float(count), None, gate.limit, float(pods))


def improbable(failed: float, requests: float, share: float) -> bool:
    """Decides whether the failures exceed chance at that share: P(≥ failed) ≤ exp(−n KL(failed ÷ n ‖ share)) (Chernoff) ≤ 0.5 %.

    At 1 % allowed, 1 of 100 does not exceed chance, 7 of 100 do.
    """
    if requests <= 0 or share >= 1:
        return False
    seen = failed / requests
    if seen <= share:
        return False
    gap = seen * math.log(seen / share) + ((1 - seen) * math.log((1 - seen) / (1 - share)) if seen < 1 else 0.0)
    return requests * gap >= -math.log(_CHANCE)


def _windows(gate: Gate, traffic: Traffic, counted: Callable[[_Window], float]) -> Iterator[tuple[_Window, bool]]:
    """Yields windows with enough samples on both sides. The last one may be unfinished (False)."""
    if traffic.start_s is None or traffic.end_s is None:
        return
    start_s, end_s = traffic.start_s, traffic.start_s + gate.window_s
    while end_s <= traffic.end_s:
        if counted((start_s, end_s)) >= gate.min_samples:
            yield (start_s, end_s), True
            start_s, end_s = end_s, end_s + gate.window_s
        else:
            end_s += max(1, gate.interval_s)
    if start_s < traffic.end_s and counted((start_s, traffic.end_s)) >= gate.min_samples:
        yield (start_s, traffic.end_s), False


def _count(results: list[bool], gate: Gate, values: str) -> tuple[Outcome, str]:
    if not results:
        return Outcome.INCONCLUSIVE, f"{values}; no window with {gate.min_samples} samples on both sides yet"
    if sum(results) > gate.failure_limit:
        return Outcome.FAILED, f"{values}; {sum(results)} of {len(results)} windows exceed it, at most {gate.failure_limit} may"
    return Outcome.SUCCESSFUL, f"{values}; {sum(results)} of {len(results)} windows exceed it"


def _observed(side: Side, part: Histograms, window: _Window | None) -> Histogram | None:
    found = []
    for load_sample in side.load_samples:
        first, last = (0, len(load_sample.readings) - 1) if window is None else (load_sample.index(window[0]), load_sample.index(window[1]))
        found.append(histograms.difference(part(load_sample.readings[last]), part(load_sample.readings[first])))
    return histograms.total(found)


def _failures(side: Side, window: _Window | None) -> tuple[float, float] | None:
    """Returns failed and finished requests of the load samples that count both; None if none does."""
    failed = requests = 0.0
    known = False
    for load_sample in side.load_samples:
        first, last = (0, len(load_sample.readings) - 1) if window is None else (load_sample.index(window[0]), load_sample.index(window[1]))
        moved = load_sample.between(first, last)
        if moved.failed is not None and moved.requests is not None:
            known, failed, requests = True, failed + moved.failed, requests + moved.requests
    return (failed, requests) if known else None
