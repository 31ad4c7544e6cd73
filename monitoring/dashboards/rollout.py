"""Rollout: its phase, the metrics that judge the candidate, and the candidate's share of traffic. Pure."""

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
    in_role,
    of,
    runbook,
    variables,
)
from monitoring.dashboards.panels import Column, Query, lines, one, rows, states
from monitoring.dashboards.phases import PHASE_COLORS, PHASES, phase_codes
from monitoring.dashboards.speculation import LIMITS, decisions

UID = "dflash-rollout"
SIDES = f"{NAME} {{{{role}}}} {{{{revision}}}}"
VERDICT_COLORS = {"Successful": "green", "Failed": "red", "Inconclusive": "yellow", "Error": "orange"}
FROM = "from ten requests on, once a revision was scraped for two minutes"


def rollout() -> models.Dashboard:
    """Returns the dashboard: phase, verdicts, candidate beside stable, traffic on the candidate, history."""
    return dashboard(
        UID,
        "DFlash / Rollout",
        "Phase of a rollout, the verdict on each metric, candidate beside stable, and the share of requests that the candidate serves.",
        variables(several=False),
        [_now(), _verdicts(), _sides(), _traffic(), _history()],
        guide="how-to/change-a-drafter.md#follow-a-rollout",
        events=decisions(),
    )


def share() -> str:
    """Returns the query for the candidate's share of the finished requests; 0 without a candidate."""
    everything = f"sum by ({BY}) ({of('dflash:revision_requests:rate2m')})"
    candidate = f"sum by ({BY}) ({by_role('dflash:revision_requests:rate2m', 'candidate')})"
    return samples.over(f"{candidate} or 0 * {everything}", everything, samples.REQUESTS)


def _now() -> Rows:
    needy = of("dflash:rollout_phase", phase="Held|RolledBack")
    running = of("dflash:rollout_phase", phase="Preparing|Canary|Analyzing|Progressing|RollingBack|Paused")
    failed = f"sum({by_role('dflash:revision_failed_requests:rate2m', 'candidate')})"
    return Rows(
        "Now",
        [
            one(
                "In progress",
                "Rollouts that have not finished.",
                "short",
                deployments(running),
                levels=[(None, "text"), (1.0, "blue")],
                span=5,
            ),
            one(
                "Needs attention",
                "Rollouts that are Held or were rolled back; see the verdicts below.",
                "short",
                deployments(needy),
                levels=[(None, "green"), (1.0, "orange")],
                span=5,
            ).links([runbook("rollout-held")]),
            one(
                "Traffic on the candidate",
                "Share of the requests finished in the last two minutes; the largest of the selected deployments. The share of one"
                " replica is normal.",
                "percentunit",
                f"max({share()})",
                span=7,
                nothing=samples.FEW,
            ),
            one(
                "Failed on the candidate",
                "Failed requests per second of the candidate; 0 without a candidate.",
                "reqps",
                f"{failed} or vector(0)",
                levels=[(None, "green"), (0.001, "red")],
                span=7,
            ).links([runbook("rollout-rolled-back")]),
        ],
    )


def _verdicts() -> Rows:
    phase = rows(
        "Phase and revisions",
        "The newest rollout of each deployment, and its stable revision.",
        KEYS,
        [
            Column("Phase", of("dflash:rollout_phase"), label="phase", colors=PHASE_COLORS),
            Column("Stable", of("dflash:revision_info", role="stable"), label="revision"),
            Column("Revisions", f"count by ({BY}) (group by ({samples.REVISION}) ({of('dflash:revision_info')}))", decimals=0),
            Column("Pods", of("dflash:deployment_pods"), decimals=0),
        ],
        span=9,
    )

    def side(name: str) -> Column:
        return Column(name.capitalize(), of("dflash:rollout_metric", side=name), "none")

    verdicts = rows(
        "Verdicts",
        "The metrics that judge the candidate of the newest rollout, with the values compared: speeds in tokens per second, ttft and"
        " latency in seconds, errors in per cent. The limit is how far the candidate may be from stable, in per cent (errors: points)."
        " Inconclusive: the samples do not suffice for a verdict. Empty until the first rollout.",
        (*KEYS, "metric"),
        [
            Column("Verdict", of("dflash:rollout_verdict"), label="verdict", colors=VERDICT_COLORS),
            side("candidate"),
            side("stable"),
            side("limit"),
        ],
        order="Verdict",  # errors and failures come first
        span=15,
    )
    return Rows("Verdicts", [phase.links([runbook("rollout-stuck")]), verdicts.links([runbook("rollout-rolled-back")])])


def _sides() -> Rows:
    def sides(expr: str) -> Query:
        return Query(f"{expr} {in_role()}", SIDES)

    pods = f"sum by ({samples.REVISION}) ({samples.at_the_time(of('dflash:revision_pods'))})"
    speed = f"({samples.rate_sum('generated_tokens', REVISION_KEYS)} / {pods})"
    return Rows(
        "Candidate and stable",
        [
            lines(
                "Acceptance length",
                "Tokens per verify step.",
                "none",
                sides(samples.acceptance_length(REVISION_KEYS)),
                span=8,
                levels=LIMITS,
                least=1,
            ).links([runbook("speculation-collapsed")]),
            lines("Tokens per second of a pod", "Generated by one pod on average, idle time included.", "short", sides(speed), span=8),
            lines(
                "Failed requests",
                f"Share that ended in an error or got a 5xx answer; {FROM}.",
                "percentunit",
                sides(samples.failed_share(REVISION_KEYS)),
                span=8,
                nothing=samples.FEW_REQUESTS,
            ).links([runbook("requests-failing")]),
            lines(
                "Time to first token, p95", "SGLang: streaming requests only.", "s", sides(samples.quantile("ttft_seconds", "0.95")), span=8
            ),
            lines("Time per output token, p95", "After the first token.", "s", sides(samples.quantile("tpot_seconds", "0.95")), span=8),
            lines(
                "Time of a request, p95", "From arrival to the last token.", "s", sides(samples.quantile("request_seconds", "0.95")), span=8
            ),
        ],
    )


def _traffic() -> Rows:
    requests = by_role("dflash:revision_requests:rate2m", ".+")
    return Rows(
        "Traffic",
        [
            lines(
                "Requests by role",
                "Finished requests per second by role: the candidate's are those at risk.",
                "reqps",
                Query(f"sum by ({BY}, role) ({requests})", f"{NAME} {{{{role}}}}"),
                stacked=True,
                span=8,
            ),
            lines(
                "Share of the candidate",
                "Share of all finished requests; 0 without a candidate.",
                "percentunit",
                Query(share(), NAME),
                span=8,
            ),
            lines(
                "Pods by role",
                "Pods that serve: a rollout replaces one role by another within maxSurge and maxUnavailable.",
                "short",
                Query(f"sum by ({BY}, role) ({by_role('dflash:revision_pods', '.+')})", f"{NAME} {{{{role}}}}"),
                stacked=True,
                span=8,
            ),
        ],
    )


def _history() -> Rows:
    reached = "sum by (phase) (max by (instance, phase) (increase(dflash_rollout_phases_total[1h])))"
    return Rows(
        "History",
        [
            states(
                "Phase over time",
                "Each rollout from Preparing to its end.",
                Query(phase_codes(), NAME),
                PHASES,
                PHASE_COLORS,
                span=12,
            ),
            lines(
                "Phases reached, all deployments",
                "Number in the preceding hour, over all deployments of all operators; not only the selected ones.",
                "short",
                Query(f'{reached} or on () label_replace(vector(0), "phase", "none", "", "")', "{{phase}}"),
                span=12,
            ),
        ],
    )
