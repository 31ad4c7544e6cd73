"""Reads measured tables: ``model, workload, concurrency, block_size, method, tok_per_s``, with acceptance lengths in a second file.

Of several rows for the same cell the first one counts. Step times are ``c * tau / tok_per_s``.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


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
    """Reads the rows of methods DFlash and AR. Raises OSError, KeyError (a column is missing) or ValueError."""
    lengths: dict[tuple[str, ...], dict[int, float]] = defaultdict(dict)
    with accept.open(newline="") as rows:
        for row in csv.DictReader(rows):
            if row["method"] == "DFlash" and row["accept_len"]:
                model, workload = row["model"], row["workload"]
                for key in ((row.get("source") or "", model, workload), (model, workload)):
                    lengths[key].setdefault(int(row["block_size"]), float(row["accept_len"]))
    speeds: dict[tuple[str, str, str], dict[tuple[int, int], float]] = defaultdict(dict)
    with tables.open(newline="") as rows:
        for row in csv.DictReader(rows):
            if row["method"] in ("DFlash", "AR") and row["tok_per_s"]:
                block = int(row["block_size"]) if row["method"] == "DFlash" else 1
                cell = speeds[row.get("source") or "", row["model"], row["workload"]]
                cell.setdefault((block, int(row["concurrency"])), float(row["tok_per_s"]))
    return tuple(
        Series(source, model, workload, cell, {1: 1.0, **lengths.get((source, model, workload), lengths[model, workload])})
        for (source, model, workload), cell in speeds.items()
    )
