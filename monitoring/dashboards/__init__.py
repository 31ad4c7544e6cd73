"""Grafana dashboards, one module each. The generated JSON is committed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from grafana_foundation_sdk.models.dashboard import Dashboard

from monitoring.dashboards.build import rendered
from monitoring.dashboards.fleet import fleet
from monitoring.dashboards.operator import operator
from monitoring.dashboards.rollout import rollout
from monitoring.dashboards.speculation import speculation
from monitoring.dashboards.startup import startup
from monitoring.dashboards.tuner import tuner

DIRECTORY = "charts/dflash-operator/files/dashboards"
ALL: Mapping[str, Callable[[], Dashboard]] = {
    "fleet": fleet,
    "speculation": speculation,
    "tuner": tuner,
    "rollout": rollout,
    "operator": operator,
    "startup": startup,
}
"""Dashboards by file name."""


def _writer(make: Callable[[], Dashboard]) -> Callable[[], str]:
    return lambda: rendered(make())


FILES: Mapping[str, Callable[[], str]] = {f"{DIRECTORY}/{name}.json": _writer(make) for name, make in ALL.items()}
"""Functions that return the content of each file, by path below the repository's root."""
