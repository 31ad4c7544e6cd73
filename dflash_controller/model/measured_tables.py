"""Reads measured tables, which are CSV files, and says in one line what is wrong with one: file, line, column and remedy.

A table of speeds has the columns ``model, workload, concurrency, block_size, method, tok_per_s``. A table of acceptance lengths has
``model, workload, block_size, method, accept_len``. Both may have more. ``source`` is read where there is one, and of a table of speeds
``engine``, ``kind`` (of target) and ``notes``. Rows of method
``DFlash`` count, and in a table of speeds those of ``AR`` (no speculation, block size 1). A row without a measured value counts as not
measured.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_LARGEST = 1_000_000
_LEAST, _MOST = 0.001, 1e9
"""Limits of measured values. Beyond them arithmetic overflows, and nothing is that slow or fast."""
_DECIMAL = re.compile(r"[0-9]*\.?[0-9]+([eE][+-]?[0-9]+)?", re.ASCII)


class TableError(ValueError):
    """A table that cannot be used. The text names the file and, where there is one, line and column, and ends with the remedy."""


@dataclass(frozen=True, slots=True)
class Speed:
    """One measured cell: output tokens per second of all requests together."""

    source: str
    model: str
    workload: str
    concurrency: int
    block_size: int
    """1 is without speculation."""
    tokens_per_s: float
    notes: str = ""
    """What the columns engine, kind and notes say."""


@dataclass(frozen=True, slots=True)
class Length:
    """One measured acceptance length, in tokens per verify step."""

    source: str
    model: str
    workload: str
    block_size: int
    tokens: float


def read_speeds(path: Path) -> list[Speed]:
    """Returns the measured cells, in the order of the file. Raises TableError."""
    found = []
    for row in _rows(path, ("model", "workload", "concurrency", "block_size", "method", "tok_per_s")):
        if row.text("method") not in ("DFlash", "AR") or not row.cells["tok_per_s"]:
            continue
        block = row.whole("block_size", at_least=2) if row.text("method") == "DFlash" else 1
        source, model, workload = row.cells.get("source", ""), row.text("model"), row.text("workload")
        notes = " ".join(filter(None, (row.cells.get(column, "") for column in ("engine", "kind", "notes"))))
        found.append(Speed(source, model, workload, row.whole("concurrency", at_least=1), block, row.number("tok_per_s"), notes))
    if not found:
        raise TableError(f"{path}: has no row of method DFlash or AR with tok_per_s; add what was measured")
    return found


def read_lengths(path: Path) -> list[Length]:
    """Returns the measured acceptance lengths, in the order of the file. Raises TableError."""
    found = []
    for row in _rows(path, ("model", "workload", "block_size", "method", "accept_len")):
        if row.text("method") != "DFlash" or not row.cells["accept_len"]:
            continue
        block, tokens = row.whole("block_size", at_least=2), row.number("accept_len")
        if not 1 <= tokens <= block:
            raise row.wrong("accept_len", f"is {tokens:g}", f"an acceptance length is between 1 and the block size, here {block}")
        found.append(Length(row.cells.get("source", ""), row.text("model"), row.text("workload"), block, tokens))
    return found


@dataclass(frozen=True, slots=True)
class _Row:
    path: Path
    line: int
    cells: dict[str, str]

    def wrong(self, column: str, what: str, remedy: str) -> TableError:
        return TableError(f"{self.path}, line {self.line}, column {column}: {what}; {remedy}")

    def text(self, column: str) -> str:
        if not self.cells[column]:
            raise self.wrong(column, "is empty", "fill it in, or remove the row")
        return self.cells[column]

    def whole(self, column: str, *, at_least: int) -> int:
        text = self.text(column)
        if not (text.isascii() and text.isdecimal()) or not at_least <= int(text[:9]) <= _LARGEST:
            raise self.wrong(column, f"is {text!r}", f"write a whole number from {at_least} to {_LARGEST}")
        return int(text)

    def number(self, column: str) -> float:
        text = self.text(column)
        if _DECIMAL.fullmatch(text) is None or not _LEAST <= float(text) <= _MOST:
            raise self.wrong(column, f"is {text!r}", f"write a number from {_LEAST:g} to {_MOST:.0f}, with a point and no unit")
        return float(text)


def _rows(path: Path, columns: Sequence[str]) -> Iterator[_Row]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as lines:
            yield from _parsed(path, csv.reader(lines, strict=True), columns)
    except OSError as error:
        raise TableError(f"{path}: {error.strerror}; give a CSV file that can be read") from error
    except UnicodeDecodeError as error:
        raise TableError(f"{path}: is not UTF-8 text (byte {error.start}); save it as CSV in UTF-8") from error


def _parsed(path: Path, lines: Iterator[list[str]], columns: Sequence[str]) -> Iterator[_Row]:
    line = 1
    try:
        header = next(lines, [])
        missing = [column for column in columns if column not in header]
        if missing:
            raise TableError(f"{path}, line 1: has no column {', '.join(missing)}; begin with a line that names {', '.join(columns)}")
        twice = [column for column in columns if header.count(column) > 1]
        if twice:
            raise TableError(f"{path}, line 1, column {twice[0]}: is there twice; remove one")
        for values in lines:
            line = getattr(lines, "line_num", 0)
            if not values:
                continue
            if len(values) != len(header):
                what = f"has {len(values)} cells, and the header {len(header)}"
                raise TableError(f"{path}, line {line}: {what}; put a cell with a comma into quotation marks")
            yield _Row(path, line, {name: value.strip() for name, value in zip(header, values, strict=True)})
    except csv.Error as error:
        raise TableError(f"{path}, after line {line}: {error}; save it as CSV") from error
