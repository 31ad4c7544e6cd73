"""Checks whether both sides get the same kind of requests. Otherwise their metrics say nothing about the drafter."""

from __future__ import annotations

import math

from dflash_controller.analysis.blocks import Counts, Traffic
from dflash_controller.analysis.effect_size import effect_size

APART = 0.20
"""Maximum difference, relative for lengths. For the hit rate of the prefix cache it is a share of the prompt tokens, because a relative
limit would trip on 1 % against 2 %."""
_ERRORS = 2.0
"""Minimum difference in standard errors. Lengths vary more from request to request than acceptance does."""


def difference(traffic: Traffic) -> str | None:
    """Returns, in words, the first of prefix-hit rate, prompt length and output length that differs by more than 20 %; None if none
    does."""
    hits = [_share(side.total("cached_tokens"), side.total("prompt_tokens")) for side in (traffic.candidate, traffic.stable)]
    new, old = hits
    if new is not None and old is not None and abs(new - old) > APART:
        return f"{100 * new:.0f} % of the candidate's prompt tokens are in its prefix cache, {100 * old:.0f} % of stable's"
    for name, part in (("prompts", _prompt), ("answers", _output)):
        found = effect_size(traffic.candidate, traffic.stable, part, _requests, 0.0)
        if found is None:
            continue
        if abs(found.difference) > math.log1p(APART) and abs(found.difference) > _ERRORS * math.sqrt(found.variance):
            word = "longer" if found.difference > 0 else "shorter"
            return f"the candidate's {name} are {100 * abs(math.expm1(found.difference)):.0f} % {word} than stable's"
    return None


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _prompt(block: Counts) -> float | None:
    return block.prompt_tokens


def _output(block: Counts) -> float | None:
    return block.generated_tokens


def _requests(block: Counts) -> float | None:
    return block.requests
