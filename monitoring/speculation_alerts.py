"""Alerts on drafters, the tuner and rollouts. Pure."""

from __future__ import annotations

from dflash_controller.analysis.primary import COLLAPSED
from dflash_controller.planning.revisions.drafter_health import TELL_STEPS, limits
from monitoring.alert import DEPLOYMENT, Alert
from monitoring.rule import REVISION_INFO

_SHORT_BLOCK = 4
"""From here on a collapsed drafter shows as at any longer block (``speculation_health.limits``)."""
_BUSY = f"300 * avg_over_time(dflash:revision_steps:rate2m[5m]) >= {TELL_STEPS}"
_NO_CANDIDATE = f'unless on (namespace, deployment, revision) {REVISION_INFO}{{role="candidate"}}'
_STABLE = (
    f'on (namespace, deployment, revision) group_left () group by (namespace, deployment, revision) ({REVISION_INFO}{{role="stable"}})'
)
_SETTLED = "Completed|Superseded|RolledBack|None"
_DAY_STEPS = 30_000


def speculation() -> list[Alert]:
    length = "dflash:revision_acceptance_length"
    slower = (
        'max by (namespace, deployment) (dflash:tuner_predicted_tokens_per_second{block_size="1"})',
        f'max by (namespace, deployment) (dflash:revision_replica_speed{{block_size!="off"}} * {_STABLE})',
    )
    return [
        Alert(
            name="DFlashAcceptanceCollapsed",
            expr=(
                f"(({length} < {COLLAPSED} and dflash:revision_block_size >= {_SHORT_BLOCK}) or {length} < {limits(2)[0]:.2f})\n"
                f"and {_BUSY}\n{_NO_CANDIDATE}"
            ),
            hold="5m",
            severity="critical",
            summary=(
                f"{DEPLOYMENT}: the drafter of {{{{ $labels.revision }}}} has collapsed: "
                '{{ $value | printf "%.2f" }} tokens per verify step (1 is no draft accepted)'
            ),
            description=(
                "Answers are right and slower than without speculation; nothing else shows it. In tuning mode Auto the operator goes "
                "back or switches speculation off by itself; Advise and Off only tell."
            ),
            page="speculation-collapsed",
            source=(
                "1.3 tokens per step and 2,000 steps are the operator's own limits (planning.speculation_health); a candidate is its "
                "rollout's business. 5 min: twice what the operator takes to name it, so that it can act first."
            ),
        ),
        Alert(
            name="DFlashAcceptanceDropped",
            expr=f"{length} < 0.6 * {length}:median7d\nand {_BUSY}\nand max_over_time(dflash:revision_pods[1d] offset 1d)\n{_NO_CANDIDATE}",
            hold="15m",
            severity="warning",
            summary=(
                f'{DEPLOYMENT}: {{{{ $labels.revision }}}} accepts {{{{ $value | printf "%.2f" }}}} tokens per verify step, '
                "less than 60 % of its week's median"
            ),
            description=(
                "The drafter works, and much worse than it did: other traffic, other weights on one replica, or a change of the target."
            ),
            page="acceptance-dropped",
            source=(
                "0.6 of the median of 7 days: between a rollout's limits for another drafter, 5 % less (given up after proof) and half "
                "(at once); traffic of another kind alone changes acceptance by up to a half, so this is no reason to wake anybody."
            ),
        ),
        Alert(
            name="DFlashAcceptanceDrift",
            expr=(
                f"({length}:mean1d / {length}:mean7d < 0.9)\n"
                f"and 86400 * avg_over_time(dflash:revision_steps:rate2m[1d]) >= {_DAY_STEPS}\n"
                f"and max_over_time(dflash:revision_pods[1d] offset 3d)\n{_NO_CANDIDATE}"
            ),
            hold="1h",
            severity="warning",
            summary=(
                f"{DEPLOYMENT}: acceptance of {{{{ $labels.revision }}}} over the last day is {{{{ $value | humanizePercentage }}}} of "
                "the week's"
            ),
            description=(
                "The traffic moves away from what the drafter was trained on. It still pays; a drafter trained on today's traffic would "
                "pay more."
            ),
            page="acceptance-drift",
            source=(
                "A tenth less: twice what a rollout forgives (5 %). Lengths of single answers scatter by some 20 %, so the mean of the "
                "180 answers of 300 tokens that 30,000 steps are is known to 1.5 %."
            ),
        ),
        Alert(
            name="DFlashSpeculationSlowerThanBaseline",
            expr=f"100 * (1 - {slower[1]} / {slower[0]}) > 5",
            hold="15m",
            severity="warning",
            summary=(
                f'{DEPLOYMENT}: with speculation a replica makes {{{{ $value | printf "%.0f" }}}} % fewer tokens per second than '
                "without, at the load of now"
            ),
            description=(
                "Measured speed of the stable revision against what the tuner predicts without speculation. It predicts that only where "
                "it is nearly certain (95 %) that off is faster than any block, or where spec.tuning.blockSizes lists 1. In mode Auto it "
                "switches by itself."
            ),
            page="speculation-slower-than-baseline",
            source=(
                "5 % is the default limit on speed of a rollout; the law of step times that the prediction rests on is good to 5 to 10 %."
            ),
        ),
    ]


def tuner() -> list[Alert]:
    return [
        Alert(
            name="DFlashTunerHeld",
            expr=(
                'max by (namespace, deployment, reason) (dflash:tuner_state{state="Held"})\nand on (namespace, deployment) '
                "dflash:deployment_pods > 0"
            ),
            hold="1h",
            severity="info",
            summary=f"{DEPLOYMENT}: the tuner has been held for an hour: {{{{ $labels.reason }}}}",
            description="The block size in force stays, whatever the load. Serving is not affected.",
            page="tuner-held",
            source="An hour is twice spec.tuning.minDwell (30 min by default): a change may have been due since.",
        ),
        Alert(
            name="DFlashTunerFlapping",
            expr="changes(dflash:deployment_block_size[1d]) >= 4",
            hold="0m",
            severity="warning",
            summary=f"{DEPLOYMENT}: the block size in force changed {{{{ $value }}}} times in a day",
            description=(
                "Each change replaces every replica (unless the engine follows a schedule of its own). Traffic that swings so often is "
                "better served by two deployments, or by a schedule."
            ),
            page="tuner-flapping",
            source="4 is the default of spec.tuning.maxChangesPerDay: the day's allowance is used up.",
        ),
    ]


def rollouts() -> list[Alert]:
    return [
        Alert(
            name="DFlashRolloutHeld",
            expr='dflash:rollout_phase{phase="Held"}',
            hold="5m",
            severity="warning",
            summary=f"{DEPLOYMENT}: a rollout is held and waits for you",
            description=(
                "Neither the probe nor the traffic gave a verdict by the deadline, or the verdict needs a human. Nothing moves; "
                "everything serves."
            ),
            page="rollout-held",
            source="The operator decides; 5 min leave out a phase that is passed through.",
        ),
        Alert(
            name="DFlashRolloutRolledBack",
            expr='dflash:rollout_phase{phase="RolledBack"}',
            hold="1m",
            severity="warning",
            summary=f"{DEPLOYMENT}: the last change was worse, or did not start, and is undone",
            description=(
                "The stable revision serves, and not what the spec asks for. The change is not tried again until the spec or "
                "spec.restartId changes."
            ),
            page="rollout-rolled-back",
            source="The operator decides. A change of the tuner's that was given up ends in phase Completed and does not show here.",
        ),
        Alert(
            name="DFlashRolloutStuck",
            expr=(
                'dflash:rollout_phase{phase=~"Canary|Progressing|RollingBack"}\n'
                "unless on (namespace, deployment) max by (namespace, deployment) (changes(dflash:revision_pods[2h])) > 0"
            ),
            hold="2h",
            severity="warning",
            summary=f"{DEPLOYMENT}: no replica came or went for two hours in phase {{{{ $labels.phase }}}}",
            description=(
                "A rollout that should move does not: no place for a pod, a pod that does not end, or an operator that does not write."
            ),
            page="rollout-stuck",
            source=(
                "Twice the longest start-up budget that the catalog's models have (some 50 min) and the 10 min for scheduling. Analyzing "
                "has a deadline of its own, Preparing may wait for a change window, Paused and Held for a human."
            ),
        ),
        Alert(
            name="DFlashVersionSkew",
            expr=(
                "(count by (namespace, deployment) (dflash:revision_pods) > 1)\nand on (namespace, deployment) "
                f'dflash:rollout_phase{{phase=~"{_SETTLED}"}}'
            ),
            hold="30m",
            severity="warning",
            summary=f"{DEPLOYMENT}: {{{{ $value }}}} revisions serve although no rollout is under way",
            description="Users get other speed from one pod than from the next. A pod was made or kept by somebody else, or does not end.",
            page="version-skew",
            source="A pod that ends serves for its grace period at most, which is minutes.",
        ),
    ]
