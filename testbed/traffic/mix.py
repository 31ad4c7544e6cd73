"""The requests that are sent: workloads by weight, lengths, prompts."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Mix:
    """A mix of requests. ``weights`` by workload; answers have ``max_tokens`` tokens, prompts about ``prompt_tokens``; a share ``stream``
    streams."""

    weights: Mapping[str, float] = field(default_factory=lambda: {"gsm8k": 1.0})
    max_tokens: int = 300
    prompt_tokens: int = 64
    stream: float = 0.0


@dataclass(frozen=True, slots=True)
class Shot:
    """One request to send."""

    workload: str
    prompt: str
    max_tokens: int
    stream: bool


class Shots:
    """An endless, reproducible sequence of requests; no two prompts are the same."""

    def __init__(self, mix: Mix, seed: int = 0) -> None:
        self._mix = mix
        self._random = random.Random(seed)
        self._number = 0

    def next(self) -> Shot:
        mix = self._mix
        workload = self._random.choices(list(mix.weights), weights=list(mix.weights.values()))[0]
        self._number += 1
        head = f"{workload} question {self._number}: "
        return Shot(workload, head.ljust(4 * mix.prompt_tokens, "."), mix.max_tokens, self._random.random() < mix.stream)


def parse_weights(text: str) -> dict[str, float]:
    """Reads ``gsm8k=3,humaneval=1``, or names alone for equal weights. Raises ValueError."""
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, _, weight = part.partition("=")
        weights[name.strip()] = float(weight) if weight else 1.0
    if not all(name for name in weights) or sum(weights.values()) <= 0:
        raise ValueError(f"not a mix of workloads: {text!r}")
    return weights
