"""Ratios and quantiles that rest on enough samples. Pure.

A quotient of two counters is wrong while one of them has been seen for a shorter time than the other: a new pod whose first failures were
counted but whose first finished requests were not has 100 % failed requests. A quotient of a few requests is no more than chance. So every
ratio of the dashboards comes from here: both parts are rates over the same window, revisions and pods count once the whole window was
observed, and there is no value below a minimum number of samples.
"""

from __future__ import annotations

from collections.abc import Sequence

from monitoring.dashboards.build import POD_KEYS, REVISION_KEYS, of
from monitoring.engine_queries import RATE_WINDOW
from monitoring.serving_alerts import FAILING

WINDOW_S = 120
"""``RATE_WINDOW``, the window of every ``:rate2m``, in seconds."""
REQUESTS = 10
"""Minimum requests in the window for a share or a quantile of requests. A rollout's fast path asks for 20 in a longer time."""
STEPS = 50
"""Minimum verify or decode steps in the window: about one answer of 200 tokens."""
FEW_REQUESTS = f"Fewer than {REQUESTS} requests in two minutes"
FEW = f"< {REQUESTS} requests"
"""The same in a panel that shows one number."""
NO_TRAFFIC = "No traffic"
OVER_PODS = (
    "A pod that stops is missing at once, and a new pod counts in full only after two minutes: a dip and a slow rise in a rollout are"
    " no change of the traffic."
)
"""What every panel says that sums rates of the last two minutes over pods."""
BUCKETS = "From a histogram: a value that stays at 95 % (median: 50 %) of a bucket's bound means only that requests were faster than it."
"""What every panel says that shows quantiles of a histogram."""

REVISION = ", ".join(REVISION_KEYS)
BLOCK_KEYS = (*REVISION_KEYS, "block_size")
"""The labels of an acceptance length: only equal block sizes can be compared."""
POD = ", ".join(POD_KEYS)


def over(above: str, below: str, least: float) -> str:
    """Returns the quotient of two rates; no value if the window held fewer than ``least`` of what ``below`` counts."""
    return f"(({above}) / (({below}) >= {least:g} / {WINDOW_S}))"


def observed(expr: str, level: str = "revision") -> str:
    """Returns the series of the revisions (or pods, ``level``) that were scraped for the whole window."""
    keys, presence = {"revision": (REVISION, "dflash:revision_pods"), "pod": (POD, "dflash:pod_info")}[level]
    return f"({expr} and on ({keys}) {of(presence)} offset {RATE_WINDOW})"


def rate_sum(what: str, by: Sequence[str], *matchers: str, level: str = "revision") -> str:
    """Returns the sum by ``by`` of ``dflash:<level>_<what>:rate2m`` over what was observed for the whole window."""
    return f"sum by ({', '.join(by)}) ({observed(of(f'dflash:{level}_{what}:rate2m', *matchers), level)})"


def ratio(above: str, below: str, by: Sequence[str], *matchers: str, least: float, level: str = "revision") -> str:
    """Returns the quotient of two sums of rates, named as in ``rate_sum``."""
    return over(rate_sum(above, by, *matchers, level=level), rate_sum(below, by, *matchers, level=level), least)


def acceptance_length(by: Sequence[str], *matchers: str, level: str = "revision") -> str:
    """Returns the tokens per verify step: 1 + accepted ÷ steps."""
    return f"(1 + {ratio('accepted_tokens', 'steps', by, *matchers, least=STEPS, level=level)})"


def failed_share(by: Sequence[str], *matchers: str) -> str:
    """Returns the share of requests that failed."""
    return ratio("failed_requests", "requests", by, *matchers, least=REQUESTS)


def failing(below: str) -> list[tuple[float | None, str]]:
    """Returns the levels of a share of failed requests; ``below`` is the colour below the first."""
    return [(None, below), (0.01, "orange"), (FAILING, "red")]


def stepped(what: str, *matchers: str, counter: str = "decode_steps") -> str:
    """Returns ``dflash:revision_<what>``, a quotient of the engine's steps, where the window held enough of them."""
    enough = f"{rate_sum(counter, REVISION_KEYS, *matchers)} >= {STEPS} / {WINDOW_S}"
    return f"({of(f'dflash:revision_{what}', *matchers)} and on ({REVISION}) ({enough}))"


def quantile(what: str, share: str, *matchers: str) -> str:
    """Returns a quantile, by revision, of the histogram ``dflash:revision_<what>_bucket:rate2m``, where the window held enough requests."""
    observations = observed(of(f"dflash:revision_{what}_bucket:rate2m", *matchers, 'le="+Inf"'))
    enough = f"sum by ({REVISION}) ({observations}) >= {REQUESTS} / {WINDOW_S}"
    return f"(max by ({REVISION}) ({of(f'dflash:revision_{what}', *matchers, quantile=share)}) and on ({REVISION}) ({enough}))"


def at_the_time(expr: str) -> str:
    """Returns the mean of a level over the window of the rates: a prediction or a number of pods, to be compared with what was measured."""
    return f"avg_over_time({expr}[{RATE_WINDOW}])"
