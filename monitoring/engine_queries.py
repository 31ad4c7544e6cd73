"""PromQL over the engines' own series, by dialect. Pure.

Names, matchers and ranks are the ones that the operator itself uses (``engines``), so a rule and the status always have the same meaning.
"""

from __future__ import annotations

from collections.abc import Iterable

from dflash_controller.engines import ENGINES
from dflash_controller.model.series import Series
from dflash_controller.observe.sources.prometheus.promql import selector

RATE_WINDOW = "2m"
"""Four scrapes at an interval of 30 s, the longest that the tuner learns from; eight scrapes of the operator's own PodMonitor."""

METRIC_SCHEMAS = {name: ENGINES[name].metric_schema for name in ("vllm", "sglang")}
"""Dialects in the order in which the rules name the engines."""
_SERIES = {engine: {one.quantity: one for one in (*dialect.counters, *dialect.histograms)} for engine, dialect in METRIC_SCHEMAS.items()}


def rate_of(engine: str, quantity: str, by: Iterable[str] = ()) -> str:
    """Returns ``rate`` of a quantity of a dialect. Raises KeyError if the dialect has no such quantity."""
    return rate(_SERIES[engine][quantity], by)


def rate(one: Series, by: Iterable[str] = ()) -> str:
    """Returns the increase per second of a counter, per pod and ``by``.

    Scrape jobs are alternatives, not parts: a pod that two jobs scrape counts once. Ranks that step together count once; other ranks are
    summed.
    """
    chosen = _selector(one.metric, one.match)
    outer = ", ".join(("namespace", "pod", *((one.by,) if one.by else ()), *by))
    inner = ", ".join((outer, "job", *one.ranks))
    return f"max by ({outer}) (sum by ({inner}) (rate({chosen}[{RATE_WINDOW}])))"


def level_of(engine: str, quantity: str) -> str:
    """Returns ``level`` of a quantity of a dialect, the largest over its ranks."""
    one = _SERIES[engine][quantity]
    return level(one.metric, one.match)


def level(metric: str, match: tuple[tuple[str, str], ...] = (), summed_over: str = "") -> str:
    """Returns a gauge per pod: the largest of its series, or their sum over ``summed_over``, the ranks that each serve their own
    requests."""
    chosen = _selector(metric, match)
    if not summed_over:
        return f"max by (namespace, pod) ({chosen})"
    largest = f"max by (namespace, pod, job, {summed_over}) ({chosen})"
    return f"max by (namespace, pod) (sum by (namespace, pod, job) ({largest}))"


def _selector(metric: str, match: tuple[tuple[str, str], ...]) -> str:
    return selector(metric, match, {}).removesuffix("{}")
