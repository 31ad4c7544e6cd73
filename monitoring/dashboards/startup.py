"""Start-up and weights: how long engines take to start, and what they wait for. Pure."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard as models

from monitoring.dashboards.build import BY, NAME, POD_KEYS, Rows, dashboard, deployments, of, runbook, variables
from monitoring.dashboards.panels import Column, Query, bars, lines, one, rows
from monitoring.dashboards.phases import TUNED_TOO
from monitoring.pod_rules import DEPLOYMENT_LABEL

UID = "dflash-startup"
STEP_S = 15
MOST_PODS = 15
"""Pods in a panel with one bar for each."""
REVISIONS = 'revision=~"$revision"'
NO_PHASES = "SGLang 0.5.17 and later export their phases; vLLM does not"


def startup() -> models.Dashboard:
    """Returns the dashboard: pods that do not answer yet, phases of a start, the preparation of rollouts."""
    return dashboard(
        UID,
        "DFlash / Start-up and weights",
        "How long engine pods take to start, what takes the time, and how long rollouts wait for weights.",
        variables(several=True, revision=True),
        [_now(), _pods(), _phases()],
        guide="reference/dashboards.md#start-up-and-weights",
    )


def scraped() -> str:
    """Returns the query for ``up`` of engine pods, whether they answer yet or not."""
    return f'up{{namespace=~"$namespace", {DEPLOYMENT_LABEL}=~"$deployment"}}'


def answers() -> str:
    """Returns the query for 1 or 0 per engine pod, by deployment. A pod that two jobs scrape answers if it answers one."""
    named = f'label_replace({scraped()}, "deployment", "$1", "{DEPLOYMENT_LABEL}", "(.*)")'
    return f"max by ({BY}, pod) ({named})"


def seconds_unanswered() -> str:
    """Returns the query for the seconds without an answer per pod, within the range shown."""
    return f"sum_over_time((1 - ({answers()}))[$__range:{STEP_S}s]) * {STEP_S}"


def _now() -> Rows:
    return Rows(
        "Now",
        [
            one(
                "Not answering",
                "Engine pods that run and do not answer: they are loading or failing.",
                "short",
                f"count({answers()} == 0) or vector(0)",
                levels=[(None, "green"), (1.0, "orange")],
                span=6,
            ).links([runbook("replica-down")]),
            one("Answering", "Engine pods of all selected deployments that serve.", "short", f"sum({answers()})", span=6),
            one(
                "Waiting for weights",
                "Rollouts in phase Preparing: weights are being downloaded, or the maintenance window is closed.",
                "short",
                deployments(of("dflash:rollout_phase", phase="Preparing")),
                levels=[(None, "green"), (1.0, "blue")],
                span=6,
            ),
            one(
                "Slowest start",
                "Longest time from creation to Ready of a pod that serves now, of all selected deployments: scheduling, image, weights and"
                " engine. Time without an answer, later failures included, is in *Time without an answer, by pod*.",
                "s",
                f"max({of('dflash:startup_seconds')})",
                span=6,
                nothing="No pod serves",
            ).links([runbook("startup-budget-nearly-used")]),
        ],
    )


def _pods() -> Rows:
    spent = f"sum_over_time((group by ({BY}, phase) ({of('dflash:rollout_phase')}))[$__range:{STEP_S}s]) * {STEP_S}"
    return Rows(
        "Pods",
        [
            lines(
                "Pods that answer, and that run",
                "The gap between the lines is pods that are loading. If it lasts beyond the start-up budget, the kubelet restarts them.",
                "short",
                Query(f"sum by ({BY}) ({answers()})", f"answer {NAME}"),
                Query(f"count by ({BY}) ({answers()})", f"run {NAME}", dashed=True),
            ).links([runbook("replica-down")]),
            lines(
                "Pods by revision",
                "Pods that serve; a start is a step up.",
                "short",
                Query(of("dflash:revision_pods", REVISIONS), f"{NAME} {{{{revision}}}}"),
                stacked=True,
            ),
            lines(
                "Start against its budget",
                "The slowest start of a pod that serves now, from creation to Ready, scheduling and image pull included. Dashed: how long"
                " the engine may take from the start of its container until the kubelet restarts it.",
                "s",
                Query(of("dflash:startup_seconds"), f"slowest {NAME}"),
                Query(of("dflash:startup_budget_seconds"), f"budget {NAME}", dashed=True),
            ).links([runbook("startup-budget-nearly-used")]),
            bars(
                "Share of the budget",
                "The same as a share. Above 80 %, a slightly slower start would never finish.",
                "percentunit",
                Query(f"{of('dflash:startup_seconds')} / {of('dflash:startup_budget_seconds')}", NAME),
                levels=[(None, "blue"), (0.8, "red")],
                most=1.0,
            ).links([runbook("startup-budget-nearly-used")]),
            bars(
                "Time without an answer, by pod",
                "Seconds in the selected range in which a pod ran and did not answer: its start and every later failure, added up in steps"
                f" of {STEP_S} s, so a shorter time may be 0. The {MOST_PODS} pods with most.",
                "s",
                Query(f"topk({MOST_PODS}, {seconds_unanswered()})", "{{namespace}}/{{pod}}"),
            ),
            bars(
                "Time in each phase",
                "Seconds that rollouts spent in each phase in the selected range. In Preparing weights are downloaded, in Canary the"
                f" candidate's replica starts. {TUNED_TOO}",
                "s",
                Query(spent, f"{NAME} {{{{phase}}}}"),
            ),
        ],
    )


def _phases() -> Rows:
    phases = f"max by ({BY}, stage) ({of('dflash:pod_startup_seconds', REVISIONS)})"
    columns = [
        Column("Deployment", of("dflash:pod_info", REVISIONS), label="deployment"),
        Column("Revision", of("dflash:pod_info", REVISIONS), label="revision"),
        Column("Engine", of("dflash:pod_info", REVISIONS), label="engine"),
        Column("Block size", of("dflash:pod_block_size", REVISIONS), decimals=0),
        Column("KV cache in use", of("dflash:pod_kv_cache_usage", REVISIONS), "percentunit"),
    ]
    return Rows(
        "Engines",
        [
            bars(
                "Phases of a start (SGLang)",
                "Longest phase of the pods that serve, as the engine reports it; the phases overlap, so their sum is no start. A whole"
                " start is *Slowest start*. If load_weight is far above size ÷ disk"
                " speed, the weights come over the network.",
                "s",
                Query(phases, f"{NAME} {{{{stage}}}}"),
                nothing=NO_PHASES,
            ),
            rows("Pods", "Every engine pod that serves.", POD_KEYS, columns, span=12),
        ],
    )
