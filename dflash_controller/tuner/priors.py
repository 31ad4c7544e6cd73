"""Prior knowledge from other targets (data: ``priors.yaml``, reduced from published tables by ``python -m benchmarks.tuner_priors``)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml

from dflash_controller.tuner.acceptance import Decay
from dflash_controller.tuner.machine import Machine
from dflash_controller.tuner.step_prior import StepPrior

FEW_POSITIONS = 0.0, 0.004
"""Price of a position (``StepPrior.position_share``, mean and standard deviation) of targets without recurrent layers, on both engines: on
three tables of such targets and on an H100 with both engines, equal T takes equal time at blocks 8 and 16 within the law's uncertainty."""
HYBRID_POSITIONS = {"sglang": (0.002, 0.006), "vllm": (0.04, 0.03)}
"""The same of hybrids before any card. SGLang advances the recurrent state of a block at once: 0.000 and 0.004 on two cards, and -14 to +7 %
at equal T on an H100. vLLM 0.26 takes position by position: a 9B on an H100 takes about 0.45 ms each, beside a step of 8 ms."""
UNKNOWN_ENGINE_POSITIONS = 0.02, 0.03
"""The same of hybrids on an engine of which nothing is known."""
MIXTURE_SPREAD = 1.3
"""Factor on the law's uncertainty for mixtures of experts: the experts that a step activates depend on the requests, not only on T."""
VLLM_HYBRID_SPREAD = 1.8
"""The same for hybrids on vLLM, where steps with prefill take several times as long as those without."""
MIXTURE_END_WEIGHT = 0.5
"""``StepPrior.end_weight`` of mixtures of experts, which become bound by computation later than the prior's shape says; otherwise 0."""


@dataclass(frozen=True, slots=True)
class Card:
    """The parameters of one measured target. None: not in its table."""

    model: str
    source: str
    knee_tokens: float | None
    off_ratio: float | None
    decay: float | None
    machine: Machine = Machine()
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

    def prior(self, machine: Machine | None = None) -> Prior:
        """Returns the geometric means of knee and ratio and the mean decay; each card counts once.

        The price of a position is that of the cards with the same engine and kind, and of an assumed one that counts like a card. Raises
        ValueError if no card has a knee, a ratio or a decay.
        """
        knees = [math.log(card.knee_tokens) for card in self.cards if card.knee_tokens is not None]
        ratios = [math.log(card.off_ratio) for card in self.cards if card.off_ratio is not None]
        decays = [card.decay for card in self.cards if card.decay is not None]
        if not (knees and ratios and decays):
            raise ValueError("no card has knee, ratio or decay")
        asked = machine or Machine()
        mean, sigma = self._positions(asked)
        steps = StepPrior(
            math.exp(_mean(knees)),
            math.exp(_mean(ratios)),
            position_share=mean,
            position_sigma=sigma,
            end_weight=MIXTURE_END_WEIGHT if asked.mixture else 0.0,
            spread=VLLM_HYBRID_SPREAD if asked.hybrid and asked.engine != "sglang" else MIXTURE_SPREAD if asked.mixture else 1.0,
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


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _same(first: str, second: str) -> bool:
    a, b = (name.rstrip("/").rsplit("/", 1)[-1].lower() + "-" for name in (first, second))
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
