"""Runs on simulated engines over HTTP, in time that jumps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port

from dflash_controller.cli.bench.rows import Plan, Row
from dflash_controller.cli.bench.run import Benchmark, Side, Unanswered
from dflash_controller.cli.bench.subject import Subject
from dflash_controller.cli.failures import Failure
from testbed.simulator.faults import Faults
from testbed.simulator.table import seed_table
from tests.support.bench_world import restarted, subject
from tests.support.probe_world import TARGET, Served, run, served

both_engines = pytest.mark.parametrize("engine", ["sglang", "vllm"])
LIKE = {"math": "math500", "code": "humaneval", "chat": "mt-bench"}
TABLE = seed_table()


def loop_time() -> float:
    return asyncio.get_running_loop().time()


def url(engine: Served) -> str:
    return f"http://{engine.endpoint.ip}:{engine.endpoint.port}"


def generated(engine: Served) -> float:
    """Tokens by the engine's own counter."""
    lines = (engine.host.engine.page(loop_time()) or "").splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if ":generation_tokens_total{" in line)


def side(now: Subject, look: Callable[[], Awaitable[Subject]] | None = None) -> Side:
    async def same() -> Subject:
        return now

    return Side(now, look or same, now)


def plan(*concurrencies: int, workloads: tuple[str, ...] = ("math",), seconds: float = 20.0, requests: int | None = None) -> Plan:
    return Plan(workloads, concurrencies, seconds, requests, 256)


def made(plan: Plan, *sides: Side, **more: Any) -> Benchmark:
    return Benchmark(plan, sides, clock=loop_time, **more)


async def rows(plan: Plan, *sides: Side) -> list[Row]:
    return await made(plan, *sides).run()


@both_engines
def test_speed_and_acceptance_are_those_of_the_engine(engine: str) -> None:
    async def measured() -> list[Row]:
        async with served(engine, "new") as one:
            return await rows(plan(1, 8, workloads=("math", "chat")), side(subject(url(one), engine=engine)))

    found = run(measured())
    assert [(row.cell.workload, row.cell.concurrency) for row in found] == [("math", 1), ("math", 8), ("chat", 1), ("chat", 8)]
    model = TABLE.match(TARGET)
    for row in found:
        workload = LIKE[row.cell.workload]
        length = model.acceptance(workload, 16).length(16)
        assert row.counted.acceptance == pytest.approx(length, rel=0.06)
        step_s = model.step_time_s(workload, 16, row.cell.concurrency)
        # The published speed is of whole requests; the simulated engine spends time on prefill besides.
        assert row.tokens_per_second == pytest.approx(row.cell.concurrency * length / step_s, rel=0.12)
        assert (row.block_size, row.errors, row.changes, row.sound) == (16, {}, (), True)
        assert row.seconds >= 20
        assert row.counted.tokens == pytest.approx(row.tokens, abs=row.cell.concurrency * 256)


def test_a_window_lasts_for_its_seconds_and_its_answers() -> None:
    async def measured() -> list[Row]:
        async with served("sglang", "new") as one:
            now = side(subject(url(one)))
            return [*await rows(plan(4, seconds=2, requests=200), now), *await rows(plan(4, seconds=9, requests=1), now)]

    many, long = run(measured())
    assert many.answers >= 200
    assert many.seconds > 4
    assert 9 <= long.seconds < 10


def test_load_goes_to_the_least_busy_replica_and_counts_per_replica() -> None:
    async def measured() -> tuple[list[Row], list[float]]:
        async with served("sglang", "a") as one, served("sglang", "b", Faults(step_time=3.0)) as other:
            found = await rows(plan(4), side(subject(url(one), url(other))))
            return found, [generated(engine) for engine in (one, other)]

    [row], counted = run(measured())
    assert (row.cell.replicas, row.cell.clients, row.per_replica) == (2, 8, row.tokens_per_second / 2)
    assert counted[0] > 2 * counted[1] > 0, "the faster one is free more often"


def test_a_baseline_is_measured_beside_each_row() -> None:
    async def measured() -> list[Row]:
        async with served("sglang", "a") as one, served("sglang", "b", block_size=1, drafter=None) as off:
            return await rows(plan(1, 8), side(subject(url(off), name="plain", blockSize=1)), side(subject(url(one))))

    found = run(measured())
    assert [(row.cell.deployment, row.cell.concurrency, row.block_size) for row in found] == [
        ("plain", 1, 1),
        ("qwen", 1, 16),
        ("plain", 8, 1),
        ("qwen", 8, 16),
    ]
    assert found[0].counted.acceptance is None
    assert found[1].tokens_per_second > 2 * found[0].tokens_per_second


def test_changes_and_failures_mark_their_row_and_no_other() -> None:
    async def measured() -> list[Row]:
        async with served("sglang", "a") as one:
            before = subject(url(one))
            seen: list[float] = []

            async def look() -> Subject:
                seen.append(loop_time())
                return restarted(before, 0) if len(seen) > 3 else before

            async def trouble() -> None:
                await asyncio.sleep(8)
                one.host.set_faults(Faults(error_status=503, error_rate=0.2))
                await asyncio.sleep(4)
                one.host.set_faults(Faults())

            async with asyncio.TaskGroup() as group:
                group.create_task(trouble())
                return await group.create_task(rows(plan(2, 4), side(before, look)))

    disturbed, sound = run(measured())
    assert disturbed.changes == ("pod qwen-0 restarted",)
    assert set(disturbed.errors) == {"HTTP 503"}
    assert not disturbed.sound
    assert (sound.changes, sound.errors, sound.sound) == ((), {}, True)


def test_a_new_pod_gets_load_and_a_new_revision_is_named() -> None:
    async def measured() -> tuple[list[Row], float]:
        async with served("sglang", "a") as one, served("sglang", "b", block_size=8) as other:
            before = subject(url(one))
            after = replace(
                subject(url(other), hash="rbbbbbbb", blockSize=8), replicas=(replace(before.replicas[0], uid="new", url=url(other)),)
            )
            begun = loop_time()

            async def look() -> Subject:
                return after if loop_time() > begun + 10 else before

            found = await rows(plan(2, 4), side(before, look))
            return found, generated(other)

    (disturbed, later), tokens = run(measured())
    change = "the active revision changed from qwen-raaaaaaa (block size 16) to qwen-rbbbbbbb (block size 8)"
    assert disturbed.changes == (change,)
    assert later.sound
    assert later.block_size == 8
    assert later.remarks[0] == "measured on qwen-rbbbbbbb (block size 8), not on qwen-raaaaaaa as before"
    assert tokens >= later.tokens > 0


def test_an_api_server_that_does_not_answer_stops_nothing() -> None:
    async def look() -> Subject:
        raise Failure("the API server does not answer")

    async def measured() -> list[Row]:
        async with served("sglang", "a") as one:
            return await rows(plan(2), side(subject(url(one)), look))

    [row] = run(measured())
    assert row.sound
    assert "the API server did not answer, so changes may have been missed" in row.remarks


def test_an_interrupted_run_has_the_rows_so_far_and_what_was_measured_of_the_last() -> None:
    async def measured() -> Benchmark:
        async with served("sglang", "a") as one:
            benchmark: list[Benchmark] = []

            def progress(of: Side, workload: str, concurrency: int, part: float) -> None:
                if concurrency == 4 and part > 0.3:
                    benchmark[0].interrupt()

            benchmark.append(made(plan(2, 4, 8), side(subject(url(one))), progress=progress))
            await benchmark[0].run()
            return benchmark[0]

    found = run(measured())
    whole, part = found.rows
    assert (whole.cell.concurrency, part.cell.concurrency, found.interrupted) == (2, 4, True)
    assert "interrupted" not in whole.remarks
    assert part.remarks[0] == "interrupted"
    assert 5 < part.seconds < 10
    assert part.tokens_per_second > 1.3 * whole.tokens_per_second, "requests under way count too"


def test_a_deployment_without_replicas_is_waited_for_and_then_told() -> None:
    async def measured() -> list[Row]:
        return await rows(plan(2), side(subject()))

    [row] = run(measured())
    assert (row.changes, row.sound, row.answers) == (("no replica serves",), False, 0)


@asynccontextmanager
async def answering(status: int, body: Any) -> AsyncIterator[str]:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response(body, status=status)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    async with TestServer(app) as server:
        yield f"http://127.0.0.1:{server.port}"


async def test_an_engine_that_does_not_answer_the_first_question_is_named() -> None:
    async with answering(404, {"error": {"message": "no such model"}}) as there:
        with pytest.raises(Unanswered) as refused:
            await made(plan(1), side(subject(there))).first_answers()
    assert (refused.value.url, refused.value.status, refused.value.message) == (there, 404, "no such model")
    gone = f"http://127.0.0.1:{unused_port()}"
    with pytest.raises(Unanswered) as unreachable:
        await made(plan(1), side(subject(gone))).first_answers()
    assert (unreachable.value.status, unreachable.value.reason) == (None, "connection failed: Connection refused")


async def test_a_stream_that_ends_early_is_no_answer() -> None:
    async def cut(_: web.Request) -> web.Response:
        return web.Response(text='data: {"choices": [{"delta": {"content": "x"}}]}\n\n', content_type="text/event-stream")

    app = web.Application()
    app.router.add_post("/v1/chat/completions", cut)
    async with TestServer(app) as server:
        with pytest.raises(Unanswered) as found:
            await made(plan(1), side(subject(f"http://127.0.0.1:{server.port}"))).first_answers()
    assert found.value.reason == "the answer was cut off"
