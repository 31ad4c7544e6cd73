"""Predicts the acceptance length at a block size other than the active one.

The probability that draft ``i`` (from 0) is accepted, given that all before it were, is ``p * d**i``: drafts far from the known token are
slightly worse. The acceptance length is 1 (the target's own token) plus the sum of the survival probabilities. It depends on the traffic,
not on the load (SGLang's measurements of Qwen3-8B: 6.29 to 6.44 over concurrency 1 to 32 and 1 to 8 GPUs).

Where d is known, one mean length determines p. d varies little: between 0.9895 and 0.9998 over 16 published pairs of lengths at blocks 8
and 16 (``priors.yaml``). Predicting a shorter block is safer than a longer one: the longer block's drafts contain the shorter one's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from dflash_controller.tuner.estimate import Estimate

BETWEEN_WORKLOADS = 0.004
"""Standard deviation of the decay among the workloads of one drafter: 0.0039, 0.0029 and 0.0033 on three model cards."""
BETWEEN_DRAFTERS = 0.003
"""Standard deviation of a drafter's mean decay. Three cards vary by only 0.0009, but they are of one family, so this is larger."""
LENGTH_SIGMA = 0.01
"""Uncertainty of a measured length: two runs of one configuration differ by this much (0.5 to 1 % on a real engine)."""
CUT_SIGMA = 0.02
"""Uncertainty of cutting a block: drafts attend to each other, so a block of 8 is not the first half of a block of 16. The DFlash paper
measured 5.09 against 5.21 tokens (table 8)."""
UPWARD_SIGMA = 0.03
"""Minimum uncertainty for a block longer than any observed, because its last drafts were never measured."""
LEAST_DECAY, MOST_DECAY = 0.9, 1.1
_BISECTIONS = 50
_ROUNDING = 1e-9


def mean_length(first: float, decay: float, block: int) -> float:
    """Returns the tokens per verify step, 1 ... block, if the first draft is accepted with probability ``first``."""
    length = alive = 1.0
    chance = first
    for _ in range(block - 1):
        alive *= min(1.0, chance)
        length += alive
        chance *= decay
    return length


def first_chance(length: float, decay: float, block: int) -> float:
    """Returns the ``first`` whose mean length at ``block`` is ``length``. Raises ValueError outside 1 ... block."""
    if not 1.0 <= length <= block:
        raise ValueError(f"acceptance length {length} is outside 1 ... {block}")
    low, high = 0.0, max(1.0, decay ** -(block - 1))
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if mean_length(middle, decay, block) < length:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def decay_between(length: float, block: int, other_length: float, other_block: int) -> float:
    """Returns the decay that fits the lengths of the same traffic at two blocks, clipped to 0.9 ... 1.1.

    Raises ValueError if the blocks are equal or below 2, or a length is impossible.
    """
    if block > other_block:
        length, block, other_length, other_block = other_length, other_block, length, block
    if block < 2 or block == other_block:
        raise ValueError(f"blocks {block} and {other_block} do not tell a decay")
    low, high = LEAST_DECAY, MOST_DECAY
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if mean_length(first_chance(length, middle, block), middle, other_block) < other_length:
            low = middle
        else:
            high = middle
    return (low + high) / 2


@dataclass(frozen=True, slots=True)
class Decay:
    """Estimate of d for one drafter: the mean over its workloads, and the standard deviation of that mean."""

    mean: float
    sigma: float = BETWEEN_DRAFTERS

    def learned(self, seen: Iterable[float]) -> Decay:
        """Returns the normal posterior after the decays of some workloads of this drafter (``decay_between``)."""
        values = list(seen)
        weight, precision = 1 / self.sigma**2, len(values) / BETWEEN_WORKLOADS**2
        if not values:
            return self
        mean = (weight * self.mean + precision * sum(values) / len(values)) / (weight + precision)
        return Decay(mean, 1 / math.sqrt(weight + precision))

    @property
    def workload_sigma(self) -> float:
        """Standard deviation of d for a workload not yet observed."""
        return math.hypot(self.sigma, BETWEEN_WORKLOADS)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Acceptance of one kind of traffic, from measurements on it.

    ``lengths`` are the measured mean acceptance lengths by block size. ``survival`` is the share of verify steps in which draft 0, 1, …
    was accepted, as vLLM counts it by position; it is empty for an engine that does not export it (SGLang).
    """

    lengths: Mapping[int, float]
    decay: Decay
    survival: tuple[float, ...] = ()
    _cache: dict[int, Estimate] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raises ValueError if there is no measurement, or an impossible one."""
        if not self.lengths and not self.survival:
            raise ValueError("no acceptance was measured")
        for block, length in self.lengths.items():
            if block < 2 or not 1.0 <= length <= block:
                raise ValueError(f"acceptance length {length} is impossible at block {block}")
        falling = (1.0, *self.survival, 0.0)
        if any(not later <= before + _ROUNDING for before, later in pairwise(falling)):
            raise ValueError("shares of accepted drafts must fall along the block, from 1 at most to 0 at least")

    def length(self, block: int) -> Estimate:
        """Returns the tokens committed per verify step at ``block``: 1 ... block. Block 1 is speculation off. Raises ValueError below 1."""
        if block < 1:
            raise ValueError(f"block {block} is below 1")
        if block not in self._cache:
            self._cache[block] = self._length(block)
        return self._cache[block]

    def _length(self, block: int) -> Estimate:
        if block == 1:
            return Estimate(1.0, 0.0)
        if block in self.lengths:
            return Estimate(self.lengths[block], LENGTH_SIGMA)
        if block - 1 <= len(self.survival):
            return Estimate(1.0 + sum(self.survival[: block - 1]), CUT_SIGMA)
        if self.survival:
            source, length = len(self.survival) + 1, 1.0 + sum(self.survival)
        else:
            source = min(self.lengths, key=lambda seen: (abs(math.log(seen / block)), seen))
            length = self.lengths[source]
        decay = self._own_decay()
        value, low, high = (self._transferred(length, source, block, decay.mean + step * decay.workload_sigma) for step in (0, -1, 1))
        sigma = math.hypot(LENGTH_SIGMA, abs(math.log(high / low)) / 2)
        seen = max([source, *self.lengths])
        return Estimate(value, max(UPWARD_SIGMA, sigma) if block > seen else sigma)

    def _transferred(self, length: float, source: int, block: int, decay: float) -> float:
        first = first_chance(length, decay, source)
        if not self.survival:
            return mean_length(first, decay, block)
        # Counts by position are kept; the curve only adds the drafts beyond them.
        alive = self.survival[-1]
        for position in range(len(self.survival), block - 1):
            alive *= min(1.0, first * decay**position)
            length += alive
        return length

    def _own_decay(self) -> Decay:
        if len(self.lengths) < 2:
            return self.decay
        shortest, longest = min(self.lengths), max(self.lengths)
        return self.decay.learned([decay_between(self.lengths[shortest], shortest, self.lengths[longest], longest)])
