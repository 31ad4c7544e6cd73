"""What the tuner has learned so far: everything ``policy.decide`` uses of the past. Immutable; converts to JSON and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dflash_controller.tuner.points import StepPoint
from dflash_controller.tuner.recommend import ObservedLoad


@dataclass(frozen=True, slots=True)
class Seen:
    """Acceptance at one block size over a span of time."""

    block: int
    steps: float
    """Verify steps."""
    committed: float
    """Tokens committed in them."""
    survival: tuple[float, ...] = ()
    """Share of steps in which draft 0, 1, … was accepted; empty if the engine does not export it."""

    @property
    def length(self) -> float:
        """Tokens per verify step, 1 … block, rounded to three decimals, which is finer than any measurement."""
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
class PairKnowledge:
    """What one deployment lends to others with the same target, accelerator, engine, release and parallelism."""

    pools: Sequence[Sequence[Any]] = ()
    """Step times by block and load: ``Pools.lend``."""
    context: float = 0.0
    """Mean context of its requests in tokens; 0: not known."""
    decays: tuple[float, ...] = ()
    """The drafter's decays; empty for another drafter."""


@dataclass(frozen=True, slots=True)
class Past:
    """History of loads and changes: the part of the tuner's knowledge that says whether a change is worth its cost."""

    regrets: tuple[tuple[int, float], ...] = ()
    """(block size, seconds of full speed lost so far by not running it); 0 if the active block size is better."""
    favoured: int = 0
    """The block size that the load favours now; 0: not known."""
    favoured_s: float = 0.0
    """Seconds for which it has favoured it."""
    stays: tuple[tuple[int, tuple[float, ...]], ...] = ()
    """(block size, seconds of each period in which the load favoured it), oldest first."""
    factor: float = 1.0
    """Factor on the switching cost; wasted changes raise it."""
    wasted: int = 0
    """Total number of changes that did not gain their cost."""
    previous: int = 0
    """The active block size before the last change; 0: not known."""

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
    """Loads of a replica over the policy's window."""
    usual: tuple[ObservedLoad, ...] = ()
    """The same over the last days, weighted towards recent ones."""
    acceptance: tuple[Seen, ...] = ()
    """Acceptance over the window by block size, except speculation off."""
    drafted: Seen | None = None
    """The last measured acceptance, used while speculation is off."""
    decays: tuple[float, ...] = ()
    """The drafter's decays, one for each pair of blocks that served the same traffic (``acceptance.decay_between``)."""
    load_samples: int = 0
    """Number of load samples with traffic in the window."""
    misses: int = 0
    """Changes in the last day after which step times differed from the prediction."""
    missed: int = 0
    """The block size of the last of them; 0: none."""
    model_error: float = 0.0
    """Logarithm of measured ÷ predicted step time after the last change."""
    past: Past = Past()
    inconsistent: int = 0
    """How many of ``load_samples`` have an inconsistent load: two measurements of concurrency disagree."""

    speeds: tuple[tuple[int, float], ...] = ()
    """(block size, tokens per second of a replica), measured over the window while there was traffic."""

    prefilling: int = 0
    """How many of ``load_samples`` were mostly prefill, so that their step times were left out."""
    waiting: int = 0
    """How many of them had requests that waited for a slot or for memory. Their step times count if it was for a slot."""
    warming: int = 0
    """How many of them are of engines in their warm-up, which compile kernels, so that their step times were left out."""
    prefill_share: float = 0.0
    """Part of the time that prefill took beside decoding, mean over the window. No block size changes it."""

    def to_json(self) -> dict[str, Any]:
        return {
            "prefilling": self.prefilling,
            "waiting": self.waiting,
            "warming": self.warming,
            "prefillShare": self.prefill_share,
            "points": [[p.block, p.concurrency, p.seconds, p.weight, *([True] if p.prior else [])] for p in self.points],
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
            prefilling=data.get("prefilling", 0),
            waiting=data.get("waiting", 0),
            warming=data.get("warming", 0),
            prefill_share=data.get("prefillShare", 0.0),
        )
