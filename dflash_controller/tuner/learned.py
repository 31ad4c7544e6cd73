"""What the tuner knows at one moment: everything ``policy.decide`` takes from the past. Frozen, and JSON both ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dflash_controller.tuner.points import StepPoint
from dflash_controller.tuner.recommend import ObservedLoad


@dataclass(frozen=True, slots=True)
class Seen:
    """Acceptance at one block, over a span of time."""

    block: int
    steps: float
    """Verify steps."""
    committed: float
    """Tokens committed in them."""
    survival: tuple[float, ...] = ()
    """Share of steps in which draft 0, 1, … was accepted; empty where the engine does not say."""

    @property
    def length(self) -> float:
        """Tokens per verify step, 1 … block; to three digits, which is finer than any measurement."""
        length = min(float(self.block), max(1.0, self.committed / self.steps))
        return round(length, 2 if length >= 2 else 3)

    def to_json(self) -> list[Any]:
        return [self.block, self.steps, self.committed, list(self.survival)]

    @staticmethod
    def from_json(data: Sequence[Any]) -> Seen:
        """The inverse. Raises TypeError or ValueError on anything else."""
        block, steps, committed, survival = data
        if not (block >= 2 and steps > 0 and committed >= 0):
            raise ValueError(f"{data} is no acceptance")
        return Seen(block, steps, committed, tuple(survival))


@dataclass(frozen=True, slots=True)
class Past:
    """What came of loads and of changes so far: the side of the tuner's knowledge that says whether a change pays."""

    regrets: tuple[tuple[int, float], ...] = ()
    """(block size, seconds of full speed lost so far by not running it); 0 where the block size in force is better."""
    favoured: int = 0
    """The block size that the load favours now; 0: not known."""
    favoured_s: float = 0.0
    """For how long already."""
    stays: tuple[tuple[int, tuple[float, ...]], ...] = ()
    """(block size, how many seconds the load favoured it, each time it did), oldest first."""
    factor: float = 1.0
    """Times the cost of a change that must have been lost before one is made; more after wasted changes."""
    wasted: int = 0
    """Changes that did not earn their cost, in all."""
    previous: int = 0
    """The block size in force before the last change; 0: none known."""

    def regret(self, candidate_block: int) -> float:
        return next((regret for known, regret in self.regrets if known == candidate_block), 0.0)

    def stays_of(self, candidate_block: int) -> tuple[float, ...]:
        return next((stays for known, stays in self.stays if known == candidate_block), ())


@dataclass(frozen=True, slots=True)
class Learned:
    """A snapshot of ``Learner``."""

    points: tuple[StepPoint, ...] = ()
    """Pooled step times of the current epoch."""
    loads: tuple[ObservedLoad, ...] = ()
    """Of a replica, over the window of the policy."""
    usual: tuple[ObservedLoad, ...] = ()
    """The same over the last days, recent ones counting more."""
    acceptance: tuple[Seen, ...] = ()
    """Over the window, by block; without speculation off."""
    drafted: Seen | None = None
    """The last acceptance that was measured: what is believed where nothing is drafted now."""
    decays: tuple[float, ...] = ()
    """The drafter's, one for each pair of blocks that served the same traffic (``acceptance.decay_between``)."""
    load_samples: int = 0
    """That served, in the window."""
    misses: int = 0
    """Changes in the last day after which step times were not as predicted."""
    missed: int = 0
    """The block of the last of them; 0: none."""
    model_error: float = 0.0
    """Logarithm of measured ÷ predicted step time after the last change."""
    past: Past = Past()
    inconsistent: int = 0
    """Of ``load_samples``: those that tell nothing about the load, as two ways to tell it disagree."""

    speeds: tuple[tuple[int, float], ...] = ()
    """(block, tokens per second of a replica), as measured over the window while there was traffic."""

    def to_json(self) -> dict[str, Any]:
        return {
            "points": [[p.block, p.concurrency, p.seconds, p.weight] for p in self.points],
            "loads": [[load.concurrency, load.share] for load in self.loads],
            "usual": [[load.concurrency, load.share] for load in self.usual],
            "acceptance": [seen.to_json() for seen in self.acceptance],
            "drafted": self.drafted.to_json() if self.drafted else None,
            "decays": list(self.decays),
            "loadSamples": self.load_samples,
            "misses": self.misses,
            "missed": self.missed,
            "modelError": self.model_error,
            "inconsistent": self.inconsistent,
            "speeds": [list(entry) for entry in self.speeds],
            "past": {
                "regrets": [list(entry) for entry in self.past.regrets],
                "favoured": self.past.favoured,
                "favouredSeconds": self.past.favoured_s,
                "stays": [[candidate_block, list(stays)] for candidate_block, stays in self.past.stays],
                "factor": self.past.factor,
                "wasted": self.past.wasted,
                "previous": self.past.previous,
            },
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Learned:
        """The inverse. Raises KeyError, TypeError or ValueError on anything else."""
        past = data["past"]
        return Learned(
            points=tuple(StepPoint(*entry) for entry in data["points"]),
            loads=tuple(ObservedLoad(*entry) for entry in data["loads"]),
            usual=tuple(ObservedLoad(*entry) for entry in data["usual"]),
            acceptance=tuple(Seen.from_json(entry) for entry in data["acceptance"]),
            drafted=Seen.from_json(data["drafted"]) if data["drafted"] else None,
            decays=tuple(data["decays"]),
            load_samples=data["loadSamples"],
            misses=data["misses"],
            missed=data["missed"],
            model_error=data["modelError"],
            past=Past(
                tuple((candidate_block, regret) for candidate_block, regret in past["regrets"]),
                past["favoured"],
                past["favouredSeconds"],
                tuple((candidate_block, tuple(stays)) for candidate_block, stays in past["stays"]),
                past["factor"],
                past["wasted"],
                past["previous"],
            ),
            inconsistent=data.get("inconsistent", 0),
            speeds=tuple((block, speed) for block, speed in data.get("speeds", ())),
        )
