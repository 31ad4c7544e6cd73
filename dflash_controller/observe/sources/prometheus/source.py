"""Windows from Prometheus: two dozen queries a round at most, whatever the number of deployments and pods, and readings of trials.

For the tuner there are as many again every second round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from dflash_controller.api.conditions import Reason
from dflash_controller.engines import ENGINES
from dflash_controller.model.counters import CounterSnapshot
from dflash_controller.model.measurement import NO_SERIES, STALE, Absent, Error
from dflash_controller.model.series import CounterWindow
from dflash_controller.observe.pipeline.source import Round, Target
from dflash_controller.observe.sources.prometheus.client import Prometheus, PrometheusError, PrometheusSettings
from dflash_controller.observe.sources.prometheus.counter_snapshots import TrialCounterSnapshots, TrialSettings
from dflash_controller.observe.sources.prometheus.load_samples import Spans, SpanSettings
from dflash_controller.observe.sources.prometheus.reduction import Selection
from dflash_controller.observe.sources.prometheus.windows import FleetWindows, PodName

_STALE_ROUNDS = 5
"""An instant query finds samples of the last 5 minutes, also of a Prometheus that does not scrape any more. Scrapes may be as rare as every
second round, and arrive late where they are written remotely."""

STORED_S = 1.0
"""A page is stored some time after the time that its samples get. A query that ends now may hold a scrape that the next one does not."""


class PrometheusSource:
    """Asks for the increase of every needed series over the window, and joins the answers to the given pods."""

    failed_reason = Reason.PROMETHEUS_ERROR
    where = "Prometheus"

    def __init__(
        self,
        settings: PrometheusSettings,
        window_s: float = 300.0,
        parallel: int = 4,
        trials: TrialSettings | None = None,
        wall: Callable[[], float] = time.time,
        spans: SpanSettings | None = None,
    ) -> None:
        """``trials`` say how often rounds are made, unless ``spans`` do."""
        trials = trials or TrialSettings(window_s)
        self._client = Prometheus(settings)
        self._window_s = window_s
        self._max_age_s = _STALE_ROUNDS * trials.step_s
        selection = Selection(settings.matcher, settings.replica_labels)
        self._windows = FleetWindows(self._client, selection, parallel)
        self._trials = TrialCounterSnapshots(self._client, selection, trials)
        self._spans = Spans(self._client, selection, self._windows, spans or SpanSettings(trials.step_s))
        self._wall = wall

    async def collect(self, targets: Sequence[Target]) -> Round:
        """One failing query fails the round: metrics from half of the series would be wrong, not incomplete.

        One that fails for the pods on trial fails those only, and one for the tuner nothing.
        """
        engines = sorted({target.engine for target in targets})
        now_s = self._wall() - STORED_S
        pods: dict[PodName, CounterWindow] = {}
        present: dict[PodName, frozenset[str]] = {}
        try:
            for engine in engines:
                schema = ENGINES[engine].metric_schema
                pods.update(await self._windows.ask(schema.presence, schema.series, self._window_s, now_s))
                present.update(await self._windows.present(schema))
        except PrometheusError as failure:
            error = Error(str(failure))
            return Round(failures={target.uid: error for target in targets})
        windows: dict[str, CounterWindow] = {}
        failures: dict[str, Absent | Error] = {}
        for target in targets:
            window = pods.get((target.namespace, target.pod))
            if window is None:
                failures[target.uid] = NO_SERIES
            elif window.age_s > self._max_age_s:
                failures[target.uid] = STALE
            else:
                windows[target.uid] = window
        readings: dict[str, tuple[CounterSnapshot, ...]] = {}
        try:
            readings = await self._trials.collect(targets, now_s)
        except PrometheusError as failure:
            error = Error(str(failure))
            failures.update((target.uid, error) for target in targets if target.on_trial)
        spans = await self._spans.collect(targets, now_s)
        names = {target.uid: present.get((target.namespace, target.pod), frozenset()) for target in targets}
        return Round(windows, failures, frozenset(windows) - failures.keys(), readings, names, spans=spans)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()
