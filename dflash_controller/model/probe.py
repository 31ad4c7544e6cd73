"""What the probe is to do, and what it brought: the agreement between the planner, which asks, and the prober, which sends."""

from __future__ import annotations

from dataclasses import dataclass

from dflash_controller.model.counters import ProbeRun
from dflash_controller.model.snapshot import Key

PROMPT_SET = "v1"
"""Names the prompts and how they are sent. Runs of different sets cannot be paired: raise it with every change of a prompt's text."""


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
    """Both sides: a paired run. One side alone: its answers are to be paired with a run of another time, kept or still to come."""

    key: Key
    candidate: Endpoint | None
    reference: Endpoint | None
    prompts: int
    """Number of prompts."""
    max_tokens: int
    prompts_per_minute: int
    """Pace; a prompt that is sent to both sides counts once, one that is asked again counts again."""
    timeout_s: float
    """Longest time for one answer."""

    @property
    def prompts_name(self) -> str:
        """As in ``ProbeRun.prompts``: the set, the number of prompts and the limit of an answer, for instance ``v1-64x256``."""
        return prompts_name(self.prompts, self.max_tokens)

    @property
    def work(self) -> tuple[Endpoint | None, Endpoint | None, str]:
        """What decides the answers. Requests that differ in pace or patience only ask for the same work."""
        return self.candidate, self.reference, self.prompts_name


@dataclass(frozen=True, slots=True)
class ProbeRuns:
    """The answers of the sides that were asked."""

    candidate: ProbeRun | None
    reference: ProbeRun | None


def prompts_name(prompts: int, max_tokens: int) -> str:
    """Name of a set of prompts and what else decides its answers."""
    return f"{PROMPT_SET}-{prompts}x{max_tokens}"
