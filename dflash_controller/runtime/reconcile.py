"""Runs one reconcile in three steps: snapshot, decide, carry out. They are the same for every trigger."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from dflash_controller.catalog import Catalog
from dflash_controller.cluster.errors import Forbidden, Invalid
from dflash_controller.cluster.executor import Executor
from dflash_controller.cluster.reader import Reader
from dflash_controller.cluster.store import Store
from dflash_controller.engines.resolved import OperatorDefaults
from dflash_controller.model.snapshot import Key, Snapshot
from dflash_controller.planning.planner import decide
from dflash_controller.planning.revisions.roles import StoredRevisions, read_stored
from dflash_controller.planning.state.blockers import refused
from dflash_controller.planning.state.inputs import Blocker, PlannerInputs
from dflash_controller.planning.state.plan import Plan
from dflash_controller.runtime.measurements import Measurements
from dflash_controller.runtime.metrics import Metrics, StatusMetrics
from dflash_controller.runtime.prober import Prober
from dflash_controller.runtime.tuners import Tuners


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
        tuners: Tuners,
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
        self._tuners = tuners
        self._defaults = defaults
        self._catalog = catalog
        self._tuning_requeue_s = tuning_requeue_s
        self._warm_up_s = warm_up_s
        self._now = now

    async def reconcile(self, key: Key) -> float | None:
        """Reconciles one deployment. Returns the seconds until the next evaluation, or None to wait for a change.

        Before a step that removes capacity or history, it reads the deployment's objects live and makes the plan again. A plan that wrote
        something is followed by another evaluation, because the watch does not report the operator's own writes. Raises Forbidden or
        Invalid if the API server refuses a write.
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
        except (Forbidden, Invalid) as error:
            # The status reports it, and the write is tried again: someone may grant a right or upgrade the CustomResourceDefinition.
            refusal = refused(error.message, forbidden=isinstance(error, Forbidden))
            await self._executor.execute(self._plan(snapshot, stored, refusal), snapshot)
            raise
        self._prober.want(key, plan.probe)
        if plan.decision is not None:
            self._tuners.decided(key, plan.decision)
            self._metrics.tuned(key, plan.decision)
        if plan.stores_learned:
            self._tuners.stored(key)
        self._show(key, stored)
        if result.writes > result.status_written:
            return 0.0
        waits = [wait for wait in (plan.requeue_after_s, result.retry_after_s) if wait is not None]
        return min(waits, default=None)

    def _plan(self, snapshot: Snapshot, stored: StoredRevisions, refusal: Blocker | None = None) -> Plan:
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
                probe_error=self._prober.error(key),
                probe_waited_s=self._prober.waited_s(key),
                tuning=self._tuners.knowledge(snapshot, stored),
                tuning_requeue_s=self._tuning_requeue_s,
                warm_up_s=self._warm_up_s,
                refusal=refusal,
            ),
        )

    def _show(self, key: Key, stored: StoredRevisions) -> None:
        snapshot = self._store.snapshot(key)
        deployment = snapshot.deployment
        if deployment is None:
            self._metrics.forget(key)
            self._tuners.forget(key)
            self._prober.forget(key)
            return
        status = deployment.get("status") or {}
        revisions = {
            record.hash: "stable" if stored.stable is not None and record.hash == stored.stable.hash else record.state.value.lower()
            for record in stored.records
        }
        rollout = status.get("rollout") or {}
        starts = [
            (pod.ready_since - pod.created_at).total_seconds()
            for pod in snapshot.pods
            if pod.serving and pod.ready_since is not None and pod.created_at is not None and not pod.restarts
        ]
        shown = StatusMetrics(
            phase=rollout.get("phase", "None"),
            revisions=revisions,
            analysis=rollout.get("analysis") or (),
            conditions=status.get("conditions") or (),
            notices=status.get("notices") or (),
            replicas={"desired": (deployment.get("spec") or {}).get("replicas", 1), "serving": status.get("readyReplicas") or 0},
            startup_budget_s=status.get("startupBudgetSeconds"),
            startup_s=max(starts, default=None),
        )
        self._metrics.show(key, shown)
