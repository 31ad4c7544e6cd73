"""Readings of trials, and the past of tuned deployments, from Prometheus: what is asked, and what is made of its answers."""

from __future__ import annotations

import itertools
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from dflash_controller.engines import ENGINES
from dflash_controller.model.measurement import Error
from dflash_controller.observe.pipeline.source import Target
from dflash_controller.observe.sources.prometheus import promql
from dflash_controller.observe.sources.prometheus.client import PrometheusSettings
from dflash_controller.observe.sources.prometheus.counter_snapshots import TrialSettings
from dflash_controller.observe.sources.prometheus.reduction import Selection
from dflash_controller.observe.sources.prometheus.source import STORED_S, PrometheusSource
from dflash_controller.observe.sources.scrape.exposition import read_page

PAGES = Path(__file__).parents[4] / "testbed" / "data" / "metrics"
REAL = {"vllm": (PAGES / "vllm-0.26.0.txt").read_text(), "sglang": (PAGES / "sglang-0.5.17.txt").read_text()}
NOW = 10_000.0
_MATCHER = re.compile(r'(\w+)(=~|=)"((?:[^"\\]|\\.)*)"')


class Scraped:
    """What Prometheus has of one endpoint: a page at some times, its counters grown by ``growth`` per second from NOW on."""

    def __init__(self, page: str, times: Sequence[float], growth: float = 0.001, **target: str) -> None:
        self.times = times
        self.since, self.until = 0.0, float("inf")
        """When its process was there, whatever Prometheus still finds."""
        self._growth = growth
        self._target = {"namespace": "ns", "job": "monitor", "instance": "10.0.0.1:8000", **target}
        self._samples = [
            (self._labels(sample), sample.value) for family in text_string_to_metric_families(page) for sample in family.samples
        ]
        self._found: dict[tuple[tuple[str, str], ...], list[tuple[dict[str, str], float]]] = {}
        """Labels and value of the samples that match, by matchers: the same few are asked for at many times."""

    def at(self, now: float, matchers: Mapping[str, str]) -> list[tuple[dict[str, str], float, float]]:
        """Labels, value and time of the last samples before ``now`` that match."""
        times = [time for time in self.times if now - 300 < time <= now]
        if not times or not self.since <= now < self.until:
            return []
        grown = 1 + self._growth * (times[-1] - NOW)
        return [(labels, value * grown, times[-1]) for labels, value in self._matching(matchers)]

    def _labels(self, sample: Sample) -> dict[str, str]:
        own = {f"exported_{name}" if name in self._target else name: value for name, value in sample.labels.items()}
        return {"__name__": sample.name, **own, **self._target}

    def _matching(self, matchers: Mapping[str, str]) -> list[tuple[dict[str, str], float]]:
        key = tuple(sorted(matchers.items()))
        if key not in self._found:
            self._found[key] = [
                (labels, value)
                for labels, value in self._samples
                if all(re.fullmatch(pattern, labels.get(name, "")) for name, pattern in key)
            ]
        return self._found[key]


class Server:
    """As much of Prometheus as is asked: selectors of labels, and timestamp()."""

    def __init__(self) -> None:
        self.scraped: list[Scraped] = []
        self.now = NOW
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.broken = ""
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        endpoint = request.path.rpartition("/")[2]
        self.asked.append((endpoint, form))
        if form["query"].startswith("group by"):
            return _answer("vector", [])
        if self.broken == endpoint and (endpoint == "query_range" or "__name__" in form["query"]):
            return web.json_response({"status": "error", "errorType": "execution", "error": "too many samples"}, status=422)
        if "__name__" not in form["query"]:
            # Covered for so long; the newest sample is of a moment ago.
            told = "330" if "min_over_time" in form["query"] else "7"
            ours = [{"metric": {"namespace": "ns", "pod": name}, "value": [1, told]} for name in ("old", "new", "idle")]
            return _answer("vector", ours if "time()" in form["query"] else [])
        if endpoint == "query":
            now = float(form["time"])
            return _answer("vector", [{"metric": labels, "value": [now, value]} for labels, value in self._evaluated(form["query"], now)])
        start, end, step = (float(form[name]) for name in ("start", "end", "step"))
        series: dict[tuple[tuple[str, str], ...], list[tuple[float, str]]] = {}
        for i in range(int((end - start) / step) + 1):
            for labels, value in self._evaluated(form["query"], start + i * step):
                series.setdefault(tuple(sorted(labels.items())), []).append((start + i * step, value))
        return _answer("matrix", [{"metric": dict(labels), "values": values} for labels, values in series.items()])

    def _evaluated(self, query: str, now: float) -> list[tuple[dict[str, str], str]]:
        alternatives = [
            {name: pattern.replace("\\\\", "\\") for name, _, pattern in _MATCHER.findall(chosen)} for chosen in query.split(" or ")
        ]
        rows = [row for one in self.scraped for matchers in alternatives for row in one.at(now, matchers)]
        if query.startswith("timestamp("):
            return [({name: value for name, value in labels.items() if name != "__name__"}, repr(at)) for labels, _, at in rows]
        return [(labels, repr(value)) for labels, value, _ in rows]

    def trial_queries(self) -> list[tuple[str, dict[str, str]]]:
        return [
            (endpoint, form) for endpoint, form in self.asked if "__name__" in form["query"] and not form["query"].startswith("group by")
        ]


def _answer(kind: str, result: object) -> web.Response:
    return web.json_response({"status": "success", "data": {"resultType": kind, "result": result}})


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    app = web.Application()
    app.router.add_post("/api/v1/{endpoint}", made.handle)
    async with TestServer(app) as running:
        made.url = str(running.make_url(""))
        yield made


@pytest.fixture
async def source(server: Server) -> AsyncIterator[PrometheusSource]:
    settings = PrometheusSettings(server.url, backoff_s=0.0, timeout_s=120.0, matcher={"cluster": "here"})
    made = PrometheusSource(settings, trials=TrialSettings(attempts=2), wall=lambda: server.now + STORED_S)
    yield made
    await made.close()


def pod(name: str, engine: str = "vllm", revision: str = "r1", **changes: object) -> Target:
    return replace(Target("ns", name, f"uid-{name}", "10.0.0.1", 8000, "demo", revision, engine, True, 0.0, True), **changes)  # type: ignore[arg-type]


def every(seconds: float, since: float, until: float = NOW + 1000) -> list[float]:
    return [since + i * seconds for i in range(int((until - since) / seconds) + 1)]


@pytest.mark.parametrize("engine", sorted(ENGINES))
async def test_the_newest_samples_are_the_reading_of_the_page_at_the_time_of_the_scrape(
    server: Server, source: PrometheusSource, engine: str
) -> None:
    """Scraped by two jobs, one of which sets a label the engine has too; other clusters and pods are not read."""
    server.scraped = [
        Scraped(REAL[engine], [NOW - 7], pod="new", cluster="here", endpoint="http"),
        Scraped(REAL[engine], [NOW - 2], pod="new", cluster="here", job="second"),
        Scraped(REAL[engine], [NOW - 1], pod="new", cluster="there"),
        Scraped(REAL[engine], [NOW - 1], pod="stranger", cluster="here"),
    ]
    got = await source.collect([pod("new", engine)])
    page = read_page(REAL[engine], ENGINES[engine].metric_schema)
    assert page is not None
    expected = ENGINES[engine].metric_schema.counter_snapshot(page, NOW - 7, True)
    (told,) = {one.at_s: one for one in got.readings["uid-new"]}.values()
    assert told.at_s == NOW - 7
    for name in ("steps", "committed", "decode_seconds", "passes", "requests", "prompt_tokens", "cached_tokens", "generated_tokens"):
        assert getattr(told, name) == pytest.approx(getattr(expected, name) * (1 - 0.007)), name
    assert told.failed == 0
    assert told.accepted_at == pytest.approx([0.993 * count for count in expected.accepted_at])
    assert told.latency is not None
    assert expected.latency is not None
    assert told.latency.bounds == expected.latency.bounds
    assert told.latency.counts == pytest.approx([0.993 * count for count in expected.latency.counts])
    assert got.failures == {}


async def test_a_label_that_the_scrape_configuration_took_is_found_under_its_new_name(server: Server, source: PrometheusSource) -> None:
    """A PodMonitor sets ``endpoint`` to the name of the port."""
    page = 'sglang:max_total_num_tokens 5\nsglang:http_responses_total{endpoint="/v1/completions",status_code="500"} 4\n'
    server.scraped = [Scraped(page, [NOW], pod="new", cluster="here", endpoint="http")]
    got = await source.collect([pod("new", "sglang")])
    assert {one.failed for one in got.readings["uid-new"]} == {4}


async def test_only_pods_on_trial_are_asked_for_four_a_revision_and_two_queries_an_engine(server: Server, source: PrometheusSource) -> None:
    fleet = [pod(f"p{i:02}-{e}", e, f"r{i % 2}-{e}", deployment=f"d{i // 10}-{e}") for e in ENGINES for i in range(40)]
    await source.collect([replace(one, on_trial=False) for one in fleet])
    assert server.trial_queries() == []
    for _ in range(4):
        await source.collect(fleet)
    server.asked.clear()
    await source.collect(fleet)
    asked = [form["query"] for endpoint, form in server.trial_queries() if endpoint == "query"]
    assert len(asked) == 2 * len(ENGINES)
    for query in asked:
        for chosen in query.split(" or "):
            assert chosen.count("|p") == 31, "4 of each of 8 revisions"
            assert '{cluster="here",' in chosen


async def test_a_sample_that_was_told_is_not_told_again_with_another_time(server: Server, source: PrometheusSource) -> None:
    server.scraped = [Scraped(REAL["vllm"], [NOW - 7], pod="new", cluster="here")]
    first = await source.collect([pod("new")])
    server.now += 20
    second = await source.collect([pod("new")])
    assert {one.at_s for one in (*first.readings["uid-new"], *second.readings["uid-new"])} == {NOW - 7}


async def test_the_past_is_asked_for_once_from_before_the_candidate_was_ready(server: Server, source: PrometheusSource) -> None:
    """As after a restart of the operator in the middle of a trial."""
    server.scraped = [Scraped(REAL["vllm"], every(15, NOW - 20_000 + i), pod=name, cluster="here") for i, name in enumerate(("old", "new"))]
    trial = [pod("old", revision="r1", ready_at_s=100.0), pod("new", revision="r2", ready_at_s=NOW - 1200.5)]
    got = await source.collect(trial)
    old, new = (got.readings[f"uid-{name}"] for name in ("old", "new"))
    assert old[0].at_s == pytest.approx(NOW - 1500, abs=16)
    assert new[0].at_s == pytest.approx(NOW - 1200, abs=31)
    for told in (old, new):
        times = [one.at_s for one in told[:-1]]
        assert all(15 <= b - a <= 45 for a, b in itertools.pairwise(times))
        assert told[-1].at_s == pytest.approx(NOW, abs=16)
        page = told[3]
        assert page.steps == pytest.approx(55174 * (1 + 0.001 * (page.at_s - NOW))), "counters are of the sample's own time"
    server.now += 30
    again = await source.collect(trial)
    assert [len(told) for told in again.readings.values()] == [1, 1]
    assert sum(endpoint == "query_range" for endpoint, _ in server.asked) == 2


async def test_the_past_is_no_older_than_the_depth_and_without_a_candidate_a_window(server: Server, source: PrometheusSource) -> None:
    server.scraped = [Scraped(REAL["vllm"], every(30, NOW - 20_000), pod=name, cluster="here") for name in ("old", "new")]
    alone = await source.collect([pod("old", revision="r1")])
    assert alone.readings["uid-old"][0].at_s == pytest.approx(NOW - 300, abs=31)
    both = await source.collect([pod("old", revision="r1"), pod("new", revision="r2", ready_at_s=500.0)])
    assert both.readings["uid-new"][0].at_s == pytest.approx(NOW - 9000, abs=31)


async def test_a_rollout_to_another_engine_has_both_pasts(server: Server, source: PrometheusSource) -> None:
    server.scraped = [Scraped(REAL[engine], every(30, NOW - 600), pod=engine, cluster="here") for engine in ENGINES]
    got = await source.collect([pod(engine, engine, f"r-{engine}", ready_at_s=NOW - 400) for engine in ENGINES])
    assert [len(got.readings[f"uid-{engine}"]) > 10 for engine in ENGINES] == [True, True]


async def test_samples_from_before_a_pod_was_ready_are_another_pods(server: Server, source: PrometheusSource) -> None:
    server.scraped = [Scraped(REAL["vllm"], every(30, NOW - 600, NOW - 100), pod="new", cluster="here")]
    got = await source.collect([pod("new", ready_at_s=NOW - 50)])
    assert got.readings == {"uid-new": ()}


async def test_a_past_that_cannot_be_had_does_not_stop_the_present(
    server: Server, source: PrometheusSource, caplog: pytest.LogCaptureFixture
) -> None:
    server.scraped = [Scraped(REAL["vllm"], every(30, NOW - 600), pod="new", cluster="here")]
    server.broken = "query_range"
    for _ in range(4):
        got = await source.collect([pod("new")])
        assert [one.at_s for one in got.readings["uid-new"]] == [NOW]
        assert got.failures == {}
    assert sum(endpoint == "query_range" for endpoint, _ in server.asked) == 2, "the settings allow two attempts"
    assert "too many samples" in caplog.text


async def test_a_failing_query_is_a_trouble_of_the_pods_on_trial_only(server: Server, source: PrometheusSource) -> None:
    server.broken = "query"
    got = await source.collect([pod("new"), pod("idle", on_trial=False, deployment="other")])
    assert got.failures == {"uid-new": Error("HTTP status 422: execution: too many samples")}
    assert got.answered == {"uid-idle"}
    assert got.readings == {}
    server.broken = ""
    server.scraped = [Scraped(REAL["vllm"], every(30, NOW - 600), pod="new", cluster="here")]
    assert len((await source.collect([pod("new")])).readings["uid-new"]) > 10, "nothing of the past was lost by it"


async def test_a_pod_prometheus_does_not_scrape_has_no_readings(server: Server, source: PrometheusSource) -> None:
    got = await source.collect([pod("new")])
    assert got.readings == {}
    assert got.failures == {}


def tuned(name: str, engine: str = "vllm", **changes: object) -> Target:
    return replace(pod(name, engine), on_trial=False, tuned=True, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", sorted(ENGINES))
async def test_the_last_hour_of_a_tuned_deployment_is_told_once(server: Server, source: PrometheusSource, engine: str) -> None:
    server.scraped = [Scraped(REAL[engine], every(15, NOW - 7200), pod="new", cluster="here", growth=0.0001)]
    got = await source.collect([tuned("new", engine, ready_at_s=NOW - 1800)])
    told = got.spans["uid-new"]
    ends = [span.end_s for span in told]
    assert (len(told), ends[-1]) == (28, NOW - 60), "what is asked as time goes on begins there"
    assert [later - earlier for earlier, later in itertools.pairwise(ends)] == [60.0] * 27
    page = read_page(REAL[engine], ENGINES[engine].metric_schema)
    assert page is not None
    for cell, value in page.counters.items():
        if cell.quantity in {one.quantity for one in ENGINES[engine].metric_schema.load_samples}:
            assert told[5].window.deltas[cell] == pytest.approx(value * 0.0001 * 60), cell
    assert told[5].window.seconds == 60
    assert len(server.trial_queries()) == 2
    server.now += 30
    assert (await source.collect([tuned("new", engine, ready_at_s=NOW - 1800)])).spans == {}
    assert len(server.trial_queries()) == 2


async def test_an_hour_with_a_restart_and_a_gap_has_spans_around_them_only(server: Server, source: PrometheusSource) -> None:
    first, second = every(15, NOW - 3000, NOW - 2000), [*every(15, NOW - 1980, NOW - 1500), *every(15, NOW - 900)]
    server.scraped = [
        Scraped(REAL["vllm"], first, growth=0.0001, pod="new", cluster="here"),
        Scraped(REAL["vllm"], second, growth=0.0005, pod="new", cluster="here"),
    ]
    # Only the younger process is there from its start on.
    server.scraped[0].until, server.scraped[1].since = NOW - 1980, NOW - 1980
    spans = (await source.collect([tuned("new")])).spans["uid-new"]
    begun = [(span.end_s - span.window.seconds, span.end_s) for span in spans]
    assert len(begun) > 30
    assert not any(start < NOW - 1980 < end or start < NOW - 1200 < end for start, end in begun)
    assert all(value >= 0 for span in spans for value in span.window.deltas.values())


async def test_few_hours_are_asked_for_in_a_round_and_every_deployment_has_its_turn(server: Server, source: PrometheusSource) -> None:
    pods = [tuned(f"p{i}", deployment=f"d{i:02}") for i in range(25)]
    server.scraped = [Scraped("vllm:generation_tokens_total 5\n", every(60, NOW - 600), pod=f"p{i}", cluster="here") for i in range(25)]
    for asked in (10, 20, 25, 25):
        await source.collect(pods)
        assert len(server.trial_queries()) == 2 * asked
        server.now += 30


async def test_an_hour_that_cannot_be_had_is_given_up_and_never_fails_a_round(
    server: Server, source: PrometheusSource, caplog: pytest.LogCaptureFixture
) -> None:
    server.broken = "query_range"
    for _ in range(5):
        got = await source.collect([tuned("new")])
        assert (set(got.windows), got.failures, got.spans) == ({"uid-new"}, {}, {})
        server.now += 30
    assert len(server.trial_queries()) == 3
    assert "cannot have its last hour from Prometheus: HTTP status 422" in caplog.text


def test_pod_names_are_matched_literally() -> None:
    query = promql.samples(("a_total", "b"), [("ns", "demo-0.x"), ("ns2", "demo-1")], Selection({"cluster": "c"}))
    first, *renamed = query.split(" or ")
    assert first == r'{cluster="c",__name__=~"a_total|b",namespace=~"ns|ns2",pod=~"demo-0\\.x|demo-1"}'
    assert [re.findall(r"\w+(?==~)", one) for one in renamed] == [
        ["__name__", "namespace", "exported_pod"],
        ["__name__", "exported_namespace", "pod"],
        ["__name__", "exported_namespace", "exported_pod"],
    ]


async def test_of_a_pair_of_prometheus_replicas_one_is_read(server: Server, source: PrometheusSource) -> None:
    """They differ in an external label only. A sum over both would be twice the counters."""
    server.scraped = [Scraped(REAL["sglang"], [NOW - 7], pod="new", cluster="here")]
    alone = (await source.collect([pod("new", "sglang")])).readings["uid-new"]
    server.scraped = [
        Scraped(REAL["sglang"], [NOW - 7], pod="new", cluster="here", endpoint="http", prometheus_replica=replica) for replica in "ab"
    ]
    assert (await source.collect([pod("new", "sglang")])).readings["uid-new"][-1:] == alone[-1:]


async def test_a_federated_scrape_is_the_engines_page(server: Server, source: PrometheusSource) -> None:
    """The target's labels are those of the federated Prometheus, and the engine pod's own are renamed."""
    server.scraped = [Scraped(REAL["sglang"], [NOW - 7], pod="new", cluster="here")]
    alone = (await source.collect([pod("new", "sglang")])).readings["uid-new"]
    federating = {"namespace": "monitoring", "pod": "prometheus-0", "job": "prometheus", "instance": "10.0.0.9:9090", "endpoint": "web"}
    renamed = {"exported_namespace": "ns", "exported_pod": "new", "exported_job": "engines", "exported_instance": "10.0.0.1:8000"}
    server.scraped = [Scraped(REAL["sglang"], [NOW - 7], cluster="here", **federating, **renamed)]
    found = (await source.collect([pod("new", "sglang")])).readings["uid-new"]
    assert found[-1:] == alone[-1:]
    assert alone[-1].failed == 0


async def test_labels_that_the_engine_keeps_do_not_split_its_page(server: Server, source: PrometheusSource) -> None:
    """With honorLabels the engine's own ``endpoint`` stays on its answers, and the target's is on everything else."""

    class Honoured(Scraped):
        def _labels(self, sample: Sample) -> dict[str, str]:
            return {"__name__": sample.name, **self._target, **sample.labels}

    server.scraped = [Honoured(REAL["sglang"], [NOW - 7], pod="new", cluster="here", endpoint="http")]
    *_, reading = (await source.collect([pod("new", "sglang")])).readings["uid-new"]
    assert reading.failed == 0, "answers are read"
