"""Clients that see each step of an engine: half of them stream, and the time between two parts of a stream is the step time."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from testbed.traffic.mix import Mix, Shot, Shots
from testbed.traffic.over_http import Client, Target
from testbed.traffic.report import Log, quantile, summarize


@dataclass(slots=True)
class Parts:
    """Parts of streams after the first one: moment on the monotonic clock, seconds since the part before, tokens."""

    seen: list[tuple[float, float, int]] = field(default_factory=list)

    def between(self, start: float, end: float) -> dict[str, float]:
        """Returns the mean and median seconds and the mean tokens of the parts in a window; empty without any."""
        inside = [(gap, tokens) for at, gap, tokens in self.seen if start < at <= end]
        if not inside:
            return {}
        gaps = [gap for gap, _ in inside]
        return {
            "gap_mean_s": sum(gaps) / len(gaps),
            "gap_p50_s": quantile(gaps, 0.5) or 0.0,
            "gap_p99_s": quantile(gaps, 0.99) or 0.0,
            "tokens_per_part": sum(tokens for _, tokens in inside) / len(inside),
            "seconds_per_token": sum(gaps) / max(1, sum(tokens for _, tokens in inside)),
        }


class StreamClient(Client):
    """A client that asks for the number of tokens with each part of a stream (vLLM and SGLang: continuous_usage_stats)."""

    def __init__(self, target: Target, shots: Shots, parts: Parts) -> None:
        super().__init__(target, shots)
        self._parts = parts

    def _body(self, shot: Shot) -> dict[str, object]:
        body = super()._body(shot)
        if shot.stream:
            body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
        return body

    async def _read_stream(self, response: aiohttp.ClientResponse) -> tuple[int, float | None]:
        first_s: float | None = None
        before_s, tokens = 0.0, 0
        async for line in response.content:
            data = line.removeprefix(b"data: ").strip()
            if not data or data == b"[DONE]":
                continue
            event: Mapping[str, Any] = json.loads(data)
            if any(choice.get("finish_reason") == "abort" for choice in event["choices"]):
                raise ValueError("aborted by the engine")
            count = int((event.get("usage") or {}).get("completion_tokens") or tokens)
            now_s = time.monotonic()
            if first_s is None:
                first_s, before_s = self.now(), now_s
            elif count > tokens:
                self._parts.seen.append((now_s, now_s - before_s, count - tokens))
                before_s = now_s
            tokens = count
        return tokens, first_s


class Words(Shots):
    """Prompts of a given number of words of a made tokenizer (t1000, …), all different, so that no prefix is cached."""

    def __init__(self, mix: Mix, words: int = 100_000, seed: int = 0) -> None:
        super().__init__(mix, seed)
        self._length = mix.prompt_tokens
        self._words = words
        self._draw = random.Random(f"words {seed}")

    def next(self) -> Shot:
        shot = super().next()
        prompt = " ".join(f"t{self._draw.randrange(1000, self._words)}" for _ in range(self._length))
        return Shot(shot.workload, prompt, shot.max_tokens, shot.stream)


def client_figures(log: Log, parts: Parts, began_s: float, start: float, end: float, replicas: int = 1) -> dict[str, Any]:
    """Returns what the clients saw between two moments of the monotonic clock; rates and concurrency are per replica."""
    report = summarize(Log(list(log.completions)), start - began_s, end - began_s, None)
    return {
        "tokens_per_second": report.tokens_per_second / replicas,
        "concurrency": report.mean_concurrency / replicas,
        "requests": report.requests,
        "latency_mean_s": report.latency_s["mean"],
        "time_to_first_token_mean_s": report.time_to_first_token_s["mean"],
        "time_to_first_token_p99_s": report.time_to_first_token_s["p99"],
        **parts.between(start, end),
    }


def difference_percent(shown: float | None, truth: float | None) -> float | None:
    """Returns by how many percent ``shown`` is above ``truth``; None if one of them is missing or ``truth`` is 0."""
    return None if shown is None or not truth else 100.0 * (shown / truth - 1.0)


def mean_of(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
