"""What promtool is told: series over time, and which alert fires when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from monitoring.alert import Alert

Series = dict[str, str]
"""Series and its values in promtool's notation, one a minute."""


@dataclass(frozen=True)
class Firing:
    """One series of an alert that fires: its labels beside name and severity, and its summary in full."""

    summary: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Story:
    """``looks``: time to what fires then, nothing by default."""

    alert: str
    name: str
    series: Series
    looks: Mapping[str, Sequence[Firing]]
    interval: str = "1m"
    """Between two samples, and two evaluations."""

    @property
    def fires(self) -> bool:
        return any(self.looks.values())

    @property
    def recovers(self) -> bool:
        """It fires, and at a later look does not."""
        seen = [bool(firing) for firing in self.looks.values()]
        return True in seen and not seen[-1]

    def to_dict(self, alerts: Mapping[str, Alert]) -> dict[str, Any]:
        """A test group of promtool."""
        looks = [
            {"eval_time": time, "alertname": self.alert, "exp_alerts": [_expected(alerts[self.alert], one) for one in firing]}
            for time, firing in self.looks.items()
        ]
        return {"name": f"{self.alert}: {self.name}", **_group(self.series, self.interval), "alert_rule_test": looks}


def silence(name: str, series: Series, times: Iterable[str], alerts: Iterable[str], interval: str = "1m") -> dict[str, Any]:
    """A test group in which none of these alerts fires at any of the times."""
    looks = [{"eval_time": time, "alertname": alert, "exp_alerts": []} for time in times for alert in alerts]
    return {"name": name, **_group(series, interval), "alert_rule_test": looks}


def _group(series: Series, interval: str) -> dict[str, Any]:
    return {"interval": interval, "input_series": [{"series": one, "values": values} for one, values in series.items()]}


def _expected(alert: Alert, firing: Firing) -> dict[str, Any]:
    annotations = alert.to_dict()["annotations"] | {"summary": firing.summary}
    return {"exp_labels": {"severity": alert.severity, **firing.labels}, "exp_annotations": annotations}


def counter(*load_samples: tuple[float, int], start: float = 0.0) -> str:
    """A counter that rises by so much a minute for so many minutes, load sample after load sample."""
    parts, value = [f"{start:g}"], start
    for step, minutes in load_samples:
        parts.append(f"{value + step:.10g}{step:+.10g}x{minutes - 1}")
        value += step * minutes
    return " ".join(parts)


def gauge(*load_samples: tuple[float | None, int]) -> str:
    """A level that stays for so many minutes, load sample after load sample; None: the series is not there."""
    parts = []
    for value, minutes in load_samples:
        if value is None:
            parts += ["stale", *([f"_x{minutes - 1}"] if minutes > 1 else [])]
        elif minutes:
            parts.append(f"{value:.10g}+0x{minutes - 1}")
    return " ".join(parts)


def label_set(**labels: str) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"
