"""Metrics in, for the whole operator: rounds at a fixed interval, metrics per revision, a health verdict per deployment."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from dflash_controller.engines import ENGINES
from dflash_controller.model.counters import CounterSeries
from dflash_controller.model.load_sample import LoadSample
from dflash_controller.model.measurement import Error
from dflash_controller.model.metrics_health import MetricsHealth
from dflash_controller.model.snapshot import Key
from dflash_controller.observe.load.store import LoadSampleStore
from dflash_controller.observe.pipeline.counter_series import CounterSeriesStore
from dflash_controller.observe.pipeline.metrics import RevisionMetrics, revision_metrics
from dflash_controller.observe.pipeline.source import Round, Source, Target
from dflash_controller.observe.status_values.display import Display, DisplaySettings, StatusMetrics
from dflash_controller.observe.status_values.health import NO_READY_PODS, FailureThreshold, source_failure, verdict

_log = logging.getLogger(__name__)


class Collector:
    """Runs rounds while ``run`` is awaited; the other methods answer from the last round and never wait.

    ``targets`` lists the Ready engine pods of the fleet. ``shown`` says, for a deployment, which revision's metrics its status is to show
    and what it shows for that revision now (None: the deployment is gone). ``changed`` is told which deployments need a status write:
    their shown metrics moved or their health verdict changed. All three are called on the event loop and must not wait.
    """

    def __init__(
        self,
        *,
        targets: Callable[[], Iterable[Target]],
        source: Source,
        shown: Callable[[Key], StatusMetrics | None],
        changed: Callable[[Collection[Key]], None],
        warm_up_s: float,
        settings: DisplaySettings | None = None,
        traces: CounterSeriesStore | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``warm_up_s``: seconds of load in which an engine teaches the tuner no step times."""
        self._targets = targets
        self._source = source
        self._shown = shown
        self._changed = changed
        self._settings = settings or DisplaySettings()
        self._traces = traces or CounterSeriesStore()
        self._load_samples = LoadSampleStore(warm_up_s)
        self._answered: Mapping[tuple[Key, str], int] = {}
        self._clock = clock
        self._wall = wall
        self._rounds = 0
        self._failures: Mapping[tuple[Key, str], str] = {}
        self._broken: str | None = None
        self._metric_values: Mapping[tuple[Key, str], RevisionMetrics] = {}
        self._health: dict[Key, FailureThreshold] = {}
        self._displays: dict[Key, Display] = {}
        self._display: dict[Key, StatusMetrics] = {}

    def metric_values(self, key: Key, revision: str) -> RevisionMetrics:
        """The metrics of a revision over the last window; all absent where it was not measured."""
        return self._metric_values.get((key, revision), RevisionMetrics())

    def health(self, key: Key) -> MetricsHealth | None:
        """Whether metrics arrive; None while it is too early to say, which must leave the condition as it is."""
        if self._rounds == 0:
            return None
        failure_threshold = self._health.get(key)
        return NO_READY_PODS if failure_threshold is None else failure_threshold.verdict

    def display(self, key: Key, revision: str) -> Mapping[str, float] | None:
        """The metrics status is to show for that revision, by name, rounded; None to leave what it shows.

        Whatever else causes a status write must use this and not ``metric_values``, or noise would get into it.
        """
        display = self._display.get(key)
        return display.values if display is not None and display.revision == revision else None

    def evidence(
        self, key: Key, candidate: str, stable: str | None
    ) -> tuple[tuple[CounterSeries, ...], tuple[CounterSeries, ...], str | None]:
        """The traces of two revisions (their hashes, as in ``metric_values``), and why the last round got nothing of one of them.

        The failure is None where the source works, and where it finds no metrics: that is an absence, not a failure.
        """
        revisions = [revision for revision in (candidate, stable) if revision is not None]
        told = next((self._failures[key, revision] for revision in revisions if (key, revision) in self._failures), None)
        before = () if stable is None else self._traces.of(key, stable)
        return self._traces.of(key, candidate), before, self._broken or told

    def load_samples(self, key: Key, revision: str) -> list[LoadSample]:
        """What the pods of the active revision (its hash) did, by time, since this was last asked; each load sample is told once."""
        return self._load_samples.drain(key, revision)

    def answered(self, key: Key, revision: str) -> int:
        """Pods of a revision that were measured in the last round."""
        return self._answered.get((key, revision), 0)

    async def run(self) -> None:
        """Rounds until cancelled, one per interval; a round that takes longer delays the next. Closes the source at the end."""
        try:
            while True:
                started = self._clock()
                try:
                    await self.round()
                except Exception:
                    _log.exception("a round of metrics failed; the figures stay as they were")
                    self._broken = "A round of metrics failed in the operator itself, whose log says why."
                await asyncio.sleep(max(0.0, self._settings.interval_s - (self._clock() - started)))
        finally:
            await self._source.close()

    async def round(self) -> None:
        """One round: collect, compute, and tell ``changed``."""
        targets = list(self._targets())
        reading = await self._source.collect(targets)
        self._traces.take(self._wall(), targets, reading.readings)
        pods: defaultdict[Key, defaultdict[str, list[Target]]] = defaultdict(lambda: defaultdict(list))
        for target in targets:
            pods[target.key][target.revision].append(target)
        self._metric_values = {
            (key, revision): _metric_values(members, reading) for key, revisions in pods.items() for revision, members in revisions.items()
        }
        failures = {
            (key, revision): source_failure(self._source, members, reading)
            for key, revisions in pods.items()
            for revision, members in revisions.items()
        }
        self._answered = {
            (key, revision): sum(target.uid in reading.answered for target in members)
            for key, revisions in pods.items()
            for revision, members in revisions.items()
        }
        self._keep(targets, reading)
        self._failures = {which: told for which, told in failures.items() if told is not None}
        for state in (self._health, self._displays, self._display):
            for gone in state.keys() - pods.keys():
                del state[gone]
        self._rounds += 1
        self._broken = None
        now = self._clock()
        changed = []
        for key, revisions in pods.items():
            shown = self._shown(key)
            if shown is None:
                continue
            members = [target for group in revisions.values() for target in group]
            turned = self._health.setdefault(key, FailureThreshold()).take(verdict(self._source, members, reading))
            values = self._displays.setdefault(key, Display(self._settings)).update(now, shown, self.metric_values(key, shown.revision))
            if values is not None:
                self._display[key] = StatusMetrics(shown.revision, values)
            if turned or values is not None:
                changed.append(key)
        if changed:
            self._changed(changed)

    def _keep(self, targets: Sequence[Target], reading: Round) -> None:
        """Load samples of pods of the active revision. A deployment without pods keeps its own: its only replica may be restarting."""
        in_force: dict[Key, str | None] = {}

        def revision(key: Key) -> str | None:
            if key not in in_force:
                shown = self._shown(key)
                in_force[key] = None if shown is None else shown.revision
            return in_force[key]

        self._load_samples.take(targets, reading.spans, revision)
        self._load_samples.forget(lambda key: revision(key) is None)


def _metric_values(targets: Sequence[Target], reading: Round) -> RevisionMetrics:
    windows = [reading.windows[target.uid] for target in targets if target.uid in reading.windows]
    if windows:
        first = targets[0]
        return revision_metrics(
            ENGINES[first.engine].metric_schema,
            windows,
            expected=len(targets),
            speculation_on=first.speculation_on,
            slots_per_request=first.slots_per_request,
        )
    for target in targets:
        source_failure = reading.failures.get(target.uid)
        if isinstance(source_failure, Error):
            return RevisionMetrics.failed(source_failure)
    return RevisionMetrics()
