"""What a row says: percentiles, the window's share of requests, the engines' counters, speed-ups."""

from __future__ import annotations

from typing import Any

import pytest

from dflash_controller.cli.bench.answers import Completion, Failure, Log, quantile, share
from dflash_controller.cli.bench.rows import Cell, Counted, Window, acceptance_lengths, against, counted, row, speedups
from dflash_controller.engines import ENGINES
from dflash_controller.observe.pipeline.source import Round, Target
from dflash_controller.observe.sources.scrape.exposition import read_page
from dflash_controller.observe.sources.scrape.ring import Ring
from tests.support import bench_world
from tests.support.bench_world import SGLANG

CELL = Cell("qwen", SGLANG, "math", 2, 16, 1, 100)


def log(*answers: tuple[float, float, float, int], failures: tuple[float, ...] = ()) -> Log:
    """Answers by start, first token, end and tokens; failures by their moment."""
    completions = [Completion("math", start, end, tokens, first) for start, first, end, tokens in answers]
    return Log(completions, [Failure(at - 1, at, "HTTP 503", "") for at in failures])


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([], 0.5, None),
        ([3.0], 0.95, 3.0),
        ([1.0, 2.0, 3.0, 4.0], 0.5, 2.0),
        (list(range(1, 101)), 0.95, 95),
        (list(range(1, 21)), 0.95, 19),
    ],
)
def test_a_percentile_is_a_value_that_was_measured(values: list[float], share: float, expected: float | None) -> None:
    assert quantile(values, share) == expected


def test_a_request_counts_with_its_share_of_the_window() -> None:
    found = log((8.0, 8.5, 12.0, 100), (12.0, 12.5, 16.0, 100), (18.0, 18.5, 22.0, 100), (1.0, 1.1, 9.0, 100))
    assert share(found.completions, 10.0, 20.0) == (50 + 100 + 50, 2 + 4 + 2)
    made = row(CELL, found, Window(10.0, 20.0))
    assert (made.tokens, made.seconds, made.tokens_per_second, made.per_user) == (200, 10, 20, 10)
    assert made.answers == 2, "those that were complete in the window"
    assert made.first_token_s == {"p50": 0.5, "p95": 0.5}
    assert made.per_token_s["p50"] == pytest.approx(3.5 / 99)


def test_failures_count_where_they_happen() -> None:
    made = row(CELL, log((10.0, 11.0, 19.0, 10), failures=(9.0, 12.0, 13.0, 21.0)), Window(10.0, 20.0))
    assert made.errors == {"HTTP 503": 2}
    assert made.to_json(None)["errors"] == {"HTTP 503": 2}
    empty = row(CELL, log(failures=(12.0,)), Window(10.0, 20.0))
    assert (empty.sound, empty.tokens_per_second, empty.first_token_s) == (False, 0.0, {"p50": None, "p95": None})


@pytest.mark.parametrize(
    ("engine_tokens", "acceptance", "remark"),
    [
        (1000.0, 5.0, ""),
        (1200.0, 5.0, ""),  # Each of two clients has one request of 100 tokens that may be credited to either side of the window.
        (800.0, 5.0, ""),
        (2000.0, 5.0, "other clients had about 40 % of the engines' tokens"),
        (400.0, None, "had only a part of the tokens"),
    ],
)
def test_the_counters_of_the_engines_are_those_of_the_clients_or_it_is_said(
    engine_tokens: float, acceptance: float | None, remark: str
) -> None:
    answers = log((10.0, 10.0, 20.0, 500), (10.0, 10.0, 20.0, 500))
    made = row(CELL, answers, Window(10.0, 20.0, Counted(5.0, 100, 16, engine_tokens)))
    assert made.counted.acceptance == acceptance
    assert remark in "".join(made.remarks)
    assert bool(made.remarks) == bool(remark)


def test_a_program_that_is_itself_the_limit_says_so() -> None:
    answers = log((10.0, 10.0, 20.0, 500))
    assert row(CELL, answers, Window(10.0, 20.0, cpu_share=0.5)).remarks == ()
    assert "used 97 % of a core" in row(CELL, answers, Window(10.0, 20.0, cpu_share=0.97)).remarks[0]


SGLANG_PAGE = """\
sglang:generation_tokens_total{{model_name="m"}} {tokens}
sglang:spec_verify_calls_total{{model_name="m"}} {steps}
sglang:num_requests_total{{model_name="m"}} {requests}
sglang:spec_num_draft_tokens{{model_name="m"}} 16
"""
VLLM_PAGE = """\
vllm:generation_tokens_total{{engine="0"}} {tokens}
vllm:spec_decode_num_drafts_total{{engine="0"}} {steps}
vllm:spec_decode_num_draft_tokens_total{{engine="0"}} {drafts}
vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {accepted}
"""


def target(name: str, engine: str, speculation_on: bool = True) -> Target:
    return Target("default", name, name, "127.0.0.1", 1, "qwen", "r", engine, speculation_on)


def rounds(of: Target, template: str, *values: dict[str, float]) -> list[Round]:
    """What a reader of metrics finds on these pages of one pod."""
    schema, ring, found = ENGINES[of.engine].metric_schema, Ring(1e9), []
    for at, value in enumerate(values):
        page = read_page(template.format(**value), schema)
        assert page is not None
        ring.add(float(at), page)
        window = ring.window(float(at))
        windows = {} if window is None else {of.uid: window}
        found.append(Round(windows=windows, readings={of.uid: (schema.counter_snapshot(page, float(at), of.speculation_on),)}))
    return found


SGLANG_BEFORE, SGLANG_AFTER = {"tokens": 500, "steps": 100, "requests": 5}, {"tokens": 2500, "steps": 500, "requests": 25}
VLLM_BEFORE, VLLM_AFTER = ({"tokens": t, "steps": t / 5, "drafts": t * 3, "accepted": t * 0.8} for t in (500, 2500))


@pytest.mark.parametrize(
    ("engine", "template", "before", "after"),
    [("sglang", SGLANG_PAGE, SGLANG_BEFORE, SGLANG_AFTER), ("vllm", VLLM_PAGE, VLLM_BEFORE, VLLM_AFTER)],
)
def test_the_acceptance_length_is_that_of_the_counters(
    engine: str, template: str, before: dict[str, float], after: dict[str, float]
) -> None:
    pod = target("a", engine)
    first, last = rounds(pod, template, before, after)
    assert counted([pod], first, last) == Counted(5.0, 400, 16, 2000)
    # A second engine that does not answer: the acceptance is that of the first, and nobody knows the tokens of both.
    assert counted([pod, target("b", engine)], first, last) == Counted(5.0, 400, 16, None)
    assert counted([], first, last) == Counted()
    assert counted([target("b", engine)], first, last) == Counted()


def test_an_engine_that_restarted_tells_nothing() -> None:
    pod = target("a", "sglang")
    first, last = rounds(pod, SGLANG_PAGE, SGLANG_AFTER, SGLANG_BEFORE)
    assert counted([pod], first, last) == Counted()


def test_without_speculation_there_is_no_acceptance_length() -> None:
    pod = target("a", "sglang", speculation_on=False)
    first, last = rounds(pod, SGLANG_PAGE, SGLANG_BEFORE, SGLANG_AFTER)
    found = counted([pod], first, last)
    assert (found.acceptance, found.block_size, found.tokens) == (None, None, 2000)


def test_speed_ups_are_per_replica_and_of_sound_rows_only() -> None:
    def of(deployment: str, concurrency: int, speed: float, **more: Any) -> Any:
        return bench_world.row("math", concurrency, speed, deployment=deployment, **more)

    rows = [
        of("plain", 1, 100, block=1),
        of("qwen", 1, 500, replicas=2),
        of("plain", 8, 400, block=1, changes=("pod p restarted",)),
        of("qwen", 8, 900),
        of("plain", 16, 600, block=1),
        of("qwen", 16, 1200, changes=("pod p restarted",)),
    ]
    assert speedups(rows, against(rows, "plain")) == {0: 1.0, 1: 2.5, 4: 1.0}


def test_acceptance_lengths_are_of_all_steps_together() -> None:
    rows = [
        bench_world.row(acceptance=6.0, steps=300),
        bench_world.row(concurrency=16, acceptance=5.0, steps=100),
        bench_world.row(workload="chat", acceptance=3.0, steps=50),
        bench_world.row(concurrency=32, acceptance=1.0, steps=1e6, changes=("pod p restarted",)),
        bench_world.row(deployment="plain", block=1),
        bench_world.row(acceptance=None),
    ]
    assert acceptance_lengths(rows) == {(SGLANG, "math", 16): 5.75, (SGLANG, "chat", 16): 3.0}
