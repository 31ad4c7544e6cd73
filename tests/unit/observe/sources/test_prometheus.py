"""The Prometheus client and source against a server that is well, slow, wrong or in failure."""

from __future__ import annotations

import asyncio
import base64
import itertools
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port

from dflash_controller.engines import ENGINES
from dflash_controller.engines.sglang.metrics import METRIC_SCHEMA as SGLANG
from dflash_controller.engines.vllm.metrics import METRIC_SCHEMA as VLLM
from dflash_controller.model.measurement import Absent, Error, Value
from dflash_controller.model.series import PROCESS, LabelledMetric, Scope, Series
from dflash_controller.observe.pipeline.metrics import revision_metrics
from dflash_controller.observe.pipeline.source import Target
from dflash_controller.observe.sources.prometheus import promql, reduction
from dflash_controller.observe.sources.prometheus.client import Prometheus, PrometheusError, PrometheusSettings
from dflash_controller.observe.sources.prometheus.reduction import Selection
from dflash_controller.observe.sources.prometheus.source import STORED_S, PrometheusSource

Answer = Callable[[str], web.Response | Awaitable[web.Response]]


def vector(*rows: tuple[Mapping[str, str], str]) -> web.Response:
    result = [{"metric": dict(labels), "value": [1.0, value]} for labels, value in rows]
    return web.json_response({"status": "success", "data": {"resultType": "vector", "result": result}})


class Server:
    """POST /api/v1/query, answered by ``answer(query)``."""

    def __init__(self) -> None:
        self.queries: list[str] = []
        self.times: list[float | None] = []
        """When each was to be evaluated."""
        self.headers: list[Mapping[str, str]] = []
        self.answer: Answer = lambda _: vector()
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        form = await request.post()
        query = form["query"]
        assert isinstance(query, str)
        self.queries.append(query)
        self.times.append(float(str(form["time"])) if "time" in form else None)
        self.headers.append(request.headers.copy())
        answer = self.answer(query)
        return answer if isinstance(answer, web.Response) else await answer


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    app = web.Application()
    app.router.add_post("/prom/api/v1/query", made.handle)
    async with TestServer(app) as running:
        made.url = str(running.make_url("/prom/"))
        yield made


def settings(server: Server, **changes: Any) -> PrometheusSettings:
    return PrometheusSettings(server.url, backoff_s=0.0, **changes)


async def ask(chosen: PrometheusSettings) -> list[tuple[dict[str, str], float]]:
    client = Prometheus(chosen)
    try:
        return [(dict(row.labels), row.value) for row in await client.query("up")]
    finally:
        await client.close()


async def test_a_vector_comes_with_labels_and_values(server: Server) -> None:
    server.answer = lambda _: vector(({"pod": "a"}, "1.5"), ({"pod": "b"}, "+Inf"))
    assert await ask(settings(server)) == [({"pod": "a"}, 1.5), ({"pod": "b"}, float("inf"))]


async def test_an_empty_vector_is_an_answer(server: Server) -> None:
    assert await ask(settings(server)) == []


def failure(status: int, kind: str = "execution", text: str = "bad") -> Answer:
    return lambda _: web.json_response({"status": "error", "errorType": kind, "error": text}, status=status)


@pytest.mark.parametrize(
    ("answer", "attempts", "message"),
    [
        (failure(400, "bad_data", "parse error"), 1, "HTTP status 400: bad_data: parse error"),
        (failure(422), 1, "HTTP status 422: execution: bad"),
        (failure(503, "timeout", "query timed out"), 3, "HTTP status 503: timeout: query timed out"),
        (failure(200), 1, "HTTP status 200: execution: bad"),
        (lambda _: web.Response(status=502, text="<html>"), 3, "HTTP status 502, not JSON"),
        (lambda _: web.Response(status=401, text="no"), 1, "HTTP status 401, not JSON"),
        (lambda _: web.Response(text="[]"), 1, "no error type"),
        (lambda _: web.json_response({"status": "success", "data": {"resultType": "scalar", "result": [1, "2"]}}), 1, "scalar"),
        (lambda _: web.json_response({"status": "success"}), 1, "malformed vector"),
        (lambda _: vector(({}, "many")), 1, "malformed vector"),
        (lambda _: web.Response(text=" " * 3000), 1, "body over 2000 bytes"),
    ],
)
async def test_failures_are_told_and_only_server_troubles_are_tried_again(
    server: Server, answer: Answer, attempts: int, message: str
) -> None:
    server.answer = answer
    with pytest.raises(PrometheusError) as told:
        await ask(settings(server, max_body=2000))
    assert message in str(told.value)
    assert len(server.queries) == attempts


async def test_a_passing_trouble_is_survived(server: Server) -> None:
    server.answer = lambda _: vector(({}, "1")) if len(server.queries) == 3 else web.Response(status=500)
    assert await ask(settings(server)) == [({}, 1.0)]


async def test_a_server_that_hangs_is_left_at_the_time_out(server: Server) -> None:
    async def forever(_: str) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    server.answer = lambda query: forever(query)
    with pytest.raises(PrometheusError, match=r"no answer within 0\.1 s"):
        await ask(settings(server, timeout_s=0.1))
    assert len(server.queries) == 1


async def test_no_server_is_an_error() -> None:
    with pytest.raises(PrometheusError, match="connection failed"):
        await ask(PrometheusSettings(f"http://127.0.0.1:{unused_port()}", backoff_s=0.0))


async def test_credentials_are_read_for_each_request(server: Server, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    client = Prometheus(settings(server, bearer_token_file=str(token), tenant="team-a"))
    await client.query("up")
    token.write_text("second\n")
    await client.query("up")
    await client.close()
    assert [headers["Authorization"] for headers in server.headers] == ["Bearer first", "Bearer second"]
    assert server.headers[0]["X-Scope-OrgID"] == "team-a"


async def test_basic_authentication(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "basic"
    file.write_text("operator:sec:ret\n")
    await ask(settings(server, basic_auth_file=str(file)))
    scheme, _, encoded = server.headers[0]["Authorization"].partition(" ")
    assert (scheme, base64.b64decode(encoded).decode()) == ("Basic", "operator:sec:ret")


async def test_a_missing_credential_file_is_an_error_not_a_crash(server: Server) -> None:
    with pytest.raises(PrometheusError, match="No such file"):
        await ask(settings(server, bearer_token_file="/nonexistent/token"))
    assert server.queries == []


def test_label_values_cannot_leave_their_quotes() -> None:
    chosen = reduction.selector("up", (("mode", "decode.*"),), {"cluster": 'a"} or up{x="\\\n'})
    assert chosen == r'up{cluster="a\"} or up{x=\"\\\n",mode=~"decode.*"}'


SCRAPE = ", ".join(reduction.SCRAPE_IDENTITY)
RANKS = Scope("group", copies=("tp_rank",), groups=("dp_rank",))


def steps(query: str) -> list[str]:
    """Its aggregations, the outermost first, without the labels that identify a scrape."""
    return re.findall(r"(?:max|sum|min) by \([^)]*\)", query.replace(f", {SCRAPE}", ", SCRAPE"))


def movement(series: Series, selection: Selection | None = None) -> str:
    return promql.movement(series, 300, selection or Selection())


def test_rates_come_first_then_ranks_that_do_the_same_work_then_groups_then_scrapes() -> None:
    query = movement(Series("accepted_at", "m_total", RANKS, by="position"), Selection({"cluster": "c"}))
    assert 'increase(m_total{cluster="c"}[300s])' in query
    assert steps(query) == [
        "max by (namespace, pod, position)",
        "sum by (namespace, pod, position, SCRAPE)",
        "max by (namespace, pod, position, SCRAPE, dp_rank)",
        "sum by (namespace, pod, position, SCRAPE, tp_rank, dp_rank)",
    ]


def test_a_scope_without_ranks_needs_no_step_for_them() -> None:
    assert steps(movement(Series("a", "m", PROCESS))) == ["max by (namespace, pod)", "sum by (namespace, pod, SCRAPE)"]
    alone = Scope("engine", copies=("engine",))
    assert steps(movement(Series("a", "m", alone))) == ["max by (namespace, pod)", "sum by (namespace, pod, SCRAPE, engine)"]
    groups = Scope("group", groups=("engine",))
    assert steps(movement(Series("a", "m", groups))) == ["max by (namespace, pod)", "sum by (namespace, pod, SCRAPE)"]


def test_a_level_is_the_largest_of_its_series_but_the_sum_of_its_groups() -> None:
    assert steps(movement(Series("block", "g", PROCESS, gauge=True)))[1:] == ["max by (namespace, pod, SCRAPE)"]
    query = movement(Series("waiting", "w", RANKS, gauge=True, over="min"))
    assert "min_over_time(w[300s])" in query
    assert steps(query) == [
        "max by (namespace, pod)",
        "sum by (namespace, pod, SCRAPE)",
        "max by (namespace, pod, SCRAPE, dp_rank)",
        "max by (namespace, pod, SCRAPE, tp_rank, dp_rank)",
    ]


def test_labels_of_the_users_own_replicas_are_part_of_the_scrape() -> None:
    assert f"sum by (namespace, pod, {SCRAPE}, ha_pair)" in movement(Series("a", "m", PROCESS), Selection(replicas=("ha_pair",)))


def test_a_label_that_engine_and_scrape_both_set_is_looked_for_under_either_name() -> None:
    answers = Series("answers", "m", PROCESS, match=(("endpoint", "/v1/.*"),))
    query = movement(answers)
    assert '(increase(m{endpoint=~"/v1/.*"}[300s]) or increase(m{exported_endpoint=~"/v1/.*"}[300s]))' in query
    assert "endpoint" not in "".join(steps(query.replace(f", {SCRAPE}", ""))), "it is no label of the scrape here"


def pod(name: str, engine: str = "vllm", namespace: str = "ns") -> Target:
    return Target(namespace, name, f"uid-{namespace}-{name}", "127.0.0.1", 8000, "demo", "r1", engine, True)


def at(name: str, namespace: str = "ns", **labels: str) -> dict[str, str]:
    return {"namespace": namespace, "pod": name, **labels}


def vllm_server(query: str) -> web.Response:
    """Pods a (old) and b (one minute old) of ours, and x of somebody else; c is unknown to Prometheus."""
    if query.startswith("group by"):
        return vector()
    if "min_over_time" in query:
        return vector((at("a"), "329"), (at("b"), "60"), (at("x"), "329"))
    if "timestamp(" in query:
        return vector((at("a"), "4"), (at("b"), "9"), (at("x"), "1"))
    if "accepted_tokens_per_pos_total" in query:
        return vector((at("a", position="1"), "300"), (at("a", position="0"), "800"), (at("b", position="0"), "NaN"))
    if "drafts_total" in query:
        return vector((at("a"), "1000"), (at("b"), "NaN"), (at("x"), "7"))
    if "num_accepted_tokens_total" in query:
        return vector((at("a"), "5400"), (at("b"), "5"), (at("x"), "7"))
    if "generation_tokens_total" in query:
        return vector((at("a"), "6400"), (at("b"), "1280"))
    return vector()


async def test_windows_are_joined_by_namespace_and_pod(server: Server) -> None:
    server.answer = vllm_server
    source = PrometheusSource(settings(server))
    targets = [pod("a"), pod("b"), pod("c"), pod("a", namespace="other")]
    got = await source.collect(targets)
    await source.close()
    assert got.failures == {"uid-ns-c": Absent("NoSeries"), "uid-other-a": Absent("NoSeries")}
    assert set(got.windows) == got.answered == {"uid-ns-a", "uid-ns-b"}
    windows = list(got.windows.values())
    assert [window.seconds for window in windows] == [300, 60]
    made = revision_metrics(VLLM, windows, expected=2, speculation_on=True)
    assert made.acceptance_length == Value(6.4, samples=1000, age_s=9), "NaN is no number: b stays out of the quotient"
    assert made.tokens_per_second == Value(pytest.approx(6400 / 300 + 1280 / 60), samples=7680, age_s=9)  # type: ignore[arg-type]
    assert [windows[0].deltas[LabelledMetric("accepted_at", position)] for position in "01"] == [800, 300]


async def test_the_number_of_queries_does_not_grow_with_the_fleet(server: Server) -> None:
    source = PrometheusSource(settings(server, matcher={"cluster": "prod"}))
    await source.collect([pod(f"p{i}", engine) for i in range(500) for engine in ENGINES])
    await source.close()
    assert len(server.queries) == len(VLLM.series) + len(SGLANG.series) + 6 <= 31
    for query in server.queries:
        assert all('cluster="prod"' in chosen for chosen in re.findall(r"\w*{[^}]*}", query)), query


async def test_all_series_of_a_round_end_at_one_moment_that_prometheus_has_stored(server: Server) -> None:
    """A quotient of two series that hold other scrapes is wrong by the jitter of a scrape."""
    clock = itertools.count(1000.0)

    async def slow(query: str) -> web.Response:
        await asyncio.sleep(0.002)
        return tuned_server(query)

    server.answer = slow
    source = PrometheusSource(settings(server), parallel=1, wall=lambda: next(clock))
    got = await source.collect([replace(pod("a"), tuned=True)])
    await source.close()
    asked = {moment for query, moment in zip(server.queries, server.times, strict=True) if not query.startswith("group by")}
    assert asked == {1000.0 - STORED_S}
    assert [span.end_s for span in got.spans["uid-ns-a"]] == [1000.0 - STORED_S]


async def test_one_failing_query_fails_the_round(server: Server) -> None:
    server.answer = lambda query: web.Response(status=400, text="{}") if "drafts" in query else vllm_server(query)
    source = PrometheusSource(settings(server))
    got = await source.collect([pod("a"), pod("b")])
    await source.close()
    assert got.windows == {}
    assert got.failures == dict.fromkeys(("uid-ns-a", "uid-ns-b"), Error("HTTP status 400: no error type: "))


async def test_the_metrics_that_each_pod_has_are_told(server: Server) -> None:
    def answer(query: str) -> web.Response:
        if query.startswith("group by"):
            return vector((at("a", __name__="vllm:generation_tokens_total"), "1"), (at("x", __name__="vllm:prompt_tokens_total"), "1"))
        return vllm_server(query)

    server.answer = answer
    source = PrometheusSource(settings(server))
    got = await source.collect([pod("a"), pod("b")])
    await source.close()
    assert got.names == {"uid-ns-a": frozenset({"vllm:generation_tokens_total"}), "uid-ns-b": frozenset()}


async def test_a_failing_query_for_what_is_there_fails_nothing_else(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    server.answer = lambda query: web.Response(status=400, text="{}") if query.startswith("group by") else vllm_server(query)
    source = PrometheusSource(settings(server))
    got = await source.collect([pod("a")])
    await source.close()
    assert (set(got.windows), got.failures, got.names) == ({"uid-ns-a"}, {}, {"uid-ns-a": frozenset()})
    assert "whether metrics of the vllm engines are missing is not known" in caplog.text


async def test_nothing_is_asked_without_pods(server: Server) -> None:
    source = PrometheusSource(settings(server))
    assert (await source.collect([])).windows == {}
    await source.close()
    assert server.queries == []


def tuned_server(query: str) -> web.Response:
    """Pod a as of old; b is 40 s old, which is a window of 60 s only in part; nothing moved but a."""
    if "min_over_time(timestamp" in query:
        return vector((at("a"), "329"), (at("b"), "40"))
    if "iteration_tokens_total_count" in query and "increase" not in query:
        return vector((at("a"), "54321"))
    if "requests_waiting" in query:
        return vector((at("a"), "2"), (at("b"), "0"))
    return vllm_server(query)


async def test_spans_are_asked_for_every_second_round_whatever_the_fleet(server: Server) -> None:
    server.answer = tuned_server
    clock = [1000.0 + STORED_S]
    source = PrometheusSource(settings(server), wall=lambda: clock[0])
    targets = [replace(pod("a"), tuned=True), replace(pod("b"), tuned=True), pod("x")]
    targets += [replace(pod(f"p{i}"), tuned=True, deployment=f"d{i}") for i in range(300)]
    ends = []
    for _ in range(5):
        server.queries.clear()
        got = await source.collect(targets)
        ends.append([span.end_s for span in got.spans.get("uid-ns-a", ())])
        assert set(got.spans) <= {"uid-ns-a"}, "b is too young, x is not tuned, the others are unknown"
        fleet = [query for query in server.queries if "__name__" not in query]
        assert len(fleet) == len(VLLM.series) + 2 + (len(VLLM.load_samples) + 3 if ends[-1] else 0)
        clock[0] += 30
    await source.close()
    assert ends == [[1000], [], [1060], [], [1120]]
    first = got.spans["uid-ns-a"][0].window
    assert first.seconds == 60
    assert first.deltas[LabelledMetric("drafts")] == 1000
    assert first.levels[LabelledMetric("waiting")] == 2
    assert first.totals == {LabelledMetric("steps"): 54321}, "the process's own count, to tell its warm-up"


async def test_nothing_more_is_asked_where_nothing_is_tuned(server: Server) -> None:
    source = PrometheusSource(settings(server))
    assert (await source.collect([pod("a")])).spans == {}
    await source.close()
    assert len(server.queries) == len(VLLM.series) + 3


async def test_a_failing_query_of_the_tuner_fails_nothing_else(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    server.answer = lambda query: web.Response(status=400, text="{}") if "increase(vllm:num_preemptions" in query else tuned_server(query)
    source = PrometheusSource(settings(server))
    got = await source.collect([replace(pod("a"), tuned=True)])
    await source.close()
    assert (set(got.windows), got.failures, got.spans) == ({"uid-ns-a"}, {}, {})
    assert "nothing new of the vllm engines: HTTP status 400" in caplog.text


CERTIFICATE, KEY = (str(Path(__file__).parents[3] / "data" / "tls" / name) for name in ("test-only.crt", "test-only.key"))
"""Signed by itself for 127.0.0.1: authority, server and client in one."""


@pytest.fixture
async def tls_url() -> AsyncIterator[str]:
    """A server that demands a client certificate."""

    async def answer(_: web.Request) -> web.Response:
        return vector(({}, "1"))

    app = web.Application()
    app.router.add_post("/api/v1/query", answer)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=CERTIFICATE)
    context.load_cert_chain(CERTIFICATE, KEY)
    context.verify_mode = ssl.CERT_REQUIRED
    server = TestServer(app, scheme="https")
    await server.start_server(ssl=context)
    yield f"https://127.0.0.1:{server.port}"
    await server.close()


async def test_mutual_tls_with_a_private_authority(tls_url: str) -> None:
    known = PrometheusSettings(tls_url, ca_file=CERTIFICATE, cert_file=CERTIFICATE, key_file=KEY, backoff_s=0.0)
    assert await ask(known) == [({}, 1.0)]


@pytest.mark.parametrize(
    "files", [{}, {"ca_file": CERTIFICATE}, {"ca_file": "/nonexistent/ca.crt"}], ids=["stranger", "anonymous", "no file"]
)
async def test_tls_failures_are_errors(tls_url: str, files: dict[str, str]) -> None:
    with pytest.raises(PrometheusError, match=r"TLS: .*CERTIFICATE_VERIFY_FAILED|connection failed|No such file"):
        await ask(PrometheusSettings(tls_url, backoff_s=0.0, **files))  # type: ignore[arg-type]
