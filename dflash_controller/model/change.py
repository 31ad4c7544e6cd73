"""What a candidate changes against the stable revision."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Part(StrEnum):
    """What of an engine process differs."""

    DRAFTER = "drafter"
    BLOCK_SIZE = "block size"
    ENGINE = "engine"
    TARGET = "target"


@dataclass(frozen=True, slots=True)
class Change:
    """Everything that decides which metrics mean something for a candidate."""

    parts: frozenset[Part]
    candidate_block: int
    stable_block: int
    """Largest block sizes; 1 drafts nothing."""

    @property
    def drafts(self) -> bool:
        """Whether both sides draft."""
        return min(self.candidate_block, self.stable_block) > 1
