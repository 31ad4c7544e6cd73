"""Speed of a replica by block size, as measured: requests' steps per second, slot by slot, times the tokens that a step commits."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from dflash_controller.model.load_sample import LoadSample
from dflash_controller.tuner.learned import Seen
from dflash_controller.tuner.step_times import OFF
from dflash_controller.tuner.window import KEPT_S, SLOT_S


class Speeds:
    """Measured speeds from load samples that are points of the curve. Like predictions they exclude idle time."""

    def __init__(self, slot_s: float = SLOT_S) -> None:
        self._slot_s = slot_s
        self._slots: deque[tuple[float, dict[int, tuple[float, float]]]] = deque()
        """Start of a slot, and by block: seconds, and requests' steps in them."""

    def add(self, load_sample: LoadSample) -> None:
        """Adds a load sample that is not excluded and has a concurrency and a step time."""
        start_s = load_sample.at_s // self._slot_s * self._slot_s
        if not self._slots or self._slots[-1][0] < start_s:
            self._slots.append((start_s, {}))
        last_s, blocks = self._slots[-1]
        if last_s > start_s:
            # A load sample that arrives late counts for the slot after its own: what is asked for spans many.
            blocks = next(blocks for at_s, blocks in self._slots if at_s >= start_s)
        seconds, steps = blocks.get(load_sample.block, (0.0, 0.0))
        blocks[load_sample.block] = (
            seconds + load_sample.seconds,
            steps + load_sample.seconds * load_sample.concurrency / load_sample.step_s,
        )
        while self._slots[-1][0] - self._slots[0][0] > KEPT_S:
            self._slots.popleft()

    def over(self, now_s: float, span_s: float, acceptance: Iterable[Seen]) -> tuple[tuple[int, float], ...]:
        """Returns (block, tokens per second of one replica) over the last ``span_s`` seconds, for blocks with known acceptance."""
        lengths = {OFF: 1.0, **{seen.block: seen.length for seen in acceptance}}
        seconds: dict[int, float] = {}
        steps: dict[int, float] = {}
        for at_s, blocks in reversed(self._slots):
            if at_s + self._slot_s <= now_s - span_s:
                break
            for block, (lasted_s, made) in blocks.items():
                seconds[block] = seconds.get(block, 0.0) + lasted_s
                steps[block] = steps.get(block, 0.0) + made
        return tuple(
            (block, float(f"{lengths[block] * steps[block] / seconds[block]:.4g}"))
            for block in sorted(seconds)
            if block in lengths and seconds[block] > 0
        )
