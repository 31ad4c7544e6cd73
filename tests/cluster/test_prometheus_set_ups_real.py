"""The operator and the recording rules read the same of an engine through every way in which a real Prometheus may be set up."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from dflash_controller.api.conditions import Reason
from dflash_controller.engines import ENGINES
from dflash_controller.model.measurement import Measurement, Value
from dflash_controller.model.series import Scrape, between
from dflash_controller.observe.pipeline.metrics import RevisionMetrics, revision_metrics
from dflash_controller.observe.pipeline.source import Round, Target
from dflash_controller.observe.sources.prometheus.client import Prometheus, PrometheusSettings
from dflash_controller.observe.sources.prometheus.counter_snapshots import TrialSettings
from dflash_controller.observe.sources.prometheus.source import PrometheusSource
from dflash_controller.observe.sources.scrape.exposition import read_page
from dflash_controller.observe.status_values.health import verdict
from tests.monitoring.grouping import grouped
from tests.support.real_prometheus import PAGES, RECORDED, address, configuration, prometheus, scraping, served

WINDOW_S = 8.0
RULES = Path(__file__).parents[2] / "charts" / "dflash-operator" / "files" / "rules" / "dflash.rules.yaml"
FIGURES = ("acceptance_length", "concurrency", "step_time_s", "block_size", "tokens_per_second")
ONE_SERIES = {"vllm": "vllm:generation_tokens_total", "sglang": "sglang:generation_tokens_total"}
"""What each recorded page has one series of."""
CLOSE = 0.25
"""Over eight scrapes a rate is known to one or two; a sum over scrapes or ranks would be off by a factor of two or more."""
_SCHEDULER = re.compile(r'^(sglang:\w+)\{(.*tp_rank="0".*)\} (\S+)$')
_SHARED = ("sglang:realtime_tokens_total", "sglang:queue_time_seconds", "sglang:per_stage_req_latency_seconds")
"""What a data-parallel group counts of its own requests: here half of all."""


def recorded(engine: str) -> str:
    return (PAGES / RECORDED[engine]).read_text(encoding="utf-8")


def of_ranks(page: str, ranks: int, groups: int) -> str:
    """SGLang's page as with ``--enable-metrics-for-all-schedulers``; with more than one group under DP attention."""
    lines = []
    for line in page.splitlines():
        found = _SCHEDULER.match(line)
        if found is None:
            lines.append(line)
            continue
        name, labels, value = found.groups()
        for rank in range(ranks):
            own = labels.replace('tp_rank="0"', f'tp_rank="{rank}"')
            if groups > 1:
                own += f',dp_rank="{rank * groups // ranks}"'
            shared = groups if name.startswith(_SHARED) else 1
            lines.append(f"{name}{{{own}}} {float(value) / shared}")
    return "\n".join(lines) + "\n"


def whole(engine: str, page: str | None = None) -> Scrape:
    read = read_page(page or recorded(engine), ENGINES[engine].metric_schema)
    assert read is not None
    return read


def expected(engine: str) -> RevisionMetrics:
    """The page grows by its own value in 100 s."""
    window = between(Scrape(), whole(engine), 100.0)
    return revision_metrics(ENGINES[engine].metric_schema, [window], expected=1, speculation_on=True)


SetUp = Callable[[Path, Mapping[str, int]], AbstractAsyncContextManager[str]]


@asynccontextmanager
async def pair(directory: Path, ports: Mapping[str, int]) -> AsyncIterator[str]:
    """Two replicas that write to one store without deduplication, which evaluates the rules."""
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(
            prometheus(directory / "store", configuration(rules=[RULES]), "--web.enable-remote-write-receiver")
        )
        for replica in ("a", "b"):
            labels = {"external_labels": {"prometheus": "monitoring/k8s", "prometheus_replica": replica}}
            config = configuration(scraping("engines", ports), global_settings=labels, remote_write=[{"url": f"{store}/api/v1/write"}])
            await stack.enter_async_context(prometheus(directory / replica, config))
        yield store


def federated(honour: bool) -> SetUp:
    """A second Prometheus federates the first as a ServiceMonitor does."""

    @asynccontextmanager
    async def set_up(directory: Path, ports: Mapping[str, int]) -> AsyncIterator[str]:
        async with prometheus(directory / "first", configuration(scraping("engines", ports))) as first:
            labels = {"namespace": "monitoring", "pod": "prometheus-0", "endpoint": "web", "service": "prometheus"}
            federating = {
                "job_name": "federate",
                "scrape_interval": "1s",
                "metrics_path": "/federate",
                "params": {"match[]": ['{job="engines"}']},
                "honor_labels": honour,
                "static_configs": [{"targets": [address(first)], "labels": labels}],
            }
            async with prometheus(directory / "second", configuration(federating, rules=[RULES])) as second:
                yield second

    return set_up


@asynccontextmanager
async def second_scrape(directory: Path, ports: Mapping[str, int]) -> AsyncIterator[str]:
    """By a PodMonitor and by annotations."""
    scrapes = (scraping("monitor", ports, {"endpoint": "http", "container": "engine"}), scraping("annotations", ports))
    async with prometheus(directory / "one", configuration(*scrapes, rules=[RULES])) as url:
        yield url


@asynccontextmanager
async def relabelled_namespace(directory: Path, ports: Mapping[str, int]) -> AsyncIterator[str]:
    """The namespace is that of the monitor; the pod's own is kept under another name."""
    config = scraping("engines", ports, {"exported_namespace": "ns"}) | {
        "relabel_configs": [{"target_label": "namespace", "replacement": "monitoring"}]
    }
    async with prometheus(directory / "one", configuration(config, rules=[RULES])) as url:
        yield url


def native(classic_too: bool) -> SetUp:
    """Classic histograms are stored as native ones with custom buckets."""

    @asynccontextmanager
    async def set_up(directory: Path, ports: Mapping[str, int]) -> AsyncIterator[str]:
        histograms = {"convert_classic_histograms_to_nhcb": True, "always_scrape_classic_histograms": classic_too}
        async with prometheus(directory / "one", configuration(scraping("engines", ports, **histograms), rules=[RULES])) as url:
            yield url

    return set_up


SET_UPS: Mapping[str, SetUp] = {
    "HA pair": pair,
    "second scrape": second_scrape,
    "federation, labels honoured": federated(True),
    "federation, labels renamed": federated(False),
    "relabelled namespace": relabelled_namespace,
    "native histograms beside classic ones": native(True),
}
PAGES_OF = {
    "one rank": {engine: recorded(engine) for engine in ENGINES},
    "tensor parallel 8": {"sglang": of_ranks(recorded("sglang"), 8, 1)},
    "DP attention, 8 ranks in 2 groups": {"sglang": of_ranks(recorded("sglang"), 8, 2)},
}


async def filled(source: PrometheusSource, targets: list[Target]) -> Round:
    """A round in which every window is full and every pod on trial has a reading."""
    until = time.monotonic() + 60
    while True:
        got = await source.collect(targets)
        full = [window for window in got.windows.values() if window.seconds >= WINDOW_S - 1 and window.deltas]
        if len(full) == len(targets) and len(got.readings) == len(targets):
            return got
        assert time.monotonic() < until, f"no full windows: {got}"
        await asyncio.sleep(0.5)


async def rules_agree(client: Prometheus, engine: str, concurrency: Measurement) -> None:
    """The rules record what one scrape shows. On a busy machine both are seconds apart, so they are compared until they agree."""
    assert isinstance(concurrency, Value)
    rate = f'max(rate({ONE_SERIES[engine]}{{pod="{engine}"}}[2m]) or rate({ONE_SERIES[engine]}{{exported_pod="{engine}"}}[2m]))'
    until = time.monotonic() + 30
    while True:
        (alone,) = await client.query(rate)
        wanted = {"concurrency": concurrency.value, "generated_tokens:rate2m": alone.value}
        rows = {record: await client.query(f'dflash:pod_{record}{{namespace="ns",pod="{engine}"}}') for record in wanted}
        got = {record: [row.value for row in found] for record, found in rows.items()}
        if got == {record: [pytest.approx(value, rel=CLOSE)] for record, value in wanted.items()}:
            return
        assert time.monotonic() < until, (engine, got, wanted)
        await asyncio.sleep(0.5)


async def agrees(url: str, engines: list[str]) -> None:
    """What the operator measures, what it reads of a trial, and what the rules record."""
    targets = [Target("ns", engine, engine, "127.0.0.1", 1, f"demo-{engine}", "r1", engine, True, 0.0, True) for engine in engines]
    source = PrometheusSource(PrometheusSettings(url), WINDOW_S, trials=TrialSettings(WINDOW_S, step_s=1.0))
    client = Prometheus(PrometheusSettings(url))
    try:
        got = await filled(source, targets)
        for engine in engines:
            wanted = expected(engine)
            metrics = revision_metrics(ENGINES[engine].metric_schema, [got.windows[engine]], expected=1, speculation_on=True)
            for name in FIGURES:
                one, other = getattr(metrics, name), getattr(wanted, name)
                assert isinstance(one, Value), (engine, name, one)
                assert one.value == pytest.approx(other.value, rel=CLOSE), (engine, name)
            reading = got.readings[engine][-1]
            page = ENGINES[engine].metric_schema.counter_snapshot(whole(engine), 0.0, True)
            for name in ("steps", "committed", "passes", "requests", "decode_seconds", "generated_tokens"):
                # The page has grown for less than a minute, so twice its counters would be a sum over scrapes or ranks.
                assert 1 <= getattr(reading, name) / getattr(page, name) < 1.7, (engine, name)
            assert reading.failed == 0
            assert verdict(source, targets, got).available is True
            assert reading.latency is not None
            assert page.latency is not None
            assert 1 <= reading.latency.counts[-1] / page.latency.counts[-1] < 1.7
            await rules_agree(client, engine, wanted.concurrency)
    finally:
        await source.close()
        await client.close()


@pytest.mark.parametrize("set_up", SET_UPS)
async def test_an_engine_reads_the_same_through(set_up: str, tmp_path: Path) -> None:
    async with served(PAGES_OF["one rank"]) as ports, SET_UPS[set_up](tmp_path, ports) as url:
        await agrees(url, sorted(ports))


@pytest.mark.parametrize("ranks", [name for name in PAGES_OF if name != "one rank"])
async def test_an_engine_reads_the_same_with(ranks: str, tmp_path: Path) -> None:
    """Through a pair of replicas at the same time."""
    async with served(PAGES_OF[ranks]) as ports, pair(tmp_path, ports) as url:
        await agrees(url, sorted(ports))


@pytest.mark.parametrize("engine", sorted(ENGINES))
async def test_native_histograms_alone_are_refused_by_name(engine: str, tmp_path: Path) -> None:
    async with served({engine: recorded(engine)}) as ports, native(False)(tmp_path, ports) as url:
        targets = [Target("ns", engine, engine, "127.0.0.1", 1, "demo", "r1", engine, True, 0.0, True)]
        source = PrometheusSource(PrometheusSettings(url), WINDOW_S, trials=TrialSettings(WINDOW_S, step_s=1.0))
        try:
            health = verdict(source, targets, await filled(source, targets))
        finally:
            await source.close()
    assert (health.available, health.reason) == (False, Reason.METRICS_INCOMPLETE)
    assert f"{engine}:e2e_request_latency_seconds_bucket" in health.message
    assert "always_scrape_classic_histograms" in health.message


async def test_a_metric_that_relabelling_drops_is_named(tmp_path: Path) -> None:
    dropped = {"metric_relabel_configs": [{"source_labels": ["__name__"], "regex": "sglang:spec_verify.*", "action": "drop"}]}
    async with served({"sglang": recorded("sglang")}) as ports:
        config = configuration(scraping("engines", ports, **dropped))
        async with prometheus(tmp_path / "one", config) as url:
            targets = [Target("ns", "sglang", "sglang", "127.0.0.1", 1, "demo", "r1", "sglang", True, 0.0, True)]
            source = PrometheusSource(PrometheusSettings(url), WINDOW_S, trials=TrialSettings(WINDOW_S, step_s=1.0))
            try:
                health = verdict(source, targets, await filled(source, targets))
            finally:
                await source.close()
    assert health.message == "Prometheus lacks metrics of the engines that decisions need: sglang:spec_verify_calls_total."


async def test_two_clusters_in_one_store_are_told_apart(tmp_path: Path) -> None:
    """The same namespace and pod in eu and us, where the drafter has collapsed. Rules are grouped; each operator asks for its own."""
    counted = r"(?m)^(sglang:generation_tokens_total\{.*\}) \S+$"
    steps = re.search(r"(?m)^sglang:spec_verify_calls_total\{.*\} (\S+)$", recorded("sglang"))
    assert steps is not None
    pages = {"eu": recorded("sglang"), "us": re.sub(counted, rf"\g<1> {1.02 * float(steps[1])}", recorded("sglang"))}
    rules = tmp_path / "grouped.yaml"
    rules.write_text(grouped(RULES.read_text(encoding="utf-8"), ("cluster",)))
    async with AsyncExitStack() as stack:
        ports = await stack.enter_async_context(served(pages))
        config = configuration(rules=[rules])
        store = await stack.enter_async_context(prometheus(tmp_path / "store", config, "--web.enable-remote-write-receiver"))
        for cluster, port in ports.items():
            labels = {"external_labels": {"cluster": cluster}}
            remote = [{"url": f"{store}/api/v1/write"}]
            config = configuration(scraping("engines", {"sglang": port}), global_settings=labels, remote_write=remote)
            await stack.enter_async_context(prometheus(tmp_path / cluster, config))
        targets = [Target("ns", "sglang", "sglang", "127.0.0.1", 1, "demo", "r1", "sglang", True, 0.0, True)]
        read = {}
        for cluster in pages:
            settings = PrometheusSettings(store, matcher={"cluster": cluster})
            source = PrometheusSource(settings, WINDOW_S, trials=TrialSettings(WINDOW_S, step_s=1.0))
            try:
                window = (await filled(source, targets)).windows["sglang"]
            finally:
                await source.close()
            length = revision_metrics(ENGINES["sglang"].metric_schema, [window], expected=1, speculation_on=True).acceptance_length
            assert isinstance(length, Value)
            read[cluster] = length.value
        client = Prometheus(PrometheusSettings(store))
        try:
            recorded_ = {row.labels["cluster"]: row.value for row in await client.query("dflash:revision_acceptance_length")}
        finally:
            await client.close()
    for found in (read, recorded_):
        assert found["eu"] == pytest.approx(6.39, rel=CLOSE)
        assert found["us"] == pytest.approx(1.02, rel=CLOSE)
