"""PromQL over the engines' own series, by engine. Pure.

Names, matchers and scopes are the ones that the operator itself uses (``engines``), and so is the reduction to one number per pod, so a
rule and the status always have the same meaning.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dflash_controller.engines import ENGINES
from dflash_controller.model.series import Series
from dflash_controller.observe.sources.prometheus.reduction import per_pod

RATE_WINDOW = "2m"
"""Four scrapes at an interval of 30 s, the longest that the tuner learns from; eight scrapes of the operator's own PodMonitor."""

METRIC_SCHEMAS = {name: ENGINES[name].metric_schema for name in ("vllm", "sglang")}
"""Schemas in the order in which the rules name the engines."""
_SERIES = {engine: {one.quantity: one for one in (*schema.counters, *schema.histograms)} for engine, schema in METRIC_SCHEMAS.items()}


def rate_of(engine: str, quantity: str, by: Iterable[str] = ()) -> str:
    """Returns ``rate`` of a quantity of a schema. Raises KeyError if the schema has no such quantity."""
    return rate(_SERIES[engine][quantity], by)


def rate(one: Series, by: Iterable[str] = ()) -> str:
    """Returns the increase per second of a counter, per pod and ``by``."""
    return per_pod(one, lambda chosen: f"rate({chosen}[{RATE_WINDOW}])", by=by)


def level_of(engine: str, quantity: str, metric: str = "") -> str:
    """Returns a gauge of a schema, per pod, its parts together; of ``metric`` instead, if given, which has the same scope and matchers."""
    one = _SERIES[engine][quantity]
    return per_pod(replace(one, metric=metric or one.metric, by=""), lambda chosen: chosen)
