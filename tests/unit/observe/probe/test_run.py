"""The probe against simulated engines over HTTP: what it measures, what it finds, how it gives up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port

from dflash_controller.engines.probe_reading import ProbeFailure
from dflash_controller.model.counters import Answer, ProbeRun
from dflash_controller.model.probe import Endpoint, ProbeRequest, ProbeRuns
from dflash_controller.observe.probe.client import Client
from dflash_controller.observe.probe.run import Probe, ProbeError
from testbed.simulator.batching import Request
from testbed.simulator.faults import Faults
from testbed.simulator.table import seed_table
from tests.support.probe_world import TARGET, request, run, served
from tests.support.virtual_time import run_in_virtual_time

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

both_engines = pytest.mark.parametrize("engine", ["sglang", "vllm"])


def loop_time() -> float:
    return asyncio.get_running_loop().time()


async def probe(asked: ProbeRequest) -> ProbeRuns:
    runner = Probe(clock=loop_time, now=lambda: 1e9 + loop_time())
    try:
        return await runner.run(asked)
    finally:
        await runner.close()


@asynccontextmanager
async def client() -> AsyncIterator[Client]:
    made = Client(loop_time)
    try:
        yield made
    finally:
        await made.close()


async def probed(engine: str, candidate: Faults | None, reference: Faults | None, **changes: int) -> ProbeRuns:
    """A paired run of engines with these faults."""
    async with served(engine, "new", candidate) as new, served(engine, "old", reference) as old:
        return await probe(request(new.endpoint, old.endpoint, **changes))


def pair(runs: ProbeRuns) -> tuple[ProbeRun, ProbeRun]:
    assert runs.candidate is not None
    assert runs.reference is not None
    return runs.candidate, runs.reference


def answers(found: ProbeRun) -> list[Answer]:
    return [answer for answer in found.answers if answer is not None]


def acceptance(found: ProbeRun) -> float:
    """Pooled; a step does not give the first token."""
    return sum(answer.tokens - 1 for answer in answers(found)) / sum(answer.steps or 0 for answer in answers(found))


def mismatches(runs: ProbeRuns) -> list[tuple[Answer, Answer]]:
    new, old = pair(runs)
    return [(a, b) for a, b in zip(answers(new), answers(old), strict=True) if a.text != b.text]


@both_engines
def test_two_sound_engines_give_the_tables_acceptance_and_speed_and_the_same_texts(engine: str) -> None:
    runs = run(probed(engine, None, None))
    table = seed_table().match(TARGET)
    for found, revision in zip(pair(runs), ("new", "old"), strict=True):
        assert (found.revision, found.prompts, len(found.answers)) == (revision, "v1-64x256", 64)
        assert {answer.tokens for answer in answers(found)} == {256}
        assert acceptance(found) == pytest.approx(table.acceptance("gsm8k", 16).length(16), rel=0.03)
        step_s = sum(answer.seconds for answer in answers(found)) / sum(answer.steps or 0 for answer in answers(found))
        assert step_s == pytest.approx(table.step_time_s("gsm8k", 16, 1), rel=0.02)
        assert all(answer.repeats is None for answer in answers(found)), "equal texts are not asked for again"
        assert len({answer.text for answer in answers(found)}) == 64
    assert mismatches(runs) == []
    assert 1e9 + 60 < pair(runs)[0].finished_at_s < 1e9 + 70


@both_engines
def test_the_same_drafter_takes_the_same_steps_again(engine: str) -> None:
    async def twice() -> list[ProbeRun]:
        async with served(engine, "one", seed=1) as new, served(engine, "one", seed=2) as old:
            return list(pair(await probe(request(new.endpoint, old.endpoint, prompts=8))))

    new, old = run(twice())
    assert [answer.steps for answer in answers(new)] == [answer.steps for answer in answers(old)]


@both_engines
def test_a_collapsed_drafter_is_seen_though_its_texts_are_right(engine: str) -> None:
    runs = run(probed(engine, Faults(acceptance=0.0), None, prompts=8))
    new, old = pair(runs)
    assert acceptance(new) == 1.0
    assert acceptance(old) > 5
    assert mismatches(runs) == []
    slower = sum(answer.seconds for answer in answers(new)) / sum(answer.seconds for answer in answers(old))
    assert slower == pytest.approx(acceptance(old), rel=0.02)


@both_engines
def test_slow_steps_are_seen(engine: str) -> None:
    runs = run(probed(engine, Faults(step_time=1.5), None, prompts=8))
    speeds = [sum(a.steps or 0 for a in answers(found)) / sum(a.seconds for a in answers(found)) for found in pair(runs)]
    assert speeds[1] / speeds[0] == pytest.approx(1.5, rel=0.02)


@both_engines
def test_the_speed_beside_users_is_that_of_the_fuller_batch(engine: str) -> None:
    async def beside_users() -> ProbeRun:
        async with served(engine, "r") as one:
            for _ in range(3):
                one.host.engine.submit(Request("gsm8k", 8, 10**6), one.host.clock.now())
            runs = await probe(request(one.endpoint, None, prompts=8))
            assert runs.candidate is not None
            return runs.candidate

    found = answers(run(beside_users()))
    step_s = sum(answer.seconds for answer in found) / sum(answer.steps or 0 for answer in found)
    assert step_s == pytest.approx(seed_table().match(TARGET).step_time_s("gsm8k", 16, 4), rel=0.02)


@both_engines
def test_a_drafter_that_changes_the_text_differs_and_repeats_itself(engine: str) -> None:
    differing = mismatches(run(probed(engine, Faults(wrong_text=True), None, prompts=8)))
    assert len(differing) == 8
    assert all(new.repeats is True and old.repeats is True for new, old in differing)


@both_engines
def test_a_near_tie_differs_and_does_not_repeat_itself(engine: str) -> None:
    runs = run(probed(engine, Faults(tie_rate=0.3), None, prompts=32))
    differing = mismatches(runs)
    assert 3 <= len(differing) <= 20
    assert all(old.repeats is True for _, old in differing)
    unstable = [new for new, _ in differing if new.repeats is False]
    assert len(unstable) > len(differing) / 2
    new, _ = pair(runs)
    assert all(a.repeats is None for a in answers(new) if a not in [b for b, _ in differing])


@both_engines
def test_a_side_alone_is_asked_everything_twice(engine: str) -> None:
    async def alone(faults: Faults | None, as_candidate: bool) -> ProbeRuns:
        async with served(engine, "r", faults) as one:
            ends = (one.endpoint, None) if as_candidate else (None, one.endpoint)
            return await probe(request(*ends, prompts=16))

    kept = run(alone(None, False))
    assert kept.candidate is None
    assert kept.reference is not None
    assert [answer.repeats for answer in answers(kept.reference)] == [True] * 16
    later = run(alone(Faults(tie_rate=0.5), True))
    assert later.reference is None
    assert later.candidate is not None
    assert {answer.repeats for answer in answers(later.candidate)} == {True, False}
    assert later.candidate.prompts == kept.reference.prompts, "the two can be paired"


@both_engines
def test_without_speculation_no_step_gives_more_than_one_token(engine: str) -> None:
    async def alone() -> Answer:
        async with served(engine, "r", block_size=1) as one, client() as made:
            return await made.ask(one.endpoint, "why", 20, 60.0)

    assert run(alone()).steps == (None if engine == "sglang" else 19), "SGLang tells steps only where speculation is on"


@both_engines
def test_a_hanging_engine_times_out_and_ends_the_run(engine: str) -> None:
    async def go() -> float:
        with pytest.raises(ProbeError, match=r"^The candidate answered none of the probe's first 5 prompts: no answer within 7 s\.$"):
            await probed(engine, Faults(hang=True), None, timeout_s=7)
        return loop_time()

    assert 5 * 7 <= run(go()) < 5 * 7 + 10, "the other prompts are not tried"


@both_engines
def test_an_engine_that_hangs_in_mid_answer_times_out(engine: str) -> None:
    async def go() -> None:
        async with served(engine, "r") as one, client() as made:
            asking = asyncio.create_task(made.ask(one.endpoint, "why", 4000, 30.0))
            await asyncio.sleep(0.5)
            assert one.host.engine.batch.in_service
            one.host.patch_faults({"hang": True})
            with pytest.raises(ProbeFailure, match="no answer within 30 s"):
                await asking
            await asyncio.sleep(0.1)
            one.host.patch_faults({"hang": False})
            await asyncio.sleep(0.1)
            assert not one.host.engine.batch.in_service, "the request was aborted with its connection"

    run(go())


@both_engines
def test_an_engine_that_answers_errors_is_named_with_them(engine: str) -> None:
    with pytest.raises(ProbeError, match=r"^The stable replica answered none .*: HTTP status 502\.$"):
        run(probed(engine, None, Faults(error_status=502)))


def test_some_failed_prompts_are_left_unanswered() -> None:
    runs = run(probed("sglang", Faults(error_status=500, error_rate=0.2), None, prompts=24))
    new, old = pair(runs)
    assert 0 < new.answers.count(None) < 12
    assert None not in old.answers
    assert all(answer.repeats is None for answer in answers(old)), "what one side did not answer is no difference"


def test_an_answer_that_a_draining_engine_breaks_off_is_none() -> None:
    async def go() -> None:
        async with served("vllm", "r") as one, client() as made:
            one.host.engine.drain(0.0)
            with pytest.raises(ProbeFailure, match="broke the answer off"):
                await made.ask(one.endpoint, "why", 20, 60.0)

    run(go())


def test_a_refused_connection_names_no_address() -> None:
    async def go() -> None:
        async with client() as made:
            await made.ask(Endpoint("r", "u", "127.0.0.1", unused_port(), "vllm", "m"), "why", 20, 60.0)

    with pytest.raises(ProbeFailure, match=r"^connection failed: Connection refused$"):
        run(go())


async def redirect(_: web.Request) -> web.StreamResponse:
    raise web.HTTPFound("/v1/completions/elsewhere")


def says(event: str) -> Handler:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(text=f"data: {event}\n\n", content_type="text/event-stream")

    return answer


async def endless_line(posted: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(posted)
    while True:
        await response.write(b"data: " + b"x" * 100_000)


async def endless_text(posted: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(posted)
    while True:
        await response.write(b'data: {"choices":[{"text":"' + b"x" * 50_000 + b'"}]}\n\n')


USAGE = '"usage":{"completion_tokens":%d}'


@pytest.mark.parametrize(
    ("handler", "failure"),
    [
        (redirect, "HTTP status 302"),
        (says("[DONE]"), "the answer was cut off"),
        (says("{"), "malformed answer"),
        (says("[]"), "malformed answer"),
        (says("" + "[" * 100_000), "malformed answer"),
        (says('{"choices":7}'), "malformed answer"),
        (says('{"choices":[],"usage":{"completion_tokens":"9"}}'), "malformed answer"),
        (says('{"choices":[],"usage":{"completion_tokens":-9}}'), "malformed answer"),
        (says('{"error":{"message":"no memory at 10.0.0.1"}}'), "the engine reported an error"),
        (says('{"choices":[{"text":"a","finish_reason":"stop"}],%s}' % (USAGE % 0)), "an answer of no or too many tokens"),
        (says('{"choices":[{"text":"a","finish_reason":"stop"}],%s}' % (USAGE % 21)), "an answer of no or too many tokens"),
        (endless_line, "malformed answer"),
        (endless_text, "malformed answer"),
    ],
)
async def test_what_is_no_answer_fails_the_prompt(handler: Handler, failure: str) -> None:
    app = web.Application()
    app.router.add_post("/v1/completions", handler)
    async with TestServer(app) as server, client() as made:
        assert server.port is not None
        with pytest.raises(ProbeFailure, match=failure):
            await made.ask(Endpoint("r", "u", "127.0.0.1", server.port, "vllm", "m"), "why", 20, 10.0)


class Scripted:
    """Engines whose answers take so long and read so; writes down who was asked when, and how many at a time."""

    def __init__(self, takes_s: Mapping[str, float], text: Mapping[str, str] | None = None) -> None:
        self.takes_s, self.text = takes_s, text or {}
        self.asked: list[tuple[float, str, str]] = []
        self.inside = self.most = 0

    async def ask(self, endpoint: Endpoint, prompt: str, max_tokens: int, timeout_s: float) -> Answer:
        self.asked.append((loop_time(), endpoint.revision, prompt))
        self.inside += 1
        self.most = max(self.most, self.inside)
        await asyncio.sleep(self.takes_s[endpoint.revision])
        self.inside -= 1
        return Answer(10, 2.0, 0.1, self.text.get(endpoint.revision, "same"))

    async def close(self) -> None:
        """Nothing to close."""


NEW, OLD = (Endpoint(revision, revision, "127.0.0.1", 1, "vllm", "m") for revision in ("new", "old"))


def paced(script: Scripted, asked: ProbeRequest) -> tuple[list[float], list[str]]:
    async def go() -> None:
        await Probe(script, clock=loop_time).run(asked)

    run_in_virtual_time(go())
    return [at for at, _, _ in script.asked], [revision for _, revision, _ in script.asked]


def test_a_prompt_to_both_sides_counts_once_and_the_sides_take_turns_in_being_first() -> None:
    script = Scripted({"new": 0.25, "old": 0.25})
    times, revisions = paced(script, request(NEW, OLD, prompts=8, prompts_per_minute=30))
    assert times[::2] == [0, 2, 4, 6, 8, 10, 12, 14]
    assert times[1::2] == [at + 0.25 for at in times[::2]]
    assert revisions == ["new", "old", "old", "new"] * 4
    assert script.most == 1


def test_slow_answers_delay_the_next_prompt_and_are_not_made_up_for() -> None:
    class SlowAtFirst(Scripted):
        async def ask(self, endpoint: Endpoint, prompt: str, max_tokens: int, timeout_s: float) -> Answer:
            self.takes_s = {"new": 3.0 if len(self.asked) < 4 else 0.0, "old": 0.0}
            return await super().ask(endpoint, prompt, max_tokens, timeout_s)

    assert paced(SlowAtFirst({}), request(NEW, OLD, prompts=8, prompts_per_minute=60))[0][::2] == [0, 3, 6, 7, 8, 9, 10, 11]


def test_differing_prompts_are_asked_again_at_the_same_pace_after_all_others() -> None:
    script = Scripted({"new": 0.0, "old": 0.0}, {"new": "other"})
    times, _ = paced(script, request(NEW, OLD, prompts=8, prompts_per_minute=60))
    assert times[::2] == list(range(16))
    texts = [text for _, _, text in script.asked[::2]]
    assert texts[8:] == texts[:8]


def test_more_than_half_failed_ends_the_run() -> None:
    class Failing(Scripted):
        async def ask(self, endpoint: Endpoint, prompt: str, max_tokens: int, timeout_s: float) -> Answer:
            answer = await super().ask(endpoint, prompt, max_tokens, timeout_s)
            if endpoint.revision == "new" and len(self.asked) > 2:
                raise ProbeFailure("HTTP status 500")
            return answer

    script = Failing({"new": 0.0, "old": 0.0})
    with pytest.raises(ProbeError, match=r"^The candidate failed more than half .*: HTTP status 500\.$"):
        paced(script, request(NEW, OLD, prompts=16))
    assert len({text for _, _, text in script.asked}) == 1 + 9
