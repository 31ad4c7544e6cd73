"""What is read from an engine's /metrics page, whether the page is scraped directly or through Prometheus.

Both sources answer with one ``CounterWindow`` per pod, so the formulas of the dialects serve both.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from dflash_controller.model.counters import Histogram


class LabelledMetric(NamedTuple):
    """A quantity of a pod, ``part`` telling apart the values of the label it is split by (empty where it is not)."""

    quantity: str
    part: str = ""


@dataclass(frozen=True, slots=True)
class Scope:
    """Which part of an engine one series tells of, and so how the series of several ranks become one number.

    Labels that are named in neither list tell apart what is counted (``mode``, ``is_streaming``): counters are summed over them, and of
    levels the largest counts. A label that a series does not have is the empty string, as in PromQL.
    """

    name: str
    copies: tuple[str, ...] = ()
    """Labels of ranks that do the same work: each counts all of it, so the largest counts and not the sum."""
    groups: tuple[str, ...] = ()
    """Labels of ranks that each serve their own requests: they are summed, after ``copies``."""


PROCESS = Scope("process")
"""The server's front end exports it once for the whole engine."""


class Since(IntEnum):
    """From when on an engine exports a metric. What is exported from a later moment on shows that the earlier ones have passed."""

    START = 0
    """The start of the process."""
    ENTRY = 1
    """The entry of the first request, the engine's own warm-up included."""
    END = 2
    """The end of the first request."""


@dataclass(frozen=True, slots=True)
class Series:
    """One quantity of a dialect and the exposed samples it is made from."""

    quantity: str
    metric: str
    """Exposed sample name, suffix included (``_total``, ``_sum``, ``_count``)."""
    scope: Scope
    match: tuple[tuple[str, str], ...] = ()
    """Label name and an anchored regular expression its value must match; an absent label is the empty string, as in PromQL."""
    by: str = ""
    """Label whose values are kept as parts."""
    gauge: bool = False
    """A level; otherwise a counter, of which differences over a window are used."""
    over: str = ""
    """Of a level: whether the largest (``max``) or smallest (``min``) over a window counts; empty: the newest."""
    since: Since | None = None
    """From when on the engine exports the metric; None: it may stay away, and nothing is wrong."""
    drafts: bool = False
    """It is only exported while speculation is on."""

    @property
    def histogram(self) -> str | None:
        """Name of the histogram that it is a part of; None if it is a part of none."""
        found = re.fullmatch(r"(.+)_(?:bucket|sum|count)", self.metric)
        return found[1] if found else None


@dataclass(frozen=True, slots=True)
class Scrape:
    """The needed metrics of one scrape of one pod."""

    counters: Mapping[LabelledMetric, float] = field(default_factory=dict)
    gauges: Mapping[LabelledMetric, float] = field(default_factory=dict)
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    """By quantity."""
    names: frozenset[str] = field(default_factory=frozenset, compare=False)
    """Metrics that it has a sample of."""


@dataclass(frozen=True, slots=True)
class CounterWindow:
    """What one pod did over a span of time. A quantity that is missing was not exported; one that is 0 did not move."""

    seconds: float
    """Span the deltas cover."""
    deltas: Mapping[LabelledMetric, float]
    levels: Mapping[LabelledMetric, float] = field(default_factory=dict)
    age_s: float = 0.0
    """Age of the newest sample."""
    totals: Mapping[LabelledMetric, float] = field(default_factory=dict)
    """Counters at the end of the span, since the start of the process. Those that were not asked for are missing."""


@dataclass(frozen=True, slots=True)
class Span:
    """A short window of one pod, and when it ended."""

    end_s: float
    """Seconds since the epoch."""
    window: CounterWindow


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of a page."""

    name: str
    labels: Mapping[str, str]
    value: float


def scrape(series: Iterable[Series], samples: Iterable[Sample], histograms: Iterable[Series] = ()) -> Scrape:
    """Fold samples of one scrape into quantities, each by its scope. NaN and infinities are skipped."""
    by_metric: defaultdict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        if math.isfinite(sample.value):
            by_metric[sample.name].append(sample)
    counters: dict[LabelledMetric, float] = {}
    gauges: dict[LabelledMetric, float] = {}
    for one in series:
        into = gauges if one.gauge else counters
        for part, value in reduced(one, _matching(one, by_metric), one.by).items():
            into[LabelledMetric(one.quantity, part)] = value
    folded = ((one.quantity, _histogram(reduced(one, _matching(one, by_metric), "le"))) for one in histograms)
    found = {quantity: histogram for quantity, histogram in folded if histogram is not None}
    return Scrape(counters, gauges, found, frozenset(by_metric))


def reduced(one: Series, samples: Iterable[Sample], by: str) -> dict[str, float]:
    """One value for each value of the label ``by`` (the empty string where ``by`` is empty), from the samples of one scrape.

    Of counters the samples of one rank are summed, of levels the largest counts; then the largest of the copies, then the sum of the
    groups. PromQL does the same in ``observe.sources.prometheus.reduction``.
    """
    ranks: dict[str, dict[tuple[str, ...], dict[tuple[str, ...], float]]] = {}
    for sample in samples:
        group = tuple(sample.labels.get(label, "") for label in one.scope.groups)
        rank = tuple(sample.labels.get(label, "") for label in one.scope.copies)
        of_group = ranks.setdefault(sample.labels.get(by, "") if by else "", {}).setdefault(group, {})
        before = of_group.get(rank)
        if before is None:
            of_group[rank] = sample.value
        else:
            of_group[rank] = max(before, sample.value) if one.gauge else before + sample.value
    return {part: sum(max(of_group.values()) for of_group in groups.values()) for part, groups in ranks.items()}


def restarted(before: Scrape, after: Scrape) -> bool:
    """Whether the process began again between two pages: a counter fell or vanished."""
    return any(after.counters.get(cell, -1.0) < value for cell, value in before.counters.items())


def between(first: Scrape, last: Scrape, seconds: float, age_s: float = 0.0, series: Iterable[Series] = ()) -> CounterWindow:
    """What happened from one page to a later one. A level is the newest, or as its series in ``series`` says.

    A counter absent from the first page counts from 0: engines export a labelled counter from its first increment on.
    """
    deltas = {cell: value - first.counters.get(cell, 0.0) for cell, value in last.counters.items()}
    folds = {one.quantity: max if one.over == "max" else min for one in series if one.over}
    levels = {
        cell: folds[cell.quantity](value, first.gauges.get(cell, value)) if cell.quantity in folds else value
        for cell, value in last.gauges.items()
    }
    return CounterWindow(seconds, deltas, levels, age_s, last.counters)


def _matching(one: Series, by_metric: Mapping[str, list[Sample]]) -> Iterator[Sample]:
    for sample in by_metric.get(one.metric, ()):
        if all(re.fullmatch(pattern, sample.labels.get(label, "")) for label, pattern in one.match):
            yield sample


def _histogram(by_bound: Mapping[str, float]) -> Histogram | None:
    """The histogram of these buckets; None without any, or where the last one, of all observations, is missing."""
    counts: dict[float, float] = {}
    for text, value in by_bound.items():
        counts[_bound(text)] = value
    if math.inf not in counts:
        return None
    bounds = _shared(tuple(sorted(counts)))
    # Most buckets of a histogram are alike, so alike numbers are kept once: readings of hours stay in memory during a trial.
    alike: dict[float, float] = {}
    return Histogram(bounds, tuple(alike.setdefault(counts[bound], counts[bound]) for bound in bounds))


@lru_cache(maxsize=1024)
def _bound(text: str) -> float:
    """Raises ValueError for a bucket without a bound."""
    return float(text)


@lru_cache(maxsize=256)
def _shared(bounds: tuple[float, ...]) -> tuple[float, ...]:
    """One object for equal bounds, whichever pod and page they come from."""
    return bounds
