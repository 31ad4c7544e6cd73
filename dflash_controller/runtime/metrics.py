"""The operator's own metrics."""

from __future__ import annotations

import platform
from collections import Counter as Tally
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from dflash_controller import __version__
from dflash_controller.api.conditions import Reason
from dflash_controller.api.status import RolloutPhase
from dflash_controller.cluster.kinds import OPTIONAL, Kind
from dflash_controller.model.snapshot import Key
from dflash_controller.planning.status.tuning import reported_decision
from dflash_controller.tuner.decision import CROSSOVER, GAIN_ERROR, GAIN_MEASURED, MEASURED, PREDICTED, TunerDecision

_FAST = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

RESULTS = ("success", "conflict", "error")
"""How a reconcile can end."""
PHASES = ("None", *get_args(RolloutPhase))
"""Phases that a deployment can be in; ``None`` before its first rollout."""
DECISIONS = (
    Reason.TUNING_OFF,
    Reason.FROZEN,
    Reason.METRICS_MISSING,
    Reason.REPLICA_LEAVING,
    Reason.TOO_FEW_REPLICAS,
    Reason.LOAD_UNCERTAIN,
    Reason.LEARNING,
    Reason.MODEL_MISMATCH,
    Reason.TUNED,
    Reason.GAIN_TOO_SMALL,
    Reason.GAIN_UNKNOWN,
    Reason.EXPLORING,
    Reason.DWELLING,
    Reason.CHANGES_EXHAUSTED,
    Reason.DOWNTIME_NOT_ALLOWED,
)
"""Reasons of the tuner's decisions."""
_OF = ("namespace", "deployment")


@dataclass(frozen=True, slots=True)
class StatusMetrics:
    """What the metrics show of a deployment: its revisions and its status."""

    phase: str
    revisions: Mapping[str, str]
    """The role of each revision: ``stable``, ``candidate``, ``superseded`` and so on."""
    analysis: Sequence[Mapping[str, Any]] = ()
    """``status.rollout.analysis``."""
    conditions: Sequence[Mapping[str, Any]] = ()
    """``status.conditions``."""
    notices: Sequence[Mapping[str, Any]] = ()
    """``status.notices``."""
    replicas: Mapping[str, int] = field(default_factory=dict)
    """Numbers of replicas under the keys ``desired`` and ``serving``."""
    startup_budget_s: float | None = None
    """Longest time in seconds that an engine may take from the start of its container to Ready."""
    startup_s: float | None = None
    """Longest time in seconds that a serving pod took from creation to Ready. None if no pod serves or all have restarted since."""
    max_concurrency: Mapping[str, int] = field(default_factory=dict)
    """Requests that one replica serves at once under the keys ``asked`` and, once the engine has said, ``effective``."""
    rolled_out: str = ""
    """The revision of the newest rollout; empty before the first."""
    origin: str = ""
    """Who asked for that revision: ``User``, ``Tuner`` or ``Rollback``."""


class Metrics:
    """All metrics of ``/metrics``. The series of a deployment exist as long as the deployment: see ``forget``.

    A counter whose label has a closed set of values has all its series from the start. Prometheus' ``rate`` and ``increase`` compare two
    samples, so they would miss the first count of a series that begins at 1.
    """

    def __init__(self, lease: str = "") -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._reconciles = Counter("dflash_reconcile_total", "Reconciles by how they ended.", ["result"], registry=self.registry)
        _begin(self._reconciles, RESULTS)
        self._errors = Counter(
            "dflash_reconcile_errors_total", "Failed reconciles by the kind of failure.", ["error"], registry=self.registry
        )
        self._duration = Histogram("dflash_reconcile_duration_seconds", "Time of one reconcile.", registry=self.registry, buckets=_FAST)
        self._waits = Histogram(
            "dflash_workqueue_wait_seconds", "Time from a key being due until a worker takes it.", registry=self.registry, buckets=_FAST
        )
        self._requests = Counter(
            "dflash_api_requests_total", "Requests to the API server; code 0: no answer.", ["verb", "kind", "code"], registry=self.registry
        )
        self._request_time = Histogram(
            "dflash_api_request_duration_seconds", "Time of a request to the API server.", ["verb"], registry=self.registry, buckets=_FAST
        )
        # The label is the Lease, because several operators may share a namespace, each with its own leader.
        self._leader = Gauge("dflash_leader", "1 while this process holds the Lease.", ["lease"], registry=self.registry).labels(lease)
        self._events = Gauge(
            "dflash_last_event_timestamp_seconds", "When the last watch event of a kind arrived.", ["kind"], registry=self.registry
        )
        self._resync = Gauge("dflash_last_resync_timestamp_seconds", "When the last complete list was taken in.", registry=self.registry)
        self._left_out = Gauge(
            "dflash_optional_kind_unavailable",
            "1 while a kind that the cluster serves cannot be listed and is left out.",
            ["kind"],
            registry=self.registry,
        )
        build = Gauge("dflash_build_info", "Always 1; the labels tell the version.", ["version", "python"], registry=self.registry)
        build.labels(__version__, platform.python_version()).set(1)
        self._phases = Counter("dflash_rollout_phases_total", "Phases that rollouts reached.", ["phase"], registry=self.registry)
        _begin(self._phases, PHASES)
        self._decisions = Counter(
            "dflash_tuner_decisions_total",
            "Decisions of the tuner that differ from the one before, by reason.",
            ["reason"],
            registry=self.registry,
        )
        _begin(self._decisions, DECISIONS)
        self._deployments = _Deployments()
        self.registry.register(self._deployments)

    def reconciled(self, result: str, seconds: float) -> None:
        """Counts a reconcile that ended with ``success``, ``conflict`` or ``error``, and its duration."""
        self._reconciles.labels(result).inc()
        self._duration.observe(seconds)

    def failed(self, reason: str) -> None:
        """Counts a reconcile that failed, by the kind of failure."""
        self._errors.labels(reason).inc()

    def waited(self, waited_s: float) -> None:
        """Records how many seconds a key was due before a worker took it."""
        self._waits.observe(waited_s)

    def requested(self, verb: str, kind: str, code: int, seconds: float) -> None:
        """Counts a request to the API server, and records its duration."""
        self._requests.labels(verb, kind, str(code)).inc()
        self._request_time.labels(verb).observe(seconds)

    def leading(self, leads: bool) -> None:
        self._leader.set(leads)

    def event_arrived(self, kind: str) -> None:
        """Records that a watch delivered an event of this kind."""
        self._events.labels(kind).set_to_current_time()

    def resynced(self) -> None:
        """Records that a complete list was processed."""
        self._resync.set_to_current_time()

    def left_out(self, unlisted: Collection[Kind]) -> None:
        """Shows which optional kinds cannot be listed."""
        for kind in OPTIONAL:
            self._left_out.labels(kind.name).set(kind in unlisted)

    def watch_queue(self, depth: Callable[[], float], oldest_s: Callable[[], float]) -> None:
        """Adds the gauges of the work queue."""
        Gauge("dflash_workqueue_depth", "Keys due and not yet taken.", registry=self.registry).set_function(depth)
        Gauge("dflash_workqueue_oldest_seconds", "How long the first of them has been due.", registry=self.registry).set_function(oldest_s)

    def show(self, key: Key, shown: StatusMetrics) -> None:
        """Shows the status of a deployment. Counts a phase that differs from the last one."""
        before = self._deployments.shown.get(key)
        if before is not None and before.phase != shown.phase:
            self._phases.labels(shown.phase).inc()
        self._deployments.shown[key] = shown

    def tuned(self, key: Key, decision: TunerDecision) -> None:
        """Shows the tuner's decision of this evaluation. Counts a decision that differs from the last one."""
        before = self._deployments.decisions.get(key)
        if before is None or reported_decision(before) != reported_decision(decision):
            self._decisions.labels(decision.reason.value).inc()
        self._deployments.decisions[key] = decision

    def forget(self, key: Key) -> None:
        """Drops the series of a deployment that was deleted."""
        self._deployments.shown.pop(key, None)
        self._deployments.decisions.pop(key, None)

    def page(self) -> bytes:
        """Returns the metrics in Prometheus' text format."""
        return generate_latest(self.registry)


def _begin(counter: Counter, values: Iterable[str]) -> None:
    """Creates the series of a counter with one label, at 0."""
    for value in values:
        counter.labels(value)


class _Deployments(Collector):
    """Series that exist as long as their deployment."""

    def __init__(self) -> None:
        self.shown: dict[Key, StatusMetrics] = {}
        self.decisions: dict[Key, TunerDecision] = {}

    def collect(self) -> Iterator[Metric]:
        phases = GaugeMetricFamily("dflash_deployments", "DFlashDeployments by phase.", labels=["phase"])
        for phase, count in sorted(Tally(shown.phase for shown in self.shown.values()).items()):
            phases.add_metric([phase], count)
        yield phases
        revisions = GaugeMetricFamily(
            "dflash_revision_info",
            "Always 1; tells what a revision is to its deployment. Join it with the engines' series on the pod's revision.",
            labels=["namespace", "deployment", "revision", "role"],
        )
        for key, revision, role in self._roles():
            revisions.add_metric([key.namespace, key.name, revision, role], 1)
        yield revisions
        yield from self._states()
        yield from self._rollouts()
        yield from self._tuner()

    def _roles(self) -> Iterable[tuple[Key, str, str]]:
        for key, shown in sorted(self.shown.items()):
            for revision, role in sorted(shown.revisions.items()):
                yield key, revision, role

    def _states(self) -> Iterator[Metric]:
        conditions = GaugeMetricFamily(
            "dflash_condition_since_timestamp_seconds", "When a condition got its status.", labels=[*_OF, "type", "status", "reason"]
        )
        notices = GaugeMetricFamily("dflash_notice", "Always 1; something worth knowing that is not wrong.", labels=[*_OF, "reason"])
        replicas = {
            what: GaugeMetricFamily(f"dflash_replicas_{what}", f"Replicas that {words}.", labels=_OF)
            for what, words in (("desired", "the deployment should have"), ("serving", "serve"))
        }
        budgets = GaugeMetricFamily(
            "dflash_startup_budget_seconds", "From the start of an engine's container to Ready, at most.", labels=_OF
        )
        concurrency = GaugeMetricFamily(
            "dflash_max_concurrency",
            "Requests one replica serves at once: asked by spec.engine.maxConcurrency, and effective as its engine says (else as asked).",
            labels=[*_OF, "limit"],
        )
        starts = GaugeMetricFamily("dflash_startup_seconds", "The longest that a serving pod took from being made to Ready.", labels=_OF)
        for key, shown in sorted(self.shown.items()):
            of = [key.namespace, key.name]
            for item in shown.conditions:
                since = datetime.fromisoformat(item["lastTransitionTime"]).timestamp()
                conditions.add_metric([*of, item["type"], item["status"], item["reason"]], since)
            for reason in sorted({item["reason"] for item in shown.notices}):
                notices.add_metric([*of, reason], 1)
            for what, count in shown.replicas.items():
                replicas[what].add_metric(of, count)
            for limit in ("asked", "effective") if shown.max_concurrency else ():
                concurrency.add_metric([*of, limit], shown.max_concurrency.get(limit, shown.max_concurrency["asked"]))
            if shown.startup_budget_s is not None:
                budgets.add_metric(of, shown.startup_budget_s)
            if shown.startup_s is not None:
                starts.add_metric(of, shown.startup_s)
        yield from (conditions, notices, *replicas.values(), concurrency, budgets, starts)

    def _rollouts(self) -> Iterator[Metric]:
        phases = GaugeMetricFamily("dflash_rollout_phase", "Always 1; the phase of a rollout.", labels=[*_OF, "phase"])
        infos = GaugeMetricFamily(
            "dflash_rollout_info",
            "Always 1; the revision of the newest rollout, and who asked for it.",
            labels=[*_OF, "revision", "origin"],
        )
        verdicts = GaugeMetricFamily("dflash_rollout_verdict", "Always 1; the verdict on a metric.", labels=[*_OF, "metric", "verdict"])
        metric_values = GaugeMetricFamily(
            "dflash_rollout_metric",
            "What the last analysis compared, in the metric's own unit: candidate, stable, and the limit.",
            labels=[*_OF, "metric", "side"],
        )
        for key, shown in sorted(self.shown.items()):
            phases.add_metric([key.namespace, key.name, shown.phase], 1)
            if shown.rolled_out:
                infos.add_metric([key.namespace, key.name, shown.rolled_out, shown.origin], 1)
            for item in shown.analysis:
                verdicts.add_metric([key.namespace, key.name, item["metric"], item["verdict"]], 1)
                for side in ("candidate", "stable", "limit"):
                    if item.get(side) is not None:
                        metric_values.add_metric([key.namespace, key.name, item["metric"], side], item[side])
        yield from (phases, infos, verdicts, metric_values)

    def _tuner(self) -> Iterator[Metric]:
        states = GaugeMetricFamily("dflash_tuner_state", "Always 1; what the tuner does, and why.", labels=[*_OF, "state", "reason"])
        recommended = GaugeMetricFamily(
            "dflash_tuner_recommended_block_size", "Block size the tuner would choose; 1 is speculation off.", labels=_OF
        )
        speeds = GaugeMetricFamily(
            "dflash_tuner_predicted_tokens_per_second", "Of one replica at the load seen, by block size.", labels=[*_OF, "block_size"]
        )
        measured = GaugeMetricFamily(
            "dflash_tuner_measured_tokens_per_second",
            "Of one replica while it has traffic, by block size: those that served in the window.",
            labels=[*_OF, "block_size"],
        )
        crossovers = GaugeMetricFamily(
            "dflash_tuner_crossover_concurrency",
            "Requests per replica at which the two fastest block sizes change places, as predicted; none where they do not.",
            labels=_OF,
        )
        errors = GaugeMetricFamily(
            "dflash_tuner_gain_error_percent",
            "One standard deviation of the predicted gain over the active block size, by block size.",
            labels=[*_OF, "block_size"],
        )
        known = GaugeMetricFamily(
            "dflash_tuner_gain_measured",
            "By block size: 1 if it ran at this kind of load; 0 if its gain is inferred from other loads or block sizes.",
            labels=[*_OF, "block_size"],
        )
        numbers = GaugeMetricFamily("dflash_tuner_input", "A number the last decision rests on.", labels=[*_OF, "name"])
        for key, decision in sorted(self.decisions.items()):
            of = [key.namespace, key.name]
            states.add_metric([*of, decision.state, decision.reason.value], 1)
            if decision.recommendation is not None:
                recommended.add_metric(of, decision.recommendation.max_block_size)
            for name, value in decision.numbers.items():
                if isinstance(value, str):
                    continue
                if name.startswith(PREDICTED):
                    speeds.add_metric([*of, name.removeprefix(PREDICTED)], value)
                elif name.startswith(MEASURED):
                    measured.add_metric([*of, name.removeprefix(MEASURED)], value)
                elif name.startswith(GAIN_ERROR):
                    errors.add_metric([*of, name.removeprefix(GAIN_ERROR)], value)
                elif name.startswith(GAIN_MEASURED):
                    known.add_metric([*of, name.removeprefix(GAIN_MEASURED)], value)
                elif name == CROSSOVER:
                    crossovers.add_metric(of, value)
                else:
                    numbers.add_metric([*of, name], value)
        yield from (states, recommended, speeds, measured, errors, known, crossovers, numbers)
