"""Reading what real engines stream, event by event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from dflash_controller.engines import ENGINES
from dflash_controller.engines.probe_reading import ProbeFailure, Reading


def sglang(text: str, tokens: int, reason: dict[str, Any] | None = None, **meta: Any) -> dict[str, Any]:
    return {"text": text, "output_ids": [1], "meta_info": {"id": "x", "finish_reason": reason, "completion_tokens": tokens, **meta}}


def vllm(text: str, tokens: int, reason: str | None = None) -> dict[str, Any]:
    return {"id": "x", "choices": [{"index": 0, "text": text, "finish_reason": reason}], "usage": {"completion_tokens": tokens}}


def read(engine: str, events: Sequence[dict[str, Any]]) -> Reading:
    reading = ENGINES[engine].probe_reading()
    for event in events:
        reading.take(event)
    return reading


def test_sglang_repeats_the_text_and_tells_the_steps_at_the_end() -> None:
    events = [sglang("One", 1), sglang("One two three", 3), sglang("One two three.", 4, {"type": "stop", "matched": 9}, spec_verify_ct=2)]
    assert read("sglang", events[:2]).steps is None
    reading = read("sglang", events)
    assert (reading.text, reading.tokens, reading.steps, reading.finished) == ("One two three.", 4, 2, True)


def test_sglang_with_incremental_streaming_output_reads_the_same() -> None:
    events = [sglang("One", 1), sglang(" two three", 3), sglang(".", 4, {"type": "length", "length": 4}, spec_verify_ct=2)]
    assert read("sglang", events).text == "One two three."


def test_vllm_steps_are_its_events_but_the_first() -> None:
    usage = {"choices": [], "usage": {"completion_tokens": 9}}
    reading = read("vllm", [vllm("a", 1), vllm("b c d", 4), vllm("", 5), vllm("e f g h", 9, "length"), usage])
    assert (reading.text, reading.tokens, reading.steps, reading.finished) == ("ab c de f g h", 9, 3, True)


def test_vllm_events_without_tokens_are_no_steps() -> None:
    assert read("vllm", [vllm("a", 1), vllm("b", 3), vllm("", 3), vllm("", 3, "stop")]).steps == 1


def test_a_first_event_of_several_tokens_holds_a_step() -> None:
    assert read("vllm", [vllm("a b c", 3), vllm("d", 5, "stop")]).steps == 2


def test_the_steps_vllm_counts_itself_correct_events_that_it_joined() -> None:
    counted = {"choices": [], "usage": {"completion_tokens": 30}, "metrics": {"speculative_decoding": {"num_spec_steps": 6}}}
    assert read("vllm", [vllm("a", 1), vllm("b", 20), vllm("c", 30, "length"), counted]).steps == 6


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_an_answer_of_one_token_took_no_step(engine: str) -> None:
    event = vllm("", 1, "stop") if engine == "vllm" else sglang("", 1, {"type": "stop", "matched": 2}, spec_verify_ct=0)
    reading = read(engine, [event])
    assert (reading.tokens, reading.steps, reading.text) == (1, 0, "")


@pytest.mark.parametrize(
    ("engine", "event"),
    [
        ("sglang", sglang("a", 1, {"type": "abort", "message": "out of memory", "status_code": 500})),
        ("sglang", {"error": {"message": "the prompt is too long"}}),
        ("vllm", vllm("a", 1, "abort")),
        ("vllm", vllm("a", 1, "error")),
        ("vllm", {"error": {"message": "EngineCore died", "code": 500}}),
    ],
)
def test_what_the_engine_breaks_off_is_no_answer(engine: str, event: dict[str, Any]) -> None:
    with pytest.raises(ProbeFailure):
        read(engine, [event])


def test_both_engines_are_asked_for_plain_greedy_decoding_that_may_end_by_itself() -> None:
    native = ENGINES["sglang"].probe_reading().body("m", "why", 20)
    assert native == {"text": "why", "sampling_params": {"temperature": 0, "max_new_tokens": 20}, "stream": True}
    openai = ENGINES["vllm"].probe_reading().body("m", "why", 20)
    assert (openai["model"], openai["prompt"], openai["max_tokens"], openai["temperature"]) == ("m", "why", 20, 0)
    assert openai["repetition_penalty"] == 1.0, "the model's own default would count"
    assert "ignore_eos" not in openai
