"""What a decision knows besides the objects: the time, the measurements, the operator's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from dflash_controller.api.conditions import Reason
from dflash_controller.catalog import Catalog
from dflash_controller.engines.resolved import OperatorDefaults
from dflash_controller.model.counters import CounterSeries, ProbeRun
from dflash_controller.model.load_sample import LoadSample
from dflash_controller.model.metrics_health import NOT_MEASURED, MetricsHealth
from dflash_controller.tuner.learner import Learned


@dataclass(frozen=True, slots=True)
class Blocker:
    """Why nothing may be written: it needs a human."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What the tuner knows of one deployment, kept by the process and with the active revision."""

    learned: Learned | None = None
    """None: nothing was seen yet since the operator began to look."""
    recent: tuple[LoadSample, ...] = ()
    """What the pods of the active revision did in the last minutes, oldest first."""
    measured: int = 0
    """Its pods that the last round of measurements reached."""
    short_for_s: float = 0.0
    """For how long those have been too few to judge by; 0 while they are enough."""
    record: str | None = None
    """To be kept with the active revision now, so that it outlives the operator; None: what is kept will do."""
    reported: tuple[str, ...] = ()
    """State, reason and recommendation of the last decision."""
    reported_since: datetime | None = None
    """Since when it has been the same."""


@dataclass(frozen=True, slots=True)
class PlannerInputs:
    """Nothing here is read from a clock or a file by the planner."""

    now: datetime
    defaults: OperatorDefaults
    catalog: Catalog
    metric_values: Mapping[str, float] | None = None
    """Metrics of the revision that is stable before the plan, worth showing from now on, by status field; None: what is shown stands."""
    metrics: MetricsHealth = NOT_MEASURED
    traces: Mapping[str, tuple[CounterSeries, ...]] = field(default_factory=dict)
    """What the engines counted, by revision."""
    metrics_failure: str | None = None
    """Why nothing can be read from the engines; None while it can."""
    probes: tuple[ProbeRun, ...] = ()
    """Answers of the probe that has just ended."""
    probe_error: str | None = None
    """Why the probe could not be carried out."""
    tuning: Knowledge = field(default_factory=Knowledge)
    tuning_requeue_s: float = 60.0
    """The tuner is asked so often: the load is news that no watch brings."""
    warm_up_s: float = 60.0
    """How long a fresh replica's metrics say nothing: kernels are compiled and graphs captured with its first requests."""
    refusal: Blocker | None = None
    """What the API server refused when the last plan was carried out, just now."""
