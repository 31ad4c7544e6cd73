"""Fleet: an overview of every deployment, with links to details. Pure."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard as models

from monitoring.dashboards import samples
from monitoring.dashboards.build import (
    BY,
    KEYS,
    NAME,
    REVISION_KEYS,
    Rows,
    by_role,
    dashboard,
    deployments,
    drill_down,
    of,
    of_stable,
    runbook,
    variables,
)
from monitoring.dashboards.panels import Column, Query, lines, one, rows, states
from monitoring.dashboards.phases import PHASE_COLORS, PHASES, TUNER_COLORS, phase_codes
from monitoring.dashboards.speculation import ACCEPTING

UID = "dflash-fleet"
_GOOD_IF_ZERO = [(None, "green"), (1.0, "orange")]


def fleet() -> models.Dashboard:
    """Returns the dashboard: tokens, latency, queues, errors and state of all deployments of both engines."""
    return dashboard(
        UID,
        "DFlash / Fleet",
        "Every DFlashDeployment: what it serves, its speed and its phase; click a name for its speculation.",
        variables(several=True),
        [_now(), _deployments(), _traffic(), _latency(), _rollouts()],
        guide="reference/dashboards.md#fleet",
    )


def _now() -> Rows:
    needy = of("dflash:rollout_phase", phase="Held|RolledBack")
    ended = f"sum({of('dflash:deployment_requests:rate2m')})"
    return Rows(
        "Now",
        [
            one(
                "Deployments known", "DFlashDeployments that the operator knows.", "short", deployments(of("dflash:rollout_phase")), span=3
            ),
            one(
                "Needs attention",
                "Deployments whose rollout is Held or was rolled back. The stable revision still serves.",
                "short",
                deployments(needy),
                levels=_GOOD_IF_ZERO,
                span=3,
            ).links([runbook("rollout-held")]),
            one(
                "Engine pods", "Pods that serve and answer scrapes, both engines.", "short", f"sum({of('dflash:deployment_pods')})", span=3
            ),
            one(
                "Tokens per second",
                "Tokens generated per second by all pods together.",
                "short",
                f"sum({of('dflash:deployment_generated_tokens:rate2m')})",
                span=4,
            ),
            one("Requests per second", "Finished requests per second, failed ones included.", "reqps", ended, span=4),
            one(
                "Failed",
                "Share of the requests of the last two minutes that ended in an error or got a 5xx answer. A new revision counts after"
                " two minutes.",
                "percentunit",
                samples.failed_share(()),
                levels=[(None, "green"), (0.01, "orange"), (0.05, "red")],
                span=3,
                nothing=samples.FEW,
            ).links([runbook("requests-failing")]),
            one(
                "Waiting requests",
                "Requests in the engines' queues, not yet in a batch.",
                "short",
                f"sum({of('dflash:deployment_requests_waiting')})",
                span=4,
            ).links([runbook("queue-saturated")]),
        ],
    )


def _deployments() -> Rows:
    ttft = of_stable(samples.quantile("ttft_seconds", "0.95"))
    failed = f"sum_over_time(({of('dflash:deployment_failed_requests:rate2m')})[1h:30s]) * 30"
    since = of("dflash:condition_since_timestamp_seconds", type="Ready")
    ready = f'label_join({since}, "ready", ", ", "status", "reason")'
    columns = [
        Column("Engine", of("dflash:revision_pods"), label="engine"),
        Column("Phase", of("dflash:rollout_phase"), label="phase", colors=PHASE_COLORS),
        Column("Stable", of("dflash:revision_info", role="stable"), label="revision"),
        Column("Block size", of("dflash:deployment_block_size"), decimals=0),
        Column("Tuner", of("dflash:tuner_state"), label="state", colors=TUNER_COLORS),
        Column("Ready", ready, label="ready"),
        Column("Desired", of("dflash:replicas_desired"), decimals=0),
        Column("Serving", of("dflash:replicas_serving"), decimals=0),
        Column(
            "Acceptance length",
            samples.acceptance_length(KEYS),
            decimals=2,
            levels=ACCEPTING,
        ),
        Column("Tokens/s", of("dflash:deployment_generated_tokens:rate2m"), decimals=0),
        Column("Requests/s", of("dflash:deployment_requests:rate2m"), "reqps", decimals=2),
        Column("Waiting", of("dflash:deployment_requests_waiting"), decimals=0, levels=[(None, "text"), (1.0, "orange")]),
        Column("TTFT p95", ttft, "s"),
        Column("Failed", samples.failed_share(KEYS), "percentunit", levels=[(None, "text"), (0.01, "orange"), (0.05, "red")]),
        Column("Failed in 1 h", failed, decimals=0, levels=[(None, "text"), (1.0, "orange")]),
    ]
    table = rows(
        "Deployments",
        "One row per deployment; Ready shows status and reason of that condition. Acceptance length is tokens per verify step over the"
        " last two minutes; red is a collapsed drafter. Acceptance, latency and the share of failed requests are empty with little traffic;"
        " the number of failed requests in the last hour never is.",
        KEYS,
        columns,
        links={"Deployment": drill_down("Its speculation", "dflash-speculation"), "Phase": drill_down("Its rollout", "dflash-rollout")},
        height=9,
    )
    return Rows("Deployments", [table.links([runbook("speculation-collapsed")])])


def _traffic() -> Rows:
    def by_deployment(what: str) -> Query:
        return Query(of(f"dflash:deployment_{what}"), NAME)

    serves = f"{of('dflash:max_concurrency', limit='effective')} * on ({BY}) {of('dflash:replicas_serving')}"
    usage = f"max by ({BY}) ({of('dflash:pod_kv_cache_usage')})"
    return Rows(
        "Traffic",
        [
            lines(
                "Generated tokens",
                "Tokens per second, all replicas together.",
                "short",
                by_deployment("generated_tokens:rate2m"),
                stacked=True,
            ),
            lines("Finished requests", "Per second, failed ones included.", "reqps", by_deployment("requests:rate2m"), stacked=True),
            lines(
                "Requests running",
                "Requests in the engines' batches, from their gauges; 0 while no step runs. Dashed: what all replicas serve "
                "at once, as their engines say.",
                "short",
                by_deployment("requests_running"),
                Query(serves, f"{NAME} limit", dashed=True),
                span=8,
            ),
            lines(
                "Requests waiting",
                "Requests in the engines' queues. If they rise while the KV cache is full, more replicas are needed.",
                "short",
                by_deployment("requests_waiting"),
                span=8,
            ).links([runbook("queue-saturated")]),
            lines(
                "KV cache in use",
                "Share of the KV cache in use, the fullest pod of each deployment.",
                "percentunit",
                Query(usage, NAME),
                span=8,
                levels=[(None, "green"), (0.9, "red")],
            ).links([runbook("queue-saturated")]),
        ],
    )


def _latency() -> Rows:
    def worst(what: str, quantile: str) -> Query:
        return Query(f"max by ({BY}) ({samples.quantile(what, quantile)})", f"p{float(quantile) * 100:.0f} {NAME}")

    both = ("0.5", "0.95")
    return Rows(
        "Latency",
        [
            lines(
                "Time to first token",
                "Median and 95th percentile of the slowest revision of each deployment. SGLang measures streaming requests only.",
                "s",
                *(worst("ttft_seconds", quantile) for quantile in both),
                span=8,
                nothing=samples.FEW_REQUESTS,
            ).links([runbook("ttft-slo-burn")]),
            lines(
                "Time per output token",
                "After the first token; median and 95th percentile of the slowest revision.",
                "s",
                *(worst("tpot_seconds", quantile) for quantile in both),
                span=8,
                nothing=samples.FEW_REQUESTS,
            ).links([runbook("tpot-slo-burn")]),
            lines(
                "Time of a request",
                "From arrival to the last token; median and 95th percentile of the slowest revision.",
                "s",
                *(worst("request_seconds", quantile) for quantile in both),
                span=8,
                nothing=samples.FEW_REQUESTS,
            ),
        ],
    )


def _rollouts() -> Rows:
    serving = by_role("dflash:revision_pods", ".+")
    return Rows(
        "Revisions",
        [
            states(
                "Rollout phase",
                "Phase of each deployment's newest rollout, over time.",
                Query(phase_codes(), NAME),
                PHASES,
                PHASE_COLORS,
                span=14,
            ),
            rows(
                "Revisions that serve",
                "Revisions that serve now. More than one of a deployment outside a rollout is unusual.",
                REVISION_KEYS,
                [
                    Column("Role", serving, label="role"),
                    Column("Block size", of("dflash:revision_pods"), label="block_size"),
                    Column("Pods", f"sum by ({BY}, revision) ({of('dflash:revision_pods')})", decimals=0),
                ],
                span=10,
            ).links([runbook("version-skew")]),
        ],
    )
