"""Prior knowledge from other targets (data: ``priors.yaml``, reduced from published tables by ``python -m benchmarks.tuner_priors``)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml

from dflash_controller.engines.resolved import Resolved
from dflash_controller.tuner.acceptance import Decay
from dflash_controller.tuner.machine import UNKNOWN, Machine
from dflash_controller.tuner.step_prior import StepPrior

FEW_POSITIONS = 0.0, 0.004
"""Price of a position (``StepPrior.position_share``, mean and standard deviation) of targets without recurrent layers, on both engines: on
three tables of such targets and on an H100 with both engines, equal T takes equal time at blocks 8 and 16 within the law's uncertainty."""
HYBRID_POSITIONS = {"sglang": (0.002, 0.006), "vllm": (0.04, 0.03)}
"""The same of hybrids before any card. With SGLang, equal T takes nearly equal time (0.001 and 0.006 on two cards, -14 to +7 % on an H100).
With vLLM 0.26, a 9B on an H100 takes about 0.45 ms per position, beside a step of 8 ms."""
UNKNOWN_ENGINE_POSITIONS = 0.02, 0.03
"""The same of hybrids on an engine of which nothing is known."""
REQUESTS = {"sglang": (0.001, 0.003), "vllm": (0.008, 0.008)}
"""Price of a request (``StepPrior.request_share``): attention, scheduling and prefill. A dense 8B with vLLM on an H100 has 0.005 to 0.014,
with prompts of 64 and answers of 300 tokens. The tables of SGLang have answers of thousands of tokens, so less prefill."""
UNKNOWN_ENGINE_REQUESTS = 0.0, 0.008
VLLM_HYBRID_REQUESTS = 0.015, 0.04
"""The same of hybrids with vLLM, whose steps with prefill take about 100 ms on an H100: 72 % of the time at 32 requests with 64 and 400
tokens, or 0.085. Samples with most of the time in prefill are left out, so less is usual."""
KNOWN_SPREAD = 0.8
"""Factor on the law's uncertainty with SGLang and vLLM, whose prices are known better than those of an unknown engine."""
MIXTURE_SPREAD = 1.3
"""The same for mixtures of experts: the experts that a step activates depend on the requests, not only on T."""
BELOW_SIGMA, MIXTURE_BELOW_SIGMA = 0.07, 0.10
"""``StepPrior.below_sigma``. Few tokens activate few experts, so a mixture's step shortens by more than a dense target's."""
VLLM_HYBRID_SPREAD = 1.3
"""The same for hybrids on vLLM, where steps with prefill take several times as long as those without."""
MIXTURE_END_WEIGHT = 0.85
"""``StepPrior.end_weight`` of mixtures of experts, which become bound by computation later than the prior's shape says. Otherwise it is 0:
the own slope of memory-bound steps says nothing of what is beyond the knee."""


@dataclass(frozen=True, slots=True)
class Card:
    """The parameters of one measured target. None: not in its table."""

    model: str
    source: str
    knee_tokens: float | None
    off_ratio: float | None
    decay: float | None
    machine: Machine = UNKNOWN
    position_share: float | None = None


@dataclass(frozen=True, slots=True)
class Prior:
    """What is assumed of a target that was not measured."""

    steps: StepPrior
    decay: Decay


class Priors:
    """Cards, each of one target."""

    def __init__(self, cards: Iterable[Card]) -> None:
        self.cards = tuple(cards)

    @staticmethod
    @cache
    def load() -> Priors:
        """Returns the cards of this release. Raises ValueError or KeyError if the data is malformed."""
        text = resources.files("dflash_controller.tuner").joinpath("priors.yaml").read_text(encoding="utf-8")
        return Priors(_card(entry) for entry in yaml.safe_load(text)["cards"])

    def without(self, model: str) -> Priors:
        """Returns the cards without those of that model, from any publisher and in any precision (``…-FP8``)."""
        return Priors(card for card in self.cards if not _same(card.model, model))

    def prior(self, machine: Machine = UNKNOWN) -> Prior:
        """Returns the geometric means of knee and ratio and the mean decay; each card counts once.

        The price of a position is that of the cards with the same engine and kind, and of an assumed one that counts like a card. Raises
        ValueError if no card has a knee, a ratio or a decay.
        """
        knees = [math.log(card.knee_tokens) for card in self.cards if card.knee_tokens is not None]
        ratios = [math.log(card.off_ratio) for card in self.cards if card.off_ratio is not None]
        decays = [card.decay for card in self.cards if card.decay is not None]
        if not (knees and ratios and decays):
            raise ValueError("no card has knee, ratio or decay")
        mean, sigma = self._positions(machine)
        requests = REQUESTS.get(machine.engine, UNKNOWN_ENGINE_REQUESTS)
        if machine.hybrid and machine.engine == "vllm":
            requests = VLLM_HYBRID_REQUESTS
        steps = StepPrior(
            math.exp(_mean(knees)),
            math.exp(_mean(ratios)),
            position_share=mean,
            position_sigma=sigma,
            request_share=requests[0],
            request_sigma=requests[1],
            end_weight=MIXTURE_END_WEIGHT if machine.mixture else 0.0,
            below_sigma=MIXTURE_BELOW_SIGMA if machine.mixture else BELOW_SIGMA,
            spread=_spread(machine),
        )
        return Prior(steps, Decay(_mean(decays)))

    def _positions(self, machine: Machine) -> tuple[float, float]:
        if not machine.hybrid:
            return FEW_POSITIONS
        assumed, sigma = HYBRID_POSITIONS.get(machine.engine, UNKNOWN_ENGINE_POSITIONS)
        known = [
            card.position_share
            for card in self.cards
            if card.position_share is not None and card.machine.hybrid and card.machine.engine == machine.engine
        ]
        return _mean([assumed, *known]), sigma


def prior_of(resolved: Resolved) -> Prior:
    """Returns the prior of a revision's engine and kind of target."""
    return _prior_of(machine_of(resolved))


def machine_of(resolved: Resolved) -> Machine:
    """Returns a revision's engine and kind of target."""
    return Machine(resolved.engine, hybrid=resolved.hybrid, mixture=resolved.mixture_of_experts)


def _spread(machine: Machine) -> float:
    kind = MIXTURE_SPREAD if machine.mixture else 1.0
    if machine.engine not in REQUESTS:
        return max(kind, VLLM_HYBRID_SPREAD) if machine.hybrid else kind
    return VLLM_HYBRID_SPREAD if machine.hybrid and machine.engine == "vllm" else KNOWN_SPREAD * kind


@cache
def _prior_of(machine: Machine) -> Prior:
    return Priors.load().prior(machine)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _same(first: str, second: str) -> bool:
    # A table of a model's shape without its weights is a table of that model.
    a, b = (name.rstrip("/").rsplit("/", 1)[-1].lower().removesuffix("-shape") + "-" for name in (first, second))
    return a.startswith(b) or b.startswith(a)


def _card(entry: dict[str, Any]) -> Card:
    kind = str(entry["kind"]).split()
    machine = Machine(entry["engine"], hybrid="hybrid" in kind, mixture="mixture" in kind)
    return Card(
        entry["model"],
        entry["source"],
        entry.get("knee_tokens"),
        entry.get("off_ratio"),
        entry.get("decay"),
        machine,
        entry.get("position_share"),
    )
