"""Alerts on the conditions that the operator sets on a deployment. Pure."""

from __future__ import annotations

from dflash_controller.render.startup import SCHEDULING_S
from monitoring.alert import DEPLOYMENT, Alert

_AGE = "dflash:condition_seconds"
_ON = "on (namespace, deployment)"
_SERVED = f"{_ON} max_over_time(dflash:replicas_serving[1d]) > 0"
_MOVING = "Preparing|Canary|Analyzing|Progressing|RollingBack"


def conditions() -> list[Alert]:
    unavailable, stalled = (f'{_AGE}{{type="{type}",status="{status}"' for type, status in (("Available", "False"), ("Stalled", "True")))
    desired, serving = (f"max by (namespace, deployment) (dflash:replicas_{what})" for what in ("desired", "serving"))
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
            summary=f"{DEPLOYMENT}: too few ready replicas for {{{{ $value | humanizeDuration }}}}",
            description=(
                "Fewer than spec.replicas - spec.rollout.maxUnavailable replicas are ready, for longer than a start may take, or the "
                "condition Stalled says that waiting does not help."
            ),
            page="group-degraded",
            source=(
                "status.startupBudgetSeconds and the operator's 10 min for scheduling and image pull; with condition Stalled, 2 min, if "
                "the deployment had ready replicas within the last day."
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
            summary=f"{DEPLOYMENT}: stalled, needs your action: {{{{ $labels.reason }}}}",
            description="The message of the condition Stalled says what is wrong and what to do. The pods that ran before still run.",
            page="stalled",
            source="The operator decides; 5 min leave out what is fixed at once.",
        ),
        Alert(
            name="DFlashReplicasMissing",
            expr=f'({desired} - {serving} > 0)\nunless {_ON} dflash:rollout_phase{{phase=~"{_MOVING}"}}',
            hold="1h",
            severity="warning",
            summary=f"{DEPLOYMENT}: replicas missing for an hour: {{{{ $value }}}}",
            description="The other replicas serve. Rollouts do not count, because one replica may be missing throughout.",
            page="replicas-missing",
            source="Longer than any start: the longest start-up budget of the catalog's models is some 50 min.",
        ),
        Alert(
            name="DFlashStartupBudgetNearlyUsed",
            expr=f"{used} > 0.8",
            hold="5m",
            severity="warning",
            summary=f"{DEPLOYMENT}: the slowest start used {{{{ $value | humanizePercentage }}}} of its start-up budget",
            description=(
                "When the budget is exceeded, the kubelet restarts the engine, again and again. A slower disk or network is enough."
            ),
            page="startup-budget-nearly-used",
            source="80 % of status.startupBudgetSeconds, beyond the 10 min that the operator allows for scheduling and image pull.",
        ),
        Alert(
            name="DFlashSpecDrift",
            expr='dflash:notice{reason="FieldFight"}',
            hold="15m",
            severity="warning",
            summary=f"{DEPLOYMENT}: another field manager keeps changing fields that the operator owns",
            description="The operator resets them with growing delays. Until the conflict ends, pods may be replaced repeatedly.",
            page="spec-drift",
            source="A conflict that ends within 15 min was a rollout of the other tool.",
        ),
    ]
