"""Runs one reconcile in three steps: snapshot, decide, carry out. They are the same for every trigger."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from dflash_controller.catalog import Catalog
from dflash_controller.cluster.errors import ApiError, Forbidden, Unavailable, WriteRefused
from dflash_controller.cluster.executor import ExecutionResult, Executor
from dflash_controller.cluster.reader import Reader
from dflash_controller.cluster.store import Identity, Store
from dflash_controller.engines.resolved import OperatorDefaults
from dflash_controller.model.snapshot import Key, Pod, Snapshot
from dflash_controller.planning.planner import decide
from dflash_controller.planning.revisions.revision import Origin
from dflash_controller.planning.revisions.roles import StoredRevisions, read_stored
from dflash_controller.planning.state.blockers import refused_write
from dflash_controller.planning.state.inputs import Blocker, PlannerInputs
from dflash_controller.planning.state.plan import Part, Plan
from dflash_controller.render.startup import SCHEDULING_S
from dflash_controller.runtime.fetch_watch import FetchWatch
from dflash_controller.runtime.hub_reader import HubReader
from dflash_controller.runtime.measurements import Measurements
from dflash_controller.runtime.metrics import Metrics, StatusMetrics
from dflash_controller.runtime.prober import Prober
from dflash_controller.runtime.tuners import Tuners

PASSING_FAILURES = 2
"""Reconciles in a row with a write that failed but may succeed later, before the status says so. Most of them pass within seconds."""


def utc_now() -> datetime:
    """Returns the current UTC time, which statuses and histories show."""
    return datetime.now(UTC)


class Reconciler:
    """Brings one deployment to what its spec asks for, one plan at a time."""

    def __init__(
        self,
        store: Store,
        reader: Reader,
        executor: Executor,
        measurements: Measurements,
        metrics: Metrics,
        prober: Prober,
        fetches: FetchWatch,
        tuners: Tuners,
        hub: HubReader,
        *,
        defaults: OperatorDefaults,
        catalog: Catalog,
        tuning_requeue_s: float,
        warm_up_s: float,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._store = store
        self._reader = reader
        self._executor = executor
        self._measurements = measurements
        self._metrics = metrics
        self._prober = prober
        self._fetches = fetches
        self._tuners = tuners
        self._hub = hub
        self._defaults = defaults
        self._catalog = catalog
        self._tuning_requeue_s = tuning_requeue_s
        self._warm_up_s = warm_up_s
        self._now = now
        self._failures: dict[Key, int] = {}
        self._conflicts: dict[Key, Mapping[Identity, str]] = {}

    async def reconcile(self, key: Key) -> float | None:
        """Reconciles one deployment. Returns the seconds until the next evaluation, or None to wait for a change.

        Before a step that removes capacity or history, it reads the deployment's objects live and makes the plan again. A plan that wrote
        something is followed by another evaluation, because the watch does not report the operator's own writes. Raises WriteRefused if the
        API server refused a write; everything else was carried out.
        """
        # Somebody else's object that has a name we need is not watched, so it is read each time.
        if self._store.claims(key):
            snapshot = await self._reader.refresh(key)
        else:
            snapshot = await self._reader.with_dead_nodes(self._store.snapshot(key))
        stored = read_stored(snapshot.revisions)
        plan = self._plan(snapshot, stored)
        if plan.irreversible and not snapshot.live:
            snapshot = await self._reader.refresh(key)
            stored = read_stored(snapshot.revisions)
            plan = self._plan(snapshot, stored)
        try:
            result = await self._executor.execute(plan, snapshot)
        except ApiError as error:
            # The API server did not answer, or refused the status itself.
            await self._report({Part.SERVING: error}, snapshot, stored)
            raise
        known = {**self._conflicts.get(key, {}), **result.conflicts}
        self._conflicts[key] = {identity: message for identity, message in known.items() if identity not in result.uncontested}
        self._prober.want(key, plan.probe)
        self._fetches.follow(snapshot)
        self._hub.want(key, plan.models)
        if plan.decision is not None:
            self._tuners.decided(key, plan.decision)
            self._metrics.tuned(key, plan.decision)
        if plan.stores_learned and Part.ROLLOUT not in result.refused:
            self._tuners.stored(key)
        if result.refused:
            await self._report(result.refused, snapshot, stored)
        else:
            self._failures.pop(key, None)
        self._show(key, stored)
        again_s = _again_s(plan, result)
        if result.refused:
            raise WriteRefused(next(iter(result.refused.values())), again_s)
        return again_s

    async def _report(self, refused: Mapping[Part, ApiError], snapshot: Snapshot, stored: StoredRevisions) -> None:
        """Writes a status that names the refused writes. Failures that may pass are reported once they repeat."""
        failures = self._failures[snapshot.key] = self._failures.get(snapshot.key, 0) + 1
        told = {
            part: refused_write(error.message, forbidden=isinstance(error, Forbidden), passing=isinstance(error, Unavailable))
            for part, error in refused.items()
            if failures > PASSING_FAILURES or not isinstance(error, Unavailable)
        }
        if told:
            await self._executor.execute(self._plan(snapshot, stored, told), snapshot)

    def _plan(self, snapshot: Snapshot, stored: StoredRevisions, refusals: Mapping[Part, Blocker] | None = None) -> Plan:
        if snapshot.deployment is None:
            return Plan()
        key = snapshot.key
        traces, failure = self._measurements.evidence(key, stored)
        return decide(
            snapshot,
            stored,
            PlannerInputs(
                now=self._now(),
                defaults=self._defaults,
                catalog=self._catalog,
                metric_values=self._measurements.worth_showing(key, stored),
                metrics=self._measurements.health(key),
                traces=traces,
                metrics_failure=failure,
                probes=self._prober.answers(key),
                fetching=self._fetches.progress(key),
                probe_error=self._prober.error(key),
                probe_waited_s=self._prober.waited_s(key),
                tuning=self._tuners.knowledge(snapshot, stored),
                tuning_requeue_s=self._tuning_requeue_s,
                warm_up_s=self._warm_up_s,
                field_conflicts=tuple(sorted(self._conflicts.get(key, {}).values())),
                hub=self._hub.knowledge(key),
                refusals=refusals or {},
            ),
        )

    def _show(self, key: Key, stored: StoredRevisions) -> None:
        snapshot = self._store.snapshot(key)
        deployment = snapshot.deployment
        if deployment is None:
            self._metrics.forget(key)
            self._tuners.forget(key)
            self._failures.pop(key, None)
            self._conflicts.pop(key, None)
            self._prober.forget(key)
            self._fetches.forget(key)
            self._hub.forget(key)
            return
        status = deployment.get("status") or {}
        revisions = {
            record.hash: "stable" if stored.stable is not None and record.hash == stored.stable.hash else record.state.value.lower()
            for record in stored.records
        }
        rollout = status.get("rollout") or {}
        # A first revision was never a candidate, so its history names nobody who asked: it is in the spec.
        asked = {record.name: (record.hash, record.origin or Origin.USER) for record in stored.records}
        rolled_out, origin = asked.get(rollout.get("revision") or "", ("", ""))
        starts = [took for pod in snapshot.pods if pod.serving and not pod.restarts and (took := _start_s(pod)) is not None]
        shown = StatusMetrics(
            phase=rollout.get("phase", "None"),
            revisions=revisions,
            analysis=rollout.get("analysis") or (),
            conditions=status.get("conditions") or (),
            notices=status.get("notices") or (),
            rolled_out=rolled_out,
            origin=origin,
            replicas={"desired": (deployment.get("spec") or {}).get("replicas", 1), "serving": status.get("readyReplicas") or 0},
            max_concurrency=_max_concurrency(stored, status),
            startup_budget_s=status.get("startupBudgetSeconds"),
            startup_s=max(starts, default=None),
        )
        self._metrics.show(key, shown)


def _start_s(pod: Pod) -> float | None:
    """Returns the seconds from the pod's creation to Ready; None if they are not known.

    Before the engine's container starts, only so many count as the budget has for scheduling and image pull: fetching weights has no part
    in it.
    """
    if pod.ready_since is None or pod.created_at is None:
        return None
    begun = pod.created_at if pod.engine_since is None else max(pod.created_at, pod.engine_since - timedelta(seconds=SCHEDULING_S))
    return (pod.ready_since - begun).total_seconds()


def _max_concurrency(stored: StoredRevisions, status: Mapping[str, Any]) -> dict[str, int]:
    if stored.stable is None:
        return {}
    effective = status.get("effectiveMaxConcurrency")
    return {"asked": stored.stable.resolved.max_concurrency, **({} if effective is None else {"effective": effective})}


def _again_s(plan: Plan, result: ExecutionResult) -> float | None:
    if result.writes > result.status_written:
        return 0.0
    return min((wait for wait in (plan.requeue_after_s, result.retry_after_s) if wait is not None), default=None)
