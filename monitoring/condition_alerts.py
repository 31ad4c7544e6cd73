"""Alerts on what the operator says of a deployment in its status. Pure."""

from __future__ import annotations

from dflash_controller.render.startup import SCHEDULING_S
from monitoring.alert import DEPLOYMENT, Alert

_AGE = "dflash:condition_seconds"
_ON = "on (namespace, deployment)"
_SERVED = f'{_ON} max_over_time(dflash:replicas{{state="serving"}}[1d]) > 0'
_MOVING = "Preparing|Canary|Analyzing|Progressing|RollingBack"


def conditions() -> list[Alert]:
    unavailable, stalled = (f'{_AGE}{{type="{type}",status="{status}"' for type, status in (("Available", "False"), ("Stalled", "True")))
    wanted, serving = (f'max by (namespace, deployment) (dflash:replicas{{state="{state}"}})' for state in ("desired", "serving"))
    used = f"(dflash:startup_seconds - {SCHEDULING_S}) / dflash:startup_budget_seconds"
    return [
        Alert(
            name="DFlashGroupDegraded",
            expr=(
                "max by (namespace, deployment) "
                f"({unavailable}}} > {_ON} group_left () (dflash:startup_budget_seconds + {SCHEDULING_S}))\n"
                f"or\nmax by (namespace, deployment) ({unavailable}}} and {_ON} {stalled}}} and {_SERVED})"
            ),
            hold="2m",
            severity="critical",
            summary=f"{DEPLOYMENT}: too few replicas have served for {{{{ $value | humanizeDuration }}}}",
            description=(
                "Fewer serve than spec.replicas - maxUnavailable, for longer than a start may take or with no hope that waiting helps."
            ),
            page="group-degraded",
            source=(
                "status.startupBudgetSeconds and the operator's 10 min for scheduling and image pull; where the operator says that a "
                "human is needed, 2 min, if it has served within the last day."
            ),
        ),
        Alert(
            name="DFlashStalled",
            expr=(
                f'{stalled},reason!~"RolledBack|Aborted|AnalysisDeadlineExceeded"}}\n'
                f'unless {_ON} dflash:rollout_phase{{phase=~"Held|RolledBack"}}'
            ),
            hold="5m",
            severity="warning",
            summary=f"{DEPLOYMENT}: nothing will get better without a human: {{{{ $labels.reason }}}}",
            description="The condition Stalled says in words what is wrong and what to do. What ran before still runs.",
            page="stalled",
            source="The operator decides; 5 min leave out what is mended at once.",
        ),
        Alert(
            name="DFlashReplicasMissing",
            expr=f'({wanted} - {serving} > 0)\nunless {_ON} dflash:rollout_phase{{phase=~"{_MOVING}"}}',
            hold="1h",
            severity="warning",
            summary=f"{DEPLOYMENT}: {{{{ $value }}}} replicas have been missing for an hour",
            description="The others serve. During a rollout one may be missing all the time.",
            page="replicas-missing",
            source="Longer than any start: the longest start-up budget of the catalog's models is some 50 min.",
        ),
        Alert(
            name="DFlashStartupBudgetNearlyUsed",
            expr=f"{used} > 0.8",
            hold="5m",
            severity="warning",
            summary=f"{DEPLOYMENT}: the slowest start took {{{{ $value | humanizePercentage }}}} of the time it may take",
            description=(
                "At the end of the budget the kubelet kills the engine and begins again, for ever. A slower disk or network is enough."
            ),
            page="startup-budget-nearly-used",
            source="80 % of status.startupBudgetSeconds, beyond the 10 min that the operator allows for scheduling and image pull.",
        ),
        Alert(
            name="DFlashSpecDrift",
            expr='dflash:notice{reason="FieldFight"}',
            hold="15m",
            severity="warning",
            summary=f"{DEPLOYMENT}: another writer keeps changing fields that the operator owns",
            description="The operator puts them back, ever less often. Meanwhile pods may be replaced to and fro.",
            page="spec-drift",
            source="A fight that ends by itself within 15 min was a deployment of something else.",
        ),
    ]
