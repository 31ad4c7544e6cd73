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

_ENDPOINT = ("job", "instance")
"""What tells apart the endpoints of one pod that are scraped, or one that two jobs scrape: one of them is enough."""
_RENAMED = "exported_"
"""Prometheus puts this before an engine's label that the scrape configuration sets too (``endpoint``, of a PodMonitor)."""

Pages = tuple[tuple[float, Scrape], ...]
"""Time of the scrape (seconds since the epoch) and page, oldest first."""


async def newest_pages(
    client: Prometheus, matcher: Mapping[str, str], dialect: MetricSchema, pods: Sequence[Target], now_s: float
) -> dict[str, Pages]:
    """The newest page of each pod, by uid. Raises PrometheusError."""
    names = [(target.namespace, target.pod) for target in pods]
    wanted = needed_metrics((*dialect.counters, *dialect.histograms))
    # Times first: a scrape in between makes samples newer than their time, never a reading that is told twice with other counters.
    times = await client.query(promql.sample_times(dialect.presence, names, matcher))
    rows = await client.query(promql.samples(wanted, names, matcher))
    return await asyncio.to_thread(
        _pages,
        dialect.counters,
        dialect.histograms,
        pods,
        [Course(row.labels, ((now_s, row.value),)) for row in times],
        [Course(row.labels, ((now_s, row.value),)) for row in rows],
    )


async def past_pages(
    client: Prometheus,
    matcher: Mapping[str, str],
    presence: str,
    counters: Iterable[Series],
    histograms: Iterable[Series],
    pods: Sequence[Target],
    span: tuple[float, float, float],
) -> dict[str, Pages]:
    """Pages of a time that is over, by uid; ``span``: its start, its end, and the seconds between looks. Raises PrometheusError."""
    series, buckets = tuple(counters), tuple(histograms)
    names = [(target.namespace, target.pod) for target in pods]
    times = await client.query_range(promql.sample_times(presence, names, matcher), *span)
    courses = await client.query_range(promql.samples(needed_metrics((*series, *buckets)), names, matcher), *span)
    return await asyncio.to_thread(_pages, series, buckets, pods, times, courses)


def _pages(
    series: Sequence[Series], histograms: Sequence[Series], pods: Sequence[Target], times: Sequence[Course], courses: Sequence[Course]
) -> dict[str, Pages]:
    """A page for each time at which Prometheus had a new sample of the pod, with that sample's time.

    Samples from before the pod was Ready are left out: a pod of the same name may have been there.
    """
    by_endpoint: defaultdict[tuple[str, ...], list[Course]] = defaultdict(list)
    for course in courses:
        by_endpoint[_endpoint(course.labels)].append(course)
    endpoints: dict[tuple[str, ...], tuple[str, ...]] = {}
    scraped: dict[tuple[str, ...], Course] = {}
    for course in times:
        endpoint = _endpoint(course.labels)
        scraped[endpoint] = course
        endpoints[endpoint[:2]] = min(endpoint, endpoints.get(endpoint[:2], endpoint))
    found: dict[str, Pages] = {}
    for target in pods:
        chosen = endpoints.get((target.namespace, target.pod))
        if chosen is not None:
            found[target.uid] = tuple(_of_pod(series, histograms, target, scraped[chosen], by_endpoint[chosen]))
    return found


def _of_pod(
    series: Sequence[Series], histograms: Sequence[Series], target: Target, scraped: Course, courses: Sequence[Course]
) -> Iterable[tuple[float, Scrape]]:
    samples: defaultdict[float, list[Sample]] = defaultdict(list)
    for course in courses:
        labels = {name.removeprefix(_RENAMED): value for name, value in sorted(course.labels.items(), key=lambda one: _RENAMED in one[0])}
        for at, value in course.points:
            samples[at].append(Sample(labels["__name__"], labels, value))
    last_s = target.ready_at_s
    for at, sampled_s in scraped.points:
        if sampled_s > last_s and at in samples:
            last_s = sampled_s
            yield sampled_s, scrape(series, samples[at], histograms)


def _endpoint(labels: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(labels.get(name, "") for name in ("namespace", "pod", *_ENDPOINT))
