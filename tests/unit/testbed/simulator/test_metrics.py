"""Simulated metrics pages against the pages of the real engines, and the rules by which each engine credits its series."""

from __future__ import annotations

from types import ModuleType

import pytest
from prometheus_client.parser import text_string_to_metric_families

from testbed.simulator import metrics_sglang, metrics_vllm
from testbed.simulator.batching import Request
from testbed.simulator.engine import SimulatedEngine
from testbed.simulator.faults import Faults
from testbed.simulator.page import Page, parse_page, recorded
from testbed.simulator.settings import EngineSettings
from testbed.simulator.table import seed_table
from testbed.traffic.in_process import closed_loop
from testbed.traffic.mix import Mix, Shots


def engine(name: str, release: str | None = None, **changes: object) -> SimulatedEngine:
    release = release or ("0.5.17" if name == "sglang" else "0.26.0")
    settings = EngineSettings(name, release, "Qwen/Qwen3.5-9B", "m", 1, **{"block_size": 16, **changes})
    return SimulatedEngine(settings, seed_table().match(settings.target), now=0.0, created_s=1.8e9, seed=3)


def loaded(name: str, release: str | None = None, *, stream: float = 0.5, **changes: object) -> SimulatedEngine:
    simulated = engine(name, release, **changes)
    closed_loop(simulated, Shots(Mix(max_tokens=300, stream=stream)), 8, 0.0, 20.0)
    while simulated.batch.next_event_s is not None:
        simulated.batch.step()
    for endpoint, method in (("/v1/completions", "POST"), ("/health", "GET"), ("/metrics", "GET")):
        simulated.metrics.http_started(endpoint, method)
        simulated.metrics.http_finished(endpoint, method, 200, 0.1, (100, 1000))
    return simulated


def series(simulated: SimulatedEngine, now: float = 25.0) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    page = simulated.page(now)
    assert page is not None
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def value(simulated: SimulatedEngine, name: str, now: float = 25.0, **labels: str) -> float:
    matching = [v for key, v in series(simulated, now).get(name, {}).items() if set(labels.items()) <= set(key)]
    assert matching, f"no series {name} {labels}"
    return sum(matching)


@pytest.mark.parametrize(("name", "module"), [("sglang", metrics_sglang), ("vllm", metrics_vllm)])
def test_names_types_labels_and_buckets_are_those_of_the_real_page(name: str, module: ModuleType) -> None:
    real = recorded(module.RECORDED)
    simulated = parse_page(loaded(name).page(25.0) or "")
    omitted = {n for n in real if n in module.OMITTED or n.startswith(module.OMITTED_PREFIXES or "\0")}
    assert set(simulated) == set(real) - omitted
    assert len(omitted) <= 10
    for metric in simulated.values():
        expected = real[metric.name]
        assert (metric.kind, metric.help, metric.buckets) == (expected.kind, expected.help, expected.buckets), metric.name
        assert set(metric.labels) == set(expected.labels), metric.name


@pytest.mark.parametrize("name", ["sglang", "vllm"])
def test_label_values_follow_those_of_the_real_page(name: str) -> None:
    module = metrics_sglang if name == "sglang" else metrics_vllm
    real = recorded(module.RECORDED)
    simulated = parse_page(loaded(name, stream=0.0).page(25.0) or "")
    for metric in simulated.values():
        if "http" in metric.name:
            continue

        def values(of: object, metric: object = metric) -> set[tuple[tuple[str, str], ...]]:
            return {tuple(sorted((k, v) for k, v in labels.items() if k != "pid")) for labels, _ in of.children}

        assert values(metric) == values(real[metric.name]), metric.name


def test_vllm_exports_everything_at_zero_before_the_first_request() -> None:
    fresh = series(engine("vllm"), 0.0)
    assert fresh["vllm:spec_decode_num_drafts_total"] == {(("engine", "0"), ("model_name", "m")): 0.0}
    positions = [dict(key)["position"] for key in fresh["vllm:spec_decode_num_accepted_tokens_per_pos_total"]]
    assert positions == [str(i) for i in range(15)]
    assert len(series(engine("vllm", block_size=8), 0.0)["vllm:spec_decode_num_accepted_tokens_per_pos_total"]) == 7
    assert fresh["vllm:spec_decode_num_drafts_created"] == {(("engine", "0"), ("model_name", "m")): 1.8e9}


def test_vllm_without_speculation_has_no_such_series() -> None:
    assert not [name for name in series(loaded("vllm", block_size=1)) if "spec_decode" in name]


def test_vllm_credits_every_step() -> None:
    simulated = loaded("vllm")
    drafts = value(simulated, "vllm:spec_decode_num_drafts_total")
    accepted = value(simulated, "vllm:spec_decode_num_accepted_tokens_total")
    requests = value(simulated, "vllm:request_success_total", finished_reason="length")
    generated = value(simulated, "vllm:generation_tokens_total")
    assert value(simulated, "vllm:spec_decode_num_draft_tokens_total") == 15 * drafts
    assert value(simulated, "vllm:spec_decode_num_accepted_tokens_per_pos_total") == accepted
    assert value(simulated, "vllm:inter_token_latency_seconds_count") == drafts
    assert value(simulated, "vllm:inter_token_latency_seconds_sum") == pytest.approx(
        value(simulated, "vllm:request_decode_time_seconds_sum")
    )
    assert generated == 300 * requests
    assert 1 + accepted / drafts == pytest.approx(6.71, rel=0.03)
    overshoot = drafts + accepted + requests - generated
    assert 0 < overshoot / requests < 15
    assert value(simulated, "vllm:iteration_tokens_total_sum") == generated + value(simulated, "vllm:prompt_tokens_total")
    batch = drafts / value(simulated, "vllm:iteration_tokens_total_count")
    assert batch == pytest.approx(8, rel=0.06)


def test_sglang_series_appear_with_their_first_use() -> None:
    fresh = series(engine("sglang"), 0.0)
    for name in ("generation_tokens_total", "spec_verify_calls_total", "num_requests_total", "e2e_request_latency_seconds_count"):
        assert f"sglang:{name}" not in fresh
    assert "sglang:spec_accept_length" in fresh
    # the warm-up request reaches the scheduler only
    assert value(engine("sglang"), "sglang:queue_time_seconds_count", 0.0) == 1


def test_sglang_credits_passes_and_realtime_tokens_live_and_the_rest_at_the_end() -> None:
    simulated = engine("sglang")
    request = Request("gsm8k", 64, 10_000)
    simulated.submit(request, 0.0)
    simulated.advance(1.0)
    assert value(simulated, "sglang:realtime_tokens_total", 1.0, mode="decode") == pytest.approx(request.generated, abs=2)
    assert value(simulated, "sglang:cuda_graph_passes_total", 1.0, mode="decode_cuda_graph") == request.verify_steps
    assert value(simulated, "sglang:queue_time_seconds_count", 1.0) == 2
    assert "sglang:spec_verify_calls_total" not in series(simulated, 1.0)
    simulated.advance(100.0)
    assert value(simulated, "sglang:spec_verify_calls_total", 100.0) == request.verify_steps
    assert value(simulated, "sglang:generation_tokens_total", 100.0) == 10_000
    assert value(simulated, "sglang:e2e_request_latency_seconds_count", 100.0) == 1


def test_sglang_acceptance_formulas_agree() -> None:
    simulated = loaded("sglang")
    by_request = value(simulated, "sglang:generation_tokens_total") / value(simulated, "sglang:spec_verify_calls_total")
    passes = value(simulated, "sglang:cuda_graph_passes_total", mode="decode_cuda_graph")
    mean_batch = value(simulated, "sglang:realtime_tokens_total", mode="decode") / (6.71 * passes)
    assert by_request == pytest.approx(6.71, rel=0.05)
    assert value(simulated, "sglang:spec_accept_length") == pytest.approx(6.71, rel=0.15)
    assert value(simulated, "sglang:spec_num_draft_tokens") == 16
    assert mean_batch == pytest.approx(8, rel=0.1)


def test_sglang_running_requests_are_only_reported_now_and_then() -> None:
    simulated = engine("sglang")
    request = Request("gsm8k", 64, 100_000)
    simulated.submit(request, 0.0)
    for passes, shown in ((39, 0), (40, 1)):
        while request.verify_steps < passes:
            simulated.batch.step()
        assert value(simulated, "sglang:num_running_reqs", 0.0) == shown


def test_sglang_idle_flush_clears_load_but_not_speculation() -> None:
    simulated = loaded("sglang")
    shown = value(simulated, "sglang:spec_accept_length", 25.0)
    assert value(simulated, "sglang:gen_throughput", 25.0) > 0
    assert value(simulated, "sglang:gen_throughput", 80.0) == 0
    assert value(simulated, "sglang:num_running_reqs", 80.0) == 0
    assert value(simulated, "sglang:spec_accept_length", 80.0) == shown


def test_sglang_first_token_of_a_whole_answer_is_its_latency() -> None:
    simulated = loaded("sglang")
    whole = value(simulated, "sglang:time_to_first_token_seconds_sum", is_streaming="false")
    assert whole == pytest.approx(value(simulated, "sglang:e2e_request_latency_seconds_sum", is_streaming="false"))
    streamed = value(simulated, "sglang:time_to_first_token_seconds_sum", is_streaming="true")
    assert streamed < 0.1 * value(simulated, "sglang:e2e_request_latency_seconds_sum", is_streaming="true")


@pytest.mark.parametrize(("release", "labelled", "tpot"), [("0.5.16", False, False), ("0.5.17", True, False), ("0.5.23", True, True)])
def test_sglang_releases_differ(release: str, labelled: bool, tpot: bool) -> None:
    found = series(loaded("sglang", release))
    assert all(("is_streaming" in dict(key)) is labelled for key in found["sglang:generation_tokens_total"])
    assert ("sglang:startup_time_seconds" in found) is labelled
    assert ("sglang:request_time_per_output_token_seconds_count" in found) is tpot


def test_sglang_extra_labels_are_on_every_series_that_names_the_model() -> None:
    found = series(loaded("sglang", extra_metric_labels={"dflash_revision": 'a"b'}))
    for by_labels in found.values():
        for key in by_labels:
            labels = dict(key)
            assert labels.get("dflash_revision") == ('a"b' if "model_name" in labels else None)


@pytest.mark.parametrize("everything", [False, True])
def test_sglang_counts_some_things_on_every_tensor_rank_and_everything_if_it_is_asked_to(everything: bool) -> None:
    simulated = loaded("sglang", tensor_parallel=4, metrics_of_all_schedulers=everything)
    found = series(simulated)

    def ranks(name: str, **labels: str) -> list[str]:
        return sorted(dict(key)["tp_rank"] for key in found[name] if set(labels.items()) <= set(key))

    every, first = ["0", "1", "2", "3"], ["0", "1", "2", "3"] if everything else ["0"]
    assert ranks("sglang:cuda_graph_passes_total", mode="decode_cuda_graph") == every
    assert ranks("sglang:queue_time_seconds_sum") == every
    assert ranks("sglang:per_stage_req_latency_seconds_sum", stage="prefill_forward") == every
    assert ranks("sglang:cuda_graph_passes_total", mode="prefill_cuda_graph") == first
    assert ranks("sglang:realtime_tokens_total", mode="decode") == first
    assert ranks("sglang:num_running_reqs") == first
    assert len({value for name in ("sglang:queue_time_seconds_sum",) for value in found[name].values()}) == 1
    assert not any("tp_rank" in dict(key) for key in found["sglang:generation_tokens_total"])


def test_metrics_that_are_switched_off() -> None:
    assert engine("sglang", metrics_enabled=False).page(0.0) is None
    assert "vllm:" not in (loaded("vllm", metrics_enabled=False).page(25.0) or "vllm:")


@pytest.mark.parametrize("name", ["sglang", "vllm"])
def test_a_collapsed_drafter_shows_acceptance_one(name: str) -> None:
    simulated = engine(name)
    simulated.set_faults(Faults(acceptance=0.0))
    closed_loop(simulated, Shots(Mix(max_tokens=200)), 4, 0.0, 20.0)
    if name == "vllm":
        assert value(simulated, "vllm:spec_decode_num_accepted_tokens_total") == 0
    else:
        tokens, requests = value(simulated, "sglang:generation_tokens_total"), value(simulated, "sglang:num_requests_total")
        assert (tokens - requests) / value(simulated, "sglang:spec_verify_calls_total") == 1
        assert value(simulated, "sglang:spec_accept_length") == 1


def test_a_page_cannot_expose_what_the_real_one_does_not_have() -> None:
    page = Page(recorded("vllm-0.26.0"), {"engine": "0", "model_name": "m"}, {}, 0.0)
    with pytest.raises(KeyError):
        page.cell("vllm:no_such_metric")
    with pytest.raises(ValueError, match="labels"):
        page.cell("vllm:request_success_total", reason="length")
    with pytest.raises(ValueError, match="no counter"):
        page.cell("vllm:inter_token_latency_seconds")


def test_histograms_are_cumulative() -> None:
    page = Page(recorded("vllm-0.26.0"), {"engine": "0", "model_name": "m"}, {}, 0.0)
    histogram = page.distribution("vllm:inter_token_latency_seconds")
    for seconds, times in ((0.005, 2), (0.025, 1), (0.03, 1), (1000.0, 1)):
        histogram.observe(seconds, times)
    counts = {
        line.split('le="')[1].split('"')[0]: float(line.rsplit(" ", 1)[1])
        for line in page.render().splitlines()
        if "latency_seconds_bucket" in line
    }
    assert (counts["0.01"], counts["0.025"], counts["0.05"], counts["80.0"], counts["+Inf"]) == (2, 3, 4, 4, 5)
