"""The formulas against engines whose load, acceptance and step time are known because they are simulated."""

from __future__ import annotations

from typing import Any

import pytest

from dflash_controller.engines import ENGINES
from dflash_controller.model.load_sample import LoadSample
from dflash_controller.model.measurement import Absent, Value
from dflash_controller.model.metric_schema import missing
from dflash_controller.model.series import Scrape, between
from dflash_controller.observe.load.samples import Follower
from dflash_controller.observe.pipeline.metrics import RevisionMetrics, revision_metrics
from dflash_controller.observe.sources.scrape.exposition import read_page
from dflash_controller.observe.sources.scrape.ring import Ring
from testbed.simulator.engine import SimulatedEngine
from testbed.simulator.settings import EngineSettings
from testbed.simulator.table import seed_table
from testbed.traffic.in_process import closed_loop, open_loop
from testbed.traffic.mix import Mix, Shots
from testbed.traffic.report import summarize
from tests.support.releases import default_release

MODEL, WORKLOAD = "Qwen3.5-9B", "gsm8k"
SECONDS = 60.0


def engine(name: str, block: int, **changes: Any) -> SimulatedEngine:
    settings = EngineSettings(name, default_release(name), f"Qwen/{MODEL}", "m", 1, block_size=block, **changes)
    return SimulatedEngine(settings, seed_table().match(settings.target), now=0.0, seed=7)


def observed(name: str, before: str | None, after: str | None, seconds: float, speculation_on: bool) -> RevisionMetrics:
    ring = Ring(300.0)
    for at, text in ((0.0, before), (seconds, after)):
        page = read_page(text or "", ENGINES[name].metric_schema)
        assert page is not None
        ring.add(at, page)
    window = ring.window(seconds)
    assert window is not None
    return revision_metrics(ENGINES[name].metric_schema, [window], expected=1, speculation_on=speculation_on)


@pytest.mark.parametrize("name", ["sglang", "vllm"])
@pytest.mark.parametrize(("block", "concurrency"), [(16, 1), (16, 8), (8, 32), (1, 8)])
def test_a_closed_loop_is_seen_as_it_is(name: str, block: int, concurrency: int) -> None:
    simulated = engine(name, block)
    before = simulated.page(0.0)
    log = closed_loop(simulated, Shots(Mix({WORKLOAD: 1.0}, max_tokens=512)), concurrency, 0.0, SECONDS)
    got = observed(name, before, simulated.page(SECONDS), SECONDS, speculation_on=block > 1)
    told = summarize(log, 5.0, SECONDS - 5.0, None)
    length = 1.0
    if block == 1:
        assert got.acceptance_length == got.block_size == Absent("SpeculationOff")
    else:
        assert isinstance(got.acceptance_length, Value)
        length = got.acceptance_length.value
        assert length == pytest.approx(simulated.batch.table.acceptance(WORKLOAD, block).length(block), rel=0.03)
        assert isinstance(got.block_size, Value)
        assert got.block_size.value == block
    assert isinstance(got.concurrency, Value)
    assert isinstance(got.tokens_per_second, Value)
    assert isinstance(got.step_time_s, Value)
    assert got.concurrency.value == pytest.approx(concurrency, rel=0.06)
    assert got.tokens_per_second.value == pytest.approx(told.tokens_per_second, rel=0.06)
    assert got.step_time_s.value == pytest.approx(concurrency * length / told.tokens_per_second, rel=0.06)


@pytest.mark.parametrize("everything", [False, True])
def test_tensor_ranks_change_no_measurement(everything: bool) -> None:
    """SGLang exports some or all series once for each of them."""
    read = []
    for ranks in (1, 8):
        simulated = engine("sglang", 16, tensor_parallel=ranks, metrics_of_all_schedulers=everything)
        before = simulated.page(0.0)
        closed_loop(simulated, Shots(Mix({WORKLOAD: 1.0}, max_tokens=512)), 8, 0.0, SECONDS)
        read.append(observed("sglang", before, simulated.page(SECONDS), SECONDS, speculation_on=True))
    assert read[0] == read[1]
    assert isinstance(read[0].step_time_s, Value)


@pytest.mark.parametrize("name", ["sglang", "vllm"])
def test_half_idle_traffic_has_the_concurrency_of_its_busy_time(name: str) -> None:
    """A request now and then: about one at a time, however long nothing comes between."""
    simulated = engine(name, 16)
    before = simulated.page(0.0)
    open_loop(simulated, Shots(Mix({WORKLOAD: 1.0}, max_tokens=256)), rate=0.2, start_s=0.0, end_s=300.0)
    got = observed(name, before, simulated.page(300.0), 300.0, speculation_on=True)
    assert isinstance(got.concurrency, Value)
    assert 0.9 <= got.concurrency.value <= 1.3
    assert isinstance(got.tokens_per_second, Value)
    assert got.tokens_per_second.value == pytest.approx(0.2 * 256, rel=0.3)


@pytest.mark.parametrize("name", ["sglang", "vllm"])
def test_a_fresh_engine_has_metrics_and_no_figures(name: str) -> None:
    simulated = engine(name, 16)
    got = observed(name, simulated.page(0.0), simulated.page(30.0), 30.0, speculation_on=True)
    assert isinstance(got.acceptance_length, Absent)
    assert isinstance(got.concurrency, Absent)


@pytest.mark.parametrize("name", ["sglang", "vllm"])
@pytest.mark.parametrize("block", [16, 1])
def test_no_metric_is_missed_at_any_time_of_an_engine_that_is_well(name: str, block: int) -> None:
    """Fresh, in its first request, and after many."""
    fresh = engine(name, block)
    pages = [fresh.page(0.0), fresh.page(30.0)]
    for seconds in (0.5, SECONDS):
        simulated = engine(name, block)
        closed_loop(simulated, Shots(Mix({WORKLOAD: 1.0}, max_tokens=512)), 4, 0.0, seconds)
        pages.append(simulated.page(seconds))
    for page in pages:
        read = read_page(page or "", ENGINES[name].metric_schema)
        assert read is not None
        assert missing(ENGINES[name].metric_schema, read.names, block > 1) == ()


@pytest.mark.parametrize("name", ["sglang", "vllm"])
@pytest.mark.parametrize(("block", "concurrency"), [(16, 4), (16, 16), (8, 16)])
def test_slow_prefill_of_few_tokens_does_not_get_into_the_curve(name: str, block: int, concurrency: int) -> None:
    """As measured on an H100: prompts of 24 tokens that cost 80 ms each, and a third of the time or more."""
    simulated = engine(name, block)
    simulated.batch.prefill_pass_s = 0.08
    schema, follower = ENGINES[name].metric_schema, Follower(name, True)
    samples: list[LoadSample] = []
    before: Scrape | None = None
    for at in range(0, 241, 30):
        if at:
            closed_loop(simulated, Shots(Mix({WORKLOAD: 1.0}, max_tokens=512, prompt_tokens=24)), concurrency, at - 30.0, float(at))
        page = read_page(simulated.page(float(at)) or "", schema)
        assert page is not None
        if before is not None:
            made = follower.take(between(before, page, 30.0, series=schema.counters), float(at))
            assert made is not None
            samples.append(made)
        before = page
    step_s = simulated.batch.table.step_time_s(WORKLOAD, block, concurrency)
    points = [sample for sample in samples if not sample.excluded]
    assert points
    for sample in points:
        assert sample.prefill_share > 0.1
        assert sample.step_s > 1.2 * step_s
        assert sample.decode_step_s == pytest.approx(step_s, rel=0.15)
