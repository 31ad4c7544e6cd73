"""A simulated vLLM that follows a schedule, from its command line to its counters, against what was measured on a real one."""

from __future__ import annotations

import csv
import dataclasses

import pytest

from dflash_controller.api.speculation import Fixed, Schedule, Speculation
from dflash_controller.engines import ENGINES
from testbed.contract.examples import request
from testbed.simulator.engine import SimulatedEngine
from testbed.simulator.launch import Process, settings_of
from testbed.simulator.table import DATA, Table
from testbed.traffic.in_process import closed_loop
from testbed.traffic.mix import Mix, Shots
from testbed.traffic.scrape import totals

TABLES = DATA / "h100_vllm_dense.csv"
H100 = Table.load(TABLES, DATA / "h100_vllm_dense_accept.csv")
MODEL, WORKLOAD = "Qwen3-8B-shape", "synthetic"
SPEC, GENERATED, STEPS = "vllm:spec_decode_num", "vllm:generation_tokens_total", "vllm:inter_token_latency_seconds_count"
SCHEDULE = Schedule(((1, 16, 15), (17, 64, 7)))


def engine(speculation: Speculation) -> SimulatedEngine:
    """Started with the very command line that the operator renders."""
    asked = dataclasses.replace(request("vllm", "0.26.0", "Qwen/Qwen3.5-35B-A3B", 1), speculation=speculation, max_concurrency=64)
    launched = ENGINES["vllm"].launch(asked)
    settings = settings_of(Process((*launched.command, *launched.args), image="vllm/vllm-openai:v0.26.0"))
    return SimulatedEngine(settings, H100.model(MODEL), now=0.0, seed=5)


def serve(simulated: SimulatedEngine, clients: int, start_s: float, seconds: float = 8.0) -> tuple[float, float, float]:
    """Tokens per second, drafts per request and step, and accepted drafts plus one; all requests are out at the end."""
    before = simulated.page(start_s) or ""
    end_s = start_s + seconds
    closed_loop(simulated, Shots(Mix({WORKLOAD: 1.0}, max_tokens=1500)), clients, start_s, end_s)
    after = simulated.page(end_s) or ""
    for flying in list(simulated.batch.in_service):
        simulated.batch.abort(flying)
    while not simulated.batch.idle:
        simulated.batch.step()
    names = (GENERATED, f"{SPEC}_drafts_total", f"{SPEC}_draft_tokens_total")
    generated, drafts, tokens = (counted(after, name) - counted(before, name) for name in names)
    length = totals(after).since(totals(before))
    assert length is not None
    return generated / seconds, tokens / drafts, length


def counted(page: str, name: str) -> float:
    return sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith(f"{name}{{"))


def measured_under_the_schedule() -> dict[int, float]:
    with TABLES.open(newline="") as rows:
        return {int(row["concurrency"]): float(row["tok_per_s"]) for row in csv.DictReader(rows) if row["notes"].startswith("schedule;")}


def test_the_real_engine_was_measured_under_this_schedule() -> None:
    assert sorted(measured_under_the_schedule()) == [4, 8, 16, 32, 64]


@pytest.mark.parametrize("clients", [4, 8, 16, 32, 64])
def test_speed_and_counters_under_a_schedule_are_those_of_the_real_engine(clients: int) -> None:
    tokens_per_second, drafts, length = serve(engine(SCHEDULE), clients, 0.0)
    block = 16 if clients <= 16 else 8
    assert tokens_per_second == pytest.approx(measured_under_the_schedule()[clients], rel=0.04)
    assert drafts == pytest.approx(block - 1, rel=0.01)
    assert length == pytest.approx(H100.model(MODEL).acceptance(WORKLOAD, block).length(block), rel=0.03)


def test_below_its_largest_block_it_is_3_to_6_percent_slower_than_a_true_block() -> None:
    for clients in (32, 64):
        true, scheduled = (serve(engine(speculation), clients, 0.0)[0] for speculation in (Fixed(8), SCHEDULE))
        assert 1.03 < true / scheduled < 1.06
    true, scheduled = (serve(engine(speculation), 8, 0.0)[0] for speculation in (Fixed(16), SCHEDULE))
    assert scheduled == pytest.approx(true, rel=0.01), "nothing at its largest block"


def test_as_load_rises_and_falls_again_one_engine_changes_its_drafts_and_goes_back() -> None:
    simulated = engine(SCHEDULE)
    seen = []
    for clients in (1, 32, 1):
        seen.append(serve(simulated, clients, 100.0 * len(seen)))
    assert [round(drafts) for _, drafts, _ in seen] == [15, 7, 15]
    alone, busy = H100.throughput(MODEL, WORKLOAD, 16, 1), H100.throughput(MODEL, WORKLOAD, 8, 32) / 1.045
    assert [tokens for tokens, _, _ in seen] == [pytest.approx(expected, rel=0.05) for expected in (alone, busy, alone)]
    assert simulated.settings.schedule == SCHEDULE.ranges


def test_where_a_schedule_drafts_nothing_the_counters_of_drafts_stand_still() -> None:
    simulated = engine(Schedule(((1, 4, 15), (5, 64, 0))))
    closed_loop(simulated, Shots(Mix({WORKLOAD: 1.0}, max_tokens=256)), 8, 0.0, 10.0)
    page = simulated.page(10.0) or ""
    assert counted(page, f"{SPEC}_drafts_total") == counted(page, f"{SPEC}_draft_tokens_total") == 0
    assert counted(page, GENERATED) == pytest.approx(counted(page, STEPS), rel=0.02), "one token for each request of a step"
