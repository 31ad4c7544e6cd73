"""``python -m benchmarks.tuner_priors``: reduces the published tables to ``dflash_controller/tuner/priors.yaml``."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import yaml

from benchmarks.tuner_tables import Series, load
from dflash_controller.tuner.acceptance import decay_between
from dflash_controller.tuner.priors import Card
from dflash_controller.tuner.shape import fit_knee, log_cost

DATA = Path(__file__).resolve().parent.parent / "testbed" / "data"
TABLES = (
    ("seed_tables.csv", "seed_accept.csv"),
    ("h100_vllm_dense.csv", "h100_vllm_dense_accept.csv"),
    ("h100_vllm_moe.csv", "h100_vllm_moe_accept.csv"),
    ("h100_vllm_hybrid.csv", "h100_vllm_hybrid_accept.csv"),
)
IMPOSED = "synthetic"
"""A workload whose acceptance was set, not measured: only its step times are used."""
TARGET = Path(__file__).resolve().parent.parent / "dflash_controller" / "tuner" / "priors.yaml"
HEADER = """\
# What measured targets have in common, for where a deployment has not seen enough itself. Written by python -m benchmarks.tuner_priors.
#
# knee_tokens: tokens per step at which computing costs as much as reading the weights (s = a (1 + T / knee), fitted over all blocks, loads
# and workloads). off_ratio: step time without drafter relative to that curve at the same tokens. decay: fall of the conditional acceptance
# from one draft to the next that joins the acceptance lengths at blocks 8 and 16, mean over workloads. position_share (hybrids without
# experts): time that each position of a block adds, relative to a (s = a (1 + T / knee + position_share B)); much of it hides the knee.
"""
_SHARES = [step / 1000 for step in range(121)]
_KNEES = [30 * 1.05**step for step in range(70)]
_NOTABLE = 0.02
"""A price of a position from which the shape over T alone does not fit, so that its knee means nothing."""


def position_share(series: Sequence[Sequence[tuple[int, int, float]]]) -> float:
    """Returns the price of a position that best fits several series of (block, concurrency, seconds), each with its own level.

    Least squares in log s over a grid of shares from 0 to 0.12 and knees from 30 to 900 tokens.
    """

    def misfit(share: float, knee: float) -> float:
        total = 0.0
        for points in series:
            rest = [math.log(seconds) - math.log(1 + block * c / knee + share * block) for block, c, seconds in points]
            mean = sum(rest) / len(rest)
            total += sum((value - mean) ** 2 for value in rest)
        return total

    return min(_SHARES, key=lambda share: min(misfit(share, knee) for knee in _KNEES))


def card(source: str, model: str, found: Sequence[Series]) -> Card:
    """Returns the card of one model of one source."""
    drafting: list[list[tuple[float, float]]] = []
    measured: list[list[tuple[int, int, float]]] = []
    machine = found[0].machine
    for series in found:
        cells = [(block, c, series.step_s(block, c)) for block, c in series.speeds if block > 1]
        measured.append([(block, c, seconds) for block, c, seconds in cells if seconds is not None])
        drafting.append([(float(block * c), seconds) for block, c, seconds in measured[-1]])
    if not any(len(points) > 1 for points in drafting):
        return Card(model, source, None, None, None)
    share = position_share([points for points in measured if points]) if machine.hybrid and not machine.mixture else None
    knee = fit_knee(drafting)
    ratios = []
    for series, points in zip(found, drafting, strict=True):
        level = [math.log(seconds) - log_cost(tokens, knee) for tokens, seconds in points]
        for block, c in series.speeds:
            if block == 1 and level:
                ratios.append(math.log(c / series.speeds[block, c]) - log_cost(c, knee) - sum(level) / len(level))
    known = (s.lengths for s in found if s.workload != IMPOSED and 8 in s.lengths and 16 in s.lengths)
    decays = [decay_between(lengths[8], 8, lengths[16], 16) for lengths in known]
    return Card(
        model,
        re.sub(r"^seed\d+ ", "", source),
        round(knee, 1) if share is None or share < _NOTABLE else None,
        round(math.exp(sum(ratios) / len(ratios)), 3) if ratios else None,
        round(sum(decays) / len(decays), 4) if decays else None,
        machine,
        share,
    )


def cards() -> tuple[Card, ...]:
    """Returns the cards of every model in the project's tables with a step time."""
    found: dict[tuple[str, str], list[Series]] = defaultdict(list)
    for tables, accept in TABLES:
        for series in load(DATA / tables, DATA / accept):
            found[series.source, series.model].append(series)
    reduced = (card(source, model, series) for (source, model), series in found.items())
    return tuple(entry for entry in reduced if entry.knee_tokens is not None or entry.position_share is not None)


def text() -> str:
    """Returns the whole file."""
    entries = []
    for entry in cards():
        fields = {
            "knee_tokens": entry.knee_tokens,
            "off_ratio": entry.off_ratio,
            "decay": entry.decay,
            "position_share": entry.position_share,
        }
        named = {"model": entry.model, "source": entry.source, "engine": entry.machine.engine, "kind": entry.machine.kind}
        entries.append({**named, **{key: value for key, value in fields.items() if value is not None}})
    return HEADER + yaml.safe_dump({"cards": entries}, sort_keys=False, width=140, allow_unicode=True)


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
