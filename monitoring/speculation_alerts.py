"""Alerts on drafters, the tuner and rollouts. Pure."""

from __future__ import annotations

from dflash_controller.analysis.primary import COLLAPSED
from dflash_controller.planning.revisions.drafter_health import TELL_STEPS, limits
from monitoring.alert import DEPLOYMENT, Alert
from monitoring.rule import REVISION_INFO

_SHORT_BLOCK = 4
"""Block size from which a collapsed drafter looks the same at every longer block (``drafter_health.limits``)."""
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
                '{{ $value | printf "%.2f" }} tokens per verify step (1 means that no draft is accepted)'
            ),
            description=(
                "Answers are correct, but slower than without speculation; nothing else shows it. In spec.tuning.mode Auto the operator "
                "rolls back or switches speculation off by itself; with Advise and Off it only reports."
            ),
            page="speculation-collapsed",
            source=(
                "1.3 tokens per step and 2,000 steps are the operator's own limits (drafter_health); its rollout judges a candidate. 5 min "
                "are twice the time in which the operator detects it, so that it can act first."
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
                "The drafter works, but much worse than before: different traffic, different weights on one replica, or a changed target."
            ),
            page="acceptance-dropped",
            source=(
                "0.6 of the median of 7 days lies between a rollout's limits for another drafter: 5 % less (rolled back after the "
                "analysis) and half (at once). Different traffic alone changes acceptance by up to a half, so this is not a page."
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
                "The traffic drifts away from what the drafter was trained on. Speculation still helps; a drafter trained on current "
                "traffic would help more."
            ),
            page="acceptance-drift",
            source=(
                "A tenth less is twice what a rollout tolerates (5 %). Acceptance of single answers varies by about 20 %. 30,000 steps are "
                "about 180 answers of 300 tokens, so their mean is known to 1.5 %."
            ),
        ),
        Alert(
            name="DFlashSpeculationSlowerThanBaseline",
            expr=f"100 * (1 - {slower[1]} / {slower[0]}) > 5",
            hold="15m",
            severity="warning",
            summary=(
                f'{DEPLOYMENT}: with speculation a replica generates {{{{ $value | printf "%.0f" }}}} % fewer tokens per second than '
                "without, at the current load"
            ),
            description=(
                "Compares the measured speed of the stable revision with the tuner's prediction without speculation. The tuner predicts it "
                "only if it is nearly certain (95 %) that off is faster than any block size, or if spec.tuning.blockSizes lists 1. In "
                "spec.tuning.mode Auto it switches by itself."
            ),
            page="speculation-slower-than-baseline",
            source=("5 % is a rollout's default limit on speed. The law of step times behind the prediction is accurate to 5 to 10 %."),
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
            summary=f"{DEPLOYMENT}: the tuner has made no decision for an hour: {{{{ $labels.reason }}}}",
            description="The block size stays as it is, whatever the load. Serving is not affected.",
            page="tuner-held",
            source="An hour is twice spec.tuning.minDwell (30 min by default): a change may have become due.",
        ),
        Alert(
            name="DFlashTunerFlapping",
            expr="changes(dflash:deployment_block_size[1d]) >= 4",
            hold="0m",
            severity="warning",
            summary=f"{DEPLOYMENT}: the block size changed {{{{ $value }}}} times in a day",
            description=(
                "Each change replaces every replica (unless the engine follows a schedule). For traffic that varies so often use two "
                "deployments or a schedule."
            ),
            page="tuner-flapping",
            source="4 is the default of spec.tuning.maxChangesPerDay: no more changes are allowed that day.",
        ),
    ]


def rollouts() -> list[Alert]:
    return [
        Alert(
            name="DFlashRolloutHeld",
            expr='dflash:rollout_phase{phase="Held"}',
            hold="5m",
            severity="warning",
            summary=f"{DEPLOYMENT}: the rollout is held and waits for your decision",
            description=(
                "The analysis was inconclusive at spec.rollout.deadline, or its result needs a human: promote or abort the candidate. "
                "Or the cluster has no room for the candidate's pod: make room, or wait. No pod is replaced; all revisions serve."
            ),
            page="rollout-held",
            source="The operator decides; 5 min leave out a transient phase.",
        ),
        Alert(
            name="DFlashRolloutRolledBack",
            expr='dflash:rollout_phase{phase="RolledBack"}',
            hold="1m",
            severity="warning",
            summary=f"{DEPLOYMENT}: the last change was rolled back: it was worse or did not start",
            description=(
                "The stable revision serves instead of the one in the spec. The operator tries the change again only when the spec or "
                "spec.restartId changes."
            ),
            page="rollout-rolled-back",
            source="The operator decides. A rolled-back change of the tuner ends in phase Completed and does not fire this alert.",
        ),
        Alert(
            name="DFlashRolloutStuck",
            expr=(
                'dflash:rollout_phase{phase=~"Canary|Progressing|RollingBack"}\n'
                "unless on (namespace, deployment) max by (namespace, deployment) (changes(dflash:revision_pods[2h])) > 0"
            ),
            hold="2h",
            severity="warning",
            summary=f"{DEPLOYMENT}: no replica started or stopped for two hours in phase {{{{ $labels.phase }}}}",
            description=(
                "The rollout makes no progress: a pod cannot be scheduled, a pod does not terminate, or the operator does not write."
            ),
            page="rollout-stuck",
            source=(
                "Twice the longest start-up budget of the catalog's models (about 50 min) plus the 10 min for scheduling. Analyzing has "
                "its own deadline, Preparing may wait for a maintenance window, Paused and Held wait for a human."
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
            summary=f"{DEPLOYMENT}: {{{{ $value }}}} revisions serve although no rollout is in progress",
            description="Speed differs from pod to pod. Somebody else created or kept a pod, or a pod does not terminate.",
            page="version-skew",
            source="A terminating pod serves for at most its grace period, which is minutes.",
        ),
    ]
