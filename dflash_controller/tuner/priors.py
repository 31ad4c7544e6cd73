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
from dflash_controller.tuner.step_times import StepPrior


@dataclass(frozen=True, slots=True)
class Card:
    """The parameters of one measured target. None: not in its table."""

    model: str
    source: str
    knee_tokens: float | None
    off_ratio: float | None
    decay: float | None


@dataclass(frozen=True, slots=True)
class Prior:
    """The mean over cards."""

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

    def prior(self) -> Prior:
        """Returns the geometric means of knee and ratio and the mean decay; each card counts once.

        Raises ValueError if no card has one of the three.
        """
        knees = [math.log(card.knee_tokens) for card in self.cards if card.knee_tokens is not None]
        ratios = [math.log(card.off_ratio) for card in self.cards if card.off_ratio is not None]
        decays = [card.decay for card in self.cards if card.decay is not None]
        if not (knees and ratios and decays):
            raise ValueError("no card has knee, ratio or decay")
        return Prior(StepPrior(math.exp(_mean(knees)), math.exp(_mean(ratios))), Decay(_mean(decays)))


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _same(first: str, second: str) -> bool:
    a, b = (name.rstrip("/").rsplit("/", 1)[-1].lower() + "-" for name in (first, second))
    return a.startswith(b) or b.startswith(a)


def _card(entry: dict[str, Any]) -> Card:
    return Card(entry["model"], entry["source"], entry.get("knee_tokens"), entry.get("off_ratio"), entry.get("decay"))
