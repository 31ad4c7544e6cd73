"""Rollout: its phase, the metrics that judge the candidate, and the candidate's share of traffic. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from grafana_foundation_sdk.models import dashboard as models

from dflash_controller.analysis import positions
from dflash_controller.analysis.probe import PROBE_METRICS, TEXT
from dflash_controller.api.gates import ACCEPTANCE, ERRORS, GATE_SPECS, LATENCY, RESTARTS, SPEED, TTFT
from monitoring.dashboards import samples
from monitoring.dashboards.build import (
    BY,
    KEYS,
    NAME,
    POD_KEYS,
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
from monitoring.dashboards.phases import PHASE_COLORS, PHASES, TUNED_TOO, phase_codes
from monitoring.dashboards.speculation import EQUAL_BLOCKS, LIMITS, SIDES_AT, decisions

UID = "dflash-rollout"
SIDES = f"{NAME} {{{{role}}}} {{{{revision}}}}"
VERDICT_COLORS = {"Successful": "green", "Failed": "red", "Inconclusive": "#808080", "Error": "orange"}
_OF_GATES = {
    ACCEPTANCE: "tokens per step",
    SPEED: "tokens/s of a request",
    TTFT: "s, p95",
    LATENCY: "s per token, p95",
    ERRORS: "% of requests",
    RESTARTS: "restarts",
}
UNITS: Mapping[str, str] = {
    **_OF_GATES,
    **{probed: _OF_GATES[metric] for metric, probed in PROBE_METRICS.items()},
    TEXT: "% of prompts that differ",
    positions.METRIC: "share of drafts",
}
"""By metric of a verdict: the unit of the values compared."""
LIMIT_UNITS: Mapping[str, str] = {
    **{metric: spec.limit_unit for metric, spec in GATE_SPECS.items()},
    **{probed: GATE_SPECS[metric].limit_unit for metric, probed in PROBE_METRICS.items()},
    ACCEPTANCE: f"{GATE_SPECS[ACCEPTANCE].limit_unit}; collapsed: tokens per step",
    TEXT: "% at most",
    positions.METRIC: GATE_SPECS[ACCEPTANCE].limit_unit,
}
"""By metric of a verdict: the unit of its limit."""
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
                f"Rollouts that have not finished. {TUNED_TOO}",
                "short",
                deployments(running),
                levels=[(None, "text"), (1.0, "blue")],
                span=5,
            ),
            one(
                "Rollouts held or rolled back",
                "Rollouts that are Held or were rolled back; see the verdicts below. The stable revision still serves, so this is no count"
                " of incidents.",
                "short",
                deployments(needy),
                levels=[(None, "green"), (1.0, "orange")],
                span=5,
            ).links([runbook("rollout-held")]),
            one(
                "Traffic on the candidate",
                "Share of the requests finished in the last two minutes; the largest of the selected deployments. The share of one"
                f" replica is normal. {samples.OVER_PODS}",
                "percentunit",
                f"max({share()})",
                span=7,
                nothing=samples.FEW,
            ),
            one(
                "Failed on the candidate",
                f"Failed requests per second of the candidates of all selected deployments; 0 without a candidate. {samples.OVER_PODS}",
                "reqps",
                f"{failed} or vector(0)",
                levels=[(None, "green"), (0.001, "red")],
                span=7,
            ).links([runbook("rollout-rolled-back")]),
        ],
    )


def _described(label: str, words: Mapping[str, str]) -> str:
    """Returns the verdicts with a label that says in words what its metric is."""
    expr = of("dflash:rollout_verdict")
    for word in dict.fromkeys(words.values()):
        metrics = "|".join(metric for metric, other in words.items() if other == word)
        expr = f'label_replace({expr}, "{label}", "{word}", "metric", "{metrics}")'
    return expr


def _of_rollout(metric: str, label: str) -> str:
    """Returns the verdicts with a label of their rollout."""
    return f"{of('dflash:rollout_verdict')} * on ({BY}) group_left ({label}) topk by ({BY}) (1, {of(metric)})"


def _verdicts() -> Rows:
    phase = rows(
        "Phase and revisions",
        "The newest rollout of each deployment, and its stable revision. Candidate is the revision that is rolled out, also after the end;"
        " Asked by says who wanted it: User (the spec), Tuner (a change of block size, or a collapsed drafter), or Rollback.",
        KEYS,
        [
            Column("Phase", of("dflash:rollout_phase"), label="phase", colors=PHASE_COLORS),
            Column("Candidate", of("dflash:rollout_info"), label="revision"),
            Column("Asked by", of("dflash:rollout_info"), label="origin"),
            Column("Stable", of("dflash:revision_info", role="stable"), label="revision"),
            Column("Revisions", f"count by ({BY}) (group by ({samples.REVISION}) ({of('dflash:revision_info')}))", decimals=0),
            Column("Pods", of("dflash:deployment_pods"), decimals=0),
        ],
        height=6,
    )

    def side(name: str, title: str) -> Column:
        return Column(title, of("dflash:rollout_metric", side=name))

    verdicts = rows(
        "Verdicts",
        "The metrics that judge the candidate of the newest rollout, with the values compared; they stay after its end, and Phase says"
        " whether it has ended. Limit is how far the candidate may be from stable, in the unit beside it. Only a collapsed drafter has"
        " another: acceptanceLength Failed, with the fewest tokens per step (1.3, or half of stable's) as its limit. Inconclusive (grey)"
        " without values is the beginning: there are no samples yet. With values, the samples do not suffice. A rollout may complete with"
        " such metrics: others decided.",
        (*KEYS, "metric"),
        [
            Column("Candidate", _of_rollout("dflash:rollout_info", "revision"), label="revision"),
            Column("Phase", _of_rollout("dflash:rollout_phase", "phase"), label="phase", colors=PHASE_COLORS),
            Column("Verdict", of("dflash:rollout_verdict"), label="verdict", colors=VERDICT_COLORS),
            side("candidate", "Candidate's value"),
            side("stable", "Stable's value"),
            Column("Unit", _described("unit", UNITS), label="unit"),
            side("limit", "Limit"),
            Column("Limit in", _described("limit_in", LIMIT_UNITS), label="limit_in"),
        ],
        order="Verdict",  # errors and failures come first
        height=13,
        nothing="No rollout yet",
    )
    return Rows("Verdicts", [phase.links([runbook("rollout-stuck")]), verdicts.links([runbook("rollout-rolled-back")])])


def _sides() -> Rows:
    def sides(expr: str) -> Query:
        return Query(f"{expr} {in_role()}", SIDES)

    pods = f"sum by ({samples.REVISION}) ({samples.at_the_time(of('dflash:revision_pods'))})"
    speed = f"({samples.rate_sum('generated_tokens', REVISION_KEYS)} / {pods})"
    by_pod = samples.ratio("failed_requests", "requests", (*POD_KEYS, "revision"), least=samples.REQUESTS, level="pod")
    failing = samples.failing("transparent")
    return Rows(
        "Candidate and stable",
        [
            lines(
                "Acceptance length",
                f"Tokens per verify step. {EQUAL_BLOCKS}",
                "none",
                Query(f"{samples.acceptance_length(samples.BLOCK_KEYS)} {in_role()}", SIDES_AT),
                levels=LIMITS,
                least=1,
            ).links([runbook("speculation-collapsed")]),
            lines(
                "Tokens per second of a pod",
                f"Generated by one pod on average, idle time included. {samples.OVER_PODS}",
                "short",
                sides(speed),
            ),
            lines(
                "Failed requests",
                f"Share that ended in an error or got a 5xx answer; {FROM}. If only the candidate fails, the rollout rolls it back. Blame a"
                " new revision only if failures began within minutes of its purple mark; the mark's text names the deployment.",
                "percentunit",
                sides(samples.failed_share(REVISION_KEYS)),
                levels=failing,
                nothing=samples.FEW_REQUESTS,
            ).links([runbook("requests-failing")]),
            lines(
                "Failed requests of each pod",
                "Share by pod, with its revision: one pod fails, all of one revision, or all? With one revision, all pods alike means"
                " either that revision or what clients send; the runbook tells them apart.",
                "percentunit",
                Query(by_pod, "{{namespace}}/{{pod}} ({{revision}})"),
                levels=failing,
                nothing=samples.FEW_REQUESTS,
            ).links([runbook("requests-failing")]),
            lines(
                "Time to first token, p95",
                f"SGLang: streaming requests only. {samples.BUCKETS}",
                "s",
                sides(samples.quantile("ttft_seconds", "0.95")),
                span=8,
            ),
            lines(
                "Time per output token, p95",
                f"After the first token. {samples.BUCKETS}",
                "s",
                sides(samples.quantile("tpot_seconds", "0.95")),
                span=8,
            ),
            lines(
                "Time of a request, p95",
                f"From arrival to the last token. {samples.BUCKETS}",
                "s",
                sides(samples.quantile("request_seconds", "0.95")),
                span=8,
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
                f"Finished requests per second by role: the candidate's are those at risk. {samples.OVER_PODS}",
                "reqps",
                Query(f"sum by ({BY}, role) ({requests})", f"{NAME} {{{{role}}}}"),
                stacked=True,
                span=8,
            ),
            lines(
                "Share of the candidate",
                f"Share of all finished requests; 0 without a candidate. {samples.OVER_PODS}",
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
    passed = 'dflash_rollout_phases_total{phase!~"None|Suspended"}'
    reached = f"sum by (phase) (max by (instance, phase) (increase({passed}[1h])))"
    return Rows(
        "History",
        [
            states(
                "Phase over time",
                f"Each rollout from Preparing to its end. {TUNED_TOO} Who asked for the newest one is in *Phase and revisions*.",
                Query(phase_codes(), NAME),
                PHASES,
                PHASE_COLORS,
                span=12,
            ),
            lines(
                "Phases reached, all deployments",
                "Number in the preceding hour, over all deployments of all operators; not only the selected ones. A rollout counts once in"
                f" each phase that it reaches. {TUNED_TOO}",
                "short",
                Query(reached, "{{phase}}"),
                span=12,
            ),
        ],
    )
