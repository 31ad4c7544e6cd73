"""The metrics that a candidate is judged by: what a user may set for each, and what holds where nothing is set.

``GATE_SPECS`` is the one list of their names. How a metric is evaluated, and for which changes, stands in ``analysis.gates``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from dflash_controller.api.quantity import parse_duration
from dflash_controller.api.schema import POLICY, Duration, Model


class MetricGate(Model):
    """One metric of the analysis: candidate against the stable revision serving at the same time.

    A gate has only the fields that have an effect on its metric.
    """

    enabled: Annotated[bool | None, POLICY] = Field(None, description="Whether this metric is judged. Default true.")
    limit: Annotated[float | None, POLICY] = Field(None, ge=0, le=1000, description="Worst value that still passes.")


class PrimaryGate(MetricGate):
    """A metric that decides a change of drafter.

    All traffic after the warm-up is one measurement that grows, and its bounds hold at all looks together: there are no windows to count.
    """

    min_samples: Annotated[int | None, POLICY] = Field(
        None, ge=1, le=10_000_000, description="With fewer verify steps on either side the verdict is Inconclusive."
    )
    interval: Annotated[Duration | None, POLICY] = Field(None, description="The analysis evaluates at least this often, and every minute.")


class AcceptanceGate(PrimaryGate):
    """Tokens committed per verify step. Judged only when the block size is the same on both sides."""

    limit: Annotated[float | None, POLICY] = Field(
        None, ge=0, le=100, description="Largest loss of acceptance length compared with stable, in percent. Default 5."
    )


class SpeedGate(PrimaryGate):
    """Output tokens per second of one request, at equal load."""

    limit: Annotated[float | None, POLICY] = Field(
        None, ge=0, le=100, description="Largest loss of speed compared with stable, in percent. Default 5."
    )


class WindowedGate(MetricGate):
    """A metric whose traffic is judged window by window."""

    min_samples: Annotated[int | None, POLICY] = Field(
        None,
        ge=1,
        le=10_000_000,
        description="Requests that a window needs on either side; without such a window the verdict is Inconclusive.",
    )
    window: Annotated[Duration | None, POLICY] = Field(
        None, description="Shortest time that is judged as one window; it is extended until it has minSamples."
    )
    interval: Annotated[Duration | None, POLICY] = Field(
        None, description="Steps by which a window is extended; the analysis evaluates at least this often, and every minute."
    )
    failure_limit: Annotated[int | None, POLICY] = Field(
        None, ge=0, le=100, description="Windows beyond the limit that are tolerated; one more fails the rollout."
    )


class TtftGate(WindowedGate):
    """Time to first token, 95th percentile."""

    limit: Annotated[float | None, POLICY] = Field(
        None, ge=0, le=1000, description="Largest increase compared with stable, in percent. Default 20."
    )


class LatencyGate(WindowedGate):
    """Time per output token, 95th percentile."""

    limit: Annotated[float | None, POLICY] = Field(
        None, ge=0, le=1000, description="Largest increase compared with stable, in percent. Default 10."
    )


class ErrorsGate(WindowedGate):
    """Requests that ended in an error."""

    limit: Annotated[float | None, POLICY] = Field(
        None, ge=0, le=100, description="Largest share of failed requests above that of stable, in percentage points. Default 1."
    )


class RestartsGate(MetricGate):
    """Restarts of engine containers. The limit is the number that is tolerated."""

    limit: Annotated[float | None, POLICY] = Field(
        None, ge=0, le=1000, description="Most restarts of the engine containers of the candidate since they were first Ready. Default 0."
    )
    min_samples: Annotated[int | None, POLICY] = Field(
        None, ge=1, le=10_000_000, description="With fewer candidate pods past their warm-up the verdict is Inconclusive."
    )
    window: Annotated[Duration | None, POLICY] = Field(
        None, description="If neither acceptance length nor speed is judged, the candidate must serve at least this long."
    )
    interval: Annotated[Duration | None, POLICY] = Field(None, description="The analysis evaluates at least this often, and every minute.")


class Analysis(Model):
    """What a candidate is judged by. A metric that means nothing for the change at hand is left out by itself."""

    acceptance_length: AcceptanceGate = Field(default_factory=AcceptanceGate, description="Tokens committed per verify step.")
    speed: SpeedGate = Field(default_factory=SpeedGate, description="Output tokens per second of one request, at equal load.")
    ttft: TtftGate = Field(default_factory=TtftGate, description="Time to first token, 95th percentile.")
    latency: LatencyGate = Field(default_factory=LatencyGate, description="Time per output token, 95th percentile.")
    errors: ErrorsGate = Field(default_factory=ErrorsGate, description="Requests that ended in an error.")
    restarts: RestartsGate = Field(default_factory=RestartsGate, description="Restarts of engine containers.")

    def gates(self) -> dict[str, Gate]:
        """Every gate by its metric's name, with every default filled in."""
        written: dict[str, MetricGate] = {str(field.alias): getattr(self, name) for name, field in type(self).model_fields.items()}
        return {name: _effective(spec.default, written[name]) for name, spec in GATE_SPECS.items()}


@dataclass(frozen=True, slots=True)
class Gate:
    """One metric of the analysis with every default filled in. ``limit`` has the unit that its field's description gives."""

    enabled: bool
    limit: float
    min_samples: int
    interval_s: int
    window_s: int = 0
    """0 where the metric has no windows."""
    failure_limit: int = 0


class Role(StrEnum):
    """What a metric decides."""

    PRIMARY = "primary"
    """It promotes and it fails."""
    GUARDRAIL = "guardrail"
    """It only ever fails."""


@dataclass(frozen=True, slots=True)
class GateSpec:
    """One metric that a candidate can be judged by."""

    type: type[MetricGate]
    """What a user may set."""
    role: Role
    default: Gate
    compared: str
    """What is measured on both sides, in the words of the documentation."""
    limit_unit: str
    """Follows the limit: 5 ``% less``."""
    samples: str
    """What ``min_samples`` counts."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Names on the wire of the fields that a user may set."""
        return tuple(str(field.alias) for field in self.type.model_fields.values())


ACCEPTANCE, SPEED = "acceptanceLength", "speed"
TTFT, LATENCY, ERRORS, RESTARTS = "ttft", "latency", "errors", "restarts"

GATE_SPECS: Mapping[str, GateSpec] = {
    ACCEPTANCE: GateSpec(
        AcceptanceGate,
        Role.PRIMARY,
        Gate(True, limit=5, min_samples=2000, interval_s=60),
        compared="committed tokens ÷ verify steps",
        limit_unit="% less",
        samples="steps",
    ),
    SPEED: GateSpec(
        SpeedGate,
        Role.PRIMARY,
        Gate(True, limit=5, min_samples=2000, interval_s=60),
        compared="tokens per second of a request, at equal load",
        limit_unit="% less",
        samples="steps",
    ),
    TTFT: GateSpec(
        TtftGate,
        Role.GUARDRAIL,
        Gate(True, limit=20, min_samples=100, interval_s=60, window_s=300, failure_limit=2),
        compared="time to first token, 95th percentile",
        limit_unit="% more",
        samples="requests",
    ),
    LATENCY: GateSpec(
        LatencyGate,
        Role.GUARDRAIL,
        Gate(True, limit=10, min_samples=100, interval_s=60, window_s=300, failure_limit=2),
        compared="time per output token, 95th percentile",
        limit_unit="% more",
        samples="requests",
    ),
    ERRORS: GateSpec(
        ErrorsGate,
        Role.GUARDRAIL,
        Gate(True, limit=1, min_samples=100, interval_s=30, window_s=300, failure_limit=0),
        compared="requests that failed",
        limit_unit="points more",
        samples="requests",
    ),
    RESTARTS: GateSpec(
        RestartsGate,
        Role.GUARDRAIL,
        Gate(True, limit=0, min_samples=1, interval_s=30, window_s=300),
        compared="restarts of the engine container since first Ready",
        limit_unit="in all",
        samples="pods",
    ),
}
"""By the metric's name in the spec, in verdicts and in the operator's own metrics; in the order in which verdicts are shown."""

PRIMARY = tuple(name for name, spec in GATE_SPECS.items() if spec.role is Role.PRIMARY)


def _effective(default: Gate, written: MetricGate) -> Gate:
    given: dict[str, Any] = {name: value for name, value in written if value is not None}
    for name in {"window", "interval"} & given.keys():
        given[f"{name}_s"] = parse_duration(given.pop(name))
    return replace(default, **given)
