"""What the traffic generator measures on the simulator is what the simulator's table says, in simulated time."""

from __future__ import annotations

import pytest

from testbed.simulator.engine import SimulatedEngine
from testbed.simulator.settings import EngineSettings
from testbed.simulator.table import seed_table
from testbed.traffic.in_process import closed_loop, open_loop
from testbed.traffic.mix import Mix, Shots, parse_weights
from testbed.traffic.report import quantile, summarize
from testbed.traffic.scrape import totals
from tests.support.releases import default_release

CELLS = [
    ("Qwen3.5-9B", "gsm8k", 16, 1),
    ("Qwen3.5-9B", "math500", 8, 32),
    ("Qwen3.5-9B", "mt-bench", 16, 16),
    ("Qwen3.5-9B", "alpaca", 1, 8),
    ("Qwen3.5-27B", "humaneval", 16, 32),
    ("Qwen3.5-27B", "mbpp", 8, 8),
    ("Qwen3.5-35B-A3B", "math500", 4, 32),
    ("Qwen3.5-35B-A3B", "mt-bench", 16, 1),
    ("Qwen3.5-397B-A17B", "humaneval", 16, 1),
    ("Qwen3.5-397B-A17B", "humaneval", 8, 32),
]


def engine(name: str, model: str, block: int) -> SimulatedEngine:
    settings = EngineSettings(name, default_release(name), f"Qwen/{model}", "m", 1, block_size=block)
    return SimulatedEngine(settings, seed_table().match(settings.target), now=0.0, seed=7)


@pytest.mark.parametrize("name", ["sglang", "vllm"])
@pytest.mark.parametrize(("model", "workload", "block", "concurrency"), CELLS)
def test_tokens_per_second_within_five_percent_of_the_table(name: str, model: str, workload: str, block: int, concurrency: int) -> None:
    simulated = engine(name, model, block)
    end = 120.0 if concurrency == 1 else 40.0
    log = closed_loop(simulated, Shots(Mix({workload: 1.0}, max_tokens=1024)), concurrency, 0.0, end)
    length = totals(simulated.page(end) or "").since(totals(""))
    report = summarize(log, 10.0, end - 10.0, length)
    expected = seed_table().throughput(model, workload, block, concurrency)
    assert report.tokens_per_second == pytest.approx(expected, rel=0.05)
    assert report.mean_concurrency == pytest.approx(concurrency, rel=0.03)
    if block == 1:
        assert length is None
    else:
        assert length == pytest.approx(simulated.batch.table.acceptance(workload, block).length(block), rel=0.03)


def test_open_loop_answers_what_arrives_and_littles_law_holds() -> None:
    simulated = engine("vllm", "Qwen3.5-9B", 16)
    log = open_loop(simulated, Shots(Mix(max_tokens=200)), rate=8.0, start_s=0.0, end_s=200.0)
    report = summarize(log, 20.0, 180.0, None)
    assert report.requests_per_second == pytest.approx(8.0, rel=0.1)
    assert report.tokens_per_second == pytest.approx(200 * 8.0, rel=0.1)
    mean_latency = report.latency_s["mean"]
    assert mean_latency is not None
    assert report.mean_concurrency == pytest.approx(report.requests_per_second * mean_latency, rel=0.05)


def test_open_loop_over_capacity_queues() -> None:
    simulated = engine("sglang", "Qwen3.5-27B", 16)
    open_loop(simulated, Shots(Mix(max_tokens=500)), rate=20.0, start_s=0.0, end_s=60.0)
    assert len(simulated.batch.waiting) > 100
    assert len(simulated.batch.in_service) == 32


def test_a_mix_sends_workloads_by_weight() -> None:
    simulated = engine("sglang", "Qwen3.5-9B", 16)
    log = closed_loop(simulated, Shots(Mix({"gsm8k": 3.0, "humaneval": 1.0}, max_tokens=50)), 8, 0.0, 20.0)
    by_workload = summarize(log, 0.0, 20.0, None).by_workload
    assert by_workload["gsm8k"] / by_workload["humaneval"] == pytest.approx(3.0, rel=0.15)


def test_prompts_are_never_the_same_and_have_their_length() -> None:
    shots = Shots(Mix(prompt_tokens=50))
    prompts = [shots.next().prompt for _ in range(100)]
    assert len(set(prompts)) == 100
    assert {len(prompt) for prompt in prompts} == {200}


def test_weights_are_read_and_nonsense_is_refused() -> None:
    assert parse_weights("gsm8k=3,humaneval") == {"gsm8k": 3.0, "humaneval": 1.0}
    for text in ("", "=1", "gsm8k=0", "gsm8k=x"):
        with pytest.raises(ValueError, match=r".+"):
            parse_weights(text)


def test_quantiles_are_values_that_were_seen() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([3.0, 1.0, 2.0], 0.99) == 3.0
    assert quantile([], 0.5) is None
