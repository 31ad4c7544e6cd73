"""Whether the block size is changed now, to what, and why not.

The gates run in a fixed order, and each has a reason of its own: first whatever blocks a decision, then whether another block size is
faster, then whether it gains more than the change costs, then whether a change is allowed now. Where nothing is changed, a block size
whose gain is not known may still be worth a trial (``exploration``). The decision is a pure function of its
inputs, which it carries with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dflash_controller.api.conditions import Reason
from dflash_controller.api.defaults import speculation_of
from dflash_controller.api.speculation import Off, Schedule, Speculation
from dflash_controller.tuner.comparison import LEAST_LOAD_SAMPLES, Comparison, compare
from dflash_controller.tuner.decision import CROSSOVER, GAIN_ERROR, GAIN_MEASURED, MEASURED, Change, TunerDecision, TunerInputs
from dflash_controller.tuner.exploration import MOST_PER_DAY, TrialValue, possible_trials, trials_of_the_day, trials_of_the_week
from dflash_controller.tuner.inputs import DecisionInputs
from dflash_controller.tuner.learned import Learned
from dflash_controller.tuner.load_kind import is_measured, same_kind
from dflash_controller.tuner.priors import Prior, Priors
from dflash_controller.tuner.recommend import LEAST_CONFIDENCE
from dflash_controller.tuner.regret import DAY_S
from dflash_controller.tuner.step_times import Limits

MEASURED_PODS = 4
"""The operator reads the metrics of at most this many pods of a revision."""
SINGLE_LOAD_PERCENT = 15.0
"""Minimum gain while only one load was seen. The rest of the curve is then the prior's shape, with 10 % uncertainty per doubling."""
SINGLE_LOAD_REGRET = 4.0
"""A smaller gain still justifies a trial on one replica if the load lasts: once the regret is this many times what is usually needed."""
BACK_OFF_S = DAY_S
"""Back-off after a block size was tried and rolled back; doubles with each failure in a row."""
MOST_MISSES = 2
MOSTLY = 0.5
"""Part of the window's load samples from which the tuner names what made them unfit as the reason that it learns nothing."""
MAX_INCONSISTENT_SHARE = 0.5
"""The tuner holds when more than this share of the window's load samples have an inconsistent load."""


def decide(tuner_inputs: TunerInputs, learned: Learned, *, prior: Prior | None = None, limits: Limits | None = None) -> TunerDecision:
    """Decides what to do at this evaluation.

    ``prior`` describes other targets and defaults to the project's; ``limits`` are those of the engine's CUDA graphs.
    """
    decision_inputs = DecisionInputs(tuner_inputs, learned, prior or Priors.load().prior(), limits or Limits())
    return replace(judge(decision_inputs), inputs=decision_inputs.to_json())


def replay(inputs: Mapping[str, Any]) -> TunerDecision:
    """Repeats the decision made from these ``TunerDecision.inputs``. Raises KeyError, TypeError or ValueError if they are malformed."""
    decision_inputs = DecisionInputs.from_json(inputs)
    return decide(decision_inputs.tuner_inputs, decision_inputs.learned, prior=decision_inputs.prior, limits=decision_inputs.limits)


def judge(decision_inputs: DecisionInputs) -> TunerDecision:
    """Decides as ``decide`` does, but does not record the inputs."""
    inputs, learned = decision_inputs.tuner_inputs, decision_inputs.learned
    blocked = _blocked(inputs)
    if blocked is not None:
        return blocked
    if learned.load_samples >= LEAST_LOAD_SAMPLES and learned.inconsistent > MAX_INCONSISTENT_SHARE * learned.load_samples:
        message = (
            f"Two measurements of concurrency (Little's law and step counters) disagree in most of the last {inputs.policy.window_s} s"
        )
        return TunerDecision("Held", Reason.LOAD_UNCERTAIN, message)
    comparison = compare(decision_inputs)
    if comparison is None:
        message = _nothing_learned(learned, inputs.policy.window_s)
        return TunerDecision("Learning", Reason.LEARNING, message)
    allowed_s = _allowed_at(inputs)
    current = inputs.speculation.max_block_size
    numbers = comparison.numbers(current)
    numbers["schedule"] = inputs.no_schedule or ("may be chosen" if inputs.schedule else "is not chosen")
    numbers["modelErrorPercent"] = round(100 * learned.model_error, 1)
    numbers.update({f"{MEASURED}{block}": measured for block, measured in learned.speeds})
    for block, sigma in comparison.sigmas.items():
        numbers[f"{GAIN_ERROR}{block}"] = round(100 * sigma, 1)
        numbers[f"{GAIN_MEASURED}{block}"] = float(is_measured(learned.points, block, comparison.concurrency))
    if comparison.crossover is not None:
        numbers[CROSSOVER] = comparison.crossover
    state = "Tuning" if inputs.policy.mode == "Auto" else "Advising"
    recommendation = comparison.best if comparison.forecast.log_gain > 0 else inputs.speculation

    def answer(reason: Reason, message: str, state: str = state, change_to: Speculation | None = None) -> TunerDecision:
        acted = change_to if inputs.policy.mode == "Auto" else None
        return TunerDecision(state, reason, message, recommendation, acted, numbers, {}, allowed_s)

    if learned.misses >= MOST_MISSES:
        back, message = _model_mismatch(inputs, learned, allowed_s)
        return answer(Reason.MODEL_MISMATCH, message, "Held", back)
    trial, hindrance = _best_trial(inputs, learned, comparison, allowed_s)
    if trial is not None:
        numbers.update(trial.numbers())
    if recommendation == inputs.speculation:
        unchanged = Reason.TUNED, f"{_name(inputs.speculation)} is the fastest {_at(comparison)}"
    else:
        unchanged = Reason.GAIN_TOO_SMALL, _too_small(inputs, comparison)
    if unchanged[1]:
        if trial is None or not trial.worthwhile:
            return answer(*unchanged)
        text = _trial_text(comparison, trial)
        if hindrance:
            return answer(Reason.GAIN_UNKNOWN, f"{unchanged[1]}. {text}. None is made: {hindrance}")
        return answer(Reason.EXPLORING, text, change_to=speculation_of(trial.block))
    refusal = _not_allowed(inputs, comparison, allowed_s)
    if refusal is not None:
        return answer(*refusal)
    message = f"{_gain_text(comparison)}, which is worth a change: {_cost_text(comparison)}"
    return answer(Reason.TUNED, message, change_to=recommendation)


def _nothing_learned(learned: Learned, window_s: int) -> str:
    """Says why there is no comparison: most load samples were unfit for one reason, or there are too few."""
    whole = f"{learned.load_samples} load samples in the last {window_s} s"
    if learned.warming > MOSTLY * learned.load_samples > 0:
        return (
            f"{learned.warming} of {whole} are of engines that have served too little load so far, or met as much for the first time. They "
            "compile kernels then, so their step times are left out"
        )
    if learned.prefilling > MOSTLY * learned.load_samples > 0:
        return (
            f"{learned.prefilling} of {whole} were mostly prefill. They say little about decoding, and at such a load the block size "
            "decides over less than a third of the time"
        )
    if learned.waiting > MOSTLY * learned.load_samples > 0:
        return (
            f"In {learned.waiting} of {whole} requests waited for a slot or for memory. While they wait for memory, samples give no step "
            "times: add replicas, or see status.effectiveMaxConcurrency for what one replica serves"
        )
    return f"Not enough traffic for a decision: {whole}"


def needed(serving: int) -> int:
    """Returns the number of pods that must be measured for a decision: half of those the operator reads, rounded up."""
    return (min(serving, MEASURED_PODS) + 1) // 2


def _blocked(inputs: TunerInputs) -> TunerDecision | None:
    """Returns the decision where something blocks the tuner altogether, else None."""
    if inputs.policy.mode == "Off":
        return TunerDecision("Off", Reason.TUNING_OFF, "spec.tuning.mode is Off")
    if inputs.frozen:
        return TunerDecision("Frozen", Reason.FROZEN, f"Tuning is paused: {inputs.frozen}")
    if inputs.metrics:
        return TunerDecision("Held", Reason.METRICS_MISSING, f"No recent metrics: {inputs.metrics}")
    if inputs.leaving:
        return TunerDecision("Held", Reason.REPLICA_LEAVING, f"No change while a replica is terminating: {inputs.leaving}")
    if inputs.degraded:
        return TunerDecision("Held", Reason.TOO_FEW_REPLICAS, f"No change while replicas are missing: {inputs.degraded}")
    if inputs.serving < inputs.replicas or inputs.replicas < 1:
        return TunerDecision("Held", Reason.TOO_FEW_REPLICAS, f"Only {inputs.serving} of {inputs.replicas} replicas are ready")
    if inputs.measured < needed(inputs.serving):
        message = f"Metrics came from {inputs.measured} pods, but {needed(inputs.serving)} are needed"
        return TunerDecision("Held", Reason.METRICS_MISSING, message)
    return None


def _model_mismatch(inputs: TunerInputs, learned: Learned, allowed_s: float | None) -> tuple[Speculation | None, str]:
    """Returns the message, and the previous block size if the current one is slower than predicted and may be changed back now."""
    current = inputs.speculation.max_block_size
    message = (
        f"Step times differed from the prediction after {learned.misses} changes within a day, most recently by "
        f"{100 * learned.model_error:+.0f} %"
    )
    slower = learned.missed == current and learned.model_error > 0
    known = 0 < learned.past.previous <= inputs.trained_block
    if not slower or not known or _takes_all_down(inputs) or allowed_s is not None:
        return None, message
    back = speculation_of(learned.past.previous)
    return back, f"{message}; going back to {_name(back)}"


def _too_small(inputs: TunerInputs, comparison: Comparison) -> str:
    """Says why the gain is not worth a change; empty if it is."""
    forecast, least = comparison.forecast, inputs.policy.min_gain_percent
    if forecast.gain_percent < least:
        return f"{_gain_text(comparison)}, less than the {least:g} % of spec.tuning.minGainPercent"
    lasting = comparison.cost_benefit.regret_s >= SINGLE_LOAD_REGRET * comparison.cost_benefit.needed_s > 0
    if not comparison.varied and forecast.gain_percent < SINGLE_LOAD_PERCENT and not lasting:
        return (
            f"{_gain_text(comparison)}, but only one load was seen so far, which requires {SINGLE_LOAD_PERCENT:g} % "
            f"or a loss so far of {SINGLE_LOAD_REGRET:g} times what is usually required: {_cost_text(comparison)}"
        )
    if forecast.confidence < LEAST_CONFIDENCE:
        return f"{_gain_text(comparison)}, but with only {forecast.confidence:.0%} confidence that it is faster"
    if not comparison.cost_benefit.worthwhile:
        return f"{_gain_text(comparison)}, but that does not justify a change yet: {_cost_text(comparison)}"
    return ""


def _not_allowed(inputs: TunerInputs, comparison: Comparison, allowed_s: float | None) -> tuple[Reason, str] | None:
    """Returns the reason and message why a worthwhile change is not allowed now; None if it is."""
    policy, gain = inputs.policy, _gain_text(comparison)
    if inputs.changes and inputs.now_s < inputs.changes[-1].at_s + policy.min_dwell_s:
        age = inputs.now_s - inputs.changes[-1].at_s
        return Reason.DWELLING, f"{gain}, but the last change was {age:.0f} s ago and spec.tuning.minDwell is {policy.min_dwell_s} s"
    if allowed_s is not None and inputs.now_s < allowed_s:
        made = len(_of_the_day(inputs))
        return Reason.CHANGES_EXHAUSTED, (
            f"{gain}, but {made} changes were made in the last 24 hours and spec.tuning.maxChangesPerDay is {policy.max_changes_per_day}"
        )
    if _takes_all_down(inputs):
        return Reason.DOWNTIME_NOT_ALLOWED, (
            f"{gain}, but a change would take the only replica down for about {inputs.restart_s:.0f} s, "
            "and spec.tuning.allowDowntime is false"
        )
    until_s = _backs_off_until(inputs.changes, comparison.best.max_block_size, comparison.concurrency)
    if inputs.now_s < until_s:
        wait = (until_s - inputs.now_s) / 3600
        return Reason.DWELLING, f"{gain}, but it was tried and rolled back; the next attempt is possible in {wait:.1f} hours"
    return None


def _best_trial(inputs: TunerInputs, learned: Learned, comparison: Comparison, allowed_s: float | None) -> tuple[TrialValue | None, str]:
    """Returns the worthwhile trial that is worth most of those that may be made, and ''; else the best one, and why it is not made."""
    found = [(trial, _no_trial(inputs, comparison, trial, allowed_s)) for trial in possible_trials(inputs, learned, comparison)]
    free = next(((trial, hindrance) for trial, hindrance in found if trial.worthwhile and not hindrance), None)
    return free or (found[0] if found else (None, ""))


def _no_trial(inputs: TunerInputs, comparison: Comparison, trial: TrialValue, allowed_s: float | None) -> str:
    """Returns why no exploratory trial is made now although it would be worthwhile; empty if one may be made."""
    policy = inputs.policy
    if policy.mode != "Auto":
        return f"spec.tuning.mode is {policy.mode}"
    if not policy.exploration:
        return "spec.tuning.exploration.enabled is false"
    if inputs.replicas == 1 and not inputs.surge:
        return "the only replica would be on trial; add a replica, or surge"
    made = trials_of_the_week(inputs.changes, inputs.now_s, trial.block, comparison.concurrency)
    if len(made) >= policy.max_trials_per_week:
        most = policy.max_trials_per_week
        return f"{len(made)} were made at such load in seven days, and spec.tuning.exploration.maxTrialsPerWeek is {most}"
    if len(trials_of_the_day(inputs.changes, inputs.now_s)) >= MOST_PER_DAY:
        return f"{MOST_PER_DAY} were made in the last 24 hours"
    if allowed_s is not None:
        return "spec.tuning.minDwell and maxChangesPerDay allow no change now"
    until_s = _backs_off_until(inputs.changes, trial.block, comparison.concurrency)
    if inputs.now_s < until_s:
        return f"its last trial failed; the next attempt is possible in {(until_s - inputs.now_s) / 3600:.1f} hours"
    return ""


def _takes_all_down(inputs: TunerInputs) -> bool:
    return inputs.replicas == 1 and not inputs.surge and not inputs.policy.allow_downtime


def _of_the_day(inputs: TunerInputs) -> list[Change]:
    """Returns the changes that count for maxChangesPerDay. An exploratory trial that was refused has limits of its own."""
    today = (change for change in inputs.changes if inputs.now_s - change.at_s < DAY_S)
    return [change for change in today if not (change.exploratory and change.refused)]


def _allowed_at(inputs: TunerInputs) -> float | None:
    """Returns when minDwell and maxChangesPerDay allow the next change; None if they allow one now.

    With maxChangesPerDay 0 it is always a day away.
    """
    policy, today = inputs.policy, _of_the_day(inputs)
    times = [inputs.changes[-1].at_s + policy.min_dwell_s] if inputs.changes else []
    if policy.max_changes_per_day == 0:
        times.append(inputs.now_s + DAY_S)
    elif len(today) >= policy.max_changes_per_day:
        times.append(today[-policy.max_changes_per_day].at_s + DAY_S)
    latest = max(times, default=inputs.now_s)
    return latest if latest > inputs.now_s else None


def _backs_off_until(changes: tuple[Change, ...], block: int, concurrency: float) -> float:
    """Returns when a block size may be tried again after failed trials of it.

    One that was measured and not fast enough says nothing against other loads: the measurement is in the curves, which predict them anew.
    An exploratory trial promised nothing, so that it cannot disappoint.
    """
    failures = 0
    last_s = -BACK_OFF_S
    for change in changes:
        elsewhere = change.load > 0 and not same_kind(change.load, concurrency)
        if change.block == block and not (change.refused and (change.exploratory or elsewhere)):
            failures, last_s = (0, last_s) if change.kept else (failures + 1, change.at_s)
    return last_s + BACK_OFF_S * 2 ** (failures - 1) if failures else -BACK_OFF_S


def _name(speculation: Speculation) -> str:
    match speculation:
        case Off():
            return "speculation off"
        case Schedule():
            return "the schedule up to block " + str(speculation.max_block_size)
        case _:
            return f"block {speculation.max_block_size}"


def _at(comparison: Comparison) -> str:
    return f"at {comparison.concurrency:.1f} requests per replica and {comparison.acceptance:.2f} tokens per verify step"


def _gain_text(comparison: Comparison) -> str:
    forecast = comparison.forecast
    return f"{_name(comparison.best)} is expected to give {forecast.gain_percent:.1f} % more tokens per second {_at(comparison)}"


def _trial_text(comparison: Comparison, trial: TrialValue) -> str:
    """Describes what is not known, and what a trial of it is expected to bring and to cost."""
    gain, sigma = 100 * math.expm1(comparison.gains[trial.block]), 100 * comparison.sigmas[trial.block]
    return (
        f"The gain of {_name(speculation_of(trial.block))} is not known {_at(comparison)}: {gain:+.1f} % is inferred, with an error of "
        f"{sigma:.0f} %. A trial on one replica would cost {trial.cost_s:.0f} s of full speed and is expected to gain "
        f"{trial.value_s:.0f} s over the {trial.lasting_s / 3600:.1f} hours that such load is expected to last"
    )


def _cost_text(comparison: Comparison) -> str:
    """Describes cost and regret in seconds of the whole fleet at full speed."""
    benefit = comparison.cost_benefit
    stay = "" if benefit.stay_s is None else f"; this load is expected to last {benefit.stay_s:.0f} s"
    needed = f" of the {benefit.needed_s:.0f} s required" if benefit.needed_s else ""
    cost_s = comparison.switching_cost.cost_s
    return f"switching costs {cost_s:.0f} s of full speed, and not switching has cost {benefit.regret_s:.0f} s so far{needed}{stay}"
