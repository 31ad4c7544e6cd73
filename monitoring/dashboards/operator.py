"""Operator: whether it is healthy, keeps up, and reaches the API server. Pure."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard as models

from monitoring.dashboards.build import Rows, dashboard, operator_variable, page, runbook, selected, source_variable
from monitoring.dashboards.panels import Column, Query, lines, one, rows, states
from monitoring.dashboards.samples import BUCKETS

UID = "dflash-operator"
MINE = 'namespace=~"$operator"'
RATE = "[$__rate_interval]"


def operator() -> models.Dashboard:
    """Returns the dashboard: leader, reconciles, work queue, requests to the API server, watches, and the process itself."""
    return dashboard(
        UID,
        "DFlash / Operator",
        "Health of the operator. While none runs, engines keep serving; nothing is scaled, replaced or repaired.",
        [source_variable(), operator_variable()],
        [_now(), _reconciles(), _queue(), _requests(), _process()],
        guide="reference/operator.md",
    )


def mine(metric: str, **labels: str) -> str:
    """Selects a metric of the selected operators; ``labels`` are regular expressions that must match."""
    return selected(metric, MINE, **labels)


def level(metric: str) -> str:
    """Returns a gauge of each process, once: two scrape jobs, or two Prometheus servers, may have it twice."""
    return f"max by (instance) ({mine(metric)})"


def rate(counter: str, by: str, *further: str, **labels: str) -> str:
    """Returns increases per second, summed by ``by``. ``further`` are the other labels of the counter; each process counts once."""
    own = ", ".join(label for label in ("instance", by, *further) if label)
    return f"sum{f' by ({by})' if by else ''} (max by ({own}) (rate({mine(counter, **labels)}{RATE})))"


def quantiles(histogram: str, by: str = "") -> list[Query]:
    """Returns queries for median, 95th and 99th percentile, without a value if nothing was observed."""
    found = []
    for share in ("0.5", "0.95", "0.99"):
        labels = f"le, {by}" if by else "le"
        buckets = f"max by (instance, {labels}) (rate({mine(f'{histogram}_bucket')}{RATE}))"
        expr = f"histogram_quantile({share}, sum by ({labels}) ({buckets})) >= 0"
        found.append(Query(expr, f"p{float(share) * 100:.0f}" + (f" {{{{{by}}}}}" if by else "")))
    return found


def _now() -> Rows:
    return Rows(
        "Now",
        [
            one(
                "Leaders",
                "Must be 1 for each Lease. With 0 nothing is reconciled; with 2 one of them is about to exit.",
                "short",
                f"sum({level('dflash_leader')})",
                levels=[(None, "red"), (1.0, "green"), (2.0, "orange")],
            ).links([runbook("operator-no-leader")]),
            one("Processes", "Replicas that answer scrapes, leader or not.", "short", f"count({level('dflash_build_info')})").links(
                [runbook("operator-down")]
            ),
            one(
                "Oldest in the queue",
                "How long the oldest deployment in the work queue has been due.",
                "s",
                f"max({mine('dflash_workqueue_oldest_seconds')})",
                levels=[(None, "green"), (60.0, "red")],
            ).links([runbook("reconcile-backlog")]),
            one(
                "Failed reconciles",
                "Per second; the operator's log names the deployment.",
                "ops",
                f"{rate('dflash_reconcile_total', '', result='error')} or vector(0)",
                levels=[(None, "green"), (0.001, "orange")],
            ).links([runbook("reconcile-errors")]),
            one(
                "Age of the last full list",
                "By default every replica of the operator lists everything every 5 minutes. The oldest list counts.",
                "s",
                f"time() - min({mine('dflash_last_resync_timestamp_seconds')} > 0)",
                levels=[(None, "green"), (1200.0, "red")],
            ).links([runbook("watch-stale")]),
            one(
                "Deployments",
                "DFlashDeployments in the leader's cache.",
                "short",
                f"sum(max by (instance, phase) ({mine('dflash_deployments')}))",
            ),
        ],
    )


def _reconciles() -> Rows:
    return Rows(
        "Reconciles",
        [
            lines(
                "Reconciles by result",
                "Per second. A few conflicts are normal: an object had changed since the plan was made, and the operator plans again.",
                "ops",
                Query(rate("dflash_reconcile_total", "result"), "{{result}}"),
                span=8,
            ),
            lines(
                "Time of a reconcile",
                f"From a snapshot to the last write. {BUCKETS}",
                "s",
                *quantiles("dflash_reconcile_duration_seconds"),
                span=8,
            ),
            lines(
                "Failed reconciles by error",
                "Per second by kind of error; the series none means no failures.",
                "ops",
                Query(
                    f'{rate("dflash_reconcile_errors_total", "error")} or on () label_replace(vector(0), "error", "none", "", "")',
                    "{{error}}",
                ),
                span=8,
            ).links([runbook("reconcile-errors")]),
        ],
    )


def _queue() -> Rows:
    due, oldest = (f"max({mine(f'dflash_workqueue_{what}')})" for what in ("depth", "oldest_seconds"))
    late = [(None, "transparent"), (60.0, "red")]
    return Rows(
        "Work queue",
        [
            lines("Depth", "Deployments that are due and not yet taken by a worker.", "short", Query(due, "due"), span=8).links(
                [runbook("reconcile-backlog")]
            ),
            lines("Oldest", "How long the oldest of them has been due.", "s", Query(oldest, "oldest"), span=8, levels=late).links(
                [runbook("reconcile-backlog")]
            ),
            lines("Wait", f"Time from due until a worker takes it. {BUCKETS}", "s", *quantiles("dflash_workqueue_wait_seconds"), span=8),
        ],
    )


def _requests() -> Rows:
    return Rows(
        "API server and watches",
        [
            lines(
                "Requests by verb",
                "Requests per second to the API server. Without changes there are no writes, except the leader's renewal of the Lease every"
                " 2 seconds (update, 0.5 per second).",
                "reqps",
                Query(rate("dflash_api_requests_total", "verb", "kind", "code"), "{{verb}}"),
                span=8,
            ),
            lines(
                "Requests by code",
                "Per second. 404 and 409 are normal. 403: a permission is missing. 429: the API server is overloaded. 0: no answer.",
                "reqps",
                Query(rate("dflash_api_requests_total", "code", "kind", "verb"), "{{code}}"),
                span=8,
            ),
            lines(
                "Time of a request, p95", f"By verb. {BUCKETS}", "s", quantiles("dflash_api_request_duration_seconds", "verb")[1], span=8
            ),
            lines(
                "Age of the newest event",
                "Time since the last watch event of each kind. Long is normal for kinds that rarely change; in a quiet cluster all"
                " grow together. The watches are dead only if changes happen meanwhile, or if *Since the last full list* passes 6 minutes"
                " too.",
                "s",
                Query(f"time() - max by (kind) ({mine('dflash_last_event_timestamp_seconds')} > 0)", "{{kind}}"),
            ).links([runbook("watch-stale")]),
            lines(
                "Since the last full list",
                "A saw tooth with the interval of the list, by default 5 minutes; if it grows beyond 6, lists fail.",
                "s",
                Query(f"time() - min({mine('dflash_last_resync_timestamp_seconds')} > 0)", "age"),
                levels=[(None, "transparent"), (1200.0, "red")],
            ).links([runbook("watch-stale")]),
        ],
    )


def _process() -> Rows:
    leads = mine("dflash_leader")
    own = f"and on (instance) {mine('dflash_build_info')}"

    def each(expr: str) -> Query:
        return Query(f"max by (instance) ({expr} {own})", "{{instance}}")

    return Rows(
        "Processes",
        [
            states(
                "Leader",
                "The replica that holds the Lease, over time. If it changes without an upgrade or a drain, check its log.",
                Query(f"max by (instance) ({leads})", "{{instance}}"),
                ("stands by", "leads"),
                {"stands by": "#808080", "leads": "green"},
                span=14,
            ).links([runbook("operator-no-leader")]),
            rows(
                "Replicas",
                "The current leader, and the version of each replica.",
                ["instance"],
                [
                    Column("Version", mine("dflash_build_info"), label="version"),
                    Column("Leads", leads, decimals=0, levels=[(None, "text"), (1.0, "green")]),
                ],
                span=10,
            ).links([page("Leader election", "reference/operator.md#leader-election")]),
            lines(
                "CPU",
                "Cores in use by each replica.",
                "short",
                each(f"rate({mine('process_cpu_seconds_total')}{RATE})"),
                span=8,
            ),
            lines(
                "Memory",
                "Resident memory of each replica.",
                "bytes",
                each(mine("process_resident_memory_bytes")),
                span=8,
            ),
            lines(
                "Series",
                "Series that each replica exports; they grow with the number of deployments, not with traffic.",
                "short",
                each(mine("scrape_samples_scraped")),
                span=8,
            ),
        ],
    )
