"""Where in the block a candidate's drafts are rejected: shown beside the verdicts, it tells a broken drafter from a merely worse one."""

from __future__ import annotations

from dflash_controller.analysis.blocks import Side, Traffic
from dflash_controller.analysis.formatting import figure
from dflash_controller.analysis.verdict import MetricVerdict, Outcome, Question

METRIC = "acceptanceByPosition"


def by_position(question: Question, counted: Traffic, limit_percent: float) -> MetricVerdict | None:
    """Share of drafts still accepted at a position, candidate against stable, at the first position that falls short by the limit.

    Where none does it is the last position. None where the blocks differ, or an engine does not export it (SGLang). It decides nothing:
    the positions of one block rise and fall together, and acceptance length is their sum.
    """
    if question.candidate_block != question.stable_block:
        return None
    tried, before = _survival(counted.candidate), _survival(counted.stable)
    if tried is None or before is None or not tried or len(tried) != len(before):
        return None
    short = [number for number, (a, b) in enumerate(zip(tried, before, strict=True)) if a < b * (1 - limit_percent / 100)]
    at = short[0] if short else len(tried) - 1
    found = f"position {at + 1} of {len(tried)}: {figure(tried[at])} against {figure(before[at])} of drafts accepted"
    words = f"falls behind from {found}" if short else f"keeps up at every position; {found}"
    return MetricVerdict(
        METRIC, Outcome.INCONCLUSIVE if short else Outcome.SUCCESSFUL, words, tried[at], before[at], limit_percent, gates=False
    )


def _survival(side: Side) -> list[float] | None:
    """Accepted at each position ÷ verify steps, over the whole span."""
    sums: list[float] = []
    steps = 0.0
    for stretch in side.stretches:
        first, last = stretch.readings[0], stretch.readings[-1]
        if not last.accepted_at or stretch.whole.steps is None:
            continue
        start = first.accepted_at or (0.0,) * len(last.accepted_at)
        moved = [end - begin for end, begin in zip(last.accepted_at, start, strict=False)]
        sums = [a + b for a, b in zip(sums or [0.0] * len(moved), moved, strict=False)]
        steps += stretch.whole.steps
    return [value / steps for value in sums] if sums and steps > 0 else None
