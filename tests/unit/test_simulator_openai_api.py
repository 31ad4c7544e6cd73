"""Reading completion requests, and the text they get."""

from __future__ import annotations

import json
from typing import Any

import pytest

from testbed.simulator.openai_api import BadRequest, chunk, event, parse, usage_chunk
from testbed.simulator.text import answer, natural_length, prompt_tokens

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
    first = json.loads(event(chunk(ask, "id", "m", 1, "a b", None, first=True)).removeprefix(b"data: "))
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": "a b"}
    assert "role" not in chunk(ask, "id", "m", 1, "c", None, first=False)["choices"][0]["delta"]
    last = usage_chunk(ask, "id", "m", 1, 5)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 5
