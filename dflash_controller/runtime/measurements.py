"""Connects the collector of metrics with the planner: which pods to measure, and which metrics the status shows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping

from dflash_controller.api import names
from dflash_controller.cluster.kinds import DFLASH_DEPLOYMENT
from dflash_controller.cluster.store import Store
from dflash_controller.engines import ENGINES
from dflash_controller.model.counters import CounterSeries
from dflash_controller.model.load_sample import LoadSample
from dflash_controller.model.metrics_health import NOT_MEASURED, MetricsHealth
from dflash_controller.model.snapshot import Key, Object
from dflash_controller.observe.collector import Collector
from dflash_controller.observe.pipeline.source import Source, Target
from dflash_controller.observe.status_values.display import DisplaySettings, StatusMetrics, rounded
from dflash_controller.planning.revisions.roles import StoredRevisions, read_stored

STATUS_FIELDS = {
    "acceptance_length": ("acceptanceLength", 1.0),
    "concurrency": ("concurrency", 1.0),
    "tokens_per_second": ("tokensPerSecond", 1.0),
    "step_time_s": ("stepTimeMilliseconds", 1e3),
    "block_size": ("blockSize", 1.0),
    "request_capacity": ("requestCapacity", 1.0),
}
"""Metric name to the field of ``status.metrics`` that shows it and the factor it is multiplied by there."""


class Measurements:
    """Answers from the collector's last round. No method waits."""

    def __init__(
        self, store: Store, source: Source, changed: Callable[[Collection[Key]], None], settings: DisplaySettings, warm_up_s: float
    ) -> None:
        self._store = store
        self._stored: dict[Key, StoredRevisions] = {}
        """The revisions of all deployments, as the current round found them."""
        self.collector = Collector(
            targets=self._targets, source=source, shown=self._shown, changed=changed, warm_up_s=warm_up_s, settings=settings
        )

    def worth_showing(self, key: Key, stored: StoredRevisions) -> Mapping[str, float] | None:
        """Returns the metrics of the stable revision that the status has to show, by field; None to keep those shown."""
        if stored.stable is None:
            return None
        values = self.collector.display(key, stored.stable.hash)
        if values is None:
            return None
        return {field: rounded(values[name] * factor) for name, (field, factor) in STATUS_FIELDS.items() if name in values}

    def health(self, key: Key) -> MetricsHealth:
        """Returns whether the deployment's engines can be measured."""
        return self.collector.health(key) or NOT_MEASURED

    def evidence(self, key: Key, stored: StoredRevisions) -> tuple[Mapping[str, tuple[CounterSeries, ...]], str | None]:
        """Returns the counters of candidate and stable engines during a trial, and why they cannot be read (None if they can)."""
        candidate, stable = stored.candidate, stored.stable
        if candidate is None:
            return {}, None
        tried, before, failure = self.collector.evidence(key, candidate.hash, stable.hash if stable else None)
        return {candidate.hash: tried} | ({stable.hash: before} if stable else {}), failure

    def load_samples(self, key: Key, revision: str) -> list[LoadSample]:
        """Returns the load samples of the pods of ``revision`` (a hash) since the last call; none if tuning is Off."""
        return self.collector.load_samples(key, revision)

    def measured(self, key: Key, stable: str) -> int:
        """Returns the number of pods of ``stable`` (a hash) that were measured in the last round."""
        return self.collector.answered(key, stable)

    def _targets(self) -> Iterator[Target]:
        by_deployment: defaultdict[Key, list[Object]] = defaultdict(list)
        for item in self._store.revisions():
            by_deployment[Key(item["metadata"]["namespace"], item["metadata"]["labels"][names.LABEL_DEPLOYMENT])].append(item)
        self._stored = {key: read_stored(items) for key, items in by_deployment.items()}
        records = {(key, record.hash): record for key, stored in self._stored.items() for record in stored.records}
        tuned = {key for key in self._stored if self._tuned(key)}
        slots: dict[tuple[Key, str], int] = {}
        for key, pod in self._store.pods():
            found = records.get((key, pod.revision))
            if found is not None and pod.serving and pod.ip:
                if (key, pod.revision) not in slots:
                    request = found.resolved.launch_request(found.speculation)
                    slots[key, pod.revision] = ENGINES[found.resolved.engine].slots_per_request(request)
                yield Target(
                    namespace=key.namespace,
                    pod=pod.name,
                    uid=pod.uid,
                    ip=pod.ip,
                    port=found.resolved.port,
                    deployment=key.name,
                    revision=pod.revision,
                    engine=found.resolved.engine,
                    speculation_on=found.speculation.max_block_size > 1,
                    slots_per_request=slots[key, pod.revision],
                    ready_at_s=pod.ready_since.timestamp() if pod.ready_since else 0.0,
                    on_trial=self._stored[key].candidate is not None,
                    candidate=found is self._stored[key].candidate,
                    tuned=key in tuned,
                )

    def _tuned(self, key: Key) -> bool:
        """Returns whether the deployment is tuned or advised. Only an explicit Off switches it off; every default measures."""
        deployment = self._store.get((DFLASH_DEPLOYMENT, key.namespace, key.name))
        return deployment is not None and (deployment["spec"].get("tuning") or {}).get("mode") != "Off"

    def _shown(self, key: Key) -> StatusMetrics | None:
        deployment = self._store.snapshot(key).deployment
        if deployment is None:
            return None
        stored, status = self._stored.get(key), deployment.get("status") or {}
        if stored is None or stored.stable is None:
            return StatusMetrics("")
        metric_values = (status.get("metrics") if status.get("stableRevision") == stored.stable.name else None) or {}
        return StatusMetrics(
            stored.stable.hash,
            {name: metric_values[field] / factor for name, (field, factor) in STATUS_FIELDS.items() if field in metric_values},
        )
