"""vLLM's cache in blocks: how many requests a hybrid target holds at a block size, and what becomes of those that it does not."""

from __future__ import annotations

import json

import pytest

from testbed.nodes import memory_bytes
from testbed.simulator.argv import ArgvError
from testbed.simulator.batching import Request
from testbed.simulator.cache_blocks import DENSE, CacheBlocks
from testbed.simulator.engine import SimulatedEngine
from testbed.simulator.launch import Process, settings_of
from testbed.simulator.page import parse_page
from testbed.simulator.settings import EngineSettings
from testbed.simulator.table import seed_table

H100 = "NVIDIA-H100-80GB-HBM3"


def process(block: int, *flags: str, release: str = "0.26.0", target: str = "Qwen/Qwen3.5-9B", **env: str) -> Process:
    """A vLLM that is asked for 64 requests and captures graphs for 32, as it was measured."""
    drafter = {"method": "dflash", "model": f"z-lab/{target.split('/')[1]}-DFlash", "num_speculative_tokens": block - 1}
    command = ["vllm", "serve", target, "--max-num-seqs=64", f"--max-cudagraph-capture-size={32 * block}", *flags]
    command += ["--speculative-config", json.dumps(drafter)] if block > 1 else []
    return Process(tuple(command), env, f"vllm/vllm-openai:v{release}", product=H100)


def cache(block: int, *flags: str, **named: str) -> CacheBlocks:
    found = settings_of(process(block, *flags, **named)).cache
    assert found is not None
    return found


def engine(settings: EngineSettings) -> SimulatedEngine:
    return SimulatedEngine(settings, seed_table().match(settings.target), now=0.0, seed=1)


def samples(simulated: SimulatedEngine, now: float) -> dict[str, float]:
    """The gauges and counters of a page without more labels than model and engine, and sums of the histograms."""
    page = simulated.page(now)
    assert page is not None
    return {name: sum(value for _, value in metric.children) for name, metric in parse_page(page).items()}


@pytest.mark.parametrize(
    ("block", "blocks", "tokens", "held", "requests"), [(16, 2912, 592, 67, 43), (8, 3675, 560, 35, 104)], ids=["16", "8"]
)
def test_blocks_and_what_a_request_holds_are_those_of_an_h100(block: int, blocks: int, tokens: int, held: int, requests: int) -> None:
    found = cache(block)
    assert found.count == pytest.approx(blocks, abs=1)
    assert found.tokens == tokens
    assert found.held(464) == held
    assert found.usable // held == requests


@pytest.mark.parametrize(("block", "running", "usage"), [(16, 31, 0.7135), (8, 29, 0.2763)], ids=["16", "8"])
def test_the_page_shows_the_use_that_was_measured(block: int, running: int, usage: float) -> None:
    simulated = engine(settings_of(process(block)))
    for _ in range(running):
        simulated.submit(Request("gsm8k", 64, 400), 0.0)
    shown = samples(simulated, 0.5)
    assert shown["vllm:num_requests_running"] == running
    assert shown["vllm:kv_cache_usage_perc"] == pytest.approx(usage, abs=0.0005)
    [(labels, _)] = parse_page(simulated.page(0.5) or "")["vllm:cache_config_info"].children
    assert float(labels["kv_cache_max_concurrency"]) == pytest.approx({16: 2.0905, 8: 2.5539}[block], abs=0.001)


def test_what_does_not_fit_waits_at_one_block_size_and_not_at_the_other() -> None:
    waiting = {}
    for block in (8, 16):
        simulated = engine(settings_of(process(block)))
        for _ in range(60):
            simulated.submit(Request("gsm8k", 64, 400), 0.0)
        shown = samples(simulated, 0.5)
        waiting[block] = shown["vllm:num_requests_waiting"]
        assert shown["vllm:num_requests_running"] == 60 - waiting[block]
        assert shown["vllm:num_requests_waiting_by_reason"] == waiting[block]
        assert shown["vllm:kv_cache_usage_perc"] <= 1
        simulated.advance(1000.0)
        assert samples(simulated, 1000.0)["vllm:request_success_total"] == 60
    assert waiting == {8: 0, 16: 17}


@pytest.mark.parametrize(
    ("flags", "env", "release", "requests"),
    [
        ((), {"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": "0"}, "0.26.0", 52),
        (("--gpu-memory-utilization=0.8",), {}, "0.26.0", 32),
        (("--mamba-ssm-cache-dtype=bfloat16",), {}, "0.26.0", 73),
        ((), {}, "0.33.0", 51),
    ],
    ids=["no estimate of graphs", "a smaller share", "half the state", "graphs measured"],
)
def test_what_is_left_of_the_memory_decides_how_many_fit(flags: tuple[str, ...], env: dict[str, str], release: str, requests: int) -> None:
    found = cache(16, *flags, release=release, **env)
    assert found.usable // found.held(464) == requests


def test_an_engine_whose_cache_holds_nothing_does_not_start() -> None:
    with pytest.raises(ArgvError, match="No available memory for the cache blocks"):
        settings_of(process(16, "--gpu-memory-utilization=0.3"))


def test_a_dense_target_has_the_recorded_cache_at_every_block_size() -> None:
    assert cache(16, target="Qwen/Qwen3-8B") == cache(8, target="Qwen/Qwen3-8B") == DENSE
    assert DENSE.count * DENSE.tokens == 342880


def test_sglang_has_slots_and_no_blocks() -> None:
    command = ("python3", "-m", "sglang.launch_server", "--model-path", "Qwen/Qwen3.5-9B")
    assert settings_of(Process(command, image="lmsysorg/sglang:v0.5.23")).cache is None


def test_the_accelerators_are_those_of_the_nodes() -> None:
    assert memory_bytes(H100) == 81559 * 2**20
    assert memory_bytes("NVIDIA-A100") is None


def test_a_request_for_which_there_is_no_block_gives_way_and_goes_on_later() -> None:
    """Two requests of 40 tokens and 100 to come fit at first, in blocks of 16; both whole do not."""
    settings = EngineSettings("vllm", "0.26.0", "Qwen/Qwen3.5-9B", "m", 1, block_size=8, cache=CacheBlocks(15, 16))
    simulated = engine(settings)
    first, second = Request("gsm8k", 40, 100), Request("gsm8k", 40, 100)
    simulated.submit(first, 0.0)
    simulated.submit(second, 0.0)
    while not second.preemptions:
        simulated.batch.step()
    had, begun_s, at = second.generated, second.first_token_s, simulated.batch.next_event_s
    assert at is not None
    assert 1 < had < 100
    assert first.preemptions == 0, "the one that was admitted last gives way"
    shown = samples(simulated, at - 1e-6)
    assert (shown["vllm:num_preemptions_total"], shown["vllm:num_requests_waiting"], shown["vllm:num_requests_running"]) == (1, 1, 1)
    simulated.advance(1000.0)
    assert second.generated == 100
    assert second.first_token_s == begun_s, "what it has sent stays sent"
    assert first.finished_s is not None
    assert second.finished_s is not None
    assert second.finished_s > first.finished_s
    shown = samples(simulated, 1000.0)
    assert shown["vllm:prompt_tokens_total"] == 80, "a prompt that is computed again is not counted again"
    assert shown["vllm:generation_tokens_total"] == 200
    assert 'vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 2.0' in (simulated.page(1000.0) or "")


def test_a_request_that_waits_for_blocks_lets_none_pass() -> None:
    settings = EngineSettings("vllm", "0.26.0", "Qwen/Qwen3.5-9B", "m", 1, block_size=8, cache=CacheBlocks(13, 16))
    simulated = engine(settings)
    requests = [Request("gsm8k", 100, 20), Request("gsm8k", 100, 20), Request("gsm8k", 20, 20)]
    for request in requests:
        simulated.submit(request, 0.0)
    simulated.batch.step()
    assert [request.admitted_s is not None for request in requests] == [True, False, False]
    simulated.advance(1000.0)
    assert all(request.generated == 20 for request in requests)
