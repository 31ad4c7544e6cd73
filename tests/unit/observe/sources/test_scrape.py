"""Direct scrapes against servers that answer well, badly and not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port

from dflash_controller.api.conditions import Reason
from dflash_controller.model.counters import CounterSnapshot
from dflash_controller.model.measurement import Absent, Error
from dflash_controller.model.series import LabelledMetric
from dflash_controller.observe.pipeline.source import Round, Target
from dflash_controller.observe.sources.scrape.source import Scraper, ScrapeSettings

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Engine:
    """One /metrics endpoint that answers as told; counts what it was asked."""

    def __init__(self) -> None:
        self.asked: list[web.Request] = []
        self.handler: Handler = self.tokens(0)

    @staticmethod
    def tokens(total: float) -> Handler:
        async def answer(_: web.Request) -> web.StreamResponse:
            return web.Response(text=f'# TYPE x counter\nvllm:generation_tokens_total{{engine="0"}} {total}\n')

        return answer

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request)
        return await self.handler(request)


@pytest.fixture
async def engine() -> AsyncIterator[tuple[Engine, int]]:
    made = Engine()
    app = web.Application()
    app.router.add_get("/metrics", made.answer)
    async with TestServer(app) as server:
        assert server.port is not None
        yield made, server.port


def pod(port: int, uid: str = "u0", revision: str = "r1", engine: str = "vllm") -> Target:
    return Target("ns", f"pod-{uid}", uid, "127.0.0.1", port, "demo", revision, engine, True)


async def test_two_scrapes_make_a_window(engine: tuple[Engine, int]) -> None:
    server, port = engine
    clock = Clock()
    scraper = Scraper(clock=clock, wall=lambda: 1.7e9)
    first = await scraper.collect([pod(port)])
    names = {"u0": frozenset({"vllm:generation_tokens_total"})}
    assert first == Round(answered=frozenset({"u0"}), readings={"u0": (CounterSnapshot(1.7e9, generated_tokens=0.0),)}, names=names)
    server.handler = server.tokens(900)
    clock.now += 30
    second = await scraper.collect([pod(port)])
    assert second.windows["u0"].deltas == {LabelledMetric("tokens"): 900.0}
    assert second.windows["u0"].seconds == 30
    assert server.asked[0].headers["Accept"] == "text/plain;version=0.0.4"
    await scraper.close()


async def hang(_: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


async def error(_: web.Request) -> web.StreamResponse:
    return web.Response(status=503)


async def moved(_: web.Request) -> web.StreamResponse:
    raise web.HTTPFound("/elsewhere")


async def garbage(_: web.Request) -> web.StreamResponse:
    return web.Response(text="vllm:generation_tokens_total{engine= 5\n")


async def binary(_: web.Request) -> web.StreamResponse:
    return web.Response(body=b"vllm:\xff\xfe\n")


async def huge(request: web.Request) -> web.StreamResponse:
    """Without end, were it read to the end."""
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"vllm:x 1\n" * 10_000)


async def other(_: web.Request) -> web.StreamResponse:
    return web.Response(text="up 1\n")


@pytest.mark.parametrize(
    ("handler", "failure"),
    [
        (hang, Error("no answer within 0.1 s")),
        (error, Error("HTTP status 503")),
        (moved, Error("HTTP status 302")),
        (garbage, None),
        (binary, None),
        (huge, Error("malformed page: body over 200000 bytes")),
        (other, Absent("NoSeries")),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
async def test_a_bad_answer_is_a_trouble_and_the_window_ages_away(
    engine: tuple[Engine, int], handler: Handler, failure: Error | Absent | None
) -> None:
    server, port = engine
    clock = Clock()
    scraper = Scraper(ScrapeSettings(timeout_s=0.1 if handler is hang else 2.0, max_body=200_000, max_age_s=90), clock)
    for total in (100, 200):
        server.handler = server.tokens(total)
        await scraper.collect([pod(port)])
        clock.now += 30
    server.handler = handler
    got = await scraper.collect([pod(port)])
    if failure is None:
        assert isinstance(got.failures["u0"], Error)
        assert got.failures["u0"].message.startswith("malformed page: ")
    else:
        assert got.failures == {"u0": failure}
    assert got.answered == frozenset()
    assert got.windows["u0"].age_s == 30, "one missed scrape does not blank the figures"
    clock.now += 90
    assert (await scraper.collect([pod(port)])).windows == {}
    await scraper.close()


async def test_a_refused_connection_names_no_address() -> None:
    port = unused_port()
    scraper = Scraper()
    got = await scraper.collect([pod(port)])
    failure = got.failures["u0"]
    assert isinstance(failure, Error)
    assert "connection failed" in failure.message
    assert str(port) not in failure.message
    await scraper.close()


async def test_four_pods_per_revision_and_the_same_ones_each_round(engine: tuple[Engine, int]) -> None:
    _, port = engine
    scraper = Scraper()

    async def asked(pods: Sequence[Target]) -> set[str]:
        return set((await scraper.collect(pods)).answered)

    fleet = [pod(port, f"u{i}", revision) for revision in ("r1", "r2") for i in range(10, 20) if (i % 2 == 0) == (revision == "r1")]
    first = await asked(fleet)
    assert first == {"u10", "u12", "u14", "u16", "u11", "u13", "u15", "u17"}
    newcomers = [pod(port, "u00"), pod(port, "u01")]
    assert await asked([*newcomers, *fleet]) == first, "a newcomer does not end a watched pod's window"
    left = [target for target in fleet if target.uid not in ("u10", "u12")]
    assert {"u14", "u16", "u00", "u01"} <= await asked([*newcomers, *left])
    await scraper.close()


async def test_beyond_the_supported_fleet_no_pod_is_scraped(engine: tuple[Engine, int]) -> None:
    server, port = engine
    scraper = Scraper(ScrapeSettings(max_pods=2))
    got = await scraper.collect([pod(port, f"u{i}") for i in range(3)])
    assert got.refusal is not None
    assert got.refusal.reason is Reason.PROMETHEUS_REQUIRED
    assert "up to 2" in got.refusal.message
    assert (got.windows, got.failures, server.asked) == ({}, {}, [])
    await scraper.close()


async def test_concurrency_is_bounded(engine: tuple[Engine, int]) -> None:
    server, port = engine
    inside, most = 0, 0

    async def slow(_: web.Request) -> web.StreamResponse:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        for _turn in range(20):
            await asyncio.sleep(0)
        inside -= 1
        return web.Response(text="vllm:x 1\n")

    server.handler = slow
    scraper = Scraper(ScrapeSettings(concurrency=3))
    got = await scraper.collect([pod(port, f"u{i:02}", f"r{i}") for i in range(20)])
    assert len(got.answered) == 20
    assert 1 <= most <= 3
    await scraper.close()


async def test_a_scrape_is_also_a_reading_with_its_own_time(engine: tuple[Engine, int]) -> None:
    server, port = engine
    clock = Clock()
    scraper = Scraper(clock=clock, wall=lambda: clock.now + 1.7e9)
    server.handler = server.tokens(900)
    got = await scraper.collect([pod(port), pod(port, "u1", engine="sglang")])
    assert got.readings == {"u0": (CounterSnapshot(1.7e9 + 1000, generated_tokens=900.0),)}, "a page of another engine is no reading"
    server.handler = error
    assert (await scraper.collect([pod(port)])).readings == {}
    await scraper.close()


async def test_spans_of_tuned_pods_are_told_from_scrape_to_scrape(engine: tuple[Engine, int]) -> None:
    server, port = engine
    clock = Clock()
    scraper = Scraper(clock=clock, wall=lambda: clock.now + 1.7e9)
    pods = [replace(pod(port), tuned=True), pod(port, "u1")]
    assert (await scraper.collect(pods)).spans == {}
    for total in (900, 1500):
        clock.now += 30
        server.handler = server.tokens(total)
        got = await scraper.collect(pods)
    ((uid, (span,)),) = got.spans.items()
    assert (uid, span.end_s, span.window.seconds) == ("u0", 1.7e9 + 1060, 30)
    assert span.window.deltas == {LabelledMetric("tokens"): 600.0}
    clock.now += 10
    assert (await scraper.collect(pods)).spans == {}, "too soon"
    await scraper.close()
