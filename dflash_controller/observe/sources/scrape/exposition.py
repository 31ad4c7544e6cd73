"""From the text of a /metrics page to the few metrics needed of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from dflash_controller.model.metric_schema import MetricSchema, needed_metrics
from dflash_controller.model.series import Sample, Scrape, scrape

_VALUE = r'"(?:[^"\\]|\\.)*+"'
_ONE_LABEL = re.compile(rf"([a-zA-Z_]\w*)=({_VALUE})")
_LINE = re.compile(rf"([a-zA-Z_:][\w:]*)(?:\{{((?:[ \t]*[a-zA-Z_]\w*={_VALUE},?)*+)[ \t]*\}}[ \t]*|[ \t]+)(\S+)(?:[ \t]+-?\d+)?[ \t]*")
"""The repetitions give nothing back, so that no line is slow to refuse."""
_LONG = 1000
_ESCAPE = re.compile(r"\\(.)")


def read_page(text: str, dialect: MetricSchema) -> Scrape | None:
    """The page of one scrape, None where it holds no metric of this engine at all. Raises ValueError on malformed lines.

    Only lines of needed samples are parsed, and those without prometheus_client: with the buckets of three histograms its parser takes
    1.4 to 1.6 ms for a real page of 50 kB, this one 0.4.
    """
    needed = needed_metrics((*dialect.counters, *dialect.histograms))
    lines = text.splitlines()
    if not any(line.startswith(dialect.prefix) for line in lines):
        return None
    return scrape(dialect.counters, _samples(lines, needed), dialect.histograms)


def _samples(lines: Iterable[str], needed: frozenset[str]) -> Iterator[Sample]:
    candidates = tuple(needed)
    for line in lines:
        if line.startswith(candidates):
            parts = _LINE.fullmatch(line)
            if parts is None:
                raise ValueError(f"not a sample: {line.partition('{')[0].partition(' ')[0]}")
            name, labels, value = parts.groups()
            yield Sample(name, _labels(labels or ""), _number(name, value))


def _labels(text: str) -> Mapping[str, str]:
    """Every page of an engine has the same labels again; long ones are nobody's and would fill the memory."""
    return _known_labels(text) if len(text) < _LONG else _parsed(text)


def _number(name: str, text: str) -> float:
    """Raises ValueError, without the text: a message that changes with every page would be a write each time."""
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"not a number: {name}") from None


def _parsed(text: str) -> Mapping[str, str]:
    found = _ONE_LABEL.findall(text)
    return {name: _ESCAPE.sub(_unescaped, value[1:-1]) for name, value in found}


_known_labels = lru_cache(maxsize=8192)(_parsed)


def _unescaped(escape: re.Match[str]) -> str:
    return "\n" if escape[1] == "n" else escape[1]
