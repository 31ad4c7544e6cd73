"""Where in the block the target rejects a candidate's drafts. This is shown beside the verdicts: it tells a broken drafter from a worse
one."""

from __future__ import annotations

from dflash_controller.analysis.blocks import Side, Traffic
from dflash_controller.analysis.formatting import format_number
from dflash_controller.analysis.verdict import AnalysisRequest, MetricVerdict, Outcome

METRIC = "acceptanceByPosition"


def by_position(question: AnalysisRequest, counted: Traffic, limit_percent: float) -> MetricVerdict | None:
    """Returns the share of drafts still accepted at the first position that falls short of stable by the limit.

    If no position falls short, the last one is shown. Returns None if the block sizes differ or an engine does not export positions
    (SGLang). The verdict decides nothing: the positions of one block rise and fall together, and acceptance length is their sum.
    """
    if question.candidate_block != question.stable_block:
        return None
    tried, before = _survival(counted.candidate), _survival(counted.stable)
    if tried is None or before is None or not tried or len(tried) != len(before):
        return None
    short = [number for number, (a, b) in enumerate(zip(tried, before, strict=True)) if a < b * (1 - limit_percent / 100)]
    at = short[0] if short else len(tried) - 1
    found = f"position {at + 1} of {len(tried)}: {format_number(tried[at])} against {format_number(before[at])} of drafts accepted"
    words = f"falls behind from {found}" if short else f"keeps up at every position; {found}"
    return MetricVerdict(
        METRIC, Outcome.INCONCLUSIVE if short else Outcome.SUCCESSFUL, words, tried[at], before[at], limit_percent, gates=False
    )


def _survival(side: Side) -> list[float] | None:
    """Returns accepted drafts at each position ÷ verify steps, over the whole span."""
    sums: list[float] = []
    steps = 0.0
    for load_sample in side.load_samples:
        first, last = load_sample.readings[0], load_sample.readings[-1]
        if not last.accepted_at or load_sample.whole.steps is None:
            continue
        start = first.accepted_at or (0.0,) * len(last.accepted_at)
        moved = [end - begin for end, begin in zip(last.accepted_at, start, strict=False)]
        sums = [a + b for a, b in zip(sums or [0.0] * len(moved), moved, strict=False)]
        steps += load_sample.whole.steps
    return [value / steps for value in sums] if sums and steps > 0 else None
