"""Requests that the engines' memory holds, from their own metrics."""

from __future__ import annotations

import json

import pytest

from dflash_controller.engines import ENGINES
from dflash_controller.model.measurement import Measurement, Value
from dflash_controller.model.series import CounterWindow, LabelledMetric, between
from dflash_controller.observe.pipeline.metrics import RevisionMetrics, revision_metrics
from dflash_controller.observe.sources.scrape.exposition import read_page
from testbed.simulator.batching import Request
from testbed.simulator.engine import SimulatedEngine
from testbed.simulator.launch import Process, settings_of
from testbed.simulator.settings import EngineSettings
from testbed.simulator.table import seed_table


def capacity(engine: str, *pods: dict[str, float], slots_per_request: int = 0) -> Measurement:
    windows = [CounterWindow(300.0, {}, {LabelledMetric(name): value for name, value in levels.items()}) for levels in pods]
    schema = ENGINES[engine].metric_schema
    return revision_metrics(schema, windows, expected=len(pods), speculation_on=True, slots_per_request=slots_per_request).request_capacity


def test_sglangs_slots_of_state_say_how_many_requests_run() -> None:
    levels = {"state_free": 40.0, "state_cached": 10.0, "state_used": 33.0}
    found = capacity("sglang", levels, slots_per_request=5)
    assert isinstance(found, Value)
    assert found.value == 16.0
    assert not isinstance(capacity("sglang", {"state_free": 0.0, "state_cached": 0.0, "state_used": 0.0}, slots_per_request=5), Value)


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_a_cache_in_use_says_how_many_such_requests_it_holds(engine: str) -> None:
    # vLLM at block 16 on an H100: 31 requests in 71 % of the cache, so 43 fit.
    found = capacity(engine, {"running": 31.0, "cache_used": 0.7135}, {"running": 20.0, "cache_used": 0.3})
    assert isinstance(found, Value)
    assert found.value == pytest.approx(43.4, abs=0.1), "the pod that holds fewest"


@pytest.mark.parametrize("levels", [{"running": 5.0, "cache_used": 0.1}, {"running": 1.0, "cache_used": 0.5}, {"running": 31.0}, {}])
def test_little_use_says_nothing(levels: dict[str, float]) -> None:
    assert not isinstance(capacity("vllm", levels), Value)


def test_the_smaller_of_state_and_cache_counts() -> None:
    levels = {"state_free": 0.0, "state_cached": 60.0, "state_used": 100.0, "running": 20.0, "cache_used": 0.8}
    found = capacity("sglang", levels, slots_per_request=5)
    assert isinstance(found, Value)
    assert found.value == 25.0


def simulated(settings: EngineSettings, requests: int, slots_per_request: int = 0) -> RevisionMetrics:
    """What is read from an engine under this load between two of its pages."""
    engine = SimulatedEngine(settings, seed_table().match(settings.target), now=0.0, seed=1)
    for _ in range(requests):
        engine.submit(Request("gsm8k", 64, 400), 0.0)
    schema = ENGINES[settings.engine].metric_schema
    pages = []
    for at_s in (0.1, 1.0):
        engine.advance(at_s)
        text = engine.page(at_s)
        assert text is not None
        pages.append(read_page(text, schema))
    first, last = pages
    assert first is not None
    assert last is not None
    window = between(first, last, 0.9, series=schema.counters)
    return revision_metrics(schema, [window], expected=1, speculation_on=True, slots_per_request=slots_per_request)


def test_a_simulated_sglang_with_83_slots_is_read_as_16_requests() -> None:
    settings = EngineSettings("sglang", "0.5.17", "Qwen/Qwen3.5-9B", "m", 1, block_size=16, max_concurrency=32, state_slots=83)
    found = simulated(settings, 200, slots_per_request=5)
    assert isinstance(found.request_capacity, Value)
    assert found.request_capacity.value == 16.0
    assert isinstance(found.concurrency, Value)
    assert found.concurrency.value == pytest.approx(16, rel=0.2)


@pytest.mark.parametrize(("block", "requests", "capacity"), [(16, 31, 43.4), (16, 60, 43.4), (8, 60, 105.0)])
def test_a_simulated_vllm_holds_as_many_as_an_h100_with_and_without_a_queue(block: int, requests: int, capacity: float) -> None:
    found = simulated(vllm(block), requests)
    assert isinstance(found.request_capacity, Value)
    assert found.request_capacity.value == pytest.approx(capacity, abs=0.8)


def vllm(block: int) -> EngineSettings:
    """vLLM 0.26.0 with 9B on an H100."""
    drafter = {"method": "dflash", "model": "z-lab/Qwen3.5-9B-DFlash", "num_speculative_tokens": block - 1}
    command = ("vllm", "serve", "Qwen/Qwen3.5-9B", "--max-num-seqs=64", f"--max-cudagraph-capture-size={32 * block}")
    image = "vllm/vllm-openai:v0.26.0"
    return settings_of(Process((*command, "--speculative-config", json.dumps(drafter)), {}, image, product="NVIDIA-H100-80GB-HBM3"))


def test_slots_that_stay_taken_for_prefixes_are_no_use_of_the_cache() -> None:
    # SGLang 0.5.17 on an H200 just after the load had grown: 145 slots of which 116 are in use, 12 requests as last reported, and 2 % of
    # the cache of keys and values.
    page = """\
# TYPE sglang:max_total_num_tokens gauge
sglang:max_total_num_tokens{tp_rank="0"} 395653
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{tp_rank="0"} 12
# TYPE sglang:token_usage gauge
sglang:token_usage{tp_rank="0"} 0.8
# TYPE sglang:full_token_usage gauge
sglang:full_token_usage{tp_rank="0"} 0.02
# TYPE sglang:mamba_used_tokens gauge
sglang:mamba_used_tokens{tp_rank="0"} 116
# TYPE sglang:mamba_evictable_tokens gauge
sglang:mamba_evictable_tokens{tp_rank="0"} 0
# TYPE sglang:mamba_available_tokens gauge
sglang:mamba_available_tokens{tp_rank="0"} 29
"""
    schema = ENGINES["sglang"].metric_schema
    scraped = read_page(page, schema)
    assert scraped is not None
    window = between(scraped, scraped, 60.0, series=schema.counters)
    found = revision_metrics(schema, [window], expected=1, speculation_on=True, slots_per_request=5)
    assert isinstance(found.request_capacity, Value)
    assert found.request_capacity.value == 29.0
