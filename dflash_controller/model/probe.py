"""Requests and results of the probe, shared by the planner, which requests a run, and the prober, which sends the prompts."""

from __future__ import annotations

from dataclasses import dataclass

from dflash_controller.model.counters import ProbeRun
from dflash_controller.model.snapshot import Key

PROMPT_SET = "v1"
"""Version of the prompts and of how they are sent. Runs of different versions cannot be paired: raise it whenever a prompt changes."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One engine pod that answers requests."""

    revision: str
    """Hash of the revision it runs."""
    pod: str
    """Uid of the pod."""
    ip: str
    port: int
    engine: str
    """``sglang`` or ``vllm``."""
    model: str
    """Served model name."""


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """A run of the probe. With both sides it is paired; with one, its answers are paired with a run at another time."""

    key: Key
    candidate: Endpoint | None
    reference: Endpoint | None
    prompts: int
    """Number of prompts."""
    max_tokens: int
    prompts_per_minute: int
    """Rate limit. A prompt sent to both sides counts once; a repeated prompt counts again."""
    timeout_s: float
    """Timeout of one answer."""

    @property
    def prompts_name(self) -> str:
        """The value of ``ProbeRun.prompts``: version, number of prompts and token limit of an answer, for instance ``v1-64x256``."""
        return prompts_name(self.prompts, self.max_tokens)

    @property
    def work(self) -> tuple[Endpoint | None, Endpoint | None, str]:
        """What determines the answers. Requests that differ only in rate limit or timeout ask for the same work."""
        return self.candidate, self.reference, self.prompts_name


@dataclass(frozen=True, slots=True)
class ProbeRuns:
    """The answers of the requested sides."""

    candidate: ProbeRun | None
    reference: ProbeRun | None


def prompts_name(prompts: int, max_tokens: int) -> str:
    """Returns the name of a set of prompts and of what else determines its answers."""
    return f"{PROMPT_SET}-{prompts}x{max_tokens}"
