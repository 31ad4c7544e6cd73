"""Requests that the engines' memory holds, from their own metrics."""

from __future__ import annotations

import pytest

from dflash_controller.engines import ENGINES
from dflash_controller.model.measurement import Measurement, Value
from dflash_controller.model.series import CounterWindow, LabelledMetric, between
from dflash_controller.observe.pipeline.metrics import revision_metrics
from dflash_controller.observe.sources.scrape.exposition import read_page
from testbed.simulator.batching import Request
from testbed.simulator.engine import SimulatedEngine
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


def test_a_simulated_sglang_with_83_slots_is_read_as_16_requests() -> None:
    settings = EngineSettings("sglang", "0.5.17", "Qwen/Qwen3.5-9B", "m", 1, block_size=16, max_concurrency=32, state_slots=83)
    simulated = SimulatedEngine(settings, seed_table().match(settings.target), now=0.0, seed=1)
    for _ in range(200):
        simulated.submit(Request("gsm8k", 100, 200), 0.0)
    schema = ENGINES["sglang"].metric_schema
    simulated.advance(2.0)
    first = simulated.page(2.0)
    simulated.advance(5.0)
    last = simulated.page(5.0)
    assert first is not None
    assert last is not None
    pages = [read_page(text, schema) for text in (first, last)]
    assert pages[0] is not None
    assert pages[1] is not None
    window = between(pages[0], pages[1], 3.0, series=schema.counters)
    found = revision_metrics(schema, [window], expected=1, speculation_on=True, slots_per_request=5)
    assert isinstance(found.request_capacity, Value)
    assert found.request_capacity.value == 16.0
    assert isinstance(found.concurrency, Value)
    assert found.concurrency.value == pytest.approx(16, rel=0.2)
