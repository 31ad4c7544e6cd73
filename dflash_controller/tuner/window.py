"""Loads and acceptance of the last minutes, and loads of the last days.

Acceptance is a property of the traffic, not of its load, so earlier slots that agree with the window make its mean more certain. The span
is doubled as long as the added slots do not differ from the rest (adaptive windowing, Bifet and Gavaldà 2007). This matters because a
decision is possible at every evaluation: with a noisy mean, the largest error would decide.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise, takewhile
from statistics import fmean, median

from dflash_controller.model.load_sample import PREFILL, WARM_UP, LoadSample
from dflash_controller.tuner.learned import Seen
from dflash_controller.tuner.recommend import ObservedLoad
from dflash_controller.tuner.step_times import OFF

PER_DOUBLING = 8
"""Bins per doubling of concurrency: each 9 % wide, which is about the precision of the mean over a load sample."""
SLOT_S = 60.0
"""What is summed up at a time, where nothing else is said."""
KEPT_S = 6 * 3600.0
"""Longest window that can be asked for."""
USUAL_S = 86400.0
"""Time constant of the usual loads."""
MEMORY_S = 3600.0
"""Slots older than this never count as the same traffic."""
LEAST_SLOTS = 6
"""Minimum number of slots to estimate their standard deviation."""
SIGNIFICANT = 3.0
"""Standard errors by which two spans must differ to count as different traffic: the limit of control charts (Shewhart), because the test
runs at every evaluation."""
SCATTER = 1 / (0.6745 * math.sqrt(2))
"""Standard deviation of normal values ÷ the median distance of neighbours, which a few jumps do not change."""
MOST_USUAL = 64
SHOWN_S = 600.0


def load_bin(concurrency: float) -> int:
    """Returns the number of the bin; negative below a concurrency of 1."""
    return round(PER_DOUBLING * math.log2(concurrency))


@cache
def bin_load(place: int) -> float:
    """Returns the concurrency at the middle of a bin."""
    return float(f"{2 ** (place / PER_DOUBLING):.5g}")


def shares(seconds: Mapping[int, float]) -> tuple[ObservedLoad, ...]:
    """Returns the loads in ascending order with shares of 1, without those below 1 ‰."""
    total = sum(seconds.values())
    if not total > 0:
        return ()
    return tuple(
        ObservedLoad(bin_load(place), round(share / total, 4)) for place, share in sorted(seconds.items()) if share / total >= 1e-3
    )


@dataclass(slots=True)
class Tally:
    """Sums of acceptance at one block size."""

    steps: float = 0.0
    committed: float = 0.0
    steps_by_position: float = 0.0
    """Steps for which survival by position is known."""
    survived: list[float] = field(default_factory=list)

    def add(self, steps: float, committed: float, steps_by_position: float, survived: Sequence[float]) -> None:
        self.steps += steps
        self.committed += committed
        if not self.survived:
            self.steps_by_position, self.survived = steps_by_position, list(survived)
        elif len(survived) == len(self.survived):
            self.steps_by_position += steps_by_position
            self.survived = [a + b for a, b in zip(self.survived, survived, strict=True)]

    def seen(self, block: int) -> Seen:
        survival: list[float] = []
        for alive in self.survived if self.steps_by_position > 0 else ():
            # Counters of several pods are not read at the same instant, so a share can be slightly above the one before.
            survival.append(round(max(0.0, min(survival[-1] if survival else 1.0, alive / self.steps_by_position)), 4))
        return Seen(block, round(self.steps, 1), round(self.committed, 1), tuple(survival[: block - 1]))


@dataclass(slots=True)
class _Slot:
    at_s: float
    seconds: dict[int, float] = field(default_factory=dict)
    tallies: dict[int, Tally] = field(default_factory=dict)
    load_samples: int = 0
    prefilling: int = 0
    waiting: int = 0
    warming: int = 0
    steps_s: float = 0.0
    prefill_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over a span of time."""

    loads: tuple[ObservedLoad, ...]
    acceptance: tuple[Seen, ...]
    """Acceptance by block size."""
    load_samples: int
    prefilling: int = 0
    """Load samples whose time was mostly prefill."""
    waiting: int = 0
    """Load samples in which requests waited for a slot or for memory."""
    prefill_share: float = 0.0
    """Part of the time that prefill took beside decoding."""
    warming: int = 0
    """Load samples of engines in their warm-up."""


class DecisionWindow:
    """Sums by the slot of ``slot_s`` seconds, so that a long window costs no more than a short one."""

    def __init__(self, slot_s: float = SLOT_S) -> None:
        self._slot_s = slot_s
        self._slots: deque[_Slot] = deque()
        self._last: tuple[float, float, Sums] | None = None

    def add(self, load_sample: LoadSample) -> None:
        self._last = None
        start = load_sample.at_s // self._slot_s * self._slot_s
        slot = next((known for known in reversed(self._slots) if known.at_s <= start), None)
        if slot is None or slot.at_s != start:
            slot = _Slot(start)
            place = len(self._slots)
            while place and self._slots[place - 1].at_s > start:
                place -= 1
            self._slots.insert(place, slot)
        while self._slots[-1].at_s - self._slots[0].at_s > KEPT_S:
            self._slots.popleft()
        slot.load_samples += 1
        slot.prefilling += load_sample.excluded == PREFILL
        slot.waiting += load_sample.waited
        slot.warming += load_sample.excluded == WARM_UP
        slot.steps_s += load_sample.seconds
        slot.prefill_s += load_sample.seconds * load_sample.prefill_share
        if load_sample.concurrency > 0:
            place = load_bin(load_sample.concurrency)
            slot.seconds[place] = slot.seconds.get(place, 0.0) + load_sample.seconds
        if load_sample.block > OFF and load_sample.steps > 0 and load_sample.committed > 0:
            steps = load_sample.steps
            steps_by_position = steps if load_sample.survival else 0.0
            survived = [share * steps for share in load_sample.survival]
            slot.tallies.setdefault(load_sample.block, Tally()).add(steps, load_sample.committed, steps_by_position, survived)

    def over(self, now_s: float, span_s: float) -> Sums:
        """Returns the sums over the last ``span_s`` seconds."""
        if self._last is None or self._last[:2] != (now_s, span_s):
            self._last = now_s, span_s, self._sums(now_s, span_s)
        return self._last[2]

    def _sums(self, now_s: float, span_s: float) -> Sums:
        seconds: dict[int, float] = {}
        blocks: set[int] = set()
        load_samples = recent = prefilling = waiting = warming = 0
        steps_s = prefill_s = 0.0
        slots = list(takewhile(lambda slot: slot.at_s + self._slot_s > now_s - max(span_s, MEMORY_S), reversed(self._slots)))
        for slot in slots:
            if slot.at_s + self._slot_s <= now_s - span_s:
                break
            recent += 1
            load_samples += slot.load_samples
            prefilling, waiting, warming = prefilling + slot.prefilling, waiting + slot.waiting, warming + slot.warming
            steps_s, prefill_s = steps_s + slot.steps_s, prefill_s + slot.prefill_s
            for place, found in slot.seconds.items():
                seconds[place] = seconds.get(place, 0.0) + found
            blocks.update(slot.tallies)
        acceptance = []
        for block in sorted(blocks):
            within, before = ([slot.tallies[block] for slot in part if block in slot.tallies] for part in (slots[:recent], slots[recent:]))
            acceptance.append(_seen(block, within, before))
        share = round(prefill_s / steps_s, 3) if steps_s else 0.0
        return Sums(shares(seconds), tuple(acceptance), load_samples, prefilling, waiting, share, warming)


def _seen(block: int, within: Sequence[Tally], before: Sequence[Tally]) -> Seen:
    """Returns the acceptance in the window's slots, extended by earlier slots that agree, newest first.

    An earlier slot counts no more than a mean slot of the window, however busy it was. ``steps`` are those of the window.
    """
    total = Tally()
    for tally in within:
        total.add(tally.steps, tally.committed, tally.steps_by_position, tally.survived)
    steps, most = total.steps, total.steps / len(within)
    for tally in before[: _agreeing([*within, *before], len(within)) - len(within)]:
        part = min(1.0, most / tally.steps)
        total.add(part * tally.steps, part * tally.committed, part * tally.steps_by_position, [part * alive for alive in tally.survived])
    scale = steps / total.steps
    return Tally(steps, scale * total.committed, total.steps_by_position, total.survived).seen(block)


def _agreeing(tallies: Sequence[Tally], first: int) -> int:
    """Returns how many of these slots, newest first, count as the same traffic as the first ones."""
    if len(tallies) < max(LEAST_SLOTS, first + 1):
        return first
    lengths = [math.log(tally.committed / tally.steps) for tally in tallies]
    scatter = SCATTER * median(abs(one - next_one) for one, next_one in pairwise(lengths))
    count = first
    while count < len(lengths):
        wider = min(2 * count, len(lengths))
        error = scatter * math.sqrt(1 / count + 1 / (wider - count))
        if abs(fmean(lengths[:count]) - fmean(lengths[count:wider])) > SIGNIFICANT * error:
            break
        count = wider
    return count


class Usual:
    """Time by load, decaying by a factor of e per day."""

    def __init__(self) -> None:
        self.seconds: dict[int, float] = {}
        self.at_s = 0.0
        self._shown: tuple[float, tuple[ObservedLoad, ...]] = -math.inf, ()

    def loads(self) -> tuple[ObservedLoad, ...]:
        """Returns the shares, computed anew every ten minutes, because minutes change little of a day."""
        if abs(self.at_s - self._shown[0]) >= SHOWN_S:
            self._shown = self.at_s, shares(self.seconds)
        return self._shown[1]

    def add(self, load_sample: LoadSample) -> None:
        if load_sample.concurrency <= 0:
            return
        if load_sample.at_s - self.at_s > SLOT_S:
            fade = math.exp(-(load_sample.at_s - self.at_s) / USUAL_S)
            self.seconds = {place: seconds * fade for place, seconds in self.seconds.items()}
            self.at_s = load_sample.at_s
            if len(self.seconds) > MOST_USUAL:
                del self.seconds[min(self.seconds, key=lambda place: self.seconds[place])]
        place = load_bin(load_sample.concurrency)
        self.seconds[place] = self.seconds.get(place, 0.0) + load_sample.seconds
