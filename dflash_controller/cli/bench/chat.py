"""Streamed chat completions with greedy decoding, as the benchmark sends them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from dflash_controller.cli.bench.clients import Clients, Requests, Target
from dflash_controller.observe.peer import not_connected

PATH = "/v1/chat/completions"
CONNECT_S = 5.0
ANSWER_S = 600.0
"""Longest time of one answer."""
_MESSAGE = 300
"""Characters of an engine's error message that are shown."""


@dataclass(frozen=True, slots=True)
class Question:
    """One message of a user."""

    workload: str
    text: str
    max_tokens: int


class Refused(ValueError):
    """The engine answered with an HTTP status other than 200, or ended a stream with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Reading:
    """A streamed answer so far. ``text`` is whether any has come, ``tokens`` how many the engine has told of."""

    def __init__(self) -> None:
        self.tokens = 0
        self.text = False
        self.finished = False

    def take(self, event: Mapping[str, Any]) -> None:
        """Takes one event. Raises Refused if it is an error, ValueError if the answer is broken off or the event is malformed."""
        if "error" in event:
            raise Refused(500, message_of(event))
        try:
            if (usage := event.get("usage")) is not None:
                self.tokens = max(self.tokens, int(usage["completion_tokens"]))
            for choice in event.get("choices") or ():
                delta = choice.get("delta") or {}
                # Engines with a parser of reasoning send it apart, under one of two names.
                self.text = self.text or any(delta.get(key) for key in ("content", "reasoning_content", "reasoning", "tool_calls"))
                reason = choice.get("finish_reason")
                if reason == "abort":
                    raise ValueError("broken off by the engine")
                self.finished = self.finished or reason is not None
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError("malformed event") from error

    def total(self) -> int:
        """Returns the tokens of the whole answer. Raises ValueError if it was cut off, or the engine does not tell them."""
        if not self.finished:
            raise ValueError("the answer was cut off")
        if not self.tokens:
            raise ValueError("the answer does not tell its tokens (usage)")
        return self.tokens


class ChatClients(Clients[Question]):
    """Sends questions. Connections are kept, and a new one is opened where none is free."""

    def __init__(
        self,
        target: Target,
        questions: Requests[Question],
        *,
        api_key: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(target, questions, {"Authorization": f"Bearer {api_key}"} if api_key else None, clock)

    async def ask(self, url: str, question: Question) -> int:
        """Sends one question to one engine and returns the tokens of its answer. Raises what ``kind`` names."""
        tokens, _ = await self._complete(url, question)
        return tokens

    async def _complete(self, url: str, asked: Question) -> tuple[int, float | None]:
        assert self._session is not None
        timeout = aiohttp.ClientTimeout(total=self._target.timeout_s, sock_connect=CONNECT_S)
        request = self._session.post(f"{url}{PATH}", json=body(self._target.model, asked), timeout=timeout, allow_redirects=False)
        async with request as response:
            if response.status != 200:
                raise Refused(response.status, message_of(await _json(response)))
            return await self._read(response)

    async def _read(self, response: aiohttp.ClientResponse) -> tuple[int, float | None]:
        reading, first_s = Reading(), None
        async for line in response.content:
            data = line.removeprefix(b"data:").strip() if line.startswith(b"data:") else b""
            if not data or data == b"[DONE]":
                continue
            event = json.loads(data)
            if not isinstance(event, dict):
                raise ValueError("malformed event")
            reading.take(event)
            if first_s is None and reading.text:
                first_s = self.now()
        return reading.total(), first_s

    def _kind(self, error: Exception) -> str:
        return kind(error)


def body(model: str, question: Question) -> dict[str, Any]:
    """Returns the request. Sampling parameters that are left out would come from the model's generation_config.json.

    The end-of-sequence token is not ignored: what a model writes past its end is unlike any user's traffic, and so is its acceptance.
    """
    return {
        "model": model,
        "messages": [{"role": "user", "content": question.text}],
        "max_tokens": question.max_tokens,
        "temperature": 0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "user": f"dflash-bench-{question.workload}",
    }


def kind(error: Exception) -> str:
    """Returns what went wrong with a request, in a few words without an address."""
    if isinstance(error, Refused):
        return f"HTTP {error.status}"
    if isinstance(error, aiohttp.ClientConnectorError):
        return not_connected(error)
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return f"connection failed: no answer within {CONNECT_S:g} s"
    if isinstance(error, TimeoutError):
        return f"no answer within {ANSWER_S:g} s"
    if isinstance(error, json.JSONDecodeError):
        return "malformed event"
    if isinstance(error, (aiohttp.ClientError, OSError)):
        return "the connection broke"
    return str(error)


def message_of(answer: Any) -> str:
    """Returns the message of an error as the engines write it, in one line; empty if there is none."""
    found = answer.get("error", answer) if isinstance(answer, Mapping) else None
    text = found.get("message") if isinstance(found, Mapping) else found
    return " ".join(str(text or "").split())[:_MESSAGE]


async def _json(response: aiohttp.ClientResponse) -> Any:
    try:
        return json.loads((await response.content.read(64 * 1024)).decode(errors="replace"))
    except ValueError:
        return None
