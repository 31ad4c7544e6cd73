"""Series of measured tables. Of several rows for the same cell the first one counts. Step times are ``c * tau / tok_per_s``.

The engine and the kind of a target are what a table's columns ``engine`` and ``kind`` say, else its source or notes, else the model's name.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dflash_controller.model.measured_tables import read_lengths, read_speeds
from dflash_controller.tuner.machine import UNKNOWN, Machine


@dataclass(frozen=True)
class Series:
    """One workload of one model on one card: tokens per second by (block, concurrency), block 1 without drafter."""

    source: str
    model: str
    workload: str
    speeds: Mapping[tuple[int, int], float]
    lengths: Mapping[int, float]
    """Published acceptance lengths by block."""
    machine: Machine = UNKNOWN

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


_ENGINE = re.compile(r"vllm|sglang", re.IGNORECASE)
_MIXTURE = re.compile(r"\b(moe|mixture)\b|-A\d+(\.\d+)?B", re.IGNORECASE)
"""The second part is in names of models that activate some of their weights only."""
_HYBRID = re.compile(r"\bhybrid\b|qwen3\.[5-9]|qwen3-next", re.IGNORECASE)
"""The second part is in names of the Qwen models with gated delta nets."""
_DENSE = re.compile(r"\bdense\b", re.IGNORECASE)


def machine_of(model: str, said: str) -> Machine:
    """Returns the engine and kind of a model from what its table says; an engine that is named nowhere is unknown."""
    engine = _ENGINE.search(said)
    words = f"{model} {said}"
    dense = _DENSE.search(said) is not None
    return Machine(
        engine.group().lower() if engine else "",
        hybrid=not dense and _HYBRID.search(words) is not None,
        mixture=not dense and _MIXTURE.search(words) is not None,
    )


def load(tables: Path | Sequence[Path], accept: Path | Sequence[Path]) -> tuple[Series, ...]:
    """Returns the series of tables of speeds and of acceptance lengths. Several files are one table. Raises TableError."""
    lengths: dict[tuple[str, ...], dict[int, float]] = defaultdict(dict)
    for length in (one for file in _files(accept) for one in read_lengths(file)):
        for key in ((length.source, length.model, length.workload), (length.model, length.workload)):
            lengths[key].setdefault(length.block_size, length.tokens)
    speeds: dict[tuple[str, str, str], dict[tuple[int, int], float]] = defaultdict(dict)
    machines: dict[tuple[str, str], Machine] = {}
    for speed in (one for file in _files(tables) for one in read_speeds(file)):
        speeds[speed.source, speed.model, speed.workload].setdefault((speed.block_size, speed.concurrency), speed.tokens_per_s)
        machines.setdefault((speed.source, speed.model), machine_of(speed.model, f"{speed.source} {speed.notes}"))
    return tuple(
        Series(
            source,
            model,
            workload,
            cell,
            {1: 1.0, **lengths.get((source, model, workload), lengths[model, workload])},
            machines[source, model],
        )
        for (source, model, workload), cell in speeds.items()
    )


def _files(given: Path | Sequence[Path]) -> Sequence[Path]:
    return (given,) if isinstance(given, Path) else given
