"""How the series of several ranks become one number: by the scope that each engine declares for each of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash_controller.engines import ENGINES
from dflash_controller.engines.sglang.metrics import METRIC_SCHEMA as SGLANG
from dflash_controller.engines.vllm.metrics import METRIC_SCHEMA as VLLM
from dflash_controller.model.measurement import Value
from dflash_controller.model.series import LabelledMetric, Scrape, between
from dflash_controller.observe.pipeline.metrics import RevisionMetrics, revision_metrics
from dflash_controller.observe.sources.scrape.exposition import read_page

PAGES = Path(__file__).parents[3] / "testbed" / "data" / "metrics"
RECORDED = {"vllm": PAGES / "vllm-0.26.0.txt", "sglang": PAGES / "sglang-0.5.17.txt"}
FRONT_END = """
sglang:generation_tokens_total{model_name="m",is_streaming="false"} 8000
sglang:spec_verify_calls_total{model_name="m"} 1600
sglang:num_requests_total{model_name="m",is_streaming="false"} 16
sglang:e2e_request_latency_seconds_sum{model_name="m",is_streaming="false"} 24
"""
"""Acceptance length 5, and what it says of requests does not depend on the ranks."""


def sample(metric: str, value: float, **labels: object) -> str:
    listed = ",".join(f'{name}="{text}"' for name, text in labels.items())
    return f"{metric}{{{listed}}} {value}\n"


def of_rank(tokens: float | None = 8000, passes: float = 100, queue_s: float = 4, prefill_s: float = 4, **rank: object) -> str:
    """What one scheduler counts. Without the flag, ``tokens`` only where it is the first of its group; the rest always."""
    page = "" if tokens is None else sample("sglang:realtime_tokens_total", tokens, mode="decode", **rank)
    page += sample("sglang:cuda_graph_passes_total", passes, mode="decode_cuda_graph", **rank)
    page += sample("sglang:queue_time_seconds_sum", queue_s, **rank)
    page += sample("sglang:per_stage_req_latency_seconds_sum", prefill_s, stage="prefill_forward", **rank)
    return page + sample("sglang:spec_num_draft_tokens", 16, **rank)


def measured(page: str) -> RevisionMetrics:
    """Metrics over 100 s in which the page came to be."""
    read = read_page(page, SGLANG)
    assert read is not None
    return revision_metrics(SGLANG, [between(Scrape(), read, 100.0)], expected=1, speculation_on=True)


def value(measurement: object) -> float:
    assert isinstance(measurement, Value), measurement
    return measurement.value


ONE = FRONT_END + of_rank(tp_rank=0, pp_rank=0, moe_ep_rank=0)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(ONE, id="one rank"),
        pytest.param(FRONT_END + "".join(of_rank(tp_rank=rank) for rank in range(4)), id="tp 4, all export"),
        pytest.param(FRONT_END + "".join(of_rank(None if rank else 8000, tp_rank=rank) for rank in range(4)), id="tp 4, the first exports"),
        pytest.param(FRONT_END + "".join(of_rank(tp_rank=rank, moe_ep_rank=rank) for rank in range(8)), id="tp 8, ep 8"),
        pytest.param(FRONT_END + "".join(of_rank(tp_rank=t, pp_rank=p) for t in range(2) for p in range(2)), id="tp 2, pp 2"),
        pytest.param(
            FRONT_END + "".join(of_rank(4000, queue_s=2, prefill_s=2, tp_rank=rank, dp_rank=rank // 4) for rank in range(8)),
            id="DP attention, tp 8 in 2 groups, all export",
        ),
        pytest.param(
            FRONT_END
            + "".join(
                of_rank(None if rank % 4 else 4000, queue_s=2, prefill_s=2, tp_rank=rank, dp_rank=rank // 4, moe_ep_rank=rank)
                for rank in range(8)
            ),
            id="DP attention, tp 8 in 2 groups, the first of each exports",
        ),
        pytest.param(
            FRONT_END + "".join(of_rank(1000, queue_s=0.5, prefill_s=0.5, tp_rank=rank, dp_rank=rank) for rank in range(8)),
            id="DP attention, tp 8 in 8 groups",
        ),
        pytest.param(
            FRONT_END + "".join(of_rank(4000, queue_s=2, prefill_s=2, tp_rank=t, dp_rank=d) for d in range(2) for t in range(2)),
            id="dp 2 of tp 2",
        ),
    ],
)
def test_an_engine_reads_the_same_whatever_its_ranks_and_whichever_of_them_export(page: str) -> None:
    got = measured(page)
    assert value(got.concurrency) == pytest.approx(16)
    assert value(got.step_time_s) == pytest.approx((24 - 4 - 4) / 1600)
    assert value(got.tokens_per_second) == pytest.approx(80)
    assert value(got.block_size) == 16


def test_groups_with_unequal_load_are_summed_and_their_copies_are_not() -> None:
    """A plain maximum over tp_rank would read 6000, a plain sum 16,000."""
    page = FRONT_END + "".join(of_rank(6000 if rank < 2 else 2000, tp_rank=rank, dp_rank=rank // 2) for rank in range(4))
    read = read_page(page, SGLANG)
    assert read is not None
    assert read.counters[LabelledMetric("tokens")] == 8000
    assert read.counters[LabelledMetric("passes")] == 100, "the groups make their passes together"


def test_levels_of_requests_are_summed_over_groups_and_shares_are_not() -> None:
    page = "".join(
        sample("sglang:num_running_reqs", 3 + rank // 2, tp_rank=rank, dp_rank=rank // 2)
        + sample("sglang:num_queue_reqs", 3 + rank // 2, tp_rank=rank, dp_rank=rank // 2)
        + sample("sglang:full_token_usage", 0.2 + 0.1 * rank, tp_rank=rank, dp_rank=rank // 2)
        + sample("sglang:num_retracted_reqs", 1, tp_rank=rank, dp_rank=rank // 2, pid=900 + rank)
        for rank in range(4)
    )
    read = read_page(page, SGLANG)
    assert read is not None
    assert read.gauges[LabelledMetric("running")] == 7
    assert [read.gauges[LabelledMetric("waiting", group)] for group in "01"] == [3, 4], "of each group, because one may have no queue"
    assert read.gauges[LabelledMetric("cache_use")] == pytest.approx(0.5)
    assert read.gauges[LabelledMetric("retracted")] == 2


def test_histograms_of_groups_are_summed_bucket_by_bucket() -> None:
    page = "".join(
        sample("vllm:e2e_request_latency_seconds_bucket", count, engine=engine, le=bound)
        for engine, counts in (("0", (3, 5)), ("1", (1, 4)))
        for bound, count in zip(("1.0", "+Inf"), counts, strict=True)
    )
    read = read_page(page, VLLM)
    assert read is not None
    assert read.histograms["latency"].counts == (4, 9)


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_scopes_fit_the_labels_of_the_recorded_pages(engine: str) -> None:
    """A series with a rank's label needs a scope with ranks, and one without must not claim any: vLLM's and SGLang's front ends."""
    schema = ENGINES[engine].metric_schema
    ranks = {"tp_rank", "pp_rank", "dp_rank", "moe_ep_rank", "engine"}
    lines = RECORDED[engine].read_text(encoding="utf-8").splitlines()
    seen = 0
    for one in (*schema.counters, *schema.histograms):
        found = [line for line in lines if line.startswith((f"{one.metric}{{", f"{one.metric} "))]
        for line in found:
            labelled = {label for label in ranks if f'{label}="' in line}
            assert labelled <= {*one.scope.copies, *one.scope.groups}, f"{one.metric}: {labelled} are unknown to its scope"
            assert bool(labelled) == bool(one.scope.copies or one.scope.groups), f"{one.metric} is {one.scope.name}"
            seen += 1
    assert seen > 20
