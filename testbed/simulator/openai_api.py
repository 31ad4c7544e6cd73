"""The OpenAI completion API: reads requests and builds answers. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from testbed.simulator.text import natural_length, prompt_tokens

WORKLOAD_HEADER = "x-dflash-workload"
COMPLETIONS_DEFAULT_TOKENS = 16
"""OpenAI's default for /v1/completions. A chat answer without a limit ends by itself."""


class BadRequest(Exception):
    """The request cannot be served. The client gets the message."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A requested completion. ``limited``: max_tokens ends the answer, not the model. ``continuous_usage``: usage in every event."""

    chat: bool
    model: str | None
    prompt: str
    prompt_tokens: int
    max_tokens: int
    limited: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool
    workload: str | None


def parse(body: Any, headers: Mapping[str, str], *, chat: bool, target: str) -> Ask:
    """Reads a request body. Raises BadRequest. Sampling parameters are ignored: the simulator decodes greedily."""
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    prompt = _chat_prompt(body) if chat else _prompt(body)
    limit = body.get("max_completion_tokens") or body.get("max_tokens") if chat else body.get("max_tokens", COMPLETIONS_DEFAULT_TOKENS)
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise BadRequest(f"max_tokens must be at least 1, got {limit!r}")
    if body.get("n") not in (None, 1):
        raise BadRequest("n must be 1")
    options = body.get("stream_options")
    options = options if isinstance(options, dict) else {}
    include_usage = bool(options.get("include_usage"))
    return Ask(
        chat=chat,
        model=body.get("model"),
        prompt=prompt,
        prompt_tokens=prompt_tokens(prompt),
        max_tokens=limit or natural_length(target, prompt),
        limited=limit is not None,
        stream=bool(body.get("stream")),
        include_usage=include_usage,
        continuous_usage=include_usage and bool(options.get("continuous_usage_stats")),
        workload=_workload(body, headers),
    )


def _workload(body: Mapping[str, Any], headers: Mapping[str, str]) -> str | None:
    metadata = body.get("metadata")
    named = headers.get(WORKLOAD_HEADER) or (metadata.get("workload") if isinstance(metadata, dict) else None) or body.get("user")
    return named if isinstance(named, str) else None


def _prompt(body: Mapping[str, Any]) -> str:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if isinstance(prompt, list) and all(isinstance(token, int) for token in prompt):
        prompt = " ".join(map(str, prompt))
    if not isinstance(prompt, str):
        raise BadRequest("prompt must be one string or one list of token ids")
    return prompt


def _chat_prompt(body: Mapping[str, Any]) -> str:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
        raise BadRequest("messages must be a list of at least one message")
    return json.dumps([[message.get("role"), message.get("content")] for message in messages])


def error(status: int, message: str, kind: str) -> dict[str, Any]:
    """Returns an error body as both engines send it."""
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


def models(name: str, created: int) -> dict[str, Any]:
    """Returns the answer of /v1/models."""
    return {"object": "list", "data": [{"id": name, "object": "model", "created": created, "owned_by": "simulator", "root": name}]}


def _usage(ask: Ask, generated: int) -> dict[str, Any]:
    return {"prompt_tokens": ask.prompt_tokens, "completion_tokens": generated, "total_tokens": ask.prompt_tokens + generated}


def _envelope(ask: Ask, ident: str, model: str, created: int, *, chunk: bool) -> dict[str, Any]:
    kind = ("chat.completion.chunk" if chunk else "chat.completion") if ask.chat else "text_completion"
    return {"id": ident, "object": kind, "created": created, "model": model}


def answer(ask: Ask, ident: str, model: str, created: int, text: str, generated: int, reason: str) -> dict[str, Any]:
    """Returns a whole answer."""
    choice: dict[str, Any] = {"index": 0, "finish_reason": reason, "logprobs": None}
    choice |= {"message": {"role": "assistant", "content": text}} if ask.chat else {"text": text}
    return {**_envelope(ask, ident, model, created, chunk=False), "choices": [choice], "usage": _usage(ask, generated)}


def chunk(ask: Ask, ident: str, model: str, created: int, text: str, reason: str | None, *, first: bool, generated: int) -> dict[str, Any]:
    """Returns one event of a streamed answer, after which ``generated`` tokens have been sent."""
    choice: dict[str, Any] = {"index": 0, "finish_reason": reason, "logprobs": None}
    choice |= {"delta": {**({"role": "assistant"} if first else {}), "content": text}} if ask.chat else {"text": text}
    usage = {"usage": _usage(ask, generated)} if ask.continuous_usage else {}
    return {**_envelope(ask, ident, model, created, chunk=True), "choices": [choice], **usage}


def usage_chunk(ask: Ask, ident: str, model: str, created: int, generated: int) -> dict[str, Any]:
    """Returns the last event of a stream whose request asks for usage."""
    return {**_envelope(ask, ident, model, created, chunk=True), "choices": [], "usage": _usage(ask, generated)}


def event(data: Mapping[str, Any]) -> bytes:
    """Returns one server-sent event."""
    return f"data: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


LAST_EVENT = b"data: [DONE]\n\n"
