"""Step time and acceptance of a model, from measured tables.

If several rows of a table have the same cell, the first one counts. The step time of a cell is ``s = c * tau / tok_per_s``.

Between cells:

* concurrency: straight lines in log s over log c. Below the smallest measured c the step time is constant; above the largest the last slope
  continues.
* block size: a block without its own row follows the law ``s(B, c) = f(B * c)``, read from the nearest measured block. A block with a
  single row follows the law too, scaled to pass through that row.
* workload: a workload that was not measured for a model uses the step time of the model's default workload, because step time does not
  depend on the task.
* acceptance: the block's own row; else the curve of the nearest block; else (the model has no row) the mean over the models that have that
  workload.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from dflash_controller.model.measured_tables import Length, Speed, read_lengths, read_speeds
from testbed.simulator.acceptance import AcceptanceCurve, solve

DATA = Path(__file__).resolve().parent.parent / "data"
SEED_TABLES = DATA / "seed_tables.csv"
SEED_ACCEPT = DATA / "seed_accept.csv"

DEFAULT_WORKLOAD = "gsm8k"
BENCH = "dflash-bench-"
"""What ``kubectl dflash bench`` puts before the name of a workload."""
_LIKE = {"math": "math500", "code": "humaneval", "chat": "mt-bench"}
"""Published workloads that replace those of ``kubectl dflash bench``."""
FALLBACK_MODEL = "Qwen3.5-9B"
"""Model that replaces an unknown target; a table without it uses its first model."""

_Acceptance = Mapping[tuple[str, int], AcceptanceCurve]
_Cells = dict[str, dict[int, dict[int, float]]]


def _nearest(block: int, blocks: Iterable[int]) -> int:
    return min(blocks, key=lambda other: (abs(math.log(other / block)), other))


@dataclass(frozen=True, slots=True)
class StepCurve:
    """Step times (seconds) over concurrency at one block size: ``points`` ascending in c."""

    points: tuple[tuple[float, float], ...]

    def at(self, concurrency: float) -> float:
        points = self.points
        if concurrency <= points[0][0] or len(points) == 1:
            return points[0][1]
        right = next((i for i, (c, _) in enumerate(points) if c >= concurrency), len(points) - 1)
        (c0, s0), (c1, s1) = points[right - 1], points[right]
        slope = math.log(s1 / s0) / math.log(c1 / c0)
        if concurrency > c1:
            slope = max(0.0, slope)
            c0, s0 = c1, s1
        return s0 * math.exp(slope * math.log(concurrency / c0))


class ModelTable:
    """One model's step times and acceptance. ``name`` is the model of the table, which may replace another."""

    def __init__(
        self, name: str, curves: Mapping[str, Mapping[int, StepCurve]], acceptance: Mapping[tuple[str, int], AcceptanceCurve]
    ) -> None:
        self.name = name
        self._curves = curves
        self._acceptance = acceptance
        self.workloads = tuple(curves)
        self._steps: dict[tuple[str, int, int], float] = {}

    def workload(self, asked: str | None) -> str:
        """Returns the workload for a request that asks for ``asked``: the same if its acceptance is known, else the one most like it."""
        name = (asked or "").removeprefix(BENCH)
        for known in (name, _LIKE.get(name)):
            if known in self._curves or any(workload == known for workload, _ in self._acceptance):
                return str(known)
        return DEFAULT_WORKLOAD if DEFAULT_WORKLOAD in self._curves else self.workloads[0]

    def blocks(self, workload: str) -> tuple[int, ...]:
        """Returns the block sizes measured for a workload; 1 means speculation off."""
        return tuple(sorted(self._curves.get(workload, {})))

    def acceptance(self, workload: str, block: int) -> AcceptanceCurve:
        """Returns the curve of a workload at a block size. Raises KeyError for a workload without any acceptance row."""
        known = [measured for name, measured in self._acceptance if name == workload]
        if not known:
            raise KeyError(f"no acceptance length for workload {workload!r}")
        return self._acceptance[workload, _nearest(block, known)]

    def step_time_s(self, workload: str, block: int, concurrency: int) -> float:
        """Returns the step time in seconds with ``concurrency`` requests in the step."""
        key = (workload, block, concurrency)
        if key not in self._steps:
            self._steps[key] = self._step_time_s(*key)
        return self._steps[key]

    def _step_time_s(self, workload: str, block: int, concurrency: int) -> float:
        curves = self._curves.get(workload) or self._curves[self.workload(None)]
        own = curves.get(block)
        if own is not None and len(own.points) > 1:
            return own.at(concurrency)
        drafting = [b for b, curve in curves.items() if b > 1 and b != block and len(curve.points) > 1]
        if not drafting:
            return (own or curves[_nearest(block, curves)]).at(concurrency)
        nearest = _nearest(block, drafting)
        law = curves[nearest]
        step = law.at(concurrency * block / nearest)
        if own is not None:
            at, measured = own.points[0]
            step *= measured / law.at(at * block / nearest)
        return step


class Table:
    """All models of one pair of CSV files."""

    def __init__(self, speeds: Iterable[Speed], lengths: Iterable[Length]) -> None:
        self._acceptance: dict[str, dict[tuple[str, int], AcceptanceCurve]] = defaultdict(dict)
        for length in lengths:
            key = (length.workload, length.block_size)
            self._acceptance[length.model].setdefault(key, solve(length.tokens, key[1]))
        self._cells: dict[str, _Cells] = defaultdict(lambda: defaultdict(lambda: defaultdict(dict)))
        for speed in speeds:
            self._cells[speed.model][speed.workload][speed.block_size].setdefault(speed.concurrency, speed.tokens_per_s)
        self._models: dict[str, ModelTable] = {}

    @classmethod
    def load(cls, tables: Path = SEED_TABLES, accept: Path = SEED_ACCEPT) -> Table:
        """Reads both files. Raises TableError."""
        return cls(read_speeds(tables), read_lengths(accept))

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(self._cells)

    def throughput(self, model: str, workload: str, block: int, concurrency: int) -> float | None:
        """Returns tokens per second as in the file; None if it has no such row."""
        return self._cells.get(model, {}).get(workload, {}).get(block, {}).get(concurrency)

    def match(self, *names: str) -> ModelTable:
        """Returns the model whose name begins the last path segment of the first of ``names`` that matches, else the fallback model.

        Names are tried in order: a target given as a local folder is found by its served model name.
        """
        for name in names:
            segment = name.rstrip("/").rsplit("/", 1)[-1]
            fitting = [model for model in self._cells if segment.startswith(model)]
            if fitting:
                return self.model(max(fitting, key=len))
        return self.model(FALLBACK_MODEL if FALLBACK_MODEL in self._cells else next(iter(self._cells)))

    def model(self, name: str) -> ModelTable:
        """Returns a model of the table. Raises KeyError if the table does not have it."""
        if name not in self._cells:
            raise KeyError(name)
        if name not in self._models:
            acceptance = self._acceptance_of(name)
            curves = {
                workload: {block: _curve(cells, acceptance, workload, block) for block, cells in by_block.items()}
                for workload, by_block in self._cells[name].items()
            }
            self._models[name] = ModelTable(name, curves, acceptance)
        return self._models[name]

    def _acceptance_of(self, name: str) -> _Acceptance:
        if name in self._acceptance:
            return self._acceptance[name]
        pooled: dict[tuple[str, int], list[float]] = defaultdict(list)
        for curves in self._acceptance.values():
            for key, curve in curves.items():
                pooled[key].append(curve.length(key[1]))
        return {key: solve(sum(lengths) / len(lengths), key[1]) for key, lengths in pooled.items()}


def _curve(cells: Mapping[int, float], acceptance: _Acceptance, workload: str, block: int) -> StepCurve:
    if block == 1:
        length = 1.0
    else:
        measured = [b for name, b in acceptance if name == workload]
        if not measured:
            raise ValueError(f"workload {workload!r} has throughput rows at block {block} but no acceptance length")
        length = acceptance[workload, _nearest(block, measured)].length(block)
    return StepCurve(tuple((float(c), c * length / tok_per_s) for c, tok_per_s in sorted(cells.items())))


@lru_cache(maxsize=1)
def seed_table() -> Table:
    """Returns the published tables that the product starts from."""
    return Table.load()
