"""Whether the block size is changed now, to what, and why not.

Gates stand in a fixed order, each with a reason of its own: what forbids any judgement first, then whether another block size is faster,
then whether a change to it pays, then whether one is allowed now. The answer is a pure function of its inputs, which it carries with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dflash_controller.api.conditions import Reason
from dflash_controller.api.defaults import speculation_of
from dflash_controller.api.speculation import Off, Schedule, Speculation
from dflash_controller.tuner.comparison import LEAST_LOAD_SAMPLES, Comparison, compare
from dflash_controller.tuner.decision import CROSSOVER, MEASURED, Change, TunerDecision, TunerInputs
from dflash_controller.tuner.inputs import DecisionInputs
from dflash_controller.tuner.learned import Learned
from dflash_controller.tuner.priors import Prior, Priors
from dflash_controller.tuner.regret import DAY_S
from dflash_controller.tuner.steps import Limits

MEASURED_PODS = 4
"""At most so many pods of a revision are asked for their metrics."""
SINGLE_LOAD_PERCENT = 15.0
"""Least gain while only one load was seen: the rest of the curve is then the usual shape, 10 % uncertain for each doubling."""
SINGLE_LOAD_REGRET = 4.0
"""Such a load that lasts is worth a trial on one replica all the same, once so many times the usual debt has been lost."""
LEAST_CONFIDENCE = 0.65
"""Chance that the other block size is faster at all."""
BACK_OFF_S = DAY_S
"""For a block size that was tried and given up; doubles each time in a row."""
MOST_MISSES = 2
INCONSISTENT = 0.5
"""Part of the load samples in the window whose load is in doubt, from which on nothing is judged by the rest."""


def decide(tuner_inputs: TunerInputs, learned: Learned, *, prior: Prior | None = None, limits: Limits | None = None) -> TunerDecision:
    """The decision at this look. ``prior``: what is usual on other targets, by default the project's; ``limits``: of the engine's
    graphs."""
    question = DecisionInputs(tuner_inputs, learned, prior or Priors.load().prior(), limits or Limits())
    return replace(judge(question), inputs=question.to_json())


def replay(inputs: Mapping[str, Any]) -> TunerDecision:
    """The decision that was made from these ``TunerDecision.inputs``. Raises KeyError, TypeError or ValueError where they are not sound."""
    question = DecisionInputs.from_json(inputs)
    return decide(question.tuner_inputs, question.learned, prior=question.prior, limits=question.limits)


def judge(question: DecisionInputs) -> TunerDecision:
    """``decide`` without the record of its inputs."""
    asked, learned = question.tuner_inputs, question.learned
    barred = _barred(asked)
    if barred is not None:
        return barred
    if learned.load_samples >= LEAST_LOAD_SAMPLES and learned.inconsistent > INCONSISTENT * learned.load_samples:
        message = f"Requests that end and steps tell two numbers of requests at once, in most of the last {asked.policy.window_s} s"
        return TunerDecision("Held", Reason.LOAD_UNCERTAIN, message)
    weighed = compare(question)
    if weighed is None:
        message = f"{learned.load_samples} stretches of traffic were measured in the last {asked.policy.window_s} s, too few to judge by"
        return TunerDecision("Learning", Reason.LEARNING, message)
    allowed_s = _allowed_at(asked)
    current = asked.speculation.max_block_size
    numbers = weighed.numbers(current)
    numbers["modelErrorPercent"] = round(100 * learned.model_error, 1)
    numbers.update({f"{MEASURED}{block}": measured for block, measured in learned.speeds})
    if weighed.crossover is not None:
        numbers[CROSSOVER] = weighed.crossover
    state = "Tuning" if asked.policy.mode == "Auto" else "Advising"
    recommendation = weighed.best if weighed.forecast.log_gain > 0 else asked.speculation

    def answer(reason: Reason, message: str, state: str = state, change_to: Speculation | None = None) -> TunerDecision:
        acted = change_to if asked.policy.mode == "Auto" else None
        return TunerDecision(state, reason, message, recommendation, acted, numbers, {}, allowed_s)

    if learned.misses >= MOST_MISSES:
        back, message = _mismatch(asked, learned, allowed_s)
        return answer(Reason.MODEL_MISMATCH, message, "Held", back)
    if recommendation == asked.speculation:
        return answer(Reason.TUNED, f"{_name(asked.speculation)} is the fastest {_at(weighed)}")
    small = _too_small(asked, weighed)
    if small:
        return answer(Reason.GAIN_TOO_SMALL, small)
    against = _forbidden(asked, weighed, allowed_s)
    if against is not None:
        return answer(*against)
    message = f"{_promise(weighed)}, and a change pays: {_payment(weighed)}"
    return answer(Reason.TUNED, message, change_to=recommendation)


def needed(serving: int) -> int:
    """Pods that must be measured to judge by, where so many replicas serve: half of those that are asked."""
    return (min(serving, MEASURED_PODS) + 1) // 2


def _barred(asked: TunerInputs) -> TunerDecision | None:
    """What forbids any judgement."""
    if asked.policy.mode == "Off":
        return TunerDecision("Off", Reason.TUNING_OFF, "spec.tuning.mode is Off")
    if asked.frozen:
        return TunerDecision("Frozen", Reason.FROZEN, f"Nothing is changed now: {asked.frozen}")
    if asked.metrics:
        return TunerDecision("Held", Reason.METRICS_MISSING, f"There are no fresh metrics: {asked.metrics}")
    if asked.leaving:
        return TunerDecision("Held", Reason.REPLICA_LEAVING, f"Nothing is changed while a replica leaves: {asked.leaving}")
    if asked.degraded:
        return TunerDecision("Held", Reason.TOO_FEW_REPLICAS, f"Nothing is changed while replicas are missing: {asked.degraded}")
    if asked.serving < asked.replicas or asked.replicas < 1:
        return TunerDecision("Held", Reason.TOO_FEW_REPLICAS, f"{asked.serving} of {asked.replicas} replicas serve")
    if asked.measured < needed(asked.serving):
        message = f"{asked.measured} pods were measured, and {needed(asked.serving)} are needed to judge by"
        return TunerDecision("Held", Reason.METRICS_MISSING, message)
    return None


def _mismatch(asked: TunerInputs, learned: Learned, allowed_s: float | None) -> tuple[Speculation | None, str]:
    """Held, and the way back where the block in force is the one that disappointed."""
    current = asked.speculation.max_block_size
    message = (
        f"After {learned.misses} changes within a day step times were not as predicted, the last time by {100 * learned.model_error:+.0f} %"
    )
    slower = learned.missed == current and learned.model_error > 0
    known = 0 < learned.past.previous <= asked.trained_block
    if not slower or not known or _takes_all_down(asked) or allowed_s is not None:
        return None, message
    back = speculation_of(learned.past.previous)
    return back, f"{message}; going back to {_name(back)}"


def _too_small(asked: TunerInputs, weighed: Comparison) -> str:
    """Why the gain is not worth a change; empty where it is."""
    forecast, least = weighed.forecast, asked.policy.min_gain_percent
    if forecast.gain_percent < least:
        return f"{_promise(weighed)}, less than the {least:g} % of spec.tuning.minGainPercent"
    lasting = weighed.cost_benefit.regret_s >= SINGLE_LOAD_REGRET * weighed.cost_benefit.needed_s > 0
    if not weighed.varied and forecast.gain_percent < SINGLE_LOAD_PERCENT and not lasting:
        return (
            f"{_promise(weighed)}, but only one load was seen so far, and then {SINGLE_LOAD_PERCENT:g} % are asked for, "
            f"or {SINGLE_LOAD_REGRET:g} times the debt needed: {_payment(weighed)}"
        )
    if forecast.confidence < LEAST_CONFIDENCE:
        return f"{_promise(weighed)}, but the chance that it is faster at all is only {forecast.confidence:.0%}"
    if not weighed.cost_benefit.pays:
        return f"{_promise(weighed)}, but a change does not pay yet: {_payment(weighed)}"
    return ""


def _forbidden(asked: TunerInputs, weighed: Comparison, allowed_s: float | None) -> tuple[Reason, str] | None:
    """What stands against a change that would pay."""
    policy, promise = asked.policy, _promise(weighed)
    if asked.changes and asked.now_s < asked.changes[-1].at_s + policy.min_dwell_s:
        age = asked.now_s - asked.changes[-1].at_s
        return Reason.DWELLING, f"{promise}, but the last change was {age:.0f} s ago and spec.tuning.minDwell is {policy.min_dwell_s} s"
    if allowed_s is not None and asked.now_s < allowed_s:
        made = len(_of_the_day(asked))
        return Reason.CHANGES_EXHAUSTED, (
            f"{promise}, but {made} changes were made in the last 24 hours and spec.tuning.maxChangesPerDay is {policy.max_changes_per_day}"
        )
    if _takes_all_down(asked):
        return Reason.DOWNTIME_NOT_ALLOWED, (
            f"{promise}, but a change would take the only replica down for about {asked.restart_s:.0f} s, "
            "and spec.tuning.allowDowntime is false"
        )
    until_s = _backs_off_until(asked.changes, weighed.best.max_block_size)
    if asked.now_s < until_s:
        wait = (until_s - asked.now_s) / 3600
        return Reason.DWELLING, f"{promise}, but it was tried and given up, and is not tried again for {wait:.1f} hours"
    return None


def _takes_all_down(asked: TunerInputs) -> bool:
    return asked.replicas == 1 and not asked.surge and not asked.policy.allow_downtime


def _of_the_day(asked: TunerInputs) -> list[Change]:
    return [change for change in asked.changes if asked.now_s - change.at_s < DAY_S]


def _allowed_at(asked: TunerInputs) -> float | None:
    """When the next change is allowed by dwell and daily count; None where it is already. With a count of 0: in a day, again and again."""
    policy, today = asked.policy, _of_the_day(asked)
    times = [asked.changes[-1].at_s + policy.min_dwell_s] if asked.changes else []
    if policy.max_changes_per_day == 0:
        times.append(asked.now_s + DAY_S)
    elif len(today) >= policy.max_changes_per_day:
        times.append(today[-policy.max_changes_per_day].at_s + DAY_S)
    latest = max(times, default=asked.now_s)
    return latest if latest > asked.now_s else None


def _backs_off_until(changes: tuple[Change, ...], block: int) -> float:
    failures = 0
    last_s = -BACK_OFF_S
    for change in changes:
        if change.block == block:
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


def _at(weighed: Comparison) -> str:
    return f"at {weighed.concurrency:.1f} requests per replica and {weighed.acceptance:.2f} tokens per verify step"


def _promise(weighed: Comparison) -> str:
    forecast = weighed.forecast
    return f"{_name(weighed.best)} is expected to give {forecast.gain_percent:.1f} % more tokens per second {_at(weighed)}"


def _payment(weighed: Comparison) -> str:
    """Seconds are of the whole fleet at full speed."""
    paid = weighed.cost_benefit
    stay = "" if paid.stay_s is None else f", and such a load is expected to stay for {paid.stay_s:.0f} s"
    needed = f" of the {paid.needed_s:.0f} s needed" if paid.needed_s else ""
    return f"it costs {weighed.switching_cost.cost_s:.0f} s of full speed, {paid.regret_s:.0f} s{needed} were lost so far{stay}"
