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
from monitoring.dashboards.phases import PHASE_COLORS, PHASES, TUNED_TOO, TUNER_COLORS, phase_codes
from monitoring.dashboards.speculation import ACCEPTING, revision_marks
from monitoring.serving_alerts import FAILING

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
        events=[revision_marks()],
    )


def _now() -> Rows:
    needy = of("dflash:rollout_phase", phase="Held|RolledBack")
    ended = f"sum({of('dflash:deployment_requests:rate2m')})"
    failed = samples.failed_share(KEYS)
    return Rows(
        "Now",
        [
            one(
                "Deployments known",
                "DFlashDeployments that the operator knows, all together.",
                "short",
                deployments(of("dflash:rollout_phase")),
                span=3,
            ),
            one(
                "Rollouts held or rolled back",
                "Deployments whose newest rollout is Held or was rolled back. Their stable revision still serves, so users are not"
                " affected by it. Failed requests are counted in the next two numbers.",
                "short",
                deployments(needy),
                levels=_GOOD_IF_ZERO,
                span=3,
            ).links([runbook("rollout-held")]),
            one(
                f"Deployments with > {100 * FAILING:g} % failed",
                f"Deployments of which more than {100 * FAILING:g} % of the requests of the last two minutes failed, whatever the phase of"
                " their rollout.",
                "short",
                f"count({failed} > {FAILING:g}) or 0 * count({failed})",
                levels=[(None, "green"), (1.0, "red")],
                span=3,
                nothing=samples.FEW,
            ).links([runbook("requests-failing")]),
            one(
                "Failed, worst deployment",
                "Largest share of the selected deployments: requests that ended in an error or got a 5xx answer. It is of the last two"
                " minutes, so it reaches its full value two minutes after the beginning. A new revision counts after two minutes.",
                "percentunit",
                f"max({failed})",
                levels=samples.failing("green"),
                span=3,
                nothing=samples.FEW,
            ).links([runbook("requests-failing")]),
            one(
                "Engine pods",
                "Pods that serve and answer scrapes, of all selected deployments and both engines.",
                "short",
                f"sum({of('dflash:deployment_pods')})",
                span=3,
            ),
            one(
                "Tokens per second",
                f"Tokens generated per second by the pods of all selected deployments. {samples.OVER_PODS}",
                "short",
                f"sum({of('dflash:deployment_generated_tokens:rate2m')})",
                span=3,
            ),
            one(
                "Requests per second",
                f"Finished requests per second of all selected deployments, failed ones included. {samples.OVER_PODS}",
                "reqps",
                ended,
                span=3,
            ),
            one(
                "Waiting requests",
                "Requests in the queues of all engines of the selected deployments, not yet in a batch.",
                "short",
                f"sum({of('dflash:deployment_requests_waiting')})",
                span=3,
            ).links([runbook("queue-saturated")]),
        ],
    )


def _deployments() -> Rows:
    ttft = of_stable(samples.quantile("ttft_seconds", "0.95"))
    accepted = samples.acceptance_length(REVISION_KEYS)
    failed = f"sum_over_time(({of('dflash:deployment_failed_requests:rate2m')})[1h:30s]) * 30"
    since = of("dflash:condition_since_timestamp_seconds", type="Ready")
    ready = f'label_join({since}, "ready", ", ", "status", "reason")'
    asked = f'label_join({of("dflash:rollout_info")}, "asked", " by ", "revision", "origin")'
    columns = [
        Column("Engine", of("dflash:revision_pods"), label="engine"),
        Column("Phase", of("dflash:rollout_phase"), label="phase", colors=PHASE_COLORS),
        Column("Candidate", asked, label="asked"),
        Column("Stable", of("dflash:revision_info", role="stable"), label="revision"),
        Column("Block size", of("dflash:deployment_block_size"), decimals=0),
        Column("Tuner", of("dflash:tuner_state"), label="state", colors=TUNER_COLORS),
        Column("Ready", ready, label="ready"),
        Column("Desired", of("dflash:replicas_desired"), decimals=0),
        Column("Serving", of("dflash:replicas_serving"), decimals=0),
        Column("Acceptance length", of_stable(accepted), decimals=2, levels=ACCEPTING),
        Column("Lowest revision", f"min by ({BY}) ({accepted})", decimals=2, levels=ACCEPTING),
        Column("Tokens/s", of("dflash:deployment_generated_tokens:rate2m"), decimals=0),
        Column("Requests/s", of("dflash:deployment_requests:rate2m"), "reqps", decimals=2),
        Column("Waiting", of("dflash:deployment_requests_waiting"), decimals=0, levels=[(None, "text"), (1.0, "orange")]),
        Column("TTFT p95", ttft, "s"),
        Column("Failed", samples.failed_share(KEYS), "percentunit", levels=samples.failing("text")),
        Column("Failed in 1 h", failed, decimals=0),
    ]
    table = rows(
        "Deployments",
        "One row per deployment. Candidate is the revision of the newest rollout, also after its end, and who asked for it. Ready is status"
        " and reason of that condition: it is False during every rollout, and users are served. Acceptance length is tokens per verify step"
        " of the stable revision over the last two minutes, Lowest revision that of the worst one, a candidate included; red is a collapsed"
        " drafter. Acceptance, latency and the share of failed requests are empty with little traffic; the number of failed requests in the"
        f" last hour never is. {samples.BUCKETS} {samples.OVER_PODS}",
        KEYS,
        columns,
        links={
            "Deployment": drill_down("Its speculation", "dflash-speculation"),
            "Phase": drill_down("Its rollout", "dflash-rollout"),
            "Failed": drill_down("Its failures by pod", "dflash-rollout"),
        },
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
                f"Tokens per second, all replicas together. {samples.OVER_PODS}",
                "short",
                by_deployment("generated_tokens:rate2m"),
                stacked=True,
            ),
            lines(
                "Finished requests",
                f"Per second, failed ones included. {samples.OVER_PODS}",
                "reqps",
                by_deployment("requests:rate2m"),
                stacked=True,
            ),
            lines(
                "Failed requests",
                "Share of the requests of the last two minutes that ended in an error or got a 5xx answer, by deployment: it begins to rise"
                " when the failures begin, and has its full value two minutes later. A purple mark is a revision with a new role; its text"
                " names the deployment.",
                "percentunit",
                Query(samples.failed_share(KEYS), NAME),
                span=6,
                levels=samples.failing("transparent"),
                nothing=samples.FEW_REQUESTS,
            ).links([runbook("requests-failing")]),
            lines(
                "Requests running",
                "Requests in the engines' batches, from their gauges; 0 while no step runs. It has no window, so it shows at once whether"
                " the traffic has changed. Dashed: what all replicas serve at once, as their engines say.",
                "short",
                by_deployment("requests_running"),
                Query(serves, f"{NAME} limit", dashed=True),
                span=6,
            ),
            lines(
                "Requests waiting",
                "Requests in the engines' queues. If they rise while the KV cache is full, more replicas are needed.",
                "short",
                by_deployment("requests_waiting"),
                span=6,
            ).links([runbook("queue-saturated")]),
            lines(
                "KV cache in use",
                "Share of the KV cache in use, the fullest pod of each deployment.",
                "percentunit",
                Query(usage, NAME),
                span=6,
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
                "Median and 95th percentile of the slowest revision of each deployment. SGLang measures streaming requests only."
                f" {samples.BUCKETS}",
                "s",
                *(worst("ttft_seconds", quantile) for quantile in both),
                span=8,
                nothing=samples.FEW_REQUESTS,
            ).links([runbook("ttft-slo-burn")]),
            lines(
                "Time per output token",
                f"After the first token; median and 95th percentile of the slowest revision. {samples.BUCKETS}",
                "s",
                *(worst("tpot_seconds", quantile) for quantile in both),
                span=8,
                nothing=samples.FEW_REQUESTS,
            ).links([runbook("tpot-slo-burn")]),
            lines(
                "Time of a request",
                f"From arrival to the last token; median and 95th percentile of the slowest revision. {samples.BUCKETS}",
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
                f"Phase of each deployment's newest rollout, over time. {TUNED_TOO}",
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
