"""Windows of the whole fleet from Prometheus: one query a series, whatever the number of deployments and pods."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable

from dflash_controller.model.metric_schema import MetricSchema
from dflash_controller.model.series import CounterWindow, LabelledMetric, Series
from dflash_controller.observe.sources.prometheus import promql
from dflash_controller.observe.sources.prometheus.client import Prometheus, PrometheusError, Row
from dflash_controller.observe.sources.prometheus.reduction import Selection

_log = logging.getLogger(__name__)

PodName = tuple[str, str]
"""Namespace and name."""


class FleetWindows:
    """Asks for the increase of series over a window."""

    def __init__(self, client: Prometheus, selection: Selection, parallel: int = 4) -> None:
        self._client = client
        self._selection = selection
        self._parallel = parallel

    async def ask(
        self, presence: str, series: Iterable[Series], window_s: float, end_s: float, totals: Iterable[Series] = ()
    ) -> dict[PodName, CounterWindow]:
        """A window for each pod that exports ``presence``. ``totals``: counters that are also told since the start of the process.

        All series end at the same time, ``end_s`` (seconds since the epoch): a quotient of two that hold other scrapes is wrong by the
        jitter of a scrape. Raises PrometheusError where one query fails: half the series would be wrong.
        """
        wanted, counted = tuple(series), tuple(totals)
        slots = asyncio.Semaphore(self._parallel)
        queries = [promql.movement(one, window_s, self._selection) for one in wanted]
        queries += [promql.total(one, self._selection) for one in counted]
        queries.append(promql.coverage(presence, window_s, self._selection))
        queries.append(promql.age(presence, self._selection))
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._ask(query, end_s, slots)) for query in queries]
        except ExceptionGroup as failures:
            raise _only_prometheus(failures) from None
        *answers, covered, ages = (task.result() for task in tasks)
        moved, total = answers[: len(wanted)], answers[len(wanted) :]
        deltas: dict[PodName, dict[LabelledMetric, float]] = {}
        levels: dict[PodName, dict[LabelledMetric, float]] = {}
        since_start: dict[PodName, dict[LabelledMetric, float]] = {}
        told = [(one, rows, levels if one.gauge else deltas) for one, rows in zip(wanted, moved, strict=True)]
        told += [(one, rows, since_start) for one, rows in zip(counted, total, strict=True)]
        for one, rows, into in told:
            for row in rows:
                cell = LabelledMetric(one.quantity, row.labels.get(one.by, "") if one.by else "")
                into.setdefault(_pod(row), {})[cell] = row.value
        newest = {_pod(row): row.value for row in ages}
        return {
            _pod(row): CounterWindow(
                seconds=min(row.value, window_s),
                deltas=deltas.get(_pod(row), {}),
                levels=levels.get(_pod(row), {}),
                age_s=newest.get(_pod(row), 0.0),
                totals=since_start.get(_pod(row), {}),
            )
            for row in covered
        }

    async def present(self, schema: MetricSchema) -> dict[PodName, frozenset[str]]:
        """The metrics that each pod has, among those that are read. Empty where that cannot be had, which says nothing."""
        found: dict[PodName, set[str]] = {}
        try:
            rows = await self._client.query(promql.present(schema, self._selection))
        except PrometheusError as error:
            _log.warning("whether metrics of the %s engines are missing is not known: %s", schema.engine, error)
            return {}
        for row in rows:
            found.setdefault(_pod(row), set()).add(row.labels.get("__name__", ""))
        return {pod: frozenset(names) for pod, names in found.items()}

    async def _ask(self, query: str, at_s: float, slots: asyncio.Semaphore) -> list[Row]:
        """Rows that are finite: a NaN is no number, and certainly not zero."""
        async with slots:
            return [row for row in await self._client.query(query, at_s) if math.isfinite(row.value)]


def _pod(row: Row) -> PodName:
    return row.labels.get("namespace", ""), row.labels.get("pod", "")


def _only_prometheus(failures: ExceptionGroup) -> PrometheusError:
    """The first failure; the group is raised on where something else failed too."""
    first = failures.exceptions[0]
    if not isinstance(first, PrometheusError) or failures.split(PrometheusError)[1] is not None:
        raise failures
    return first
