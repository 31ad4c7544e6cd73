"""What an engine drafts: nothing, one block size, or a block size by load.

Block size B counts one known token and B - 1 drafts (SGLang's ``--speculative-num-draft-tokens`` is B,
vLLM's ``num_speculative_tokens`` is K = B - 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Off:
    """No speculation: the target decodes by itself."""

    @property
    def max_block_size(self) -> int:
        return 1

    def label(self) -> str:
        return "off"

    def to_json(self) -> dict[str, Any]:
        return {"mode": "Off"}


@dataclass(frozen=True, slots=True)
class Fixed:
    """One block size, whatever the load."""

    block_size: int

    @property
    def max_block_size(self) -> int:
        return self.block_size

    def label(self) -> str:
        return str(self.block_size)

    def to_json(self) -> dict[str, Any]:
        return {"mode": "Fixed", "blockSize": self.block_size}


@dataclass(frozen=True, slots=True)
class Schedule:
    """Drafts by the number of requests in one step: ``(low, high, K)``, inclusive, gapless from 1, K = B - 1 (vLLM >= 0.26)."""

    ranges: tuple[tuple[int, int, int], ...]

    @property
    def max_block_size(self) -> int:
        return max(k for _, _, k in self.ranges) + 1

    def label(self) -> str:
        return f"schedule-{self.max_block_size}"

    def to_json(self) -> dict[str, Any]:
        return {"mode": "Schedule", "ranges": [list(r) for r in self.ranges]}


Speculation = Off | Fixed | Schedule


def parse_speculation(data: Mapping[str, Any]) -> Speculation:
    """The inverse of ``to_json``. Raises ValueError on anything else."""
    match data:
        case {"mode": "Off"}:
            return Off()
        case {"mode": "Fixed", "blockSize": int(block)}:
            return Fixed(block)
        case {"mode": "Schedule", "ranges": [*ranges]}:
            return Schedule(tuple((int(lo), int(hi), int(k)) for lo, hi, k in ranges))
    raise ValueError(f"not a speculation: {dict(data)!r}")
