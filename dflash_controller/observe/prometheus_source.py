"""Windows from Prometheus: two dozen queries a round at most, whatever the number of deployments and pods, and readings of trials."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence

from dflash_controller.api.conditions import Reason
from dflash_controller.observe import promql
from dflash_controller.observe.dialect import DIALECTS, MetricDialect
from dflash_controller.observe.prometheus import Prometheus, PrometheusError, PrometheusSettings, Row
from dflash_controller.observe.prometheus_readings import TrialReadings, TrialSettings
from dflash_controller.observe.result import Absent, Error
from dflash_controller.observe.scrape import NO_SERIES
from dflash_controller.observe.series import Cell, Window
from dflash_controller.observe.source import Round, Target
from dflash_controller.planning.analysis.evidence import Reading

_Pod = tuple[str, str]


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
    ) -> None:
        self._client = Prometheus(settings)
        self._matcher = settings.matcher
        self._window_s = window_s
        self._parallel = parallel
        self._trials = TrialReadings(self._client, settings.matcher, trials or TrialSettings(window_s))
        self._wall = wall

    async def collect(self, targets: Sequence[Target]) -> Round:
        """One failing query fails the round: figures from half of the series would be wrong, not incomplete.

        One that fails for the pods on trial fails those only.
        """
        engines = sorted({target.engine for target in targets})
        slots = asyncio.Semaphore(self._parallel)
        pods: dict[_Pod, Window] = {}
        try:
            for engine in engines:
                pods.update(await self._windows(DIALECTS[engine], slots))
        except ExceptionGroup as failures:
            error = Error(str(_only_prometheus(failures)))
            return Round(troubles={target.uid: error for target in targets})
        windows: dict[str, Window] = {}
        troubles: dict[str, Absent | Error] = {}
        for target in targets:
            window = pods.get((target.namespace, target.pod))
            if window is None:
                troubles[target.uid] = NO_SERIES
            else:
                windows[target.uid] = window
        readings: dict[str, tuple[Reading, ...]] = {}
        try:
            readings = await self._trials.collect(targets, self._wall())
        except PrometheusError as failure:
            error = Error(str(failure))
            troubles.update((target.uid, error) for target in targets if target.on_trial)
        return Round(windows, troubles, frozenset(windows) - troubles.keys(), readings)

    async def _windows(self, dialect: MetricDialect, slots: asyncio.Semaphore) -> dict[_Pod, Window]:
        queries = [promql.movement(series, self._window_s, self._matcher) for series in dialect.series]
        queries.append(promql.coverage(dialect.presence, self._window_s, self._matcher))
        queries.append(promql.age(dialect.presence, self._matcher))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._ask(query, slots)) for query in queries]
        *moved, covered, ages = (task.result() for task in tasks)
        deltas: dict[_Pod, dict[Cell, float]] = {}
        levels: dict[_Pod, dict[Cell, float]] = {}
        for series, rows in zip(dialect.series, moved, strict=True):
            into = levels if series.gauge else deltas
            for row in rows:
                cell = Cell(series.quantity, row.labels.get(series.by, "") if series.by else "")
                into.setdefault(_pod(row), {})[cell] = row.value
        newest = {_pod(row): row.value for row in ages}
        return {
            _pod(row): Window(
                seconds=min(row.value, self._window_s),
                deltas=deltas.get(_pod(row), {}),
                levels=levels.get(_pod(row), {}),
                age_s=newest.get(_pod(row), 0.0),
            )
            for row in covered
        }

    async def _ask(self, query: str, slots: asyncio.Semaphore) -> list[Row]:
        """Rows that are finite: a NaN is no number, and certainly not zero."""
        async with slots:
            return [row for row in await self._client.query(query) if math.isfinite(row.value)]

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()


def _pod(row: Row) -> _Pod:
    return row.labels.get("namespace", ""), row.labels.get("pod", "")


def _only_prometheus(failures: ExceptionGroup) -> PrometheusError:
    """The first failure; the group is raised on where something else failed too."""
    first = failures.exceptions[0]
    if not isinstance(first, PrometheusError) or failures.split(PrometheusError)[1] is not None:
        raise failures
    return first
