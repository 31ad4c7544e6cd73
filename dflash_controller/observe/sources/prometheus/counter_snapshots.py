"""Readings from Prometheus: of the pods that take part in a trial, and of what they did before the operator began to look."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dflash_controller.engines import ENGINES
from dflash_controller.model.counters import CounterSnapshot
from dflash_controller.model.metric_schema import MetricSchema
from dflash_controller.model.snapshot import Key
from dflash_controller.observe.pipeline.source import Target, choose
from dflash_controller.observe.sources.prometheus.client import Prometheus, PrometheusError
from dflash_controller.observe.sources.prometheus.pages import Pages, newest_pages, past_pages
from dflash_controller.observe.sources.prometheus.reduction import Selection

_log = logging.getLogger(__name__)


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


class TrialCounterSnapshots:
    """Asks for the counters of pods on trial, whatever their number with two queries an engine, and once for their past."""

    def __init__(self, client: Prometheus, selection: Selection, settings: TrialSettings | None = None) -> None:
        self._client = client
        self._selection = selection
        self._settings = settings or TrialSettings()
        self._attempts: dict[str, int] = {}
        """At the past of each watched pod; ``attempts`` once it is known."""

    async def collect(self, targets: Sequence[Target], now_s: float) -> dict[str, tuple[CounterSnapshot, ...]]:
        """Readings by uid of pods on trial, oldest first. Raises PrometheusError where the newest ones cannot be had."""
        settings = self._settings
        chosen = choose([target for target in targets if target.on_trial], self._attempts, settings.pods_per_revision)
        self._attempts = {target.uid: self._attempts.get(target.uid, 0) for target in chosen}
        newest: dict[str, tuple[CounterSnapshot, ...]] = {}
        for engine in sorted({target.engine for target in chosen}):
            pods = [target for target in chosen if target.engine == engine]
            for first in range(0, len(pods), settings.pods_per_query):
                newest.update(await self._newest(ENGINES[engine].metric_schema, pods[first : first + settings.pods_per_query], now_s))
        past = await self._histories(chosen, now_s)
        return {uid: past.get(uid, ()) + newest.get(uid, ()) for uid in past.keys() | newest.keys()}

    async def _newest(self, dialect: MetricSchema, pods: Sequence[Target], now_s: float) -> dict[str, tuple[CounterSnapshot, ...]]:
        return _readings(dialect, pods, await newest_pages(self._client, self._selection, dialect, pods, now_s))

    async def _histories(self, chosen: Sequence[Target], now_s: float) -> dict[str, tuple[CounterSnapshot, ...]]:
        settings = self._settings
        waiting: defaultdict[tuple[Key, str], list[Target]] = defaultdict(list)
        for target in chosen:
            if self._attempts[target.uid] < settings.attempts:
                waiting[target.key, target.engine].append(target)
        found: dict[str, tuple[CounterSnapshot, ...]] = {}
        for (key, engine), pods in sorted(waiting.items())[: settings.histories_per_round]:
            since_s = max(now_s - settings.depth_s, _begin(target for target in chosen if target.key == key) - settings.window_s)
            try:
                found.update(await self._history(ENGINES[engine].metric_schema, pods, min(since_s, now_s - settings.window_s), now_s))
            except PrometheusError as error:
                _log.warning("%s: its pods' past cannot be had from Prometheus: %s", key, error)
                done = {target.uid: self._attempts[target.uid] + 1 for target in pods}
            else:
                done = dict.fromkeys((target.uid for target in pods), settings.attempts)
            self._attempts.update(done)
        return found

    async def _history(
        self, dialect: MetricSchema, pods: Sequence[Target], start_s: float, end_s: float
    ) -> dict[str, tuple[CounterSnapshot, ...]]:
        span = (start_s, end_s, self._settings.step_s)
        found = await past_pages(self._client, self._selection, dialect.presence, dialect.counters, dialect.histograms, pods, span)
        return _readings(dialect, pods, found)


def _begin(pods: Iterable[Target]) -> float:
    """When the younger of the revisions was first Ready: the candidate, where there are two."""
    first: dict[str, float] = {}
    for target in pods:
        first[target.revision] = min(target.ready_at_s, first.get(target.revision, target.ready_at_s))
    return max(first.values()) if len(first) > 1 else float("inf")


def _readings(dialect: MetricSchema, pods: Sequence[Target], pages: Mapping[str, Pages]) -> dict[str, tuple[CounterSnapshot, ...]]:
    speculating = {target.uid: target.speculation_on for target in pods}
    return {uid: tuple(dialect.counter_snapshot(page, at_s, speculating[uid]) for at_s, page in found) for uid, found in pages.items()}
