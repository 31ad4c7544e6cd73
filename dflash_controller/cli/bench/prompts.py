"""The questions of the benchmark: the same ones, in the same order, for every deployment and release that knows the set."""

from __future__ import annotations

from functools import cache
from importlib import resources

import yaml

from dflash_controller.cli.bench.chat import Question
from dflash_controller.observe.probe.prompts import by_kind, numbered

PROMPT_SET = "v1"
"""Version of the questions and of how they are sent. Runs of different versions are not comparable."""
WORKLOADS = ("math", "code", "chat")
_OF_THE_PROBE = {"math": ("maths",), "code": ("code",), "chat": ("chat", "writing")}


class Questions:
    """An endless sequence of questions of one workload. No two are the same, so that no answer profits from the one before."""

    def __init__(self, workload: str, max_tokens: int) -> None:
        self._workload = workload
        self._max_tokens = max_tokens
        self._number = 0

    def next(self) -> Question:
        asked = written(self._workload)
        text = numbered(asked[self._number % len(asked)], 1 + self._number // len(asked))
        self._number += 1
        return Question(self._workload, text, self._max_tokens)


@cache
def written(workload: str) -> tuple[str, ...]:
    """Returns the written questions of a workload."""
    text = resources.files("dflash_controller.cli.bench").joinpath("prompts.yaml").read_text(encoding="utf-8")
    probe = by_kind()
    return (*(text for kind in _OF_THE_PROBE[workload] for text in probe[kind]), *yaml.safe_load(text)[workload])
