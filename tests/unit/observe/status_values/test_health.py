"""Partial absence: MetricsAvailable names the metrics that a decision needs and that are missing beside others."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash_controller.api.conditions import Reason
from dflash_controller.engines import ENGINES
from dflash_controller.model.metric_schema import missing
from dflash_controller.model.metrics_health import MetricsHealth
from dflash_controller.observe.pipeline.source import Round, Target
from dflash_controller.observe.sources.scrape.exposition import read_page
from dflash_controller.observe.sources.scrape.source import Scraper
from dflash_controller.observe.status_values.health import verdict

PAGES = Path(__file__).parents[4] / "testbed" / "data" / "metrics"
RECORDED = {"vllm": "vllm-0.26.0.txt", "sglang": "sglang-0.5.17.txt"}
SCHEMAS = {engine: ENGINES[engine].metric_schema for engine in sorted(ENGINES)}
NEEDED = sorted(
    {
        (engine, one.metric, one.drafts)
        for engine, schema in SCHEMAS.items()
        for one in (*schema.counters, *schema.histograms)
        if one.since is not None
    }
)


def names(engine: str, without: str = "") -> frozenset[str]:
    """Of the recorded page, less the metrics whose name begins so."""
    lines = (PAGES / RECORDED[engine]).read_text(encoding="utf-8").splitlines()
    page = read_page("\n".join(line for line in lines if not without or not line.startswith(without)) + "\n", ENGINES[engine].metric_schema)
    assert page is not None
    return page.names


def pod(uid: str, engine: str = "sglang", revision: str = "r1", speculation_on: bool = True) -> Target:
    return Target("ns", uid, uid, "10.0.0.1", 8000, "demo", revision, engine, speculation_on)


def told(*pods: tuple[Target, frozenset[str]]) -> MetricsHealth:
    """The verdict where every pod answers with these metrics."""
    found = {target.uid: metrics for target, metrics in pods}
    return verdict(Scraper(), [target for target, _ in pods], Round(answered=frozenset(found), names=found))


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_a_real_page_lacks_nothing(engine: str) -> None:
    assert told((pod("a", engine), names(engine))).available is True


@pytest.mark.parametrize(("engine", "metric", "drafts"), NEEDED)
def test_each_metric_that_is_missing_is_named(engine: str, metric: str, drafts: bool) -> None:
    """Of the load, of the tuner's samples and of a trial's evidence alike."""
    health = told((pod("a", engine), names(engine, metric)))
    assert (health.available, health.reason) == (False, Reason.METRICS_INCOMPLETE)
    assert metric in health.message
    without = told((pod("a", engine, speculation_on=False), names(engine, metric)))
    assert without.available is drafts, "what only drafts need is not missed where there are none"


def test_a_decision_of_each_kind_has_its_needed_metrics() -> None:
    for engine, schema in SCHEMAS.items():
        for group in (schema.series, schema.evidence, schema.histograms, schema.load_samples):
            assert any(one.since is not None for one in group), engine


def test_native_histograms_are_refused_by_name() -> None:
    """Prometheus with convert_classic_histograms_to_nhcb: their sums, counts and buckets are gone, and the whole is there."""
    parts = ("_sum", "_count", "_bucket")
    classic = names("sglang")
    native = frozenset(name for name in classic if not name.endswith(parts)) | {
        name.rpartition("_")[0] for name in classic if name.endswith(parts)
    }
    health = told((pod("a"), native))
    assert (health.available, health.reason) == (False, Reason.METRICS_INCOMPLETE)
    for name in ("sglang:e2e_request_latency_seconds_sum", "sglang:queue_time_seconds_sum", "sglang:e2e_request_latency_seconds_bucket"):
        assert name in health.message
    assert "always_scrape_classic_histograms" in health.message
    assert told((pod("a"), native | classic)).available is True, "both are kept"


def test_counters_that_have_had_no_cause_to_count_are_not_missing() -> None:
    """SGLang exports most of them from the first request on, and those of ended requests from the first end on."""
    schema = ENGINES["sglang"].metric_schema
    warmed_up = {one.metric for one in schema.counters if one.since is not None and one.since.name == "ENTRY"}
    assert missing(schema, warmed_up, True) == ()
    assert missing(schema, (), True) == ()
    assert missing(schema, warmed_up - {"sglang:queue_time_seconds_sum"}, True) == ("sglang:queue_time_seconds_sum",)


def test_one_pod_of_a_revision_that_has_it_is_enough_but_not_one_of_another_revision() -> None:
    whole, part = names("sglang"), names("sglang", "sglang:spec_verify_calls_total")
    assert told((pod("a"), whole), (pod("b"), part)).available is True
    health = told((pod("a"), whole), (pod("b", revision="r2"), part))
    assert "sglang:spec_verify_calls_total" in health.message


def test_a_long_list_is_cut() -> None:
    health = told((pod("a", "vllm"), frozenset({"vllm:generation_tokens_total"})))
    assert "more." in health.message
    assert len(health.message) < 800
