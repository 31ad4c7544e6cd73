"""What is asked, and how streamed answers of engines are read."""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import aiohttp
import pytest

from dflash_controller.cli.bench.chat import Question, Reading, Refused, body, kind, message_of
from dflash_controller.cli.bench.prompts import PROMPT_SET, WORKLOADS, Questions, written

TEXTS = {"v1": "9490f07541ce366b"}
"""Digest of the questions, by name of the set."""


def event(delta: Mapping[str, Any] | None = None, reason: str | None = None, tokens: int | None = None) -> dict[str, Any]:
    choices = [] if delta is None else [{"delta": delta, "finish_reason": reason}]
    return {"choices": choices, **({} if tokens is None else {"usage": {"completion_tokens": tokens}})}


def read(*events: Mapping[str, Any]) -> Reading:
    reading = Reading()
    for each in events:
        reading.take(each)
    return reading


def test_tokens_are_those_of_the_usage_that_comes_last() -> None:
    found = read(event({"role": "assistant", "content": ""}), event({"content": "Yes"}), event({}, "stop"), event(tokens=17))
    assert (found.total(), found.text) == (17, True)
    assert read(event({"content": "Y"}, tokens=3), event({}, "length", tokens=9)).total() == 9


@pytest.mark.parametrize("key", ["content", "reasoning_content", "reasoning", "tool_calls"])
def test_the_first_token_is_the_first_that_has_text(key: str) -> None:
    assert not read(event({"role": "assistant", "content": ""})).text
    assert read(event({key: "x"})).text


def test_answers_that_are_none_are_failures() -> None:
    with pytest.raises(ValueError, match="cut off"):
        read(event({"content": "x"}), event(tokens=4)).total()
    with pytest.raises(ValueError, match="usage"):
        read(event({"content": "x"}, "stop")).total()
    with pytest.raises(ValueError, match="broken off by the engine"):
        read(event({"content": ""}, "abort"))
    with pytest.raises(Refused, match="out of memory"):
        read({"error": {"message": "out of memory"}})
    for malformed in ({"choices": [1]}, {"choices": [{"delta": 1}]}, {"usage": {}, "choices": []}, {"usage": 5}):
        with pytest.raises(ValueError, match="malformed"):
            read(malformed)


def test_failures_have_kinds_without_addresses() -> None:
    refused = aiohttp.ClientConnectorError(None, OSError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 1)"))  # type: ignore[arg-type]
    assert kind(refused) == "connection failed: Connection refused"
    assert kind(Refused(503, "no")) == "HTTP 503"
    assert kind(TimeoutError()) == "no answer within 600 s"
    assert kind(aiohttp.ConnectionTimeoutError("x")) == "connection failed: no answer within 5 s"
    assert kind(aiohttp.ServerDisconnectedError()) == "the connection broke"
    assert kind(json.JSONDecodeError("x", "y", 0)) == "malformed event"
    assert kind(ValueError("the answer was cut off")) == "the answer was cut off"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"error": {"message": "no\nsuch model"}}, "no such model"),
        ({"error": "Unauthorized"}, "Unauthorized"),
        ({"object": "error", "message": "too long"}, "too long"),
        (None, ""),
        ([], ""),
        ({"error": {"message": "x" * 1000}}, "x" * 300),
    ],
)
def test_the_message_of_an_error_is_one_line(answer: Any, message: str) -> None:
    assert message_of(answer) == message


def test_requests_are_greedy_whatever_the_model_says() -> None:
    asked = body("m", Question("math", "1 + 1?", 64))
    assert asked["messages"] == [{"role": "user", "content": "1 + 1?"}]
    assert (asked["temperature"], asked["repetition_penalty"], asked["max_tokens"]) == (0, 1.0, 64)
    assert (asked["stream"], asked["stream_options"]["include_usage"]) == (True, True)
    assert "ignore_eos" not in asked


def test_questions_are_of_each_workload_and_never_the_same() -> None:
    for workload in WORKLOADS:
        assert 12 <= len(set(written(workload))) == len(written(workload)) <= 16
        questions = Questions(workload, 64)
        asked = [questions.next() for _ in range(200)]
        assert len({question.text for question in asked}) == 200
        assert {question.workload for question in asked} == {workload}
        assert [question.text for question in asked[:12]] == list(written(workload)[:12])
    every = [text for workload in WORKLOADS for text in written(workload)]
    assert len(set(every)) == len(every)


def test_a_changed_question_changes_the_name_of_the_set() -> None:
    every = [text for workload in WORKLOADS for text in written(workload)]
    digest = hashlib.sha256("\0".join(every).encode()).hexdigest()[:16]
    assert TEXTS[PROMPT_SET] == digest, "runs of other questions would be compared: raise PROMPT_SET"
