"""Short windows from Prometheus for the tuner: of every tuned pod as time goes on, and once of its deployment's last hour."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from dflash_controller.engines import ENGINES
from dflash_controller.model.metric_schema import MetricSchema
from dflash_controller.model.series import Span, between, restarted
from dflash_controller.model.snapshot import Key
from dflash_controller.observe.pipeline.source import Target, choose
from dflash_controller.observe.sources.prometheus.client import Prometheus, PrometheusError
from dflash_controller.observe.sources.prometheus.pages import Pages, past_pages
from dflash_controller.observe.sources.prometheus.reduction import Selection
from dflash_controller.observe.sources.prometheus.windows import FleetWindows

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SpanSettings:
    """``round_s``: seconds between two rounds of the collector, which are also expected between two scrapes."""

    round_s: float = 30.0
    depth_s: float = 3600.0
    past_step_s: float = 60.0
    pods_per_revision: int = 4
    histories_per_round: int = 10
    """Deployments whose last hour is asked for in one round: some 3,000 samples a pod."""
    attempts: int = 3
    """At a deployment's last hour; without it the tuner learns from now on."""

    @property
    def span_s(self) -> float:
        """Two scrapes at least; asked for every second round, so that spans do not overlap."""
        return 2 * self.round_s


class Spans:
    """Asks one query for each series of an engine and one for its passes, every second round, and two for each deployment that is new."""

    def __init__(self, client: Prometheus, selection: Selection, windows: FleetWindows, settings: SpanSettings) -> None:
        self._client = client
        self._selection = selection
        self._windows = windows
        self._settings = settings
        self._asked_s: float | None = None
        self._watched: frozenset[str] = frozenset()
        self._since: dict[Key, float] = {}
        """Where the past of each deployment ends and what is asked as time goes on begins."""
        self._attempts: dict[Key, int] = {}

    async def collect(self, targets: Sequence[Target], now_s: float) -> dict[str, tuple[Span, ...]]:
        """Spans by uid of tuned pods, oldest first. What cannot be had is logged and left out."""
        chosen = choose([target for target in targets if target.tuned], self._watched, self._settings.pods_per_revision)
        self._watched = frozenset(target.uid for target in chosen)
        keys = {target.key for target in chosen}
        for gone in self._since.keys() - keys:
            del self._since[gone], self._attempts[gone]
        for new in keys - self._since.keys():
            self._since[new], self._attempts[new] = now_s - self._settings.span_s, 0
        found = await self._past(chosen)
        for uid, span in (await self._now(chosen, now_s)).items():
            found[uid] = (*found.get(uid, ()), span)
        return found

    async def _now(self, chosen: Sequence[Target], now_s: float) -> dict[str, Span]:
        settings = self._settings
        if not chosen or (self._asked_s is not None and now_s - self._asked_s < settings.span_s - settings.round_s / 4):
            return {}
        self._asked_s = now_s
        found: dict[str, Span] = {}
        for engine in sorted({target.engine for target in chosen}):
            dialect = ENGINES[engine].metric_schema
            try:
                windows = await self._windows.ask(
                    dialect.presence, dialect.load_samples, settings.span_s, now_s, dialect.load_sample_totals
                )
            except PrometheusError as error:
                _log.warning("the tuner has nothing new of the %s engines: %s", engine, error)
                continue
            for target in chosen:
                window = windows.get((target.namespace, target.pod)) if target.engine == engine else None
                # A pod that was not there throughout has counters that are not scaled to the whole window.
                if window is not None and window.seconds >= settings.span_s and window.deltas:
                    found[target.uid] = Span(now_s, window)
        return found

    async def _past(self, chosen: Sequence[Target]) -> dict[str, tuple[Span, ...]]:
        settings = self._settings
        waiting: defaultdict[tuple[Key, str], list[Target]] = defaultdict(list)
        for target in chosen:
            if self._attempts[target.key] < settings.attempts:
                waiting[target.key, target.engine].append(target)
        found: dict[str, tuple[Span, ...]] = {}
        for (key, engine), pods in sorted(waiting.items())[: settings.histories_per_round]:
            dialect, end_s = ENGINES[engine].metric_schema, self._since[key]
            span = (end_s - settings.depth_s, end_s, settings.past_step_s)
            try:
                pages = await past_pages(self._client, self._selection, dialect.presence, dialect.load_samples, (), pods, span)
            except PrometheusError as error:
                self._attempts[key] += 1
                _log.warning("%s: the tuner cannot have its last hour from Prometheus: %s", key, error)
            else:
                self._attempts[key] = settings.attempts
                found.update({uid: _spans(dialect, made, 2.5 * settings.past_step_s) for uid, made in pages.items()})
        return found


def _spans(dialect: MetricSchema, pages: Pages, at_most_s: float) -> tuple[Span, ...]:
    """Between each two pages of one life of the process that are not too far apart."""
    series = dialect.load_samples
    return tuple(
        Span(end_s, between(first, last, end_s - start_s, series=series))
        for (start_s, first), (end_s, last) in pairwise(pages)
        if end_s - start_s <= at_most_s and not restarted(first, last)
    )
