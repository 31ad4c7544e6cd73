"""The simulated engines over HTTP: the OpenAI client, health, drain, faults, metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import pytest
from aiohttp import web
from openai import AsyncOpenAI

from testbed.simulator.access import Access
from testbed.simulator.engine import SimulatedEngine
from testbed.simulator.host import Clock, Host
from testbed.simulator.server import EngineApp, OneHost
from testbed.simulator.settings import EngineSettings
from testbed.simulator.table import seed_table
from testbed.traffic.mix import Mix, Shots
from testbed.traffic.over_http import Client, Target
from testbed.traffic.report import summarize
from tests.support.releases import default_release

SGLANG, VLLM = default_release("sglang"), default_release("vllm")

SPEED = 20.0


@dataclass
class Running:
    url: str
    host: Host
    exits: list[tuple[int, str]]
    session: aiohttp.ClientSession

    async def status(self, path: str) -> int:
        async with self.session.get(self.url + path) as response:
            return response.status

    async def metrics(self) -> str:
        async with self.session.get(self.url + "/metrics") as response:
            assert response.status == 200
            return await response.text()

    async def fault(self, **changes: object) -> None:
        async with self.session.patch(self.url + "/sim/faults", json=changes) as response:
            assert response.status == 200, await response.text()

    async def complete(self, max_tokens: int = 40, prompt: str = "hello") -> tuple[int, dict]:
        body = {"model": "m", "prompt": prompt, "max_tokens": max_tokens}
        async with self.session.post(self.url + "/v1/completions", json=body) as response:
            return response.status, await response.json() if response.content_type == "application/json" else {}


@asynccontextmanager
async def running(
    engine: str = "sglang", release: str = SGLANG, startup_s: float = 0.0, speed: float = SPEED, **settings: object
) -> AsyncIterator[Running]:
    clock = Clock(speed)
    made = EngineSettings(engine, release, "Qwen/Qwen3.5-9B", "m", 0, **{"block_size": 16, **settings})
    simulated = SimulatedEngine(made, seed_table().match(made.target), now=clock.now(), startup_s=startup_s)
    exits: list[tuple[int, str]] = []
    host = Host(simulated, clock, exited=lambda code, message: exits.append((code, message)))
    runner = EngineApp(OneHost(host)).runner()
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        async with aiohttp.ClientSession() as session:
            yield Running(f"http://127.0.0.1:{site.port}", host, exits, session)
    finally:
        host.close()
        await runner.cleanup()


async def eventually(check: Callable[[], bool], seconds: float = 3.0) -> None:
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, "did not happen in time"
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(("engine", "release"), [(name, default_release(name)) for name in ("sglang", "vllm")])
async def test_openai_client_gets_the_same_text_streamed_and_whole(engine: str, release: str) -> None:
    async with running(engine, release) as server, AsyncOpenAI(base_url=server.url + "/v1", api_key="none") as client:
        assert [model.id for model in (await client.models.list()).data] == ["m"]
        whole = await client.completions.create(model="m", prompt="why is the sky blue", max_tokens=50, temperature=0)
        assert whole.usage is not None
        assert whole.usage.completion_tokens == 50
        assert len(whole.choices[0].text.split()) == 50
        assert whole.choices[0].finish_reason == "length"
        streamed, usage = "", None
        stream = await client.completions.create(
            model="m", prompt="why is the sky blue", max_tokens=50, stream=True, stream_options={"include_usage": True}
        )
        async for chunk in stream:
            streamed += chunk.choices[0].text if chunk.choices else ""
            usage = chunk.usage or usage
        assert streamed == whole.choices[0].text
        assert usage is not None
        assert usage.completion_tokens == 50
        chat = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
        assert chat.choices[0].finish_reason == "stop"
        assert chat.usage is not None
        assert len((chat.choices[0].message.content or "").split()) == chat.usage.completion_tokens
        deltas = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], stream=True)
        joined = "".join([chunk.choices[0].delta.content or "" async for chunk in deltas])
        assert joined == chat.choices[0].message.content


async def test_text_depends_on_target_and_prompt_but_not_on_block_or_drafter() -> None:
    texts = set()
    for settings in ({"block_size": 16, "drafter": "a"}, {"block_size": 8, "drafter": "b"}, {"block_size": 1}):
        async with running(**settings) as server:
            texts.add((await server.complete())[1]["choices"][0]["text"])
    assert len(texts) == 1
    async with running(drafter="a") as server:
        assert (await server.complete(prompt="other"))[1]["choices"][0]["text"] not in texts
        await server.fault(wrong_text=True)
        assert (await server.complete())[1]["choices"][0]["text"] not in texts


async def test_sglang_answers_503_while_starting_and_vllm_nothing() -> None:
    async with running(startup_s=0.4 * SPEED) as server:
        assert [await server.status(path) for path in ("/health", "/ready", "/v1/models")] == [503, 503, 503]
        assert (await server.complete())[0] == 503
        await eventually(lambda: server.host.clock.now() > server.host.engine.ready_at_s)
        assert [await server.status(path) for path in ("/health", "/ready", "/v1/models")] == [200, 200, 200]
    async with running("vllm", VLLM, startup_s=0.4 * SPEED) as server:
        with pytest.raises(aiohttp.ClientError):
            await server.status("/health")
        await eventually(lambda: server.host.clock.now() > server.host.engine.ready_at_s)
        assert await server.status("/health") == 200


@pytest.mark.parametrize(
    ("engine", "release", "path", "status"),
    [
        ("sglang", "0.5.19", "/ready", 404),
        ("sglang", "0.5.20", "/ready", 200),
        ("sglang", SGLANG, "/server_info", 200),
        ("sglang", SGLANG, "/version", 404),
        ("vllm", VLLM, "/version", 200),
        ("vllm", VLLM, "/ready", 404),
        ("vllm", VLLM, "/server_info", 404),
    ],
)
async def test_endpoints_of_each_engine(engine: str, release: str, path: str, status: int) -> None:
    async with running(engine, release) as server:
        assert await server.status(path) == status


async def test_administration_asks_for_the_key_over_http() -> None:
    access = Access("sglang", admin_key="uid", admin_paths=frozenset({"/flush_cache", "/server_info"}))
    key = {"Authorization": "Bearer uid"}
    async with running(access=access) as server:
        for path in ("/flush_cache", "/server_info"):
            assert await server.status(path) == 401
            async with server.session.get(server.url + path, headers=key) as response:
                assert response.status == 200
        async with server.session.get(server.url + "/server_info", headers=key) as response:
            assert (await response.json())["admin_api_key"] == "uid"
        assert (await server.complete())[0] == 200
        assert [await server.status(path) for path in ("/health", "/ready", "/metrics", "/no-such-path")] == [200, 200, 200, 404]


async def test_sglang_drains_without_refusing_and_is_unhealthy_meanwhile() -> None:
    async with running() as server:
        old = asyncio.create_task(server.complete(6000))
        await eventually(lambda: bool(server.host.engine.batch.in_service))
        server.host.drain()
        assert await server.status("/health") == 503
        assert (await server.complete(10))[0] == 200
        assert not server.exits
        assert (await old)[1]["usage"]["completion_tokens"] == 6000
        await eventually(lambda: bool(server.exits))
        assert server.exits[0][0] == 0


async def test_vllm_drain_aborts_new_requests_at_once_and_old_ones_after_the_timeout() -> None:
    async with running("vllm", VLLM, shutdown_timeout_s=0.3 * SPEED) as server:
        old = asyncio.create_task(server.complete(100_000))
        await eventually(lambda: bool(server.host.engine.batch.in_service))
        server.host.drain()
        assert await server.status("/health") == 200
        status, new = await server.complete(10)
        assert (status, new["choices"][0]["finish_reason"], new["usage"]["completion_tokens"]) == (200, "abort", 0)
        assert (await old)[1]["choices"][0]["finish_reason"] == "abort"
        await eventually(lambda: bool(server.exits))


async def test_client_gone_away_aborts_its_request() -> None:
    async with running("vllm", VLLM) as server:
        request = asyncio.create_task(server.complete(100_000))
        await eventually(lambda: bool(server.host.engine.batch.in_service))
        request.cancel()
        await eventually(lambda: not server.host.engine.batch.in_service)
        assert 'vllm:request_success_total{engine="0",finished_reason="abort",model_name="m"} 1.0' in await server.metrics()


async def test_faults_of_the_api_and_health() -> None:
    async with running() as server:
        await server.fault(error_status=502)
        assert (await server.complete())[0] == 502
        await server.fault(error_status=0, unhealthy=True)
        assert (await server.complete())[0] == 200
        assert await server.status("/health") == 503
        await server.fault(hang=True, unhealthy=False)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(server.status("/health"), 0.2)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(server.complete(), 0.2)
        assert "sglang:num_running_reqs" in await server.metrics()
        async with server.session.delete(server.url + "/sim/faults") as response:
            assert (await response.json())["hang"] is False
        assert (await server.complete())[0] == 200
        async with server.session.patch(server.url + "/sim/faults", json={"no_such_fault": 1}) as response:
            assert response.status == 400


async def test_hang_in_the_middle_of_a_request_delays_it() -> None:
    async with running() as server:
        request = asyncio.create_task(server.complete(10_000))
        await eventually(lambda: bool(server.host.engine.batch.in_service))
        await server.fault(hang=True)
        await asyncio.sleep(0.2)
        assert not request.done()
        await server.fault(hang=False)
        assert (await request)[1]["usage"]["completion_tokens"] == 10_000
        page = await server.metrics()
        latency = next(line for line in page.splitlines() if line.startswith("sglang:e2e_request_latency_seconds_sum"))
        assert float(latency.rsplit(" ", 1)[1]) > 0.2 * SPEED


async def test_frozen_and_missing_metrics() -> None:
    async with running() as server:
        await server.complete()
        await server.fault(metrics="frozen")
        frozen = await server.metrics()
        await server.complete()
        assert await server.metrics() == frozen
        await server.fault(metrics="ok", missing_series=["sglang:spec_"])
        page = await server.metrics()
        assert "sglang:generation_tokens_total" in page
        assert "sglang:spec_" not in page
        await server.fault(metrics="missing")
        assert await server.status("/metrics") == 404


async def test_crash_breaks_connections() -> None:
    async with running() as server:
        request = asyncio.create_task(server.complete(100_000))
        await eventually(lambda: bool(server.host.engine.batch.in_service))
        async with server.session.post(server.url + "/sim/crash", json={"code": 139}):
            pass
        with pytest.raises(aiohttp.ClientError):
            await request
        assert server.exits == [(139, "killed by /sim/crash")]


async def test_vllm_knows_its_model_name_and_both_refuse_bad_limits() -> None:
    async with running("vllm", VLLM) as server:
        async with server.session.post(server.url + "/v1/completions", json={"model": "other", "prompt": "x"}) as response:
            assert response.status == 404
        assert (await server.complete(0))[0] == 400


async def test_traffic_in_a_closed_loop_measures_tokens_acceptance_and_concurrency() -> None:
    speed = 5.0
    shots = Shots(Mix({"math500": 1.0}, max_tokens=600, stream=0.3))
    async with running(speed=speed) as server, Client(Target([server.url], "m"), shots) as client:
        before, start_s = await client.acceptance_totals(), client.now()
        await client.closed_loop(8, 3.0)
        report = summarize(client.log, start_s, client.now(), (await client.acceptance_totals()).since(before))
        assert not report.errors
        assert report.acceptance_length == pytest.approx(7.34, rel=0.05)
        assert report.mean_concurrency == pytest.approx(8, rel=0.15)
        assert report.tokens == 600 * report.requests > 0
        # An answer takes 200 ms here, so the loop's own delays weigh, and a busy machine's. The exact figure is tested in simulated time.
        assert report.tokens_per_second == pytest.approx(report.tokens / report.duration_s)
        assert report.tokens_per_second / speed < 1.05 * 5114
        assert report.time_to_first_token_s["p50"] is not None


async def test_traffic_counts_errors_by_kind() -> None:
    async with running() as server, Client(Target([server.url], "m"), Shots(Mix())) as client:
        await server.fault(error_status=500)
        await client.open_loop(50, 0.3)
        assert client.log.errors["500"] > 0
        assert not client.log.completions
