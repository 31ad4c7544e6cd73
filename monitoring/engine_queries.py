"""PromQL over the engines' own series, by dialect. Pure.

Names, matchers and ranks are those the operator itself reads by (``engines``), so a rule and the status never mean different
things.
"""

from __future__ import annotations

from collections.abc import Iterable

from dflash_controller.engines import ENGINES
from dflash_controller.model.series import Series
from dflash_controller.observe.sources.prometheus.promql import selector

RATE_WINDOW = "2m"
"""Four scrapes where a scrape comes every 30 s, the rarest that the tuner learns from; eight of the operator's own PodMonitor."""

METRIC_SCHEMAS = {name: ENGINES[name].metric_schema for name in ("vllm", "sglang")}
"""In the order in which the rules name the engines."""
_SERIES = {engine: {one.quantity: one for one in (*dialect.counters, *dialect.histograms)} for engine, dialect in METRIC_SCHEMAS.items()}


def rate_of(engine: str, quantity: str, by: Iterable[str] = ()) -> str:
    """``rate`` of a quantity of a dialect. Raises KeyError where the dialect has none of that name."""
    return rate(_SERIES[engine][quantity], by)


def rate(one: Series, by: Iterable[str] = ()) -> str:
    """Increase per second of a counter, per pod and ``by``.

    Scrape jobs are alternatives, not parts: a pod that two jobs scrape counts once. Ranks that step together count once, others are summed.
    """
    chosen = _selector(one.metric, one.match)
    outer = ", ".join(("namespace", "pod", *((one.by,) if one.by else ()), *by))
    inner = ", ".join((outer, "job", *one.ranks))
    return f"max by ({outer}) (sum by ({inner}) (rate({chosen}[{RATE_WINDOW}])))"


def level_of(engine: str, quantity: str) -> str:
    """``level`` of a quantity of a dialect, the largest over its ranks."""
    one = _SERIES[engine][quantity]
    return level(one.metric, one.match)


def level(metric: str, match: tuple[tuple[str, str], ...] = (), summed_over: str = "") -> str:
    """A gauge per pod: the largest of its series, or their sum over ``summed_over``, ranks that each serve requests of their own."""
    chosen = _selector(metric, match)
    if not summed_over:
        return f"max by (namespace, pod) ({chosen})"
    largest = f"max by (namespace, pod, job, {summed_over}) ({chosen})"
    return f"max by (namespace, pod) (sum by (namespace, pod, job) ({largest}))"


def _selector(metric: str, match: tuple[tuple[str, str], ...]) -> str:
    return selector(metric, match, {}).removesuffix("{}")
