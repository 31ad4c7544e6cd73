"""Readings against pages of real engines (vLLM 0.26.0 and SGLang 0.5.17 on one H100, acceptance imposed at 6.42), and what is missing."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from dflash_controller.engines import ENGINES
from dflash_controller.model.counters import CounterSnapshot, Histogram
from dflash_controller.observe.sources.scrape.exposition import read_page

PAGES = Path(__file__).parents[3] / "testbed" / "data" / "metrics"
REAL = {"vllm": (PAGES / "vllm-0.26.0.txt").read_text(), "sglang": (PAGES / "sglang-0.5.17.txt").read_text()}


def read(engine: str, text: str, *, speculation_on: bool = True) -> CounterSnapshot:
    page = read_page(text, ENGINES[engine].metric_schema)
    assert page is not None
    return ENGINES[engine].metric_schema.counter_snapshot(page, 5.0, speculation_on)


def without(engine: str, *names: str) -> str:
    return "\n".join(line for line in REAL[engine].splitlines() if not line.startswith(names))


def test_a_real_vllm_page_in_normal_form() -> None:
    got = read("vllm", REAL["vllm"])
    assert (got.at_s, got.steps, got.committed, got.passes) == (5.0, 55174, 55174 + 297779, 2774)
    assert got.decode_seconds == pytest.approx(1051.969, abs=0.001)
    assert (got.requests, got.failed, got.prompt_tokens, got.cached_tokens, got.generated_tokens) == (1164, 0, 74496, 0, 349200)
    assert got.accepted_at[:2] == (48485, 42458)
    assert (len(got.accepted_at), sum(got.accepted_at)) == (15, 297779)
    for histogram in (got.time_to_first_token, got.time_per_token, got.latency):
        assert histogram is not None
        assert histogram.bounds[-1] == math.inf
        assert list(histogram.bounds) == sorted(histogram.bounds)
        assert list(histogram.counts) == sorted(histogram.counts)
        assert histogram.counts[-1] == 1164


def test_a_real_sglang_page_in_normal_form() -> None:
    got = read("sglang", REAL["sglang"])
    assert (got.steps, got.committed, got.generated_tokens) == (67935, 434108, 434108)
    assert got.decode_seconds == pytest.approx(1272.7, abs=0.5)
    assert got.decode_seconds is not None
    assert got.decode_seconds / 67935 == pytest.approx(0.0187, rel=0.01)
    assert (got.requests, got.failed, got.prompt_tokens, got.cached_tokens) == (1448, 0, 92614, 0), "a 503 of /health is no failed request"
    assert got.accepted_at == ()
    assert got.latency is not None
    assert (got.latency.counts[-1], got.latency.bounds[-1]) == (1448, math.inf)
    assert got.time_to_first_token is None, "no request streamed: the others' is their whole latency"
    assert got.time_per_token is None, "this release has none per request"


def test_without_speculation_a_step_is_a_token_after_the_first() -> None:
    vllm, sglang = (
        read("vllm", without("vllm", "vllm:spec_decode"), speculation_on=False),
        read("sglang", REAL["sglang"], speculation_on=False),
    )
    assert vllm.steps == vllm.committed == 55174
    assert sglang.steps == sglang.committed == 434108 - 1448


def test_a_vllm_step_without_drafts_is_a_step_that_commits_one_token() -> None:
    """Where a schedule runs K = 0, vLLM's counter of drafts stands still."""
    text = "\n".join(
        [
            "vllm:spec_decode_num_drafts_total 100",
            "vllm:spec_decode_num_accepted_tokens_total 500",
            "vllm:inter_token_latency_seconds_count 400",
        ]
    )
    got = read("vllm", text)
    assert (got.steps, got.committed) == (400, 900)


@pytest.mark.parametrize(
    ("engine", "name", "fields"),
    [
        ("vllm", "vllm:inter_token_latency_seconds", {"steps", "committed", "decode_seconds"}),
        ("vllm", "vllm:spec_decode_num_accepted_tokens_total", {"committed"}),
        ("vllm", "vllm:iteration_tokens_total", {"passes"}),
        ("vllm", "vllm:request_success_total", {"requests", "failed"}),
        ("vllm", "vllm:prompt_tokens_cached_total", {"cached_tokens"}),
        ("vllm", "vllm:e2e_request_latency_seconds", {"latency"}),
        ("vllm", "vllm:request_time_per_output_token_seconds", {"time_per_token"}),
        ("vllm", "vllm:time_to_first_token_seconds", {"time_to_first_token"}),
        ("vllm", 'vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf"', {"time_to_first_token"}),
        ("sglang", "sglang:spec_verify_calls_total", {"steps"}),
        ("sglang", "sglang:generation_tokens_total", {"committed", "generated_tokens", "steps"} - {"steps"}),
        ("sglang", "sglang:num_requests_total", {"requests"}),
        ("sglang", "sglang:queue_time_seconds", {"decode_seconds"}),
        ("sglang", "sglang:per_stage_req_latency_seconds", {"decode_seconds"}),
        ("sglang", "sglang:e2e_request_latency_seconds", {"decode_seconds", "latency"}),
        ("sglang", "sglang:cuda_graph_passes_total", {"passes"}),
        ("sglang", "sglang:http_responses_total", {"failed"}),
        ("sglang", "sglang:prompt_tokens_total", {"prompt_tokens", "cached_tokens"}),
    ],
)
def test_a_series_dropped_on_the_way_is_absent_not_zero(engine: str, name: str, fields: set[str]) -> None:
    whole, less = read(engine, REAL[engine]), read(engine, without(engine, name))
    changed = {field for field in CounterSnapshot.__dataclass_fields__ if getattr(less, field) != getattr(whole, field)}
    assert changed == fields
    assert all(getattr(less, field) is None for field in fields)


def test_a_fresh_sglang_has_counted_nothing_and_a_vllm_without_series_is_unknown() -> None:
    sglang, vllm = read("sglang", "sglang:max_total_num_tokens 5"), read("vllm", "vllm:cache_config_info 1")
    zero = {"steps", "committed", "decode_seconds", "passes", "requests", "prompt_tokens", "cached_tokens", "generated_tokens"}
    assert {name for name in CounterSnapshot.__dataclass_fields__ if getattr(sglang, name) == 0.0} == zero
    assert vllm == CounterSnapshot(5.0)


def test_first_token_times_of_sglang_are_those_of_streams() -> None:
    lines = [
        f'sglang:time_to_first_token_seconds_bucket{{engine_type="unified",is_streaming="{stream}",le="{le}",model_name="m"}} {count}'
        for stream, counts in (("false", (0, 7, 90)), ("true", (3, 9, 10)))
        for le, count in zip(("0.1", "1.0", "+Inf"), counts, strict=True)
    ]
    per_token = [line.replace("time_to_first_token", "request_time_per_output_token") for line in lines]
    latency = [line.replace("time_to_first_token", "e2e_request_latency") for line in lines]
    got = read("sglang", "\n".join([*lines, *per_token, *latency]))
    assert got.time_to_first_token == got.time_per_token == Histogram((0.1, 1.0, math.inf), (3, 9, 10))
    assert got.latency == Histogram((0.1, 1.0, math.inf), (3, 16, 100)), "streams and others together"


def test_errors_are_told_once() -> None:
    """vLLM answers an error with 500 unless the answer has begun; a client that broke off is no error. SGLang tells by its answers."""
    vllm = [
        *(f'vllm:request_success_total{{finished_reason="{r}"}} {n}' for r, n in (("stop", 90), ("abort", 7), ("error", 3))),
        'http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 97',
    ]
    answers = [
        'http_requests_total{handler="/v1/completions",status="5xx"} 2',
        'http_requests_total{handler="/v1/chat/completions",status="5xx"} 6',
    ]
    streamed, answered = read("vllm", "\n".join([*vllm, answers[0]])), read("vllm", "\n".join([*vllm, *answers]))
    assert (streamed.requests, streamed.failed) == (100, 3)
    assert (answered.requests, answered.failed) == (105, 8)
    told = {
        ("/v1/completions", 200): 90,
        ("/v1/completions", 500): 4,
        ("/generate", 503): 2,
        ("/v1/completions", 400): 8,
        ("/health", 503): 33,
    }
    sglang = [
        'sglang:num_requests_total{is_streaming="true"} 60',
        'sglang:num_requests_total{is_streaming="false"} 30',
        "sglang:num_aborted_requests_total 12",
        *(f'sglang:http_responses_total{{endpoint="{path}",status_code="{code}"}} {count}' for (path, code), count in told.items()),
    ]
    got = read("sglang", "\n".join(sglang))
    assert (got.requests, got.failed) == (96, 6)


@pytest.mark.parametrize("bad", ['vllm:time_to_first_token_seconds_bucket{le="0.1} 3', 'vllm:time_to_first_token_seconds_bucket{le="x"} 3'])
def test_a_malformed_bucket_is_an_error(bad: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read("vllm", bad)


def test_escapes_spaces_and_timestamps_are_understood() -> None:
    text = 'vllm:generation_tokens_total{ model_name="a\\"},b\\\\n", engine="0",} 7 1700000000000\nvllm:prompt_tokens_total 2e3\n'
    got = read("vllm", text)
    assert (got.generated_tokens, got.prompt_tokens) == (7, 2000)
