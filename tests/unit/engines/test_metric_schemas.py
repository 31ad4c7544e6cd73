"""Formulas against pages of real engines (vLLM 0.26.0 and SGLang 0.5.17 on one H100, acceptance imposed at 6.42)."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash_controller.engines.sglang.metrics import METRIC_SCHEMA as SGLANG
from dflash_controller.engines.vllm.metrics import METRIC_SCHEMA as VLLM
from dflash_controller.model.measurement import Absent, Value
from dflash_controller.model.metric_schema import MetricSchema
from dflash_controller.model.series import CounterWindow, LabelledMetric, Scrape
from dflash_controller.observe.pipeline.metrics import RevisionMetrics, revision_metrics
from dflash_controller.observe.sources.scrape.exposition import read_page
from dflash_controller.observe.sources.scrape.ring import Ring

PAGES = Path(__file__).parents[3] / "testbed" / "data" / "metrics"
REAL = {VLLM.engine: (VLLM, PAGES / "vllm-0.26.0.txt"), SGLANG.engine: (SGLANG, PAGES / "sglang-0.5.17.txt")}


def real(dialect: MetricSchema) -> Scrape:
    page = read_page(REAL[dialect.engine][1].read_text(encoding="utf-8"), dialect)
    assert page is not None
    return page


def share(page: Scrape, part: float) -> Scrape:
    """The page as it was when every counter had come ``part`` of the way."""
    return Scrape({cell: value * part for cell, value in page.counters.items()}, page.gauges)


def between(first: Scrape, last: Scrape, seconds: float = 300.0) -> CounterWindow:
    ring = Ring(seconds)
    ring.add(0.0, first)
    ring.add(seconds, last)
    window = ring.window(seconds)
    assert window is not None
    return window


def over(dialect: MetricSchema, *windows: CounterWindow, expected: int | None = None, speculation_on: bool = True) -> RevisionMetrics:
    return revision_metrics(dialect, windows, expected=expected or len(windows), speculation_on=speculation_on)


def value(measured: object) -> float:
    assert isinstance(measured, Value), measured
    return measured.value


@pytest.mark.parametrize("engine", sorted(REAL))
def test_acceptance_block_and_rate_come_back_from_real_pages(engine: str) -> None:
    dialect = REAL[engine][0]
    page = real(dialect)
    got = over(dialect, between(share(page, 0.25), page))
    assert 6.36 <= value(got.acceptance_length) <= 6.47
    assert value(got.block_size) == 16
    tokens = page.counters[LabelledMetric("tokens")]
    assert value(got.tokens_per_second) == pytest.approx(0.75 * tokens / 300)
    assert got.window_s == 300


def test_both_ways_to_the_step_time_agree() -> None:
    """Per request and step, and per pass: tokens of all requests ÷ (τ · c) steps in the same time."""
    vllm = over(VLLM, between(Scrape(), real(VLLM)))
    tokens, inter_token = real(VLLM).counters[LabelledMetric("tokens")], real(VLLM).counters[LabelledMetric("step_seconds")]
    assert value(vllm.step_time_s) == pytest.approx(inter_token * value(vllm.acceptance_length) / tokens, rel=0.02)
    assert value(vllm.step_time_s) == pytest.approx(0.0191, rel=0.01)
    assert value(over(SGLANG, between(Scrape(), real(SGLANG))).step_time_s) == pytest.approx(0.0187, rel=0.01)


def test_sglang_concurrency_is_the_mean_decode_batch_not_the_gauge() -> None:
    counters = real(SGLANG).counters
    got = value(over(SGLANG, between(Scrape(), real(SGLANG))).concurrency)
    assert got == pytest.approx(counters[LabelledMetric("tokens")] / (6.39 * counters[LabelledMetric("passes")]), rel=0.01)
    assert got > 12, "the page's num_running_reqs is 0"


@pytest.mark.parametrize("busy", [1.0, 0.1])
def test_vllm_concurrency_is_that_of_busy_time(busy: float) -> None:
    """Eight requests at 10 ms a step for ``busy`` of the window, one step in five only prefills."""
    steps = 300 * busy / 0.01
    deltas = {
        LabelledMetric("request_steps"): 8 * steps,
        LabelledMetric("step_seconds"): 8 * 300 * busy,
        LabelledMetric("steps"): 1.25 * steps,
    }
    got = value(over(VLLM, CounterWindow(300, deltas)).concurrency)
    assert got == pytest.approx(8.0 if busy == 1.0 else 6.4)


@pytest.mark.parametrize("dialect", [VLLM, SGLANG], ids=lambda one: one.engine)
def test_an_idle_window_has_a_rate_of_zero_and_no_other_figure(dialect: MetricSchema) -> None:
    page = real(dialect)
    got = over(dialect, between(page, page))
    assert value(got.tokens_per_second) == 0
    assert got.acceptance_length == Absent("NoTraffic"), "SGLang's gauge would still say 6.4"
    assert got.concurrency == Absent("NoTraffic")
    assert got.step_time_s == Absent("NoTraffic")
    assert value(got.block_size) == 16


def test_series_that_are_not_there_yet_are_absent_not_zero() -> None:
    fresh = Scrape({LabelledMetric("queue_seconds"): 0.0}, {LabelledMetric("block"): 16.0})
    got = over(SGLANG, between(fresh, fresh))
    assert value(got.block_size) == 16
    for figure in (got.acceptance_length, got.concurrency, got.step_time_s):
        assert figure == Absent("NoSeries")


def test_a_pod_that_has_counted_nothing_yet_generates_nothing() -> None:
    """Else status would keep the tokens per second of the pods before, and beside a pod that serves a new one would count as much."""
    fresh = CounterWindow(300, {LabelledMetric("queue_seconds"): 0.0})
    busy = CounterWindow(300, {LabelledMetric("tokens"): 3000.0, LabelledMetric("passes"): 100.0})
    assert value(over(SGLANG, fresh).tokens_per_second) == 0
    assert value(over(SGLANG, CounterWindow(300, {})).tokens_per_second) == 0
    assert value(over(SGLANG, fresh, busy).tokens_per_second) == pytest.approx(10)


def test_a_counter_that_is_dropped_on_the_way_is_not_zero() -> None:
    assert over(SGLANG, CounterWindow(300, {LabelledMetric("passes"): 100.0})).tokens_per_second == Absent("NoSeries")


def test_no_pod_scraped_leaves_everything_absent() -> None:
    got = over(VLLM, expected=3)
    assert got.acceptance_length == got.tokens_per_second == got.block_size == Absent("NoSeries")


def test_sglang_long_requests_that_have_not_ended_give_no_acceptance() -> None:
    """Tokens and passes move, verify steps are credited at the end."""
    ended = {LabelledMetric("generated"): 0.0, LabelledMetric("verify_steps"): 0.0}
    got = over(SGLANG, CounterWindow(300, {LabelledMetric("tokens"): 5000.0, LabelledMetric("passes"): 900.0, **ended}))
    assert got.acceptance_length == got.concurrency == Absent("NoTraffic")
    assert value(got.tokens_per_second) == pytest.approx(5000 / 300)


def test_speculation_off_names_the_reason_and_keeps_the_load() -> None:
    sglang = {
        LabelledMetric("tokens"): 24_000.0, LabelledMetric("passes"): 3_000.0, LabelledMetric("generated"): 24_080.0,
        LabelledMetric("requests"): 80.0,
        LabelledMetric("e2e_seconds"): 260.0, LabelledMetric("queue_seconds"): 8.0, LabelledMetric("prefill_seconds"): 12.0,
    }  # fmt: skip
    vllm = {
        LabelledMetric("request_steps"): 24_000.0,
        LabelledMetric("step_seconds"): 240.0,
        LabelledMetric("steps"): 3_000.0,
        LabelledMetric("tokens"): 24_080.0,
    }
    for dialect, deltas in ((SGLANG, sglang), (VLLM, vllm)):
        got = over(dialect, CounterWindow(300, deltas), speculation_on=False)
        assert got.acceptance_length == got.block_size == Absent("SpeculationOff")
        assert value(got.concurrency) == pytest.approx(8.0)
        assert value(got.step_time_s) == pytest.approx(0.01)


def test_vllm_steps_without_drafts_give_no_acceptance_but_a_block_by_its_positions() -> None:
    positions = {LabelledMetric("accepted_at", str(i)): 0.0 for i in range(7)}
    drafts = {LabelledMetric("drafts"): 0.0, LabelledMetric("accepted"): 0.0, LabelledMetric("draft_tokens"): 0.0}
    got = over(VLLM, CounterWindow(300, {**positions, **drafts, LabelledMetric("tokens"): 900.0}))
    assert got.acceptance_length == Absent("NoTraffic")
    assert value(got.block_size) == 8


def test_pods_are_summed_before_they_are_divided() -> None:
    """A pod that answered one stray request must not pull the mean of a busy one."""
    busy = CounterWindow(
        300, {LabelledMetric("accepted"): 54_000.0, LabelledMetric("drafts"): 10_000.0, LabelledMetric("tokens"): 64_000.0}
    )
    stray = CounterWindow(300, {LabelledMetric("accepted"): 0.0, LabelledMetric("drafts"): 10.0, LabelledMetric("tokens"): 11.0})
    got = over(VLLM, busy, stray)
    assert value(got.acceptance_length) == pytest.approx(6.4, rel=0.002)
    assert value(got.tokens_per_second) == pytest.approx(64_011 / 300)


def test_a_pod_without_both_series_stays_out_of_the_quotient() -> None:
    whole = CounterWindow(300, {LabelledMetric("generated"): 640.0, LabelledMetric("verify_steps"): 100.0})
    half = CounterWindow(300, {LabelledMetric("generated"): 640.0})
    assert value(over(SGLANG, whole, half).acceptance_length) == pytest.approx(6.4)


def test_tokens_per_second_uses_each_pods_own_span_and_scales_to_all_pods() -> None:
    old, young = CounterWindow(300, {LabelledMetric("tokens"): 30_000.0}), CounterWindow(60, {LabelledMetric("tokens"): 6_000.0})
    assert value(over(VLLM, old, young, expected=10).tokens_per_second) == pytest.approx(1_000)


SGLANG_LABELS = 'model_name="m",engine_type="unified",moe_ep_rank="0",pp_rank="0"'


def test_sglang_labels_are_summed_ranks_are_not_and_priorities_are_not_counted_twice() -> None:
    text = "\n".join(
        [
            "# TYPE sglang:generation_tokens counter",
            'sglang:generation_tokens_total{is_streaming="true",model_name="m"} 100',
            'sglang:generation_tokens_total{is_streaming="false",model_name="m"} 28',
            'sglang:generation_tokens_created{is_streaming="false",model_name="m"} 1.7e9',
            'sglang:spec_verify_calls_total{model_name="m"} 20',
            f'sglang:cuda_graph_passes_total{{{SGLANG_LABELS},dp_rank="0",tp_rank="0",mode="decode_cuda_graph"}} 70',
            f'sglang:cuda_graph_passes_total{{{SGLANG_LABELS},dp_rank="0",tp_rank="0",mode="decode_none"}} 5',
            f'sglang:cuda_graph_passes_total{{{SGLANG_LABELS},dp_rank="1",tp_rank="4",mode="decode_cuda_graph"}} 74',
            f'sglang:cuda_graph_passes_total{{{SGLANG_LABELS},dp_rank="0",tp_rank="0",mode="prefill_cuda_graph"}} 900',
            f'sglang:realtime_tokens_total{{{SGLANG_LABELS},dp_rank="0",tp_rank="0",mode="decode"}} 60',
            f'sglang:realtime_tokens_total{{{SGLANG_LABELS},dp_rank="1",tp_rank="4",mode="decode"}} 68',
            f'sglang:realtime_tokens_total{{{SGLANG_LABELS},dp_rank="1",tp_rank="4",mode="prefill_compute"}} 1000',
            'sglang:queue_time_seconds_sum{model_name="m",priority=""} 3',
            'sglang:queue_time_seconds_sum{model_name="m",priority="1"} 2',
            'sglang:time_to_first_token_seconds_sum{is_streaming="false"} 1053',
            'sglang:time_to_first_token_seconds_count{is_streaming="false"} 1448',
            'sglang:time_to_first_token_seconds_sum{is_streaming="true"} 0.5',
            'sglang:time_to_first_token_seconds_count{is_streaming="true"} 10',
            f"sglang:spec_num_draft_tokens{{{SGLANG_LABELS}}} 8",
            f"sglang:fwd_occupancy{{{SGLANG_LABELS}}} NaN",
            "",
        ]
    )
    page = read_page(text, SGLANG)
    assert page is not None
    assert page.counters == {
        LabelledMetric("generated"): 128.0,
        LabelledMetric("verify_steps"): 20.0,
        LabelledMetric("passes"): 75.0,
        LabelledMetric("tokens"): 128.0,
        LabelledMetric("queue_seconds"): 3.0,
        LabelledMetric("prefilled"): 1000.0,
        LabelledMetric("bare_passes"): 5.0,
        LabelledMetric("prefill_passes"): 900.0,
    }
    assert page.gauges == {LabelledMetric("block"): 8.0}


def test_vllm_engines_of_one_pod_are_summed_but_step_together() -> None:
    lines = []
    for engine in "01":
        lines += [
            f'vllm:inter_token_latency_seconds_count{{engine="{engine}"}} 400',
            f'vllm:inter_token_latency_seconds_sum{{engine="{engine}"}} 4',
            f'vllm:iteration_tokens_total_count{{engine="{engine}"}} 100',
        ]
    page = read_page("\n".join(lines), VLLM)
    assert page is not None
    assert value(over(VLLM, between(Scrape(), page)).concurrency) == pytest.approx(8.0)


def test_a_page_of_another_program_is_no_page() -> None:
    assert read_page("# HELP up x\nup 1\nprocess_open_fds 3\n", VLLM) is None
    assert read_page("", SGLANG) is None


def test_a_page_with_the_engine_but_none_of_our_series_is_an_empty_page() -> None:
    assert read_page("sglang:max_total_num_tokens 5\n", SGLANG) == Scrape()


@pytest.mark.parametrize("bad", ['vllm:generation_tokens_total{engine="0"', "vllm:generation_tokens_total{} many"])
def test_a_malformed_needed_line_is_an_error(bad: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_page(bad, VLLM)


def test_not_a_number_is_skipped() -> None:
    page = read_page('vllm:generation_tokens_total{engine="0"} NaN\nvllm:spec_decode_num_drafts_total 5\n', VLLM)
    assert page == Scrape({LabelledMetric("drafts"): 5.0})
