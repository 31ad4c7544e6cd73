"""Pages of single pods from Prometheus, as they were scraped, with the times of the scrapes."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from dflash_controller.model.metric_schema import MetricSchema, needed_metrics
from dflash_controller.model.series import Sample, Scrape, Series, scrape
from dflash_controller.observe.pipeline.source import Target
from dflash_controller.observe.sources.prometheus import promql
from dflash_controller.observe.sources.prometheus.client import Course, Prometheus
from dflash_controller.observe.sources.prometheus.reduction import POD, RENAMED, Selection, own_labels, scrape_identity

Pages = tuple[tuple[float, Scrape], ...]
"""Time of the scrape (seconds since the epoch) and page, oldest first."""


async def newest_pages(
    client: Prometheus, selection: Selection, dialect: MetricSchema, pods: Sequence[Target], now_s: float
) -> dict[str, Pages]:
    """The newest page of each pod at a time, by uid. Raises PrometheusError."""
    names = [(target.namespace, target.pod) for target in pods]
    wanted = needed_metrics((*dialect.counters, *dialect.histograms))
    # Times first: a scrape stored in between makes samples newer than their time, never a reading told twice with other counters.
    times = await client.query(promql.sample_times(dialect.presence, names, selection), now_s)
    rows = await client.query(promql.samples(wanted, names, selection), now_s)
    return await asyncio.to_thread(
        _pages,
        dialect.counters,
        dialect.histograms,
        pods,
        selection.replicas,
        [Course(row.labels, ((now_s, row.value),)) for row in times],
        [Course(row.labels, ((now_s, row.value),)) for row in rows],
    )


async def past_pages(
    client: Prometheus,
    selection: Selection,
    presence: str,
    counters: Iterable[Series],
    histograms: Iterable[Series],
    pods: Sequence[Target],
    span: tuple[float, float, float],
) -> dict[str, Pages]:
    """Pages of a time that is over, by uid; ``span``: its start, its end, and the seconds between looks. Raises PrometheusError."""
    series, buckets = tuple(counters), tuple(histograms)
    names = [(target.namespace, target.pod) for target in pods]
    times = await client.query_range(promql.sample_times(presence, names, selection), *span)
    courses = await client.query_range(promql.samples(needed_metrics((*series, *buckets)), names, selection), *span)
    return await asyncio.to_thread(_pages, series, buckets, pods, selection.replicas, times, courses)


def _pages(
    series: Sequence[Series],
    histograms: Sequence[Series],
    pods: Sequence[Target],
    replicas: Sequence[str],
    times: Sequence[Course],
    courses: Sequence[Course],
) -> dict[str, Pages]:
    """A page for each time at which Prometheus had a new sample of the pod, with that sample's time.

    Samples from before the pod was Ready are left out: a pod of the same name may have been there.
    """
    own = {one.metric: own_labels(one) for one in (*series, *histograms) if own_labels(one)}
    by_pod: defaultdict[tuple[str, ...], list[Course]] = defaultdict(list)
    for course in courses:
        by_pod[_pod(course.labels)].append(course)
    scrapes: dict[tuple[str, ...], Course] = {}
    for course in times:
        pod, known = _pod(course.labels), scrapes.get(_pod(course.labels))
        # One scrape of the pod is enough: the one that Prometheus has most of, and of equals always the same.
        if known is None or _rank(course, replicas) < _rank(known, replicas):
            scrapes[pod] = course
    found: dict[str, Pages] = {}
    for target in pods:
        scraped = scrapes.get((target.namespace, target.pod))
        if scraped is not None:
            same = [
                course
                for course in by_pod[target.namespace, target.pod]
                if _same_scrape(course.labels, scraped.labels, own.get(course.labels["__name__"], frozenset()), replicas)
            ]
            found[target.uid] = tuple(_of_pod(series, histograms, target, scraped, same))
    return found


def _of_pod(
    series: Sequence[Series], histograms: Sequence[Series], target: Target, scraped: Course, courses: Sequence[Course]
) -> Iterable[tuple[float, Scrape]]:
    samples: defaultdict[float, list[Sample]] = defaultdict(list)
    for course in courses:
        labels = {name.removeprefix(RENAMED): value for name, value in sorted(course.labels.items(), key=lambda one: RENAMED in one[0])}
        for at, value in course.points:
            samples[at].append(Sample(labels["__name__"], labels, value))
    last_s = target.ready_at_s
    for at, sampled_s in scraped.points:
        if sampled_s > last_s and at in samples:
            last_s = sampled_s
            yield sampled_s, scrape(series, samples[at], histograms)


def _pod(labels: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(labels.get(RENAMED + name) or labels.get(name, "") for name in POD)


def _rank(course: Course, replicas: Sequence[str]) -> tuple[int, tuple[str, ...]]:
    return -len(course.points), tuple(course.labels.get(name, "") for name in scrape_identity(replicas))


def _same_scrape(labels: Mapping[str, str], scraped: Mapping[str, str], own: frozenset[str], replicas: Sequence[str]) -> bool:
    """Whether a series is from this scrape. ``own``: labels that the engine sets on it too; the scrape's is then the one that was not
    renamed, or was overwritten."""
    return all(
        labels.get(name, "") == scraped.get(name, "") for name in scrape_identity(replicas) if name not in own or RENAMED + name in labels
    )
