"""Reading completion requests, and the text they get."""

from __future__ import annotations

import json
from typing import Any

import pytest

from testbed.simulator import native_api
from testbed.simulator.batching import Request
from testbed.simulator.openai_api import BadRequest, chunk, event, parse, usage_chunk
from testbed.simulator.settings import EngineSettings
from testbed.simulator.text import Steps, answer, chances, flipped, natural_length, prompt_tokens, token_ids
from tests.support.releases import default_release

SGLANG = default_release("sglang")

TARGET = "Qwen/Qwen3.5-9B"


def read(body: Any, *, chat: bool = False, headers: dict[str, str] | None = None) -> Any:
    return parse(body, headers or {}, chat=chat, target=TARGET)


def test_limits_and_their_defaults() -> None:
    assert (read({"prompt": "x"}).max_tokens, read({"prompt": "x", "max_tokens": 7}).max_tokens) == (16, 7)
    messages = [{"role": "user", "content": "x"}]
    free = read({"messages": messages}, chat=True)
    assert not free.limited
    assert free.max_tokens == natural_length(TARGET, free.prompt)
    assert read({"messages": messages, "max_completion_tokens": 9}, chat=True).max_tokens == 9


@pytest.mark.parametrize(
    ("body", "headers", "workload"),
    [
        ({"prompt": "x"}, {}, None),
        ({"prompt": "x", "user": "alpaca"}, {}, "alpaca"),
        ({"prompt": "x", "user": "alpaca", "metadata": {"workload": "mbpp"}}, {}, "mbpp"),
        ({"prompt": "x", "user": "alpaca"}, {"x-dflash-workload": "math500"}, "math500"),
    ],
)
def test_the_workload_is_named_by_header_metadata_or_user(body: Any, headers: dict[str, str], workload: str | None) -> None:
    assert read(body, headers=headers).workload == workload


@pytest.mark.parametrize(
    ("body", "chat"),
    [
        ([], False),
        ({}, False),
        ({"prompt": ["a", "b"]}, False),
        ({"prompt": "x", "max_tokens": 0}, False),
        ({"prompt": "x", "max_tokens": "many"}, False),
        ({"prompt": "x", "n": 2}, False),
        ({"messages": []}, True),
        ({"messages": ["x"]}, True),
    ],
)
def test_what_cannot_be_served_is_refused(body: Any, chat: bool) -> None:
    with pytest.raises(BadRequest):
        read(body, chat=chat)


def test_token_ids_are_a_prompt() -> None:
    assert read({"prompt": [1, 2, 3]}).prompt == "1 2 3"
    assert read({"prompt": ["one"]}).prompt == "one"


def test_a_shorter_answer_begins_a_longer_one() -> None:
    long = answer(TARGET, "why", 100)
    assert answer(TARGET, "why", 10) == long[:10]
    assert answer(TARGET, "why not", 100) != long
    assert answer("other", "why", 100) != long
    assert answer(TARGET, "why", 0) == []
    assert prompt_tokens("x" * 40) == 10


def test_stream_events_carry_deltas_and_usage_last() -> None:
    ask = read({"messages": [{"role": "user", "content": "x"}], "stream": True, "stream_options": {"include_usage": True}}, chat=True)
    assert ask.stream
    assert ask.include_usage
    first = json.loads(event(chunk(ask, "id", "m", 1, "a b", None, first=True, generated=2)).removeprefix(b"data: "))
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": "a b"}
    assert "role" not in chunk(ask, "id", "m", 1, "c", None, first=False, generated=3)["choices"][0]["delta"]
    last = usage_chunk(ask, "id", "m", 1, 5)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 5
    assert "usage" not in first, "only the last event has it unless every one is to have it"


def test_usage_is_in_every_event_where_asked_for() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    ask = read({"prompt": "x" * 8, "stream": True, "stream_options": options})
    assert chunk(ask, "id", "m", 1, "a b", None, first=True, generated=7)["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 7,
        "total_tokens": 9,
    }
    assert not read({"prompt": "x", "stream_options": {"continuous_usage_stats": True}}).continuous_usage


def test_a_flipped_answer_is_right_up_to_the_flip() -> None:
    right = answer(TARGET, "why", 50)
    other = flipped(right, TARGET, "why", at=20)
    assert other[:20] == right[:20]
    assert other[20:] != right[20:]
    assert len(other) == 50
    assert flipped([], TARGET, "why", at=0) == []


def test_acceptance_repeats_for_the_same_drafter_and_prompt_only() -> None:
    def draws(*key: str) -> list[float]:
        generator = chances(TARGET, *key)
        return [generator.random() for _ in range(5)]

    assert draws("d", "1", "why") == draws("d", "1", "why")
    assert len({tuple(draws(*key)) for key in (("d", "1", "why"), ("d", "2", "why"), ("e", "1", "why"), ("d", "1", "who"))}) == 4


def test_steps_cut_an_answer_as_it_was_committed() -> None:
    request = Request("gsm8k", 8, 10, draws=[])
    steps = Steps(request)
    assert list(steps.ends()) == []
    request.generated = 1
    assert list(steps.ends()) == [1]
    assert request.draws is not None
    request.draws += [4, 2]
    request.generated = 7
    assert list(steps.ends()) == [5, 7]
    request.draws.append(9)
    assert list(steps.ends()) == [10], "the limit cuts the last step"
    assert list(steps.ends()) == []


def generated(release: str, block: int = 16, *, aborted: bool = False) -> dict[str, Any]:
    """The last event of an answer of 10 tokens whose three steps were drawn 4, 2 and 9 tokens."""
    ask = native_api.parse({"text": "why", "sampling_params": {"max_new_tokens": 10, "temperature": 0}, "stream": True})
    assert ask.stream
    sim = Request("gsm8k", 1, ask.max_tokens, finished_s=None if aborted else 3.0, arrived_s=1.0, draws=[4, 2, 9], aborted=aborted)
    settings = EngineSettings("sglang", release, TARGET, "m", 1, block_size=block)
    return native_api.output(ask, "id", settings, sim, answer(TARGET, "why", 10), last=True)


def test_the_native_answer_tells_its_verify_steps() -> None:
    event = generated(SGLANG)
    assert event["text"] == "".join(answer(TARGET, "why", 10))
    assert event["output_ids"] == token_ids(answer(TARGET, "why", 10))
    meta = event["meta_info"]
    assert meta["finish_reason"] == {"type": "length", "length": 10}
    assert (meta["completion_tokens"], meta["spec_verify_ct"], meta["e2e_latency"]) == (10, 3, 2.0)
    assert meta["spec_accept_length"] == pytest.approx(10 / 3)
    assert meta["spec_num_correct_drafts"] == 12
    assert meta["spec_correct_drafts_histogram"] == [0, 1, 0, 1, 0, 0, 0, 0, 1]


def test_names_and_counts_of_the_native_answer_follow_the_release() -> None:
    for release, correct in (("0.5.17", 7), ("0.5.19", 7), ("0.5.20", 12)):
        assert generated(release)["meta_info"]["spec_num_correct_drafts"] == correct, "tokens less steps, until the drafts were counted"
    for release, legacy in (("0.5.17", True), ("0.5.20", True), ("0.5.21", False)):
        assert ("spec_accept_histogram" in generated(release)["meta_info"]) is legacy
    assert not any(name.startswith("spec_") for name in generated(SGLANG, block=1)["meta_info"]), "speculation is off"
    assert generated(SGLANG, aborted=True)["meta_info"]["finish_reason"]["type"] == "abort"


def test_native_events_before_the_last_carry_the_text_so_far_and_no_figures() -> None:
    ask = native_api.parse({"text": "why", "stream": True})
    assert ask.max_tokens == 128
    settings = EngineSettings("sglang", SGLANG, TARGET, "m", 1, block_size=16)
    event = native_api.output(ask, "id", settings, Request("gsm8k", 1, 128, draws=[4]), answer(TARGET, "why", 5), last=False)
    assert len(event["text"].split()) == len(event["output_ids"]) == event["meta_info"]["completion_tokens"] == 5
    assert event["meta_info"]["finish_reason"] is None
    assert not any(name.startswith("spec_") for name in event["meta_info"])


@pytest.mark.parametrize("body", [[], {}, {"text": ["a"]}, {"text": "x", "sampling_params": {"max_new_tokens": 0}}, {"input_ids": []}])
def test_what_the_native_api_cannot_serve_is_refused(body: Any) -> None:
    with pytest.raises(BadRequest):
        native_api.parse(body)
