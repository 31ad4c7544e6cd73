"""Continuous batching in simulated time."""

from __future__ import annotations

import pytest

from testbed.simulator.batching import PREFILL_S_PER_TOKEN, SCHEDULE_DRAFT_COST, Batch, Pass, Request
from testbed.simulator.engine import SimulatedEngine
from testbed.simulator.faults import SOUND, Faults
from testbed.simulator.settings import EngineSettings
from testbed.simulator.table import seed_table
from tests.support.releases import default_release

SGLANG, VLLM = default_release("sglang"), default_release("vllm")


def engine(name: str = "sglang", **changes: object) -> SimulatedEngine:
    settings = EngineSettings(name, default_release(name), "Qwen/Qwen3.5-9B", "m", 1, **{"block_size": 16, **changes})
    return SimulatedEngine(settings, seed_table().match(settings.target), now=0.0, seed=1)


def ask(tokens: int = 200, workload: str = "gsm8k") -> Request:
    return Request(workload, 100, tokens)


@pytest.mark.parametrize("name", ["sglang", "vllm"])
def test_a_request_takes_its_prefill_and_one_step_time_per_verify(name: str) -> None:
    simulated, request = engine(name), ask()
    simulated.submit(request, 5.0)
    simulated.advance(100.0)
    step = seed_table().model("Qwen3.5-9B").step_time_s("gsm8k", 16, 1)
    assert request.generated == 200
    assert request.first_token_s == pytest.approx(5.0 + 100 * PREFILL_S_PER_TOKEN)
    assert request.finished_s == pytest.approx(request.first_token_s + request.verify_steps * step)


def test_more_than_the_limit_wait_in_order() -> None:
    simulated = engine(max_concurrency=2)
    requests = [ask(200), ask(400), ask(200), ask(200)]
    for request in requests:
        simulated.submit(request, 0.0)
    assert [request.admitted_s for request in requests] == [0.0, None, None, None]
    simulated.advance(0.01)
    assert len(simulated.batch.in_service) == 2
    assert len(simulated.batch.waiting) == 2
    simulated.advance(1000.0)
    finished = [request.finished_s for request in requests]
    assert all(finished)
    assert requests[2].admitted_s == finished[0]
    assert requests[3].admitted_s == min(finished[1], finished[2])


def test_a_request_joins_between_steps_and_slows_the_others() -> None:
    simulated, first, second = engine(), ask(2000), ask(2000)
    simulated.submit(first, 0.0)
    simulated.submit(second, 0.5)
    boundary = simulated.batch.next_event_s
    assert boundary is not None
    simulated.advance(10.0)
    assert second.admitted_s == pytest.approx(boundary)
    alone, both = engine(), ask(2000)
    alone.submit(both, 0.0)
    alone.advance(1000.0)
    simulated.advance(1000.0)
    assert first.finished_s > both.finished_s


def test_being_late_changes_nothing() -> None:
    ends = []
    for stride in (0.001, 0.3, 1000.0):
        simulated, request = engine(), ask()
        simulated.submit(request, 0.0)
        now = 0.0
        while request.finished_s is None:
            now += stride
            simulated.advance(now)
        ends.append(request.finished_s)
    assert ends[0] == ends[1] == ends[2]


def test_no_request_finishes_before_the_earliest_finish() -> None:
    simulated = engine()
    requests = [ask(50 + 30 * i) for i in range(6)]
    for request in requests:
        simulated.submit(request, 0.0)
    bound = simulated.batch.earliest_finish_s()
    while bound is not None:
        done_before = sum(request.done for request in requests)
        simulated.advance(bound - 1e-9)
        assert sum(request.done for request in requests) == done_before
        simulated.batch.step()
        bound = simulated.batch.earliest_finish_s()
    assert all(request.done for request in requests)


def test_aborted_requests_leave_at_once_waiting_or_running() -> None:
    simulated = engine(max_concurrency=1)
    running, waiting = ask(5000), ask()
    simulated.submit(running, 0.0)
    simulated.submit(waiting, 0.0)
    simulated.advance(1.0)
    simulated.batch.abort(waiting)
    simulated.batch.abort(running)
    simulated.advance(2.0)
    assert simulated.batch.idle
    assert (running.finished_s, waiting.generated) == (None, 0)


def test_collapse_and_slow_steps() -> None:
    def seconds(faults: Faults) -> tuple[float, int]:
        simulated, request = engine(), ask()
        simulated.set_faults(faults)
        simulated.submit(request, 0.0)
        simulated.advance(1000.0)
        assert request.finished_s is not None
        return request.finished_s, request.verify_steps

    sound, slow, collapsed = seconds(SOUND), seconds(Faults(step_time=2.0)), seconds(Faults(acceptance=0.0))
    assert collapsed[1] == 199
    assert slow[0] == pytest.approx(2 * sound[0], rel=1e-6)
    assert sound[1] < 40


@pytest.mark.parametrize("name", ["sglang", "vllm"])
def test_the_first_pass_of_each_shape_compiles_and_a_new_process_compiles_again(name: str) -> None:
    def seconds(simulated: SimulatedEngine, clients: int, now: float) -> float:
        asked = [ask() for _ in range(clients)]
        for one in asked:
            simulated.submit(one, now)
        simulated.advance(now + 1000.0)
        finished = [one.finished_s for one in asked if one.finished_s is not None]
        return max(finished) - now

    def compiling() -> SimulatedEngine:
        simulated = engine(name)
        simulated.set_faults(Faults(compile_s=10.0))
        return simulated

    simulated = compiling()
    assert 20 < seconds(simulated, 1, 0.0) < 25, "prefill, and the step of one request"
    assert seconds(simulated, 1, 1000.0) < 5
    assert seconds(simulated, 2, 2000.0) > 10, "the step of two"
    assert seconds(simulated, 1, 3000.0) < 5
    assert seconds(compiling(), 1, 0.0) > 20


def test_a_hung_engine_resumes_where_it_stood() -> None:
    simulated, request = engine(), ask()
    simulated.submit(request, 0.0)
    simulated.advance(0.1)
    done = request.generated
    simulated.set_faults(Faults(hang=True))
    simulated.advance(50.0)
    assert request.generated == done
    simulated.set_faults(SOUND)
    simulated.advance(1000.0)
    reference, same = engine(), ask()
    reference.submit(same, 0.0)
    reference.advance(1000.0)
    assert request.finished_s == pytest.approx(same.finished_s + 49.9)


class _Blocks:
    def __init__(self) -> None:
        self.seen: set[tuple[int, int, float]] = set()

    def admitted(self, request: Request) -> None: ...

    def stepped(self, done: Pass, batch: Batch) -> None:
        if done.decoding and not done.prefilling:
            self.seen.add((len(done.decoding), done.block, round(done.end_s - done.start_s, 9)))

    def finished(self, request: Request) -> None: ...

    def aborted(self, request: Request) -> None: ...


def test_a_schedule_picks_the_block_by_load_and_costs_a_little() -> None:
    settings = EngineSettings("vllm", VLLM, "Qwen/Qwen3.5-9B", "m", 1, block_size=16, schedule=((1, 2, 15), (3, 8, 7)), max_concurrency=16)
    table, seen = seed_table().match(settings.target), _Blocks()
    batch = Batch(settings, table, seen)
    for number in (2, 4, 12):
        for _ in range(number):
            batch.submit(ask(100), 0.0)
        while not batch.idle:
            batch.step()
    blocks = {concurrency: block for concurrency, block, _ in seen.seen}
    assert (blocks[2], blocks[3], blocks[4], blocks[12]) == (16, 8, 8, 8)
    durations = {concurrency: seconds for concurrency, _, seconds in seen.seen}
    assert durations[2] == pytest.approx(table.step_time_s("gsm8k", 16, 2))
    assert durations[4] == pytest.approx(SCHEDULE_DRAFT_COST * table.step_time_s("gsm8k", 8, 4))


def test_a_schedule_goes_by_all_requests_of_a_step_prefills_included() -> None:
    settings = EngineSettings("vllm", VLLM, "Qwen/Qwen3.5-9B", "m", 1, block_size=16, schedule=((1, 2, 15), (3, 8, 7)))
    table, seen = seed_table().match(settings.target), _Blocks()
    batch = Batch(settings, table, seen)
    blocks: list[tuple[int, int, int]] = []
    seen.stepped = lambda done, _: blocks.append((len(done.decoding), len(done.prefilling), done.block))  # type: ignore[method-assign]
    for _ in range(3):
        batch.submit(ask(100), 0.0)
        batch.step()
    batch.step()
    assert (1, 1, 16) in blocks
    assert (2, 1, 8) in blocks, "two that decode and one in its prefill are three"


def test_in_a_gap_of_a_schedule_and_past_its_end_the_range_before_goes_on() -> None:
    settings = EngineSettings("vllm", VLLM, "t", "m", 1, block_size=16, schedule=((1, 2, 15), (5, 8, 7), (9, 10, 0), (12, 12, 31)))
    assert [settings.block_for(c) for c in (1, 2, 3, 4, 5, 8, 9, 11)] == [16, 16, 16, 16, 8, 8, 1, 1]
    assert [settings.block_for(c) for c in (12, 99)] == [16, 16], "never more than num_speculative_tokens"


def test_a_mixed_batch_takes_the_mean_of_its_workloads() -> None:
    settings = EngineSettings("sglang", SGLANG, "Qwen/Qwen3.5-9B", "m", 1, block_size=16)
    table, seen = seed_table().match(settings.target), _Blocks()
    batch = Batch(settings, table, seen)
    batch.submit(ask(100, "gsm8k"), 0.0)
    batch.submit(ask(100, "humaneval"), 0.0)
    while not batch.idle:
        batch.step()
    both = (table.step_time_s("gsm8k", 16, 2) + table.step_time_s("humaneval", 16, 2)) / 2
    assert any(concurrency == 2 and seconds == pytest.approx(both) for concurrency, _, seconds in seen.seen)


def test_the_state_cache_caps_what_sglang_serves() -> None:
    """83 slots at five a request serve 16, whatever ``--max-running-requests`` says."""
    simulated = engine(max_concurrency=32, state_slots=83)
    for _ in range(40):
        simulated.submit(ask(400), 0.0)
    simulated.advance(1.0)
    assert len(simulated.batch.in_service) == 16
    assert simulated.batch.settings.served == 16
    assert engine(max_concurrency=32, state_slots=160).batch.settings.served == 32
    assert engine(max_concurrency=32).batch.settings.served == 32
