"""Readings and traces of engines whose acceptance, step time and latencies are known because they are simulated."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable

import pytest

from dflash_controller.engines import ENGINES
from dflash_controller.model.counters import CounterSeries, CounterSnapshot, Histogram
from dflash_controller.model.snapshot import Key
from dflash_controller.observe.pipeline.counter_series import CounterSeriesStore
from dflash_controller.observe.pipeline.source import Target
from dflash_controller.observe.sources.scrape.exposition import read_page
from testbed.simulator.batching import Request
from testbed.simulator.engine import SimulatedEngine
from testbed.simulator.faults import Faults
from testbed.simulator.settings import EngineSettings
from testbed.simulator.table import seed_table
from testbed.traffic.report import quantile
from tests.support.releases import default_release

MODEL, WORKLOAD = "Qwen3.5-9B", "gsm8k"
INTERVAL_S = 30.0


def engine(name: str, block: int = 16, release: str | None = None) -> SimulatedEngine:
    release = release or default_release(name)
    settings = EngineSettings(name, release, f"Qwen/{MODEL}", "m", 1, block_size=block)
    return SimulatedEngine(settings, seed_table().match(settings.target), now=0.0, seed=7)


def target(simulated: SimulatedEngine, ready_at_s: float = 0.0) -> Target:
    settings = simulated.settings
    return Target("ns", "pod", "u", "127.0.0.1", 1, "demo", "r1", settings.engine, settings.block_size > 1, ready_at_s, on_trial=True)


def read(simulated: SimulatedEngine, now: float) -> CounterSnapshot | None:
    """None where there is no page: nothing was read."""
    dialect = ENGINES[simulated.settings.engine].metric_schema
    page = read_page(simulated.page(now) or "", dialect)
    return None if page is None else dialect.counter_snapshot(page, now, simulated.settings.block_size > 1)


class Watch:
    """Clients in a closed loop at one engine, whose counters are read every 30 s."""

    def __init__(self, simulated: SimulatedEngine, concurrency: int = 8, stream: float = 0.0) -> None:
        self.engine = simulated
        self.traces = CounterSeriesStore()
        self.now = 0.0
        self.finished: list[Request] = []
        self._concurrency = concurrency
        self._random = random.Random(3)
        self._stream = stream
        self._restarted()

    def _restarted(self) -> None:
        self._flying: list[Request] = []
        self.take()

    def restart(self, simulated: SimulatedEngine) -> None:
        """The container's next process, Ready at once."""
        self.engine = simulated
        self._restarted()

    def take(self) -> None:
        told = read(self.engine, self.now)
        self.traces.take(self.now, [target(self.engine)], {} if told is None else {"u": (told,)})

    def run(self, seconds: float) -> Watch:
        end, next_read = self.now + seconds, self.now + INTERVAL_S
        while self.now < end:
            self.finished += [request for request in self._flying if request.finished_s is not None]
            self._flying = [request for request in self._flying if request.finished_s is None]
            while len(self._flying) < self._concurrency:
                request = Request(WORKLOAD, 64, 512, streaming=self._random.random() < self._stream)
                self._flying.append(request)
                self.engine.submit(request, self.now)
            self.now = self.engine.batch.step()
            if self.now >= next_read:
                next_read += INTERVAL_S
                self.take()
        return self

    @property
    def lives(self) -> tuple[CounterSeries, ...]:
        return self.traces.of(Key("ns", "demo"), "r1")


def moved(trace: CounterSeries, name: str) -> float:
    first, last = (getattr(one, name) for one in (trace.readings[0], trace.readings[-1]))
    assert first is not None, name
    assert last is not None, name
    return float(last - first)


def in_bucket_of_p95(trace: CounterSeries, name: str, value: float) -> bool:
    """Whether a value lies in the bucket that holds the 95th percentile of what was observed over the trace."""
    first, last = (getattr(one, name) for one in (trace.readings[0], trace.readings[-1]))
    assert isinstance(first, Histogram)
    assert isinstance(last, Histogram)
    seen = [b - a for a, b in zip(first.counts, last.counts, strict=True)]
    index = next(i for i, count in enumerate(seen) if count >= 0.95 * seen[-1])
    return (last.bounds[index - 1] if index else 0.0) < value <= last.bounds[index]


def p95(values: Iterable[float]) -> float:
    found = quantile(list(values), 0.95)
    assert found is not None
    return found


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(("block", "concurrency"), [(16, 1), (16, 8), (8, 16), (1, 8)])
def test_differences_of_readings_give_back_the_table(name: str, block: int, concurrency: int) -> None:
    watch = Watch(engine(name, block), concurrency).run(120)
    (trace,) = watch.lives
    table = watch.engine.batch.table
    length = table.acceptance(WORKLOAD, block).length(block) if block > 1 else 1.0
    steps = moved(trace, "steps")
    assert moved(trace, "committed") / steps == pytest.approx(length, rel=0.03)
    assert moved(trace, "decode_seconds") / steps == pytest.approx(table.step_time_s(WORKLOAD, block, concurrency), rel=0.05)
    assert steps / moved(trace, "passes") == pytest.approx(concurrency, rel=0.1)
    assert moved(trace, "requests") == pytest.approx(len(watch.finished), abs=concurrency)
    assert moved(trace, "generated_tokens") == pytest.approx(512 * moved(trace, "requests"), abs=512 * concurrency)
    assert moved(trace, "prompt_tokens") == pytest.approx(64 * moved(trace, "requests"), abs=64 * concurrency)
    assert moved(trace, "cached_tokens") == 0
    survival = trace.readings[-1].accepted_at
    if name == "vllm" and block > 1:
        assert [count / steps for count in survival] == pytest.approx(table.acceptance(WORKLOAD, block).survival(block), abs=0.03)
    else:
        assert survival == ()


@pytest.mark.parametrize("name", ENGINES)
def test_latencies_are_those_the_clients_saw(name: str) -> None:
    watch = Watch(engine(name), 40, stream=0.5).run(90)
    (trace,) = watch.lives
    streams = [request for request in watch.finished if request.streaming]
    first = streams if name == "sglang" else watch.finished
    waited = p95(request.first_token_s - request.arrived_s for request in first if request.first_token_s is not None)
    latency = p95(request.finished_s - request.arrived_s for request in watch.finished if request.finished_s is not None)
    per_token = p95((r.finished_s - r.first_token_s) / 511 for r in first if r.finished_s and r.first_token_s)
    assert in_bucket_of_p95(trace, "time_to_first_token", waited)
    assert in_bucket_of_p95(trace, "latency", latency)
    assert in_bucket_of_p95(trace, "time_per_token", per_token)
    last = trace.readings[-1]
    assert last.time_to_first_token is not None
    assert last.time_per_token is not None
    ended = len(streams) if name == "sglang" else len(watch.finished)
    assert last.time_per_token.counts[-1] == pytest.approx(ended, abs=40)
    assert ended <= last.time_to_first_token.counts[-1] <= ended + 40


def test_sglang_tells_no_first_token_time_without_streams_and_no_time_per_token_before_0_5_22() -> None:
    (quiet,) = Watch(engine("sglang")).run(30).lives
    assert [one.time_to_first_token for one in quiet.readings] == [None] * len(quiet.readings)
    (old,) = Watch(engine("sglang", release="0.5.17"), stream=1.0).run(30).lives
    assert old.readings[-1].time_per_token is None
    assert old.readings[-1].time_to_first_token is not None
    assert old.readings[0].time_to_first_token is not None
    assert old.readings[0].time_to_first_token.counts[-1] == 0, "it appeared with the first stream, and was empty before"


@pytest.mark.parametrize("name", ENGINES)
def test_failed_requests_are_counted_among_the_requests(name: str) -> None:
    watch = Watch(engine(name))
    metrics = watch.engine.metrics
    metrics.http_started("/health", "GET")
    metrics.http_finished("/health", "GET", 503, 0.1, (0, 0))
    watch.take()
    before = read(watch.engine, watch.now)
    watch.run(60)
    for status, count in ((200, len(watch.finished)), (500, 5), (400, 3)):
        for _ in range(count):
            metrics.http_started("/v1/completions", "POST")
            metrics.http_finished("/v1/completions", "POST", status, 0.1, (100, 1000))
    after = read(watch.engine, watch.now)
    assert before is not None
    assert after is not None
    assert (before.failed, after.failed) == (0, 5)
    assert after.requests == pytest.approx(len(watch.finished) + 5, abs=8)


@pytest.mark.parametrize("name", ENGINES)
def test_a_client_that_breaks_off_is_no_failure(name: str) -> None:
    simulated = engine(name)
    request = Request(WORKLOAD, 64, 512)
    simulated.submit(request, 0.0)
    simulated.batch.abort(request)
    told = read(simulated, 1.0)
    assert told is not None
    assert not told.failed


@pytest.mark.parametrize("name", ENGINES)
def test_a_collapsed_drafter_is_seen_in_the_next_readings(name: str) -> None:
    watch = Watch(engine(name)).run(60)
    watch.engine.set_faults(Faults(acceptance=0.0, step_time=1.5))
    collapsed = watch.now
    (trace,) = watch.run(120).lives
    late = [one for one in trace.readings if one.at_s >= collapsed + 60]
    later = CounterSeries(trace.pod, trace.ready_at_s, tuple(late))
    assert moved(later, "committed") / moved(later, "steps") == pytest.approx(1.0, abs=0.01)
    slow = 1.5 * watch.engine.batch.table.step_time_s(WORKLOAD, 16, 8)
    assert moved(later, "decode_seconds") / moved(later, "steps") == pytest.approx(slow, rel=0.05)


@pytest.mark.parametrize("name", ENGINES)
def test_a_restart_begins_a_new_trace(name: str) -> None:
    watch = Watch(engine(name)).run(90)
    until = watch.now
    fresh = engine(name)
    fresh.advance(until)
    watch.restart(fresh)
    first, second = watch.run(60).lives
    assert first.readings[-1].at_s < until + 1e-9 < second.readings[0].at_s + INTERVAL_S
    assert second.readings[-1].steps is not None
    assert 0 < second.readings[-1].steps < moved(first, "steps")
    assert all(b.at_s > a.at_s for life in (first, second) for a, b in itertools.pairwise(life.readings))


@pytest.mark.parametrize("name", ENGINES)
def test_a_frozen_page_moves_nothing_and_a_missing_one_adds_nothing(name: str) -> None:
    watch = Watch(engine(name)).run(60)
    watch.engine.set_faults(Faults(metrics="frozen"))
    watch.take()
    known = watch.lives[0].readings[-1]
    (trace,) = watch.run(90).lives
    assert moved(CounterSeries("u", 0.0, (known, trace.readings[-1])), "steps") == 0
    watch.engine.set_faults(Faults(metrics="missing"))
    assert watch.run(90).lives == (trace,)


@pytest.mark.parametrize(("name", "dropped"), [("vllm", "vllm:spec_decode"), ("sglang", "sglang:spec_verify_calls")])
def test_speculation_that_cannot_be_seen_is_unknown_not_an_acceptance_of_one(name: str, dropped: str) -> None:
    simulated = engine(name)
    simulated.set_faults(Faults(missing_series=(dropped,)))
    last = Watch(simulated).run(30).lives[-1].readings[-1]
    assert last.generated_tokens
    assert last.steps is None or last.committed is None


@pytest.mark.parametrize("name", ENGINES)
def test_a_fresh_engine_has_counted_nothing(name: str) -> None:
    told = read(engine(name), 0.0)
    assert told is not None
    for field in ("steps", "committed", "decode_seconds", "passes", "requests", "prompt_tokens", "cached_tokens", "generated_tokens"):
        assert getattr(told, field) == 0, field
