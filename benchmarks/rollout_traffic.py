"""Simulates requests and engines of the rollout benchmark: the counters of three replicas under independent requests or whole sessions.

Acceptance: each request has a task (published acceptance lengths of one model, tasks equally often) and a prompt, which is a lognormal
multiplier with a coefficient of variation of 15 %. In every verify step the number of accepted drafts is drawn from a geometric
distribution truncated at the block, with this mean, until the request's length is reached. Lengths are lognormal with sigma 0.9.

Engines: a request takes its steps × the step time at the mean batch of the interval in which it arrived (Little's law with the published
step times), and is counted when it ends, as by SGLang.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dflash_controller.model.counters import CounterSeries, CounterSnapshot, Histogram
from dflash_controller.model.measured_tables import read_lengths
from testbed.simulator.table import SEED_ACCEPT, Table

MODEL, BLOCK = "Qwen3.5-9B", 16
PROMPT_CV = 0.15
LENGTH_SIGMA, LENGTH_MEDIAN = 0.9, 300.0
LENGTH_RANGE = (16, 4096)
PROMPT_MEDIAN, PROMPT_SIGMA = 500.0, 0.8
STEP_NOISE = 0.02
"""Standard deviation of the log step time between intervals."""
TTFT_MEDIAN_S, TTFT_SIGMA = 0.06, 0.5
CHUNK_READINGS = 20
TTFT_BOUNDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, math.inf)
TOKEN_BOUNDS = (0.0005, 0.001, 0.0015, 0.002, 0.0025, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, math.inf)
LATENCY_BOUNDS = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 60.0, math.inf)

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sessions:
    """Requests of one session go to one replica and share task and multiplier. With the prompts, the multipliers vary by 15 % in total."""

    requests: float = 3.0
    """Mean number of requests in a session."""
    tail: float | None = None
    """Exponent of a Pareto (Lomax) distribution of the number of requests; None: geometric. The variance is infinite up to 2."""
    pause_s: float = 40.0
    """Mean seconds between two requests of a session."""
    cv: float = 0.10
    """Coefficient of variation of the multiplier between sessions."""


@dataclass(frozen=True, slots=True)
class Load:
    """Traffic of one replica."""

    requests_per_s: float
    every_s: float
    """Seconds between two readings."""
    sessions: Sessions | None = None
    clients: int | None = None
    """Number of clients whose requests all go to this replica, as with routing by a hash of the client. A client's requests are alike, as
    those of a session are."""


@dataclass(frozen=True, slots=True)
class _Model:
    task_lengths: Floats
    grid_lengths: Floats
    """Acceptance lengths, ascending …"""
    grid_rates: Floats
    """… and for each the -log probability of the geometric distribution with that mean."""
    concurrency: Floats
    step_s: Floats


@lru_cache(maxsize=1)
def _model() -> _Model:
    lengths = [length.tokens for length in read_lengths(SEED_ACCEPT) if (length.model, length.block_size) == (MODEL, BLOCK)]
    chances = np.linspace(0.02, 0.9995, 4000)
    table = Table.load().model(MODEL)
    batches = range(1, 65)
    return _Model(
        np.array(lengths),
        (1 - chances**BLOCK) / (1 - chances),
        -np.log(chances),
        np.array(batches, dtype=float),
        np.array([table.step_time_s("gsm8k", BLOCK, c) for c in batches]),
    )


@dataclass(frozen=True, slots=True)
class Requests:
    """Arrays with one entry per request."""

    arrived_s: Floats
    acceptance: Floats
    """Expected acceptance length of each."""


def arrivals(random: np.random.Generator, load: Load, until_s: float, factor: float) -> Requests:
    """Returns all requests of one replica; ``factor`` is the drafter's acceptance length ÷ that of the stable drafter."""
    model = _model()
    if load.sessions is None:
        count = random.poisson(load.requests_per_s * until_s)
        arrived = np.sort(random.uniform(0, until_s, count))
        group = np.arange(count) if load.clients is None else random.integers(load.clients, size=count)
        groups, cv = (count, PROMPT_CV) if load.clients is None else (load.clients, Sessions().cv)
        task = random.integers(len(model.task_lengths), size=groups)[group]
        multiplier = _multipliers(random, cv, groups)[group]
        if cv < PROMPT_CV:
            multiplier *= _multipliers(random, math.sqrt(PROMPT_CV**2 - cv**2), count)
    else:
        arrived, task, multiplier = _sessions(random, load.sessions, load.requests_per_s, until_s)
    return Requests(arrived, factor * np.clip(model.task_lengths[task] * multiplier, 1.1, BLOCK - 0.5))


def _sessions(
    random: np.random.Generator, kind: Sessions, requests_per_s: float, until_s: float
) -> tuple[Floats, npt.NDArray[np.int64], Floats]:
    """Returns arrival, task and multiplier of each request. Sessions that began before second 0 are among them."""
    before_s = 20 * kind.requests * kind.pause_s / 3
    sessions = random.poisson(requests_per_s / kind.requests * (until_s + before_s))
    if kind.tail is None:
        sizes = random.geometric(1 / kind.requests, sessions)
    else:
        sizes = 1 + np.floor(_lomax_scale(kind) * random.pareto(kind.tail, sessions)).astype(np.int64)
    which = np.repeat(np.arange(sessions), sizes)
    waited = np.cumsum(random.exponential(kind.pause_s, len(which)))
    first = np.concatenate(([0], np.cumsum(sizes)[:-1])).astype(int)
    waited -= np.repeat(waited[first], sizes)
    arrived = np.repeat(random.uniform(-before_s, until_s, sessions), sizes) + waited
    task = np.repeat(random.integers(len(_model().task_lengths), size=sessions), sizes)
    rest = math.sqrt(PROMPT_CV**2 - kind.cv**2)
    multiplier = np.repeat(_multipliers(random, kind.cv, sessions), sizes) * _multipliers(random, rest, len(which))
    order = np.argsort(arrived, kind="stable")
    order = order[(arrived[order] >= 0) & (arrived[order] < until_s)]
    return arrived[order], task[order], multiplier[order]


@lru_cache(maxsize=8)
def _lomax_scale(kind: Sessions) -> float:
    """Returns the scale at which 1 + ⌊Lomax⌋ has the mean ``kind.requests``: P(⌊x⌋ ≥ k) = (1 + k ÷ scale)^-tail, summed over k ≥ 1."""
    tail, below, above = kind.tail or 2.0, 1e-3, 1e3
    whole = np.arange(1, 200_000, dtype=float)
    for _ in range(60):
        scale = math.sqrt(below * above)
        rest = scale / (tail - 1) * (1 + (whole[-1] + 0.5) / scale) ** (1 - tail)
        below, above = (scale, above) if float(((1 + whole / scale) ** -tail).sum()) + rest < kind.requests - 1 else (below, scale)
    return scale


def _multipliers(random: np.random.Generator, cv: float, count: int) -> Floats:
    sigma = math.sqrt(math.log1p(cv * cv))
    drawn: Floats = random.lognormal(-sigma * sigma / 2, sigma, count)
    return drawn


def lengths(random: np.random.Generator, count: int) -> npt.NDArray[np.int64]:
    """Returns random numbers of output tokens."""
    drawn = random.lognormal(math.log(LENGTH_MEDIAN), LENGTH_SIGMA, count)
    whole: npt.NDArray[np.int64] = np.clip(np.rint(drawn), *LENGTH_RANGE).astype(np.int64)
    return whole


def verify_steps(random: np.random.Generator, acceptance: Floats, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Returns the verify steps of each request: accepted drafts are drawn step by step until its tokens are reached."""
    model = _model()
    rate = np.interp(acceptance, model.grid_lengths, model.grid_rates)
    expected = tokens / acceptance
    drawn = np.ceil(expected + 3 * np.sqrt(expected) + 3).astype(np.int64)
    ends = np.cumsum(drawn)
    starts = ends - drawn
    accepted = random.standard_exponential(int(ends[-1]) if len(ends) else 0, dtype=np.float32)
    accepted /= np.repeat(rate.astype(np.float32), drawn)
    committed = np.cumsum(np.minimum(accepted.astype(np.int32), BLOCK - 1) + 1, dtype=np.int64)
    before = np.where(starts > 0, committed[starts - 1], 0)
    steps: npt.NDArray[np.int64] = np.searchsorted(committed, before + tokens) + 1 - starts
    short = np.flatnonzero(steps > drawn)
    if len(short):
        missing = tokens[short] - (committed[ends[short] - 1] - before[short])
        steps[short] = drawn[short] + verify_steps(random, acceptance[short], missing)
    return steps


class Replica:
    """The counters of one replica at its readings, simulated on demand. It becomes Ready at second 0, or long before."""

    def __init__(self, name: str, seed: np.random.SeedSequence, load: Load, until_s: float, factor: float, *, ready_s: float = 0.0) -> None:
        self._random = np.random.default_rng(seed)
        self._name, self._load, self._ready_s = name, load, ready_s
        self._requests = arrivals(self._random, load, until_s, factor)
        phase = self._random.uniform(0, load.every_s)
        self._times = np.arange(phase, until_s + load.every_s, load.every_s)
        size = len(self._times) + 1
        self._sums = np.zeros((6, size))
        self._ttft, self._per_token, self._latency = (np.zeros((size, len(b))) for b in (TTFT_BOUNDS, TOKEN_BOUNDS, LATENCY_BOUNDS))
        self._readings: list[CounterSnapshot] = []

    def counter_series(self, now_s: float) -> CounterSeries:
        """Returns the counters that the operator has at that moment."""
        count = bisect_right(self._times, now_s)
        while len(self._readings) < count:
            self._advance()
        return CounterSeries(self._name, self._ready_s, tuple(self._readings[:count]))

    def _advance(self) -> None:
        first = len(self._readings)
        last = min(first + CHUNK_READINGS, len(self._times))
        edges = self._times[first:last]
        start_s = self._times[first - 1] if first else 0.0
        arrived = self._requests.arrived_s
        low, high = np.searchsorted(arrived, (start_s, edges[-1]))
        self._serve(arrived[low:high], self._requests.acceptance[low:high], np.concatenate(([start_s], edges)), first)
        sums = np.cumsum(self._sums[:, :last], axis=1)[:, first:]
        shapes = ((self._ttft, TTFT_BOUNDS), (self._per_token, TOKEN_BOUNDS), (self._latency, LATENCY_BOUNDS))
        tables = [(np.cumsum(np.cumsum(counts[:last], axis=0), axis=1)[first:].tolist(), bounds) for counts, bounds in shapes]
        for index, at_s in enumerate(edges.tolist()):
            steps, committed, decode, passes, requests, prompt = (float(sums[row, index]) for row in range(6))
            ttft, token, latency = (Histogram(bounds, tuple(rows[index])) for rows, bounds in tables)
            self._readings.append(
                CounterSnapshot(
                    at_s, steps, committed, decode, passes, requests, 0.0, prompt, 0.0, committed,
                    time_to_first_token=ttft, time_per_token=token, latency=latency,
                )
            )  # fmt: skip

    def _serve(self, arrived: Floats, acceptance: Floats, edges: Floats, first: int) -> None:
        random, model, count = self._random, _model(), len(arrived)
        tokens = lengths(random, count)
        steps = verify_steps(random, acceptance, tokens) if count else tokens
        interval = np.clip(np.searchsorted(edges, arrived, side="right") - 1, 0, len(edges) - 2)
        seconds = np.diff(edges)
        offered = np.bincount(interval, steps, len(seconds)) / seconds
        batch = np.ones(len(seconds))
        for _ in range(20):
            mean = offered * np.interp(batch, model.concurrency, model.step_s)
            batch = np.maximum(1.0, np.where(mean > 1e-9, mean / -np.expm1(-np.maximum(mean, 1e-9)), 1.0))
        step_s = np.interp(batch, model.concurrency, model.step_s) * random.lognormal(0, STEP_NOISE, len(seconds))
        passes = offered * seconds / batch
        decode = steps * step_s[interval]
        ttft = random.lognormal(math.log(TTFT_MEDIAN_S), TTFT_SIGMA, count)
        latency = ttft + decode
        prompt = np.rint(random.lognormal(math.log(PROMPT_MEDIAN), PROMPT_SIGMA, count))
        size = self._sums.shape[1]
        seen = np.minimum(np.searchsorted(self._times, arrived + latency), size - 1)
        for row, weights in enumerate((steps, tokens, decode, None, np.ones(count), prompt)):
            if weights is not None:
                self._sums[row] += np.bincount(seen, weights, size)
        self._sums[3, first : first + len(passes)] += passes
        for counts, bounds, values in (
            (self._ttft, TTFT_BOUNDS, ttft),
            (self._per_token, TOKEN_BOUNDS, decode / np.maximum(1, tokens - 1)),
            (self._latency, LATENCY_BOUNDS, latency),
        ):
            np.add.at(counts, (seen, np.searchsorted(bounds, values)), 1)


def per_request_variation(seed: int, count: int = 50_000) -> tuple[float, float]:
    """Returns the coefficient of variation of the requests' acceptance lengths: over requests, and weighted by steps."""
    random = np.random.default_rng(seed)
    acceptance = arrivals(random, Load(1.0, 1.0), count, 1.0).acceptance
    tokens = lengths(random, len(acceptance))
    steps = verify_steps(random, acceptance, tokens)
    own = tokens / steps
    pooled = tokens.sum() / steps.sum()
    weighted = math.sqrt(float(np.sum(steps * (own - pooled) ** 2) / steps.sum())) / float(pooled)
    return float(own.std() / own.mean()), weighted
