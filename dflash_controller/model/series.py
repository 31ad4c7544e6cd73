"""What is read from an engine's /metrics page, whether the page is scraped directly or through Prometheus.

Both sources answer with one ``CounterWindow`` per pod, so the formulas of the dialects serve both.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from dflash_controller.model.counters import Histogram


class LabelledMetric(NamedTuple):
    """A quantity of a pod, ``part`` telling apart the values of the label it is split by (empty where it is not)."""

    quantity: str
    part: str = ""


@dataclass(frozen=True, slots=True)
class Series:
    """One quantity of a dialect and the exposed samples it is the sum of."""

    quantity: str
    metric: str
    """Exposed sample name, suffix included (``_total``, ``_sum``, ``_count``)."""
    match: tuple[tuple[str, str], ...] = ()
    """Label name and an anchored regular expression its value must match; an absent label is the empty string, as in PromQL."""
    by: str = ""
    """Label whose values are kept as parts."""
    ranks: tuple[str, ...] = ()
    """Labels of ranks that step together: each counts the same passes, so the largest counts, not the sum."""
    gauge: bool = False
    """A level, the largest over all labels; otherwise a counter, of which differences over a window are used."""
    over: str = ""
    """Of a level: whether the largest (``max``) or smallest (``min``) over a window counts; empty: the newest."""


@dataclass(frozen=True, slots=True)
class Scrape:
    """The needed metrics of one scrape of one pod."""

    counters: Mapping[LabelledMetric, float] = field(default_factory=dict)
    gauges: Mapping[LabelledMetric, float] = field(default_factory=dict)
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    """By quantity."""


@dataclass(frozen=True, slots=True)
class CounterWindow:
    """What one pod did over a span of time. A quantity that is missing was not exported; one that is 0 did not move."""

    seconds: float
    """Span the deltas cover."""
    deltas: Mapping[LabelledMetric, float]
    levels: Mapping[LabelledMetric, float] = field(default_factory=dict)
    age_s: float = 0.0
    """Age of the newest sample."""


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
    """Fold samples into quantities: summed over labels, ranks and ``by`` labels as the series say. NaN and infinities are skipped."""
    by_metric: defaultdict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        if math.isfinite(sample.value):
            by_metric[sample.name].append(sample)
    counters: dict[LabelledMetric, float] = {}
    gauges: dict[LabelledMetric, float] = {}
    for one in series:
        sums: defaultdict[LabelledMetric, defaultdict[tuple[str, ...], float]] = defaultdict(lambda: defaultdict(float))
        for sample in _matching(one, by_metric):
            cell = LabelledMetric(one.quantity, sample.labels.get(one.by, "") if one.by else "")
            if one.gauge:
                gauges[cell] = max(gauges.get(cell, sample.value), sample.value)
            else:
                sums[cell][tuple(sample.labels.get(rank, "") for rank in one.ranks)] += sample.value
        counters.update({cell: max(ranks.values()) for cell, ranks in sums.items()})
    folded = ((one.quantity, _histogram(_matching(one, by_metric))) for one in histograms)
    return Scrape(counters, gauges, {quantity: histogram for quantity, histogram in folded if histogram is not None})


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
    return CounterWindow(seconds, deltas, levels, age_s)


def _matching(one: Series, by_metric: Mapping[str, list[Sample]]) -> Iterator[Sample]:
    for sample in by_metric.get(one.metric, ()):
        if all(re.fullmatch(pattern, sample.labels.get(label, "")) for label, pattern in one.match):
            yield sample


def _histogram(buckets: Iterable[Sample]) -> Histogram | None:
    """The sum of histograms that differ in other labels; None without buckets, or where the last one, of all observations, is missing."""
    counts: dict[float, float] = {}
    for sample in buckets:
        bound = _bound(sample.labels.get("le", ""))
        counts[bound] = counts.get(bound, 0.0) + sample.value
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
