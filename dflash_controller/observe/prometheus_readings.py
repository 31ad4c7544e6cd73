"""Readings from Prometheus: of the pods that take part in a trial, and of what they did before the operator began to look."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dflash_controller.observe import promql
from dflash_controller.observe.dialect import DIALECTS, MetricDialect, needed_metrics
from dflash_controller.observe.prometheus import Course, Prometheus, PrometheusError
from dflash_controller.observe.readings import reading
from dflash_controller.observe.series import Sample, page
from dflash_controller.observe.source import Target, choose
from dflash_controller.planning.analysis.evidence import Reading
from dflash_controller.planning.snapshot import Key

_log = logging.getLogger(__name__)

_ENDPOINT = ("job", "instance")
"""What tells apart the endpoints of one pod that are scraped, or one that two jobs scrape: one of them is enough."""
_RENAMED = "exported_"
"""Prometheus puts this before an engine's label that the scrape configuration sets too (``endpoint``, of a PodMonitor)."""


@dataclass(frozen=True, slots=True)
class TrialSettings:
    """How far back and how much at a time is asked."""

    window_s: float = 300.0
    """What a trial needs of the time before its candidate was Ready."""
    depth_s: float = 9000.0
    step_s: float = 30.0
    pods_per_revision: int = 4
    pods_per_query: int = 200
    """Some 30 kB of samples a pod."""
    histories_per_round: int = 5
    """Deployments whose past is asked for in one round: up to 7 MB each, and 1.6 s to read."""
    attempts: int = 3
    """At a pod's past; without it the trial still goes on with what is seen from now on."""


class TrialReadings:
    """Asks for the counters of pods on trial, whatever their number with two queries an engine, and once for their past."""

    def __init__(self, client: Prometheus, matcher: Mapping[str, str], settings: TrialSettings | None = None) -> None:
        self._client = client
        self._matcher = matcher
        self._settings = settings or TrialSettings()
        self._attempts: dict[str, int] = {}
        """At the past of each watched pod; ``attempts`` once it is known."""

    async def collect(self, targets: Sequence[Target], now_s: float) -> dict[str, tuple[Reading, ...]]:
        """Readings by uid of pods on trial, oldest first. Raises PrometheusError where the newest ones cannot be had."""
        settings = self._settings
        chosen = choose([target for target in targets if target.on_trial], self._attempts, settings.pods_per_revision)
        self._attempts = {target.uid: self._attempts.get(target.uid, 0) for target in chosen}
        newest: dict[str, tuple[Reading, ...]] = {}
        for engine in sorted({target.engine for target in chosen}):
            pods = [target for target in chosen if target.engine == engine]
            for first in range(0, len(pods), settings.pods_per_query):
                newest.update(await self._newest(DIALECTS[engine], pods[first : first + settings.pods_per_query], now_s))
        past = await self._histories(chosen, now_s)
        return {uid: past.get(uid, ()) + newest.get(uid, ()) for uid in past.keys() | newest.keys()}

    async def _newest(self, dialect: MetricDialect, pods: Sequence[Target], now_s: float) -> dict[str, tuple[Reading, ...]]:
        names = [(target.namespace, target.pod) for target in pods]
        wanted = needed_metrics((*dialect.counters, *dialect.histograms))
        # Times first: a scrape in between makes samples newer than their time, never a reading that is told twice with other counters.
        times = await self._client.query(promql.sample_times(dialect.presence, names, self._matcher))
        rows = await self._client.query(promql.samples(wanted, names, self._matcher))
        return await asyncio.to_thread(
            _readings,
            dialect,
            pods,
            [Course(row.labels, ((now_s, row.value),)) for row in times],
            [Course(row.labels, ((now_s, row.value),)) for row in rows],
        )

    async def _histories(self, chosen: Sequence[Target], now_s: float) -> dict[str, tuple[Reading, ...]]:
        settings = self._settings
        waiting: defaultdict[tuple[Key, str], list[Target]] = defaultdict(list)
        for target in chosen:
            if self._attempts[target.uid] < settings.attempts:
                waiting[target.key, target.engine].append(target)
        found: dict[str, tuple[Reading, ...]] = {}
        for (key, engine), pods in sorted(waiting.items())[: settings.histories_per_round]:
            since_s = max(now_s - settings.depth_s, _begin(target for target in chosen if target.key == key) - settings.window_s)
            try:
                found.update(await self._history(DIALECTS[engine], pods, min(since_s, now_s - settings.window_s), now_s))
            except PrometheusError as error:
                _log.warning("%s: its pods' past cannot be had from Prometheus: %s", key, error)
                done = {target.uid: self._attempts[target.uid] + 1 for target in pods}
            else:
                done = dict.fromkeys((target.uid for target in pods), settings.attempts)
            self._attempts.update(done)
        return found

    async def _history(
        self, dialect: MetricDialect, pods: Sequence[Target], start_s: float, end_s: float
    ) -> dict[str, tuple[Reading, ...]]:
        names = [(target.namespace, target.pod) for target in pods]
        span = (start_s, end_s, self._settings.step_s)
        wanted = needed_metrics((*dialect.counters, *dialect.histograms))
        times = await self._client.query_range(promql.sample_times(dialect.presence, names, self._matcher), *span)
        courses = await self._client.query_range(promql.samples(wanted, names, self._matcher), *span)
        return await asyncio.to_thread(_readings, dialect, pods, times, courses)


def _begin(pods: Iterable[Target]) -> float:
    """When the younger of the revisions was first Ready: the candidate, where there are two."""
    first: dict[str, float] = {}
    for target in pods:
        first[target.revision] = min(target.ready_at_s, first.get(target.revision, target.ready_at_s))
    return max(first.values()) if len(first) > 1 else float("inf")


def _readings(
    dialect: MetricDialect, pods: Sequence[Target], times: Sequence[Course], courses: Sequence[Course]
) -> dict[str, tuple[Reading, ...]]:
    """A reading for each time at which Prometheus had a new sample of the pod, with that sample's time.

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
    found: dict[str, tuple[Reading, ...]] = {}
    for target in pods:
        chosen = endpoints.get((target.namespace, target.pod))
        if chosen is not None:
            found[target.uid] = tuple(_of_pod(dialect, target, scraped[chosen], by_endpoint[chosen]))
    return found


def _of_pod(dialect: MetricDialect, target: Target, scraped: Course, courses: Sequence[Course]) -> Iterable[Reading]:
    samples: defaultdict[float, list[Sample]] = defaultdict(list)
    for course in courses:
        labels = {name.removeprefix(_RENAMED): value for name, value in sorted(course.labels.items(), key=lambda one: _RENAMED in one[0])}
        for at, value in course.points:
            samples[at].append(Sample(labels["__name__"], labels, value))
    last_s = target.ready_at_s
    for at, sampled_s in scraped.points:
        if sampled_s > last_s and at in samples:
            last_s = sampled_s
            made = page(dialect.counters, samples[at], dialect.histograms)
            yield reading(dialect, made, sampled_s, speculation_on=target.speculation_on)


def _endpoint(labels: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(labels.get(name, "") for name in ("namespace", "pod", *_ENDPOINT))
