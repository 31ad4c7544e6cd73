"""Series of measured tables. Of several rows for the same cell the first one counts. Step times are ``c * tau / tok_per_s``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from testbed.measured_tables import read_lengths, read_speeds


@dataclass(frozen=True)
class Series:
    """One workload of one model on one card: tokens per second by (block, concurrency), block 1 without drafter."""

    source: str
    model: str
    workload: str
    speeds: Mapping[tuple[int, int], float]
    lengths: Mapping[int, float]
    """Published acceptance lengths by block."""

    def step_s(self, block: int, concurrency: int) -> float | None:
        """Returns the step time in seconds; None if the speed or the acceptance length is not published."""
        speed, length = self.speeds.get((block, concurrency)), self.lengths.get(block)
        return None if speed is None or length is None else concurrency * length / speed

    def candidate_blocks(self, concurrency: int) -> tuple[int, ...]:
        """Returns the blocks measured with a drafter at that concurrency, ascending."""
        return tuple(sorted(block for block, c in self.speeds if c == concurrency and block > 1))

    @property
    def concurrencies(self) -> tuple[int, ...]:
        return tuple(sorted({c for block, c in self.speeds if block > 1}))


def load(tables: Path, accept: Path) -> tuple[Series, ...]:
    """Returns the series of both files. Raises TableError."""
    lengths: dict[tuple[str, ...], dict[int, float]] = defaultdict(dict)
    for length in read_lengths(accept):
        for key in ((length.source, length.model, length.workload), (length.model, length.workload)):
            lengths[key].setdefault(length.block_size, length.tokens)
    speeds: dict[tuple[str, str, str], dict[tuple[int, int], float]] = defaultdict(dict)
    for speed in read_speeds(tables):
        speeds[speed.source, speed.model, speed.workload].setdefault((speed.block_size, speed.concurrency), speed.tokens_per_s)
    return tuple(
        Series(source, model, workload, cell, {1: 1.0, **lengths.get((source, model, workload), lengths[model, workload])})
        for (source, model, workload), cell in speeds.items()
    )
