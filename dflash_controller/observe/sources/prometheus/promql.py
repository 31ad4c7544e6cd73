"""The PromQL of the collector. Pure.

Every query is grouped by (namespace, pod) and asks for all engines at once, so their number does not grow with the fleet. Which deployment
and revision a pod belongs to is joined by the operator from its own store: no relabelling is needed, and labels cannot spoof it.
For judging a candidate the samples themselves are asked for, of the few pods that take part.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from dflash_controller.model.series import Series

_COVERAGE_STEPS = 60
"""The first sample of a pod is found to within a sixtieth of the window."""


def quoted(value: str) -> str:
    """A PromQL string literal."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def selector(metric: str, match: tuple[tuple[str, str], ...], static: Mapping[str, str]) -> str:
    """An instant vector selector; ``static`` labels must be equal (a multi-cluster Prometheus), ``match`` are regular expressions."""
    matchers = [f"{label}={quoted(value)}" for label, value in sorted(static.items())]
    matchers += [f"{label}=~{quoted(pattern)}" for label, pattern in match]
    return f"{metric}{{{','.join(matchers)}}}"


def movement(series: Series, window_s: float, static: Mapping[str, str]) -> str:
    """A counter's increase over the window, or a gauge's level (the newest, or that of the whole window), per pod (and part).

    Scrape jobs are alternatives, not parts: a pod that two jobs scrape counts once. So are ranks that step together.
    """
    chosen = selector(series.metric, series.match, static)
    outer = ", ".join(("namespace", "pod", *((series.by,) if series.by else ())))
    if series.over:
        return f"max by ({outer}) ({series.over}_over_time({chosen}[{_seconds(window_s)}]))"
    if series.gauge:
        return f"max by ({outer}) ({chosen})"
    inner = ", ".join((outer, "job", *series.ranks))
    return f"max by ({outer}) (sum by ({inner}) (increase({chosen}[{_seconds(window_s)}])))"


def coverage(presence: str, window_s: float, static: Mapping[str, str]) -> str:
    """Seconds since the first sample of a pod within the window; more than the window for a pod that is older.

    ``increase`` does not scale up for a pod that was there for part of the window, so its rate needs this span.
    """
    step_s = max(1.0, window_s / _COVERAGE_STEPS)
    span = f"{_seconds(window_s + 2 * step_s)}:{_seconds(step_s)}"
    return f"time() - min by (namespace, pod) (min_over_time(timestamp({selector(presence, (), static)})[{span}]))"


def age(presence: str, static: Mapping[str, str]) -> str:
    """Seconds since the newest sample of a pod."""
    return f"time() - max by (namespace, pod) (timestamp({selector(presence, (), static)}))"


def samples(metrics: Collection[str], pods: Collection[tuple[str, str]], static: Mapping[str, str]) -> str:
    """Every sample of these metrics as it was scraped, of pods given as (namespace, name)."""
    match = (
        ("__name__", "|".join(sorted(metrics))),
        ("namespace", _any_of({namespace for namespace, _ in pods})),
        ("pod", _any_of({pod for _, pod in pods})),
    )
    return selector("", match, static)


def sample_times(metric: str, pods: Collection[tuple[str, str]], static: Mapping[str, str]) -> str:
    """When a metric of these pods was last scraped, seconds since the epoch, by scraped endpoint."""
    return f"timestamp({samples((metric,), pods, static)})"


def _any_of(values: Iterable[str]) -> str:
    """A regular expression for just these names (of Kubernetes: letters, digits, '-' and '.')."""
    return "|".join(value.replace(".", r"\.") for value in sorted(values))


def _seconds(value: float) -> str:
    return f"{max(1, round(value))}s"
