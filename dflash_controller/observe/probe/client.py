"""One greedy prompt to one engine pod."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import aiohttp

from dflash_controller.engines import ENGINES
from dflash_controller.engines.probe_reading import ProbeFailure, Reading
from dflash_controller.model.counters import Answer
from dflash_controller.model.probe import Endpoint
from dflash_controller.observe.peer import base_url, not_connected

MAX_EVENT = 2**20
"""Bytes; SGLang repeats the whole answer so far in every event."""
DIGEST_CHARACTERS = 12
"""48 bits of SHA-256: two different answers among 1,024 pairs look the same once in 10^11 runs."""


class Client:
    """Sends prompts by pod address, past every Service. ``clock`` times the tokens."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, endpoint: Endpoint, prompt: str, max_tokens: int, timeout_s: float) -> Answer:
        """The answer. Raises ProbeFailure. Redirects are not followed: a pod does not steer our requests."""
        reading = ENGINES[endpoint.engine].probe_reading()
        try:
            async with asyncio.timeout(timeout_s):
                seconds = await self._stream(endpoint, reading, reading.body(endpoint.model, prompt, max_tokens))
        except TimeoutError:
            raise ProbeFailure(f"no answer within {timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise ProbeFailure(_short(error)) from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ProbeFailure("malformed answer") from None
        if not reading.finished:
            raise ProbeFailure("the answer was cut off")
        if not 0 < reading.tokens <= max_tokens:
            raise ProbeFailure("an answer of no or too many tokens")
        digest = hashlib.sha256(reading.text.encode(errors="replace")).hexdigest()[:DIGEST_CHARACTERS]
        return Answer(reading.tokens, reading.steps, seconds, digest)

    async def _stream(self, endpoint: Endpoint, reading: Reading, body: Mapping[str, Any]) -> float:
        """Reads the answer; returns the seconds from its first to its last token."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                # A connection that a server closes for being idle must not fail the next prompt of a slow run.
                connector=aiohttp.TCPConnector(limit=0, force_close=True),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
                headers={"Accept": "text/event-stream", "Accept-Encoding": "identity"},
                raise_for_status=False,
            )
        url = f"{base_url(endpoint.ip, endpoint.port)}{reading.path}"
        first_s = last_s = 0.0
        async with self._session.post(url, json=body, allow_redirects=False) as response:
            if response.status != 200:
                raise ProbeFailure(f"HTTP status {response.status}")
            async for event in _events(response.content):
                before = reading.tokens
                reading.take(event)
                if reading.tokens > before:
                    last_s = self._clock()
                    first_s = last_s if before == 0 else first_s
        return last_s - first_s

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[Mapping[str, Any]]:
    """The server-sent events up to ``[DONE]``. Raises ValueError on one that is too large or no JSON object."""
    rest = b""
    async for chunk in content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > MAX_EVENT:
            raise ValueError("an event is too large")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            data = line.removeprefix(b"data:").strip()
            if data == b"[DONE]":
                return
            event = json.loads(data)
            if not isinstance(event, dict):
                raise ValueError("an event is not an object")
            yield event


def _short(error: Exception) -> str:
    """One line, without addresses."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return not_connected(error)
    return "the connection broke"
