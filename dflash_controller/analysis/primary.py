"""The two primary metrics that judge a drafter, from users' traffic: acceptance length and speed.

*Acceptance length* is tokens committed ÷ verify steps, pooled from counters over the whole trial.

*Speed* is tokens per second of one request, committed ÷ decode seconds, at an equal batch. With equal block sizes an equal batch c means an
equal number T = B·c of tokens verified per step. The quotient of speeds is then the quotient of acceptance lengths ÷ that of step times at
equal T. With different block sizes it is the speed a user sees at the same load. A candidate that accepts less keeps its requests longer
and so has a larger batch. Without the normalisation this would count against it twice.

A metric passes once it is 90 % sure that the candidate is worse by less than the limit. It fails once it is 99 % sure (99.5 % if both
metrics gate) that the candidate is worse at all and the estimate shows that the loss matters. The bounds are time-uniform, so both may be
evaluated at every reading.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dflash_controller.analysis.blocks import LEAST_BLOCKS, Counts, Side, Traffic
from dflash_controller.analysis.confidence import deadline_radius, lasting_radius, radius
from dflash_controller.analysis.effect_size import Batch, EffectSize, effect_size
from dflash_controller.analysis.formatting import against, percent
from dflash_controller.analysis.verdict import AnalysisRequest, MetricVerdict, Outcome
from dflash_controller.api.gates import ACCEPTANCE, PRIMARY, SPEED, Gate
from dflash_controller.model.prediction import Prediction

PASS_ALPHA, FAIL_ALPHA = 0.10, 0.01
"""Probability that a candidate at the limit is promoted, and that an equal one fails, over all gating primary metrics together.

One metric is enough to fail, so the probability of failing is split over the gating metrics. All of them must pass to promote, so each may
use the full level (intersection-union test, Berger 1982): a candidate at the limit in one metric must still pass that one.
"""
PASS_MIXTURE, PASS_DEADLINE, FAIL_MIXTURE = 0.07, 0.07, 1.5
"""Levels of the bounds with which a rollout that has a deadline keeps ``PASS_ALPHA`` and ``FAIL_ALPHA``. The last multiplies the latter.

The normal mixture is made for endless evaluations. While information grows at most 600-fold, as from the first evaluation to a deadline, it
is exceeded in about half as many cases as its level says. Either bound may promote; in simulation both together are exceeded in at most
10 %. The bound for the deadline decides what dependent requests leave open for long.
"""
BEFORE_AFTER_LIMIT = 10.0
"""Minimum limit in percent if candidate and stable do not serve at the same time, because traffic itself changes in between."""
FAIL_MARGIN = 3.0
LEAST_LOSS = 2.0
"""Percent. A candidate may fail only if its estimated loss exceeds the limit less ``FAIL_MARGIN`` (2 % at the default limit of 5 %) and
exceeds ``LEAST_LOSS``."""
UNSEEN = {ACCEPTANCE: 0.03, SPEED: 0.05}
"""Standard deviation of the logarithm between replicas of one revision, used if only one replica can be measured."""
PASS_TIGHTEST, FAIL_TIGHTEST = 0.3, 0.6
"""Standard error, in limits, at which the bounds cost least. An equal candidate passes once about 3 standard errors fit into the limit. One
that is two limits worse fails once about 3.3 fit into its loss."""
COLLAPSED = 1.3
COLLAPSE_REQUESTS = 20
COLLAPSE_SHARE = 0.5
NO_WORSE = 0.95
"""Ratio to stable from which a candidate that accepts nothing does not fail. If stable accepts as little, the cause is the traffic, or
stable is the revision to replace."""


@dataclass(frozen=True, slots=True)
class PrimaryResult:
    """The result of users' traffic for one primary metric."""

    verdict: MetricVerdict
    contradicts: bool = False
    """The estimate is worse than the limit on enough samples. A better result elsewhere does not overrule it."""
    biased: bool = False
    """Replicas of one revision differ too much for the limit, so more samples will not decide it."""


@dataclass(frozen=True, slots=True)
class Levels:
    """What a gate requires of a difference, as logarithms."""

    limit_percent: float
    pass_alpha: float
    fail_alpha: float
    deadline_s: float | None = None
    """Seconds of traffic after which the rollout ends; None if it is not known, or if the two sides do not serve at the same time."""

    def below(self, found: EffectSize, elapsed_s: float) -> tuple[float, float]:
        """Returns the distances to the lower bound, with and without the one for the deadline."""
        at = math.sqrt(found.variance), found.freedom
        level = self.pass_alpha if self.deadline_s is None else PASS_MIXTURE
        always = radius(*at, PASS_TIGHTEST * max(self.margin, 1e-3), level, found.bias, self.pass_alpha)
        if self.deadline_s is None:
            return always, always
        return min(always, deadline_radius(*at, PASS_DEADLINE, elapsed_s, self.deadline_s, found.bias, self.pass_alpha)), always

    def above(self, found: EffectSize) -> float:
        """Returns the distance to the upper bound."""
        level = self.fail_alpha * (1.0 if self.deadline_s is None else FAIL_MIXTURE)
        tightest_at = FAIL_TIGHTEST * max(self.margin, 1e-3)
        return radius(math.sqrt(found.variance), found.freedom, tightest_at, level, found.bias, self.fail_alpha)

    @property
    def margin(self) -> float:
        return -math.log1p(-min(self.limit_percent, 99.0) / 100)

    @property
    def loss(self) -> float:
        """Returns the estimate below which a candidate may fail."""
        return math.log1p(-min(max(LEAST_LOSS, self.limit_percent - FAIL_MARGIN), 99.0) / 100)


def levels(question: AnalysisRequest, gate: Gate) -> Levels:
    """Returns the limit and the error probabilities of one primary metric. The probability of failing is split over the gating metrics."""
    among = max(1, sum(metric in question.gates for metric in PRIMARY))
    limit = gate.limit if question.concurrent else max(gate.limit, BEFORE_AFTER_LIMIT)
    return Levels(limit, PASS_ALPHA, FAIL_ALPHA / among, question.deadline_s if question.concurrent else None)


def primary(metric: str, question: AnalysisRequest, traffic: Traffic, differs: str | None) -> PrimaryResult | None:
    """Returns the result of one metric; None if there is nothing to show (acceptance length of a side that drafts nothing).

    A metric without a gate is shown and decides nothing. ``differs`` says how the requests of the two sides differ, if they do.
    """
    if metric == ACCEPTANCE and min(question.candidate_block, question.stable_block) <= 1:
        return None
    found = _contrast(metric, traffic)
    new, old = _value(metric, traffic.candidate), _value(metric, traffic.stable)
    if metric == SPEED and found is not None and old is not None:
        new = old * math.exp(found.difference)
    gate = question.gates.get(metric)
    samples, stable_samples = traffic.candidate.total("steps"), traffic.stable.total("steps")

    def verdict(outcome: Outcome, message: str) -> MetricVerdict:
        limit = levels(question, gate).limit_percent if gate else None
        return MetricVerdict(metric, outcome, message, new, old, limit, samples, stable_samples, gates=gate is not None)

    unit = "" if metric == ACCEPTANCE else " tokens/s per request"
    values = against(new, old, unit) + ("" if question.concurrent else " before/after")
    missing = _missing(traffic, metric)
    if missing:
        return PrimaryResult(verdict(Outcome.INCONCLUSIVE, missing))
    if gate is None:
        return PrimaryResult(verdict(Outcome.INCONCLUSIVE, f"{values}; does not decide this change"))
    if differs:
        return PrimaryResult(verdict(Outcome.INCONCLUSIVE, f"{values}; not comparable: {differs}"))
    enough = min(samples or 0.0, stable_samples or 0.0) >= gate.min_samples
    if not enough or found is None:
        need = f"{gate.min_samples} steps" if not enough else f"{LEAST_BLOCKS} blocks of requests"
        return PrimaryResult(verdict(Outcome.INCONCLUSIVE, f"{values}; fewer than {need} on one side so far"))
    asked = levels(question, gate)
    outcome, biased, sure = _judge(found, asked, _elapsed_s(traffic))
    how = _passes_note(metric, traffic)
    if metric == SPEED and question.promise is not None and question.promise.asks:
        outcome, biased = _held_against(question.promise, found, asked, outcome, biased=biased)
        predicted = "its gain was not known" if question.promise.exploratory else f"{percent(question.promise.gain)} was predicted"
        how += f"; {predicted}, and {percent(question.promise.least)} is asked for"
    message = f"{values} ({percent(found.difference)}, {sure}); at most {asked.limit_percent:g} % less is allowed{how}"
    return PrimaryResult(verdict(outcome, message), contradicts=found.difference < -asked.margin, biased=biased)


def _judge(found: EffectSize, asked: Levels, elapsed_s: float) -> tuple[Outcome, bool, str]:
    """Returns the outcome, whether replicas differ too much for any decision, and the certainty in words.

    Passing takes precedence: the limit is the worst value the user accepts.
    """
    x = found.difference
    down, always = asked.below(found, elapsed_s)
    up = asked.above(found)
    if x - down > -asked.margin:
        return Outcome.SUCCESSFUL, False, f"{_sure(asked.pass_alpha)} above {percent(-asked.margin)}"
    if x + up < 0 and x < asked.loss:
        return Outcome.FAILED, False, f"{_sure(asked.fail_alpha)} below 0"
    stays = lasting_radius(asked.pass_alpha, found.bias_at_least)
    sampling = math.sqrt(max(0.0, always * always - lasting_radius(asked.pass_alpha, found.bias) ** 2))
    undecidable = stays > asked.margin and x - stays < -asked.margin and sampling < stays
    if undecidable:
        return Outcome.INCONCLUSIVE, True, f"replicas of one revision differ by {100 * found.bias_at_least:.0f} %, too much for a verdict"
    return Outcome.INCONCLUSIVE, False, f"between {percent(x - down)} and {percent(x + up)}"


def _held_against(promise: Prediction, found: EffectSize, asked: Levels, outcome: Outcome, *, biased: bool) -> tuple[Outcome, bool]:
    """Returns the outcome of a candidate that must be faster, and whether replicas differ too much for any decision.

    It fails if it is surely not fast enough. It passes if it is surely no worse than the limit and its estimate is fast enough: certainty
    about a few percent takes longer than a load lasts. If replicas may differ by as much, the prediction is a second source, and an
    estimate that agrees with it is enough. After the promotion the step times of all replicas are compared with the prediction. An
    exploratory trial has no second source.
    """
    if found.difference + asked.above(found) < promise.least:
        return Outcome.FAILED, False
    if found.difference < promise.least:
        return (Outcome.INCONCLUSIVE if outcome is Outcome.SUCCESSFUL else outcome), biased
    return (outcome, biased) if promise.exploratory else ((Outcome.SUCCESSFUL if biased else outcome), False)


def collapse(question: AnalysisRequest, traffic: Traffic) -> MetricVerdict | None:
    """Fails a candidate early if it accepts (almost) nothing, or less than half of stable's at the same block size, after 20 requests."""
    if question.candidate_block <= 1:
        return None
    requests, new = traffic.candidate.total("requests"), _value(ACCEPTANCE, traffic.candidate)
    if requests is None or requests < COLLAPSE_REQUESTS or new is None:
        return None
    shown = _value(ACCEPTANCE, traffic.stable)
    old = shown if (traffic.stable.total("requests") or 0) >= COLLAPSE_REQUESTS else None
    halved = ACCEPTANCE in question.gates and old is not None and new < COLLAPSE_SHARE * old
    collapsed = new < COLLAPSED and not (old is not None and question.stable_block > 1 and old < COLLAPSED and new >= NO_WORSE * old)
    if not halved and not collapsed:
        return None
    limit = COLLAPSED if collapsed else COLLAPSE_SHARE * (old or 0.0)
    text = f"{against(new, shown)} over {requests:.0f} requests; below {limit:.3g} the drafter has collapsed"
    steps = traffic.candidate.total("steps"), traffic.stable.total("steps")
    return MetricVerdict(ACCEPTANCE, Outcome.FAILED, text, new, shown, limit, *steps)


def _contrast(metric: str, traffic: Traffic) -> EffectSize | None:
    if metric == ACCEPTANCE:
        return effect_size(traffic.candidate, traffic.stable, _committed, _steps, UNSEEN[metric])
    by_passes = _has_passes(traffic)
    batch = Batch(_batch_by_passes if by_passes else _batch_by_time, _steps)
    return effect_size(traffic.candidate, traffic.stable, _committed, _decode_seconds, UNSEEN[metric], batch)


def _elapsed_s(traffic: Traffic) -> float:
    return (traffic.end_s or 0.0) - (traffic.start_s or 0.0)


def _value(metric: str, side: Side) -> float | None:
    above, below = side.total("committed"), side.total("steps" if metric == ACCEPTANCE else "decode_seconds")
    return above / below if above is not None and below else None


def _missing(traffic: Traffic, metric: str) -> str | None:
    for name, side in (("candidate", traffic.candidate), ("stable", traffic.stable)):
        if not side.load_samples:
            return f"no reading of the {name} yet" if name == "stable" else "no measurement of the candidate after its warm-up yet"
        for quantity in ("committed", "steps", *(("decode_seconds",) if metric == SPEED else ())):
            if side.total(quantity) is None:
                return f"the {name} does not export {quantity.replace('_', ' ')}"
    return None


def _has_passes(traffic: Traffic) -> bool:
    return all(side.total("passes") for side in (traffic.candidate, traffic.stable))


def _passes_note(metric: str, traffic: Traffic) -> str:
    return "" if metric == ACCEPTANCE or _has_passes(traffic) else "; batch estimated from decode time, as passes are not exported"


def _committed(block: Counts) -> float | None:
    return block.committed


def _steps(block: Counts) -> float | None:
    return block.steps


def _decode_seconds(block: Counts) -> float | None:
    return block.decode_seconds


def _batch_by_passes(block: Counts) -> float | None:
    """Returns the log of the mean batch, requests per decode pass; at least one request."""
    return math.log(max(1.0, block.steps / block.passes)) if block.steps and block.passes else None


def _batch_by_time(block: Counts) -> float | None:
    """Returns the log of the mean batch while it is not empty. With a mean of c independent requests that batch is c ÷ (1 − e^−c)."""
    if not block.decode_seconds or block.seconds <= 0:
        return None
    mean = block.decode_seconds / block.seconds
    return math.log(mean / -math.expm1(-mean))


def _sure(alpha: float) -> str:
    return f"{100 * (1 - alpha):.3g} % sure"
