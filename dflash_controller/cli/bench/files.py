"""Benchmarks as CSV files, with the columns of the published tables (``dflash_controller.model.measured_tables`` reads both).

A file of speeds has one row for each cell. Beside it is a file of acceptance lengths, with ``_accept`` at the end of its name, which has a
row for each workload and block size. Concurrency and tokens per second are those of one replica, as in the published tables: the step time
is concurrency x acceptance length / tokens per second.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_controller.cli.bench.rows import Row, acceptance_lengths
from dflash_controller.cli.failures import Failure
from dflash_controller.model.measured_tables import Speed, TableError, read_lengths, read_speeds

SPEEDS = ("source", "model", "workload", "concurrency", "block_size", "method", "tok_per_s", "speedup", "notes")
LENGTHS = ("source", "model", "workload", "block_size", "method", "accept_len")


@dataclass(frozen=True)
class Earlier:
    """A run that was read from its file. Of several rows for one cell the first one counts."""

    file: str
    speeds: tuple[Speed, ...]
    lengths: Mapping[tuple[str, str, str, int], float]
    """Acceptance length by source, model, workload and block size."""

    def length(self, speed: Speed) -> float | None:
        """Returns the acceptance length of a cell."""
        return self.lengths.get((speed.source, speed.model, speed.workload, speed.block_size))

    def like(self, workload: str, concurrency: int, block_size: int, model: str) -> Speed | None:
        """Returns the cell that another one is compared with: of the same model and block size if there is one, else the first."""
        found = [one for one in self.speeds if (one.workload, one.concurrency) == (workload, concurrency)]
        return max(found, key=lambda one: (one.model == model, one.block_size == block_size), default=None)

    def unlike(self, models: Iterable[str]) -> str:
        """Returns a sentence if it has no row of one of these models, so that they are compared with others; else nothing."""
        known = dict.fromkeys(speed.model for speed in self.speeds)
        missing = [model for model in dict.fromkeys(models) if model not in known]
        return f"{self.file} has no row of {', '.join(missing)}: compared with {', '.join(known)}" if missing else ""

    def reference(self, each: Row) -> float | None:
        """Returns what a row is compared with, in tokens per second of one replica."""
        found = self.like(each.cell.workload, each.cell.concurrency, each.block_size, each.cell.machine.model)
        return None if found is None else found.tokens_per_s


def accept_file(file: str) -> str:
    """Returns the name of the file of acceptance lengths beside one of speeds."""
    path = Path(file)
    return str(path.with_name(f"{path.stem}_accept{path.suffix}"))


def read(file: str) -> Earlier:
    """Returns an earlier run. Raises Failure if it cannot be used; a file of acceptance lengths may be missing."""
    lengths: dict[tuple[str, str, str, int], float] = {}
    try:
        speeds: dict[tuple[str, str, str, int, int], Speed] = {}
        for speed in read_speeds(Path(file)):
            speeds.setdefault((speed.source, speed.model, speed.workload, speed.concurrency, speed.block_size), speed)
        if Path(accept_file(file)).is_file():
            for length in read_lengths(Path(accept_file(file))):
                lengths.setdefault((length.source, length.model, length.workload, length.block_size), length.tokens)
    except TableError as error:
        raise Failure(str(error)) from error
    return Earlier(file, tuple(speeds.values()), lengths)


def write(file: str, rows: Sequence[Row], speedups: Mapping[int, float], first: str, about: str) -> list[str]:
    """Writes both files and returns their names. ``about``: what all rows have in common. Raises Failure if a file cannot be written.

    Rows of the deployment ``first`` come first: it is the one that a later run is compared with. A row during which the deployment changed
    has no tok_per_s, so that nobody takes it for a measurement; its notes have the number.
    """
    places = sorted(range(len(rows)), key=lambda place: rows[place].cell.deployment != first)
    lengths = acceptance_lengths(rows[place] for place in places)
    _write(file, SPEEDS, (_speed(rows[place], speedups.get(place), about) for place in places))
    _write(
        accept_file(file),
        LENGTHS,
        (
            {
                "source": machine.source,
                "model": machine.model,
                "workload": workload,
                "block_size": block,
                "method": "DFlash",
                "accept_len": f"{length:.4f}",
            }
            for (machine, workload, block), length in lengths.items()
        ),
    )
    return [file, accept_file(file)]


def writable(file: str) -> None:
    """Raises Failure if a file cannot be made there: before an hour of load, not after it."""
    path = Path(file)
    there = path.exists()
    try:
        with path.open("a", encoding="utf-8"):
            pass
        if not there:
            path.unlink()
    except OSError as error:
        raise Failure(f"{file} cannot be written: {error.strerror}") from error


def _speed(each: Row, speedup: float | None, about: str) -> dict[str, Any]:
    return {
        "source": each.cell.machine.source,
        "model": each.cell.machine.model,
        "workload": each.cell.workload,
        "concurrency": each.cell.concurrency,
        "block_size": each.block_size,
        "method": "DFlash" if each.block_size > 1 else "AR",
        "tok_per_s": f"{each.per_replica:.1f}" if each.sound else "",
        "speedup": "" if speedup is None else f"{speedup:.3f}",
        "notes": "; ".join(_notes(each, about)),
    }


def _notes(each: Row, about: str) -> Iterable[str]:
    # No name of a deployment: readers look for words such as dense and MoE here, which a name may contain.
    yield f"{each.cell.machine.kind}, replicas {each.cell.replicas}, {about}"
    yield f"seconds {each.seconds:.0f}, answers {each.answers}, errors {sum(each.errors.values())}"
    for name, percentiles in (("ttft_ms", each.first_token_s), ("tpot_ms", each.per_token_s)):
        if None not in (values := (percentiles.get("p50"), percentiles.get("p95"))):
            yield f"{name} p50 {1000 * (values[0] or 0):.1f} p95 {1000 * (values[1] or 0):.1f}"
    if each.counted.acceptance is not None:
        yield f"accept {each.counted.acceptance:.3f}"
    if each.changes:
        yield f"not counted (tok_per_s {each.per_replica:.1f}): {', '.join(each.changes)}"
    yield from each.remarks


def _write(file: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    try:
        with Path(file).open("w", newline="", encoding="utf-8") as lines:
            table = csv.DictWriter(lines, columns, lineterminator="\n")
            table.writeheader()
            table.writerows(rows)
    except OSError as error:
        raise Failure(f"{file} cannot be written: {error.strerror}") from error
