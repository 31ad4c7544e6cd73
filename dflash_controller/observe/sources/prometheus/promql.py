"""The PromQL of the collector. Pure.

Every query is grouped by (namespace, pod) and asks for all engines at once, so their number does not grow with the fleet. Which deployment
and revision a pod belongs to is joined by the operator from its own store: no relabelling is needed, and labels cannot spoof it.
For judging a candidate the samples themselves are asked for, of the few pods that take part.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable

from dflash_controller.model.metric_schema import MetricSchema
from dflash_controller.model.series import Series
from dflash_controller.observe.sources.prometheus.reduction import RENAMED, Selection, of_its_pod, per_pod, selector

_COVERAGE_STEPS = 60
"""The first sample of a pod is found to within a sixtieth of the window."""


def movement(series: Series, window_s: float, selection: Selection) -> str:
    """A counter's increase over the window, or a gauge's level (the newest, or that of the whole window), per pod (and part)."""
    over = f"{series.over}_over_time" if series.gauge else "increase"

    def read(chosen: str) -> str:
        return chosen if series.gauge and not series.over else f"{over}({chosen}[{_seconds(window_s)}])"

    return per_pod(series, read, selection)


def total(series: Series, selection: Selection) -> str:
    """What a counter counted since the start of the process, per pod (and part)."""
    return per_pod(series, lambda chosen: chosen, selection)


def coverage(presence: str, window_s: float, selection: Selection) -> str:
    """Seconds since the first sample of a pod within the window; more than the window for a pod that is older.

    ``increase`` does not scale up for a pod that was there for part of the window, so its rate needs this span.
    """
    step_s = max(1.0, window_s / _COVERAGE_STEPS)
    span = f"{_seconds(window_s + 2 * step_s)}:{_seconds(step_s)}"
    first = f"min_over_time(timestamp({selector(presence, (), selection.static)})[{span}])"
    return f"time() - min by (namespace, pod) ({of_its_pod(first)})"


def age(presence: str, selection: Selection) -> str:
    """Seconds since the newest sample of a pod."""
    newest = f"timestamp({selector(presence, (), selection.static)})"
    return f"time() - max by (namespace, pod) ({of_its_pod(newest)})"


def present(schema: MetricSchema, selection: Selection) -> str:
    """The metrics that each pod has, among those that are read, and the native histograms that take the place of some.

    Of buckets only the last is asked for: there are dozens of others. (An ``or`` of two queries would not do, because it compares all
    labels but the name.)
    """
    parts = (*schema.counters, *schema.histograms)
    names = {one.metric for one in parts} | {one.histogram for one in parts if one.histogram}
    chosen = selector("", (("__name__", "|".join(sorted(names))), ("le", "|[+]Inf")), selection.static)
    return f"group by (namespace, pod, __name__) ({of_its_pod(chosen)})"


def samples(metrics: Collection[str], pods: Collection[tuple[str, str]], selection: Selection) -> str:
    """Every sample of these metrics as it was scraped, of pods given as (namespace, name)."""
    return " or ".join(_of_pods(metrics, pods, selection))


def sample_times(metric: str, pods: Collection[tuple[str, str]], selection: Selection) -> str:
    """When a metric of these pods was last scraped, seconds since the epoch, by scraped endpoint."""
    return " or ".join(f"timestamp({chosen})" for chosen in _of_pods((metric,), pods, selection))


def _of_pods(metrics: Collection[str], pods: Collection[tuple[str, str]], selection: Selection) -> list[str]:
    """A selector for each way in which the labels of the pod may be called, because a federating Prometheus renames them."""
    namespaces, names = _any_of({namespace for namespace, _ in pods}), _any_of({pod for _, pod in pods})
    return [
        selector("", (("__name__", "|".join(sorted(metrics))), (f"{one}namespace", namespaces), (f"{other}pod", names)), selection.static)
        for one, other in itertools.product(("", RENAMED), repeat=2)
    ]


def _any_of(values: Iterable[str]) -> str:
    """A regular expression for just these names (of Kubernetes: letters, digits, '-' and '.')."""
    return "|".join(value.replace(".", r"\.") for value in sorted(values))


def _seconds(value: float) -> str:
    return f"{max(1, round(value))}s"
