"""A real Prometheus and direct scrapes of the same engine pages tell the same metrics."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from dflash_controller.engines import ENGINES
from dflash_controller.model.measurement import Value
from dflash_controller.model.series import LabelledMetric, Span
from dflash_controller.observe.load.samples import Follower
from dflash_controller.observe.pipeline.counter_series import CounterSeriesStore
from dflash_controller.observe.pipeline.metrics import RevisionMetrics, revision_metrics
from dflash_controller.observe.pipeline.source import Source, Target
from dflash_controller.observe.sources.prometheus.client import Prometheus, PrometheusError, PrometheusSettings
from dflash_controller.observe.sources.prometheus.counter_snapshots import TrialSettings
from dflash_controller.observe.sources.prometheus.load_samples import SpanSettings
from dflash_controller.observe.sources.prometheus.source import STORED_S, PrometheusSource
from dflash_controller.observe.sources.scrape.exposition import read_page
from dflash_controller.observe.sources.scrape.source import Scraper, ScrapeSettings
from tests.support.real_prometheus import PAGES, RECORDED, configuration, prometheus, scraping, served

WINDOW_S = 10.0


@pytest.fixture
async def engine_ports() -> AsyncIterator[dict[str, int]]:
    async with served({engine: (PAGES / recorded).read_text(encoding="utf-8") for engine, recorded in RECORDED.items()}) as ports:
        yield ports


@pytest.fixture
async def prometheus_url(engine_ports: dict[str, int], tmp_path: Path) -> AsyncIterator[str]:
    """Scrapes each page every second, under two jobs, as happens where a PodMonitor meets annotations."""
    pods = {f"pod-{engine}": port for engine, port in engine_ports.items()}
    scrapes = [scraping(job, pods, {"cluster": "here"}) for job in ("monitor", "annotations")]
    async with prometheus(tmp_path / "prometheus", configuration(*scrapes)) as url:
        yield url


async def measured(source: Source, targets: list[Target], until: float) -> dict[str, RevisionMetrics]:
    """Metrics by engine once both windows are full."""
    while True:
        got = await source.collect(targets)
        filled = [window.seconds >= WINDOW_S - 1 and window.deltas for window in got.windows.values()]
        if len(filled) == len(targets) and all(filled):
            return {
                target.engine: revision_metrics(
                    ENGINES[target.engine].metric_schema, [got.windows[target.uid]], expected=1, speculation_on=True
                )
                for target in targets
            }
        assert time.monotonic() < until, f"no full windows: {got}"
        await asyncio.sleep(0.5)


async def test_both_sources_agree(engine_ports: dict[str, int], prometheus_url: str) -> None:
    targets = [
        Target("ns", f"pod-{engine}", engine, "127.0.0.1", port, "demo", "r1", engine, True) for engine, port in engine_ports.items()
    ]
    settings = PrometheusSettings(prometheus_url, matcher={"cluster": "here"})
    queried, scraped = PrometheusSource(settings, WINDOW_S), Scraper(ScrapeSettings(window_s=WINDOW_S))
    elsewhere = PrometheusSource(replace(settings, matcher={"cluster": 'there"} or {x="'}), WINDOW_S)
    until = time.monotonic() + 60
    try:
        by_query, by_scrape = await asyncio.gather(measured(queried, targets, until), measured(scraped, targets, until))
        for engine in ENGINES:
            one, other = by_query[engine], by_scrape[engine]
            for name in ("acceptance_length", "concurrency", "step_time_s", "block_size", "tokens_per_second"):
                left, right = getattr(one, name), getattr(other, name)
                assert isinstance(left, Value), (engine, name, left)
                assert isinstance(right, Value), (engine, name, right)
                # A rate over ten seconds of one-second scrapes is known to a scrape; quotients are exact.
                assert left.value == pytest.approx(right.value, rel=0.15 if name == "tokens_per_second" else 0.02), (engine, name)
        others = await elsewhere.collect(targets)
        assert (others.windows, len(others.failures)) == ({}, 2)
    finally:
        for source in (queried, scraped, elsewhere):
            await source.close()


async def test_readings_of_a_trial_are_the_samples_with_their_own_times(engine_ports: dict[str, int], prometheus_url: str) -> None:
    """The past too: an operator that starts in the middle of a trial asks for what it has missed."""
    ready_at_s = time.time() - 60
    targets = [
        Target("ns", f"pod-{engine}", engine, "127.0.0.1", port, "demo", f"r-{engine}", engine, True, ready_at_s, True)
        for engine, port in engine_ports.items()
    ]
    settings = PrometheusSettings(prometheus_url, matcher={"cluster": "here"})
    traces = CounterSeriesStore()
    rounds_s = []
    await asyncio.sleep(10)
    for _ in range(2):
        source = PrometheusSource(settings, WINDOW_S, trials=TrialSettings(WINDOW_S, step_s=1.0))
        try:
            for _ in range(2):
                rounds_s.append(time.time())
                got = await source.collect(targets)
                assert got.failures == {}
                traces.take(time.time(), targets, got.readings)
                await asyncio.sleep(1.5)
        finally:
            await source.close()
    longest_round_s = max(later - earlier for earlier, later in itertools.pairwise(rounds_s))
    for target in targets:
        (trace,) = traces.of(target.key, target.revision)
        assert len(trace.readings) >= 6, "the past is there"
        times = [reading.at_s for reading in trace.readings]
        assert all(earlier < later for earlier, later in itertools.pairwise(times)), times
        page = read_page((PAGES / RECORDED[target.engine]).read_text(encoding="utf-8"), ENGINES[target.engine].metric_schema)
        assert page is not None
        whole = ENGINES[target.engine].metric_schema.counter_snapshot(page, 0.0, True)
        jobs = await grown_at(prometheus_url, target)
        # Each round takes the job with the newest sample. On a busy machine that may be another one than in the round before.
        known = {at: grown for job in jobs for at, grown in job.items()}
        assert {round(at, 3) for at in times} <= known.keys(), (times, jobs)
        longest_scrape_s = max(later - earlier for job in jobs for earlier, later in itertools.pairwise(sorted(job)))
        for earlier, later in itertools.pairwise(times):
            assert later - earlier <= longest_round_s + longest_scrape_s, "no holes"
        assert trace.readings[-1].at_s > rounds_s[-1] - STORED_S - 2 * longest_scrape_s
        first, last = trace.readings[0], trace.readings[-1]
        for reading in trace.readings:
            for name in ("steps", "committed", "decode_seconds", "passes", "requests", "prompt_tokens", "generated_tokens"):
                grown = getattr(reading, name) / getattr(whole, name)
                assert grown == pytest.approx(known[round(reading.at_s, 3)], rel=1e-6), (name, reading.at_s)
        assert first.latency is not None
        assert last.latency is not None
        assert whole.latency is not None
        assert last.latency.bounds == whole.latency.bounds
        share = [one / last.latency.counts[-1] for one in last.latency.counts]
        assert share == pytest.approx([one / whole.latency.counts[-1] for one in whole.latency.counts])
        assert last.failed == 0


async def grown_at(url: str, target: Target) -> list[dict[float, float]]:
    """For each job, by the time of its scrapes of a pod (seconds since the epoch, to the millisecond): how much its counters had grown.

    All counters of a page grow alike, so one of them tells it.
    """
    counter = f"{target.engine}:generation_tokens_total"
    query = {"query": f'{counter}{{pod="{target.pod}"}}[10m]'}
    async with aiohttp.ClientSession() as session, session.get(f"{url}/api/v1/query", params=query) as answer:
        result = (await answer.json())["data"]["result"]
    recorded = (PAGES / RECORDED[target.engine]).read_text(encoding="utf-8").splitlines()
    whole = sum(float(line.rpartition(" ")[2]) for line in recorded if line.startswith(f"{counter}{{"))
    found: dict[str, dict[float, float]] = {}
    for series in result:
        of_job = found.setdefault(series["metric"]["job"], {})
        for at, value in series["values"]:
            of_job[round(at, 3)] = of_job.get(round(at, 3), 0.0) + float(value) / whole
    return list(found.values())


async def spans_of(source: Source, targets: list[Target], count: int) -> dict[str, list[Span]]:
    """Spans by engine, once there are so many of each."""
    until = time.monotonic() + 60
    found: dict[str, list[Span]] = {target.uid: [] for target in targets}
    while min(len(spans) for spans in found.values()) < count:
        assert time.monotonic() < until, f"too few spans: {found}"
        for uid, spans in (await source.collect(targets)).spans.items():
            found[uid].extend(spans)
        await asyncio.sleep(0.5)
    return found


async def test_stretches_are_the_same_from_queries_from_history_and_from_scrapes(engine_ports: dict[str, int], prometheus_url: str) -> None:
    """The page's counters rise by their own value every 100 s, so that is what each load sample shows a part of."""
    targets = [
        Target("ns", f"pod-{engine}", engine, "127.0.0.1", port, "demo", f"r-{engine}", engine, True, tuned=True)
        for engine, port in engine_ports.items()
    ]
    settings = PrometheusSettings(prometheus_url, matcher={"cluster": "here"})
    await asyncio.sleep(20)
    queried = PrometheusSource(settings, WINDOW_S, spans=SpanSettings(round_s=2.0, past_step_s=4.0))
    scraped = Scraper(ScrapeSettings(window_s=48.0))
    try:
        asked, direct = await asyncio.gather(spans_of(queried, targets, 4), spans_of(scraped, targets, 3))
    finally:
        await queried.close()
        await scraped.close()
    for target in targets:
        dialect = ENGINES[target.engine].metric_schema
        page = read_page((PAGES / RECORDED[target.engine]).read_text(encoding="utf-8"), dialect)
        assert page is not None
        ends = [span.end_s for span in asked[target.uid]]
        assert ends == sorted(ends)
        assert ends[0] < time.time() - 12, "the past is there"
        for spans in (asked[target.uid], direct[target.uid]):
            follower = Follower(target.engine, True)
            for span in spans:
                made = follower.take(span.window, span.end_s)
                assert made is not None
                assert 3 < made.seconds < 7
                steps = page.counters[LabelledMetric("drafts" if target.engine == "vllm" else "verify_steps")]
                assert made.steps == pytest.approx(steps * made.seconds / 100, rel=0.2)
                length = made.committed / made.steps
                assert 6.3 < length < 6.5
                passes = page.counters[LabelledMetric("steps" if target.engine == "vllm" else "passes")]
                batch = steps / passes if target.engine == "vllm" else page.counters[LabelledMetric("tokens")] / length / passes
                assert made.concurrency == pytest.approx(batch, rel=0.02)
                assert 0 < made.step_s < 0.025
        counted = LabelledMetric(dialect.passes)
        series = sorted((span.end_s, span.window.totals[counted]) for span in asked[target.uid])
        for (start_s, first), (end_s, last) in itertools.pairwise(series):
            whole = page.counters[counted]
            assert whole <= first <= last, "the process's own count, from queries and from history"
            assert last - first == pytest.approx(whole * (end_s - start_s) / 100, abs=0.04 * whole)


async def test_a_refused_query_is_told_in_prometheus_words(prometheus_url: str) -> None:
    client = Prometheus(PrometheusSettings(prometheus_url))
    try:
        with pytest.raises(PrometheusError, match="HTTP status 400: bad_data"):
            await client.query("sum by (")
    finally:
        await client.close()
