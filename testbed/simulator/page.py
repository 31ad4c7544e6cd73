"""A ``/metrics`` page with names, types, labels and buckets of a page recorded from the real engine.

The recorded page is the schema: metrics that it lacks cannot be exposed, so a simulated page can only leave metrics out.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

RECORDED = Path(__file__).resolve().parent.parent / "data" / "metrics"

_SAMPLE = re.compile(r"^([^{\s]+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')
_SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}


@dataclass(frozen=True, slots=True)
class Recorded:
    """One metric of the recorded page. ``children`` are its label sets with their values (for a histogram or summary: its sum)."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...]
    buckets: tuple[float, ...]
    children: tuple[tuple[Mapping[str, str], float], ...]


Schema = Mapping[str, Recorded]


@lru_cache(maxsize=8)
def recorded(name: str) -> Schema:
    """Returns the schema of a recorded page, ``vllm-0.26.0`` or ``sglang-0.5.17``. Raises OSError, or ValueError for a line that is no
    sample."""
    return parse_page((RECORDED / f"{name}.txt").read_text())


def parse_page(text: str) -> Schema:
    """Reads an exposition page. Raises ValueError for a line that is neither comment nor sample of a declared metric."""
    helps: dict[str, str] = {}
    kinds: dict[str, str] = {}
    samples: dict[str, list[tuple[str, dict[str, str], float]]] = {}
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name, _, words = line[7:].partition(" ")
            helps[name] = words
        elif line.startswith("# TYPE "):
            name, _, kind = line[7:].partition(" ")
            kinds[name] = kind
            samples[name] = []
        elif line.strip() and not line.startswith("#"):
            match = _SAMPLE.match(line)
            if match is None:
                raise ValueError(f"not a sample: {line!r}")
            name = _metric_of(match[1], kinds)
            samples[name].append((match[1][len(name) :], dict(_LABEL.findall(match[2] or "")), float(match[3])))
    return {name: _recorded(name, kind, helps.get(name, ""), samples[name]) for name, kind in kinds.items()}


def _metric_of(sample: str, kinds: Mapping[str, str]) -> str:
    if sample in kinds:
        return sample
    for kind, suffixes in _SUFFIXES.items():
        for suffix in suffixes:
            name = sample.removesuffix(suffix)
            if name != sample and kinds.get(name) == kind:
                return name
    raise ValueError(f"sample {sample!r} belongs to no declared metric")


def _recorded(name: str, kind: str, words: str, samples: Iterable[tuple[str, dict[str, str], float]]) -> Recorded:
    labels: dict[str, None] = {}
    buckets: dict[float, None] = {}
    children: dict[tuple[tuple[str, str], ...], float] = {}
    for suffix, pairs, value in samples:
        le = pairs.pop("le", None) if suffix == "_bucket" else None
        if le is not None:
            buckets[float(le)] = None
        labels.update(dict.fromkeys(pairs))
        if suffix in ("", "_sum"):
            children[tuple(pairs.items())] = value
    return Recorded(name, kind, words, tuple(labels), tuple(sorted(buckets)), tuple((dict(key), value) for key, value in children.items()))


@lru_cache(maxsize=65536)
def _cell_line(name: str, labels: str) -> str:
    return f"{name}{{{labels}}} " if labels else f"{name} "


@lru_cache(maxsize=16384)
def _distribution_lines(name: str, labels: str, bounds: tuple[float, ...]) -> tuple[str, ...]:
    prefix = f"{labels}," if labels else ""
    buckets = [f'{name}_bucket{{{prefix}le="{_number(bound)}"}} ' for bound in bounds]
    return (*buckets, _cell_line(f"{name}_count", labels), _cell_line(f"{name}_sum", labels))


class Cell:
    """Value of a counter or gauge. All engines with the same labels share the text around it."""

    __slots__ = ("_line", "value")

    def __init__(self, name: str, labels: str) -> None:
        self._line = _cell_line(name, labels)
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        self.value += amount

    def render(self, out: list[str]) -> None:
        out.append(self._line + _number(self.value))


class Distribution:
    """A histogram, or a summary if it has no buckets."""

    __slots__ = ("_bounds", "_lines", "_tallies", "count", "sum")

    def __init__(self, name: str, labels: str, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._tallies = [0] * len(bounds)
        self.sum = 0.0
        self.count = 0
        self._lines = _distribution_lines(name, labels, bounds)

    def observe(self, value: float, times: int = 1) -> None:
        """Adds ``times`` observations of the same value."""
        self.sum += value * times
        self.count += times
        if self._bounds:
            self._tallies[bisect_left(self._bounds, value)] += times

    def render(self, out: list[str]) -> None:
        running = 0
        for line, tally in zip(self._lines, self._tallies, strict=False):
            running += tally
            out.append(f"{line}{running}.0")
        out.append(f"{self._lines[-2]}{self.count}.0")
        out.append(self._lines[-1] + _number(self.sum))


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(float(value))
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


class Page:
    """The metrics of one engine process.

    ``constant`` labels are set on every metric that has a label of that name, ``extra`` labels on every metric that names the model.
    ``created_s`` (Unix time) is the value of ``NAME_created`` gauges, if the recorded page has them.
    """

    def __init__(self, schema: Schema, constant: Mapping[str, str], extra: Mapping[str, str], created_s: float) -> None:
        self._schema = schema
        self._constant = constant
        self._extra = extra
        self._created_s = created_s
        self._children: dict[str, dict[tuple[str, ...], Cell | Distribution]] = {}
        self._repeats: dict[str, tuple[str, str, int]] = {}
        self._asked: dict[tuple[object, ...], Cell | Distribution] = {}
        """Cells by name and labels as they were given: every step of an engine asks for the same few."""

    def cell(self, name: str, **labels: str) -> Cell:
        """Returns the counter or gauge, created at 0 on first use. Raises KeyError for an unknown name, ValueError for labels that were not
        recorded."""
        child = self._child(name, labels)
        if not isinstance(child, Cell):
            raise ValueError(f"{name} is no counter or gauge")
        return child

    def distribution(self, name: str, **labels: str) -> Distribution:
        """Returns the histogram or summary, created empty on first use. Raises KeyError or ValueError as cell() does."""
        child = self._child(name, labels)
        if not isinstance(child, Distribution):
            raise ValueError(f"{name} is no histogram or summary")
        return child

    def copy(self, name: str, *, values: bool) -> None:
        """Creates every label set that the recorded page has of a metric, with its recorded value or at zero."""
        metric = self._schema[name]
        for labels, value in metric.children:
            child = self._child(name, {key: text for key, text in labels.items() if key not in self._constant})
            if values and isinstance(child, Cell):
                child.value = value

    def repeat(self, name: str, label: str, count: int, only: str = "") -> None:
        """Exposes a metric ``count`` times: ``label``, recorded as 0, counts on from 0. ``only``: those lines that contain it."""
        self._repeats[name] = (label, only, count)

    def render(self, without: Iterable[str] = ()) -> str:
        """Returns the exposition text without the metrics whose name begins with one of ``without``."""
        hidden = tuple(without)
        out: list[str] = []
        for name, metric in self._schema.items():
            children = self._children.get(name)
            if children and not name.startswith(hidden):
                out.append(f"# HELP {name} {metric.help}")
                out.append(f"# TYPE {name} {metric.kind}")
                first = len(out)
                for child in children.values():
                    child.render(out)
                label, only, count = self._repeats.get(name, ("", "", 1))
                lines = [line for line in out[first:] if only in line]
                for rank in range(1, count):
                    out += [line.replace(f'{label}="0"', f'{label}="{rank}"') for line in lines]
        out.append("")
        return "\n".join(out)

    def _child(self, name: str, labels: Mapping[str, str]) -> Cell | Distribution:
        asked = (name, *labels.items())
        child = self._asked.get(asked)
        if child is None:
            child = self._asked[asked] = self._made(name, labels)
        return child

    def _made(self, name: str, labels: Mapping[str, str]) -> Cell | Distribution:
        metric = self._schema[name]
        values = {**{key: text for key, text in self._constant.items() if key in metric.labels}, **labels}
        if values.keys() != set(metric.labels):
            raise ValueError(f"{name} has labels {sorted(metric.labels)}, not {sorted(values)}")
        key = tuple(values[label] for label in metric.labels)
        children = self._children.setdefault(name, {})
        child = children.get(key)
        if child is None:
            if "model_name" in values:
                values |= self._extra
            text = ",".join(f'{label}="{_escape(value)}"' for label, value in sorted(values.items()))
            child = Cell(name, text) if metric.kind in ("counter", "gauge") else Distribution(name, text, metric.buckets)
            children[key] = child
            stamp = f"{name.removesuffix('_total') if metric.kind == 'counter' else name}_created"
            if stamp in self._schema:
                self.cell(stamp, **labels).value = self._created_s
        return child
