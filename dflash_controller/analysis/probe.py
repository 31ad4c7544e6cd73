"""Paired probe: the operator sends the same greedy prompts to one candidate pod and one reference pod.

Pairing removes the differences between prompts, which are most of the spread, so 64 prompts tell more than hundreds of users' requests. The
probe is one experiment that is evaluated once, when both runs are complete. Its bounds are Student's, not time-uniform.

The probe is small compared with traffic. It may decide a metric that traffic leaves open, but never overrules an estimate of traffic that
contradicts it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from dflash_controller.analysis.confidence import normal_deviate, student_deviate
from dflash_controller.analysis.formatting import against, percent
from dflash_controller.analysis.primary import UNSEEN, levels
from dflash_controller.analysis.verdict import AnalysisRequest, MetricVerdict, Outcome
from dflash_controller.api.gates import ACCEPTANCE, SPEED, Gate
from dflash_controller.model.counters import Answer, Evidence

TEXT = "text"
PROBE_METRICS = {ACCEPTANCE: "probeAcceptanceLength", SPEED: "probeSpeed"}
LEAST_PAIRS = 8

_Pair = tuple[Answer, Answer]


def pairs(evidence: Evidence) -> tuple[_Pair, ...] | None:
    """Returns the candidate's and the reference's answer to each prompt that both answered; None without two runs of the same prompts."""
    if evidence.probe is None or evidence.probe[0].prompts != evidence.probe[1].prompts:
        return None
    new, old = evidence.probe
    return tuple((a, b) for a, b in zip(new.answers, old.answers, strict=False) if a is not None and b is not None)


def probe(metric: str, question: AnalysisRequest, gate: Gate, paired: tuple[_Pair, ...]) -> MetricVerdict:
    """Judges acceptance length ((tokens - 1) ÷ steps) or per-token speed ((tokens - 1) ÷ seconds, at the probe's concurrency) of the pairs.

    The first token comes with the prefill of the prompt. It belongs to no verify step, and time is counted from it.

    One pod per side answers. The drafter's acceptance of given prompts does not depend on the pod, but speed does. A pass says that the
    candidate is no slower on these two pods. A failure must exceed the possible difference of two replicas of one revision (5 % each).
    """
    rows = [
        (new.tokens - 1.0, new_below, old.tokens - 1.0, old_below)
        for new, old in paired
        if (new_below := _below(metric, new)) and (old_below := _below(metric, old)) and new.tokens > 1 and old.tokens > 1
    ]
    name, count, asked = PROBE_METRICS[metric], float(len(rows)), levels(question, gate)
    if len(rows) < LEAST_PAIRS:
        text = f"{len(rows)} prompts were answered and counted by both; {LEAST_PAIRS} are needed"
        return MetricVerdict(name, Outcome.INCONCLUSIVE, text, limit=asked.limit_percent, samples=count, stable_samples=count)
    a, b, c, d = (sum(row[i] for row in rows) for i in range(4))
    difference = math.log(a / b) - math.log(c / d)
    squares = sum((row[0] / a - row[1] / b - row[2] / c + row[3] / d) ** 2 for row in rows)
    freedom = len(rows) - 1
    error = math.sqrt(squares * len(rows) / freedom)
    replicas = math.sqrt(2) * UNSEEN[SPEED] if metric == SPEED else 0.0
    down = student_deviate(normal_deviate(asked.pass_alpha), freedom) * error
    up = math.hypot(student_deviate(normal_deviate(asked.fail_alpha), freedom) * error, normal_deviate(asked.fail_alpha) * replicas)
    if difference - down > -asked.margin:
        outcome = Outcome.SUCCESSFUL
    elif difference + up < 0 and difference < asked.loss:
        outcome = Outcome.FAILED
    else:
        outcome = Outcome.INCONCLUSIVE
    values = against(a / b, c / d, "" if metric == ACCEPTANCE else " tokens/s")
    text = (
        f"{values} over {len(rows)} paired prompts ({percent(difference)}, between {percent(difference - down)} and "
        f"{percent(difference + up)}); at most {asked.limit_percent:g} % less is allowed"
    )
    return MetricVerdict(name, outcome, text, a / b, c / d, asked.limit_percent, count, count)


def same_text(question: AnalysisRequest, paired: Iterable[_Pair]) -> MetricVerdict:
    """Judges the share of prompts, in percent, that the two sides answered differently.

    A drafter must not change the text. But if two tokens are (almost) equally likely, rounding that depends on the batch decides, and two
    runs need not agree. Such a tie also shows within one engine: asked again, it gives a different answer. These prompts are left out.
    """
    comparable = [(new, old) for new, old in paired if new.repeats is not False and old.repeats is not False]
    count, limit = float(len(comparable)), question.max_mismatch_percent
    differing = sum(new.text != old.text for new, old in comparable)
    share = 100 * differing / len(comparable) if comparable else None
    words = f"{differing} of {len(comparable)} comparable prompts were answered differently; at most {limit:g} % may be"
    if len(comparable) < LEAST_PAIRS:
        outcome, words = Outcome.INCONCLUSIVE, f"{words}; at least {LEAST_PAIRS} must be comparable"
    else:
        outcome = Outcome.FAILED if share is not None and share > limit else Outcome.SUCCESSFUL
    return MetricVerdict(TEXT, outcome, words, share, None, limit, count, count, gates=question.text_gates)


def _below(metric: str, answer: Answer) -> float | None:
    return answer.steps if metric == ACCEPTANCE else answer.seconds
