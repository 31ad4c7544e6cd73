"""How far a download of weights has come, as ``dflash-fetch`` serves it and the status shows it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

PORT = 8090
"""Where a container that fetches weights answers, in Jobs and in engine pods."""
PATH = "/progress"
LIMIT_VARIABLE = "DFLASH_STORAGE_LIMIT"
"""Tells the program how many bytes the storage may hold. A variable, because a revision may keep the image of an earlier release, which
would refuse an option that it does not know."""


@dataclass(frozen=True, slots=True)
class FetchProgress:
    """``done`` of ``total`` bytes, at ``rate`` bytes per second; ``left`` are the seconds to go, None while nothing arrives."""

    phase: str
    done: int
    total: int
    rate: float
    left: float | None

    @property
    def share(self) -> float:
        """From 0 to 1. What has not begun is at 0."""
        return self.done / self.total if self.total else 0.0

    def sentence(self) -> str:
        """Returns for instance ``4.2 GB of 18.0 GB (23 %), 410.0 MB/s, 34 s left``."""
        left = "" if self.left is None else f", {_duration(self.left)} left"
        return f"{in_units(self.done)} of {in_units(self.total)} ({100 * self.share:.0f} %), {in_units(self.rate)}/s{left}"


def parse_progress(text: str) -> FetchProgress | None:
    """Returns what a pod answers; None if it is no progress. A pod may answer anything, so nothing is believed but plain numbers."""
    try:
        found = json.loads(text)
        left = found["left"]
        read = FetchProgress(str(found["phase"])[:200], int(found["done"]), int(found["total"]), float(found["rate"]), left and float(left))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    finite = math.isfinite(read.rate) and (read.left is None or math.isfinite(read.left))
    return read if finite and 0 <= read.done <= read.total < 2**60 and read.rate >= 0 and (read.left or 0) >= 0 else None


def in_units(count: float) -> str:
    """Formats a number of bytes with the decimal units that hubs and disks use."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} TB"


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
