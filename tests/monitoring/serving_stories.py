"""When alerts on latency, load, replicas and the operator fire."""

from __future__ import annotations

from tests.monitoring.engines import DEPLOYMENT, REVISION, target
from tests.monitoring.story import Firing, Series, Story, counter, gauge, label_set

_BURNS = (
    ("DFlashTTFTSLOBurn", "first_tokens", "slow_first_tokens", "waited more than 2 s for the first token"),
    ("DFlashTPOTSLOBurn", "timed_outputs", "slow_outputs", "took more than 0.2 s per output token"),
)
_OPERATOR = {"namespace": "dflash-system", "pod": "dflash-operator-1", "instance": "10.0.0.1:8080", "job": "dflash-operator"}
_STANDBY = _OPERATOR | {"pod": "dflash-operator-2", "instance": "10.0.0.2:8080"}
_WHERE = {"namespace": "dflash-system"}


def _of_deployment(**values: str) -> Series:
    return {f"dflash:deployment_{name}{label_set(**DEPLOYMENT)}": value for name, value in values.items()}


def _latency() -> list[Story]:
    found = []
    for name, measured, slow, words in _BURNS:

        def rates(*late: tuple[float, int], total: float = 10, before: int = 31, measured: str = measured, slow: str = slow) -> Series:
            span = before + sum(minutes for _, minutes in late)
            return {
                f"dflash:deployment_{measured}:rate2m{label_set(**DEPLOYMENT)}": gauge((total, span)),
                f"dflash:deployment_{slow}:rate2m{label_set(**DEPLOYMENT)}": gauge(
                    (0, before), *((total * one, span) for one, span in late)
                ),
            }

        said = "team/qwen: {} of requests " + words
        found += [
            Story(
                name,
                "a third is slow for half an hour",
                rates((0.32, 40), (0, 40)),
                {"31m": [], "62m": [Firing(said.format("17.07%"), DEPLOYMENT)], "100m": []},
            ),
            Story(
                name,
                "seven in a hundred for six hours",
                rates((0.07, 80), (0, 12), before=24),
                {"2h": [], "8h": [Firing(said.format("7%"), DEPLOYMENT)], "9h": []},
                "5m",
            ),
            Story(name, "14.3 % for an hour, 14.4 % are too many", rates((0.143, 60), before=120), {"150m": [], "179m": []}),
            Story(name, "slow from the start", rates((1, 29), before=0), {"10m": [], "28m": []}),
            Story(name, "99 requests an hour", rates((1, 60), total=99 / 3600, before=60), {"90m": [], "119m": []}),
        ]
    return found


def _load() -> list[Story]:
    def queue(waiting: tuple[tuple[float, int], ...], kv: float, concurrency: float) -> Series:
        span = sum(minutes for _, minutes in waiting)
        pod = label_set(pod="a", engine="vllm", **REVISION)
        used = _of_deployment(requests_waiting=gauge(*waiting), kv_cache_usage=gauge((kv, span)))
        return used | {f"dflash:pod_concurrency{pod}": gauge((concurrency, span))}

    def failing(share: float, total: float) -> Series:
        ended, failed = "dflash:deployment_requests:rate2m", "dflash:deployment_failed_requests:rate2m"
        labels = label_set(**DEPLOYMENT)
        return {f"{ended}{labels}": gauge((total, 40)), f"{failed}{labels}": gauge((share * total, 20), (0, 20))}

    wait = Firing("team/qwen: 5 requests wait in the engines' queues", DEPLOYMENT)
    fail = Firing("team/qwen: 6% of requests fail", DEPLOYMENT)
    return [
        Story("DFlashQueueSaturated", "a full cache", queue(((5, 20), (0, 10)), 0.95, 40), {"9m": [], "11m": [wait], "25m": []}),
        Story("DFlashQueueSaturated", "more wait than are served", queue(((5, 20), (0, 10)), 0.2, 4), {"9m": [], "11m": [wait], "25m": []}),
        Story("DFlashQueueSaturated", "a cache at 0.9, as many wait as are served", queue(((5, 30),), 0.9, 5), {"20m": []}),
        Story("DFlashQueueSaturated", "a full cache without a queue", queue(((0, 30),), 1.0, 40), {"20m": []}),
        Story("DFlashRequestsFailing", "six in a hundred", failing(0.06, 10), {"4m": [], "6m": [fail], "30m": []}),
        Story("DFlashRequestsFailing", "five in a hundred", failing(0.05, 10), {"6m": [], "18m": []}),
        Story("DFlashRequestsFailing", "all of 19 in 5 minutes", failing(1, 19 / 300), {"6m": [], "18m": []}),
    ]


def _replicas() -> list[Story]:
    up = f"up{label_set(**target('a'))}"

    def measured(reason: str, *load_samples: tuple[float | None, int]) -> Series:
        labels = label_set(type="MetricsAvailable", status="False", reason=reason, **DEPLOYMENT)
        return {f"dflash_condition_since_timestamp_seconds{labels}": gauge(*load_samples)}

    serving = {f"dflash_replicas_serving{label_set(**DEPLOYMENT)}": gauge((2, 40))}
    down = Firing("team/qwen: engine pods without an answer for an hour: 1", DEPLOYMENT)
    blind = Firing("team/qwen: engines serve, but the operator or Prometheus gets no metrics from them", DEPLOYMENT)
    pods = _of_deployment(pods=gauge((None, 30), (2, 10)))
    return [
        Story("DFlashReplicaDown", "for an hour", {up: gauge((0, 90), (1, 30))}, {"59m": [], "61m": [down], "100m": []}),
        Story("DFlashReplicaDown", "a start of 55 minutes", {up: gauge((0, 55), (1, 30))}, {"54m": [], "70m": []}),
        Story("DFlashReplicaDown", "gone with its pod", {up: gauge((0, 50), (None, 30))}, {"70m": []}),
        Story(
            "DFlashMetricsMissing",
            "Prometheus refuses the operator",
            measured("PrometheusError", (0, 30), (None, 10)) | _of_deployment(pods=gauge((2, 40))),
            {"9m": [], "11m": [blind], "35m": []},
        ),
        Story("DFlashMetricsMissing", "Prometheus does not scrape", serving | pods, {"9m": [], "11m": [blind], "35m": []}),
        Story("DFlashMetricsMissing", "there are no pods", measured("NoPods", (0, 40)), {"20m": []}),
        *_disk(),
    ]


def _disk() -> list[Story]:
    name, pod = "DFlashCacheDiskLow", {"namespace": "team", "pod": "a"}

    def claim(left: float, *, read_only: float = 0) -> Series:
        volume = label_set(volume="weights", persistentvolumeclaim="models", **pod)
        return {
            f"dflash:pod_info{label_set(pod='a', engine='vllm', **REVISION)}": gauge((1, 60)),
            f"kube_pod_spec_volumes_persistentvolumeclaims_info{volume}": gauge((1, 60)),
            f"kube_pod_spec_volumes_persistentvolumeclaims_readonly{volume}": gauge((read_only, 60)),
            f"kubelet_volume_stats_available_bytes{label_set(namespace='team', persistentvolumeclaim='models')}": gauge(
                (left, 30), (100e9, 30)
            ),
        }

    labels = DEPLOYMENT | {"persistentvolumeclaim": "models"}
    low = Firing("team/qwen: only 12.11GiB free on claim models, which stores its weights", labels)
    return [
        Story(name, "13 GB are left", claim(13e9), {"14m": [], "16m": [low], "40m": []}),
        Story(name, "14 GB are left", claim(14e9), {"20m": []}),
        Story(name, "a claim that is only read", claim(13e9, read_only=1), {"20m": []}),
    ]


def _operator() -> list[Story]:
    build = f"dflash_build_info{label_set(**_OPERATOR)}"
    lease = {"lease": "dflash-operator"}
    lead, other = f"dflash_leader{label_set(**_OPERATOR | lease)}", f"dflash_leader{label_set(**_STANDBY | lease)}"
    again = f"dflash_leader{label_set(**_OPERATOR | lease | {'job': 'annotations'})}"
    second = f"dflash_leader{label_set(**_STANDBY, lease='second')}"
    oldest = f"dflash_workqueue_oldest_seconds{label_set(**_OPERATOR)}"
    resync = f"dflash_last_resync_timestamp_seconds{label_set(**_OPERATOR)}"

    other_resync = f"dflash_last_resync_timestamp_seconds{label_set(**_STANDBY)}"

    def reconciles(errors: float) -> Series:
        return {
            f"dflash_reconcile_total{label_set(result='success', **_OPERATOR)}": counter((100 - errors, 90)),
            f"dflash_reconcile_total{label_set(result='error', **_OPERATOR)}": counter((errors, 60), (0, 30)),
        }

    none = Firing("The DFlash operator in dflash-system has 0 leaders instead of one", _WHERE | lease)
    two = Firing("The DFlash operator in dflash-system has 2 leaders instead of one", _WHERE | lease)
    errors = Firing("The DFlash operator in dflash-system: 6% of reconciles fail", _WHERE)
    late = Firing("The DFlash operator in dflash-system: a deployment has waited 1m 1s for a reconcile", _WHERE)
    stale = Firing("The DFlash operator in dflash-system has not listed its objects for 25m 0s", _WHERE)
    return [
        Story(
            "DFlashOperatorDown",
            "for ten minutes",
            {build: gauge((1, 5), (None, 10), (1, 10))},
            {"4m": [], "12m": [Firing("Prometheus scrapes no DFlash operator")], "20m": []},
        ),
        Story(
            "DFlashOperatorDown",
            "a restart of four minutes",
            {build: gauge((1, 5), (None, 4), (1, 10))},
            {f"{at}m": [] for at in range(5, 12)},
        ),
        Story("DFlashOperatorNoLeader", "nobody leads", {lead: gauge((0, 10), (1, 10)), other: gauge((0, 20))}, {"5m": [none], "15m": []}),
        Story("DFlashOperatorNoLeader", "two lead", {lead: gauge((1, 20)), other: gauge((1, 10), (0, 10))}, {"5m": [two], "15m": []}),
        Story("DFlashOperatorNoLeader", "one pod, scraped by two jobs", {lead: gauge((1, 20)), again: gauge((1, 20))}, {"10m": []}),
        Story("DFlashOperatorNoLeader", "two operators, a Lease each", {lead: gauge((1, 20)), second: gauge((1, 20))}, {"10m": []}),
        Story("DFlashOperatorNoLeader", "a handover", {lead: gauge((1, 5), (0, 10)), other: gauge((0, 6), (1, 9))}, {"6m": [], "8m": []}),
        Story("DFlashReconcileErrors", "six in a hundred", reconciles(6), {"29m": [], "45m": [errors], "85m": []}),
        Story("DFlashReconcileErrors", "five in a hundred", reconciles(5), {"45m": [], "59m": []}),
        Story("DFlashReconcileBacklog", "for five minutes", {oldest: gauge((61, 10), (0, 10))}, {"4m": [], "6m": [late], "15m": []}),
        Story("DFlashReconcileBacklog", "60 s", {oldest: gauge((60, 20))}, {"15m": []}),
        Story("DFlashWatchStale", "no list for 25 minutes", {resync: gauge((60, 30), (1700, 30))}, {"20m": [], "26m": [stale], "40m": []}),
        Story(
            "DFlashWatchStale",
            "a standby lists and the leader does not",
            {resync: gauge((60, 30)), other_resync: gauge((1700, 30))},
            {"20m": [], "26m": [stale]},
        ),
        Story("DFlashWatchStale", "a standby has not listed yet", {resync: gauge((0, 60))}, {"50m": []}),
    ]


def _conditions() -> list[Story]:
    def since(type: str, status: str, reason: str, *load_samples: tuple[float | None, int]) -> Series:
        labels = label_set(type=type, status=status, reason=reason, **DEPLOYMENT)
        return {f"dflash_condition_since_timestamp_seconds{labels}": gauge(*load_samples)}

    def of(name: str, value: str, **more: str) -> Series:
        return {f"dflash_{name}{label_set(**more, **DEPLOYMENT)}": value}

    budget = of("startup_budget_seconds", gauge((1200, 90)))
    down = since("Available", "False", "TooFewReplicas", (0, 50), (None, 40))
    stalled = since("Stalled", "True", "EngineFailing", (0, 20), (None, 70))
    served = of("replicas_serving", gauge((2, 5), (0, 85)))
    reason = DEPLOYMENT | {"type": "Stalled", "status": "True", "reason": "EngineFailing"}
    slow = Firing("team/qwen: too few ready replicas for 33m 0s", DEPLOYMENT)
    terminal = Firing("team/qwen: too few ready replicas for 10m 0s", DEPLOYMENT)
    stuck = Firing("team/qwen: stalled, needs your action: EngineFailing", reason)
    missing = Firing("team/qwen: replicas missing for an hour: 1", DEPLOYMENT)
    nearly = Firing("team/qwen: the slowest start used 80.08% of its start-up budget", DEPLOYMENT)
    conflict = Firing(
        "team/qwen: another field manager keeps changing fields that the operator owns", DEPLOYMENT | {"reason": "FieldFight"}
    )
    two_of_three = of("replicas_desired", gauge((3, 120))) | of("replicas_serving", gauge((2, 90), (3, 30)))
    moving = {f"dflash_rollout_phase{label_set(phase='Progressing', **DEPLOYMENT)}": gauge((1, 120))}
    held = {f"dflash_rollout_phase{label_set(phase='Held', **DEPLOYMENT)}": gauge((1, 120))}
    return [
        Story("DFlashGroupDegraded", "longer than a start may take", down | budget, {"31m": [], "33m": [slow], "60m": []}),
        Story("DFlashGroupDegraded", "served before, and is stalled", down | stalled | served, {"1m": [], "10m": [terminal], "30m": []}),
        Story("DFlashGroupDegraded", "a first start that fails is a ticket", down | stalled, {"10m": [], "19m": []}),
        Story(
            "DFlashGroupDegraded", "a start of half an hour", since("Available", "False", "TooFewReplicas", (0, 30)) | budget, {"29m": []}
        ),
        Story("DFlashStalled", "an engine that fails", stalled, {"4m": [], "6m": [stuck], "30m": []}),
        Story("DFlashStalled", "a rollout that waits has an alert of its own", stalled | held, {"10m": []}),
        Story("DFlashStalled", "rolled back, likewise", since("Stalled", "True", "RolledBack", (0, 20)), {"10m": []}),
        Story("DFlashReplicasMissing", "one of three", two_of_three, {"59m": [], "61m": [missing], "100m": []}),
        Story("DFlashReplicasMissing", "one of three in a rollout", two_of_three | moving, {"80m": []}),
        Story(
            "DFlashStartupBudgetNearlyUsed",
            "a start of 26 minutes with a budget of 20 and 10 for scheduling",
            budget | of("startup_seconds", gauge((1561, 20), (900, 20))),
            {"4m": [], "6m": [nearly], "30m": []},
        ),
        Story("DFlashStartupBudgetNearlyUsed", "80 %", budget | of("startup_seconds", gauge((1560, 40))), {"30m": []}),
        Story(
            "DFlashSpecDrift",
            "for a quarter of an hour",
            of("notice", gauge((1, 20), (None, 20)), reason="FieldFight"),
            {"14m": [], "16m": [conflict], "30m": []},
        ),
        Story("DFlashSpecDrift", "another notice", of("notice", gauge((1, 40)), reason="RevisionNotPinned"), {"30m": []}),
    ]


def stories() -> list[Story]:
    return [*_latency(), *_load(), *_replicas(), *_operator(), *_conditions()]
