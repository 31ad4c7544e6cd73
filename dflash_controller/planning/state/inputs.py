"""The inputs of a plan besides the objects: the time, the measurements, the operator's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from dflash_controller.api.conditions import Reason
from dflash_controller.catalog import Catalog
from dflash_controller.engines.resolved import OperatorDefaults
from dflash_controller.model.counters import CounterSeries, ProbeRun
from dflash_controller.model.fetch_progress import FetchProgress
from dflash_controller.model.hub import HubKnowledge
from dflash_controller.model.load_sample import LoadSample
from dflash_controller.model.metrics_health import NOT_MEASURED, MetricsHealth
from dflash_controller.planning.state.plan import Part
from dflash_controller.tuner.learner import Learned
from dflash_controller.tuner.schedule_price import SchedulePrice


@dataclass(frozen=True, slots=True)
class Blocker:
    """Why a part of the plan waits until a human acts."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What the tuner knows about one deployment. It is kept in memory and with the active revision."""

    learned: Learned | None = None
    """None if the operator has measured nothing since it started."""
    recent: tuple[LoadSample, ...] = ()
    """Load samples of the active revision's pods in the last minutes, oldest first."""
    measured: int = 0
    """Number of the active revision's pods that the last round of measurements reached."""
    short_for_s: float = 0.0
    """Seconds for which too few pods have been measured; 0 while there are enough."""
    schedule_price: SchedulePrice | None = None
    """How much longer steps take under an engine's schedule on this kind of machine; None if it is not known."""
    record: str | None = None
    """JSON to store with the active revision now, so that it survives a restart of the operator. None if nothing has to be stored."""
    reported: tuple[str, ...] = ()
    """State, reason and recommendation of the last decision."""
    reported_since: datetime | None = None
    """Since when ``reported`` has been the same."""


@dataclass(frozen=True, slots=True)
class PlannerInputs:
    """All inputs of the planner besides the objects. The planner itself reads no clock and no file."""

    now: datetime
    defaults: OperatorDefaults
    catalog: Catalog
    metric_values: Mapping[str, float] | None = None
    """New metrics to show, by status field, of the revision that is stable before the plan. None if the shown metrics stay."""
    metrics: MetricsHealth = NOT_MEASURED
    traces: Mapping[str, tuple[CounterSeries, ...]] = field(default_factory=dict)
    """The engines' counters, by revision."""
    metrics_failure: str | None = None
    """Why the engines' metrics cannot be read; None while they can."""
    probes: tuple[ProbeRun, ...] = ()
    """Answers of the probe that has just finished."""
    fetching: Mapping[str, FetchProgress] = field(default_factory=dict)
    """How far the pods are that fetch weights, by pod: those of prefetch Jobs and of engines."""
    probe_error: str | None = None
    """Why the probe failed to run; None if it did not fail."""
    probe_waited_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds for which a candidate's probe has waited for others, by revision. The candidate's deadline is as much later."""
    tuning: Knowledge = field(default_factory=Knowledge)
    tuning_requeue_s: float = 60.0
    """Seconds between two evaluations of the tuner. No watch reports a change of load."""
    warm_up_s: float = 60.0
    """Seconds for which a new replica's metrics are ignored. Its first requests compile kernels and capture graphs."""
    field_conflicts: tuple[str, ...] = ()
    """What to tell of objects that another field manager keeps changing."""
    hub: HubKnowledge = field(default_factory=HubKnowledge)
    """What the model hub says of targets and drafters."""
    refusals: Mapping[Part, Blocker] = field(default_factory=dict)
    """The writes that the API server has just refused, by the part of the plan they belong to."""
