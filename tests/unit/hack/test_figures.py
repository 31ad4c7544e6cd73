"""The figures of the documentation are those the published tables make today, and the page says of them what is so."""

from __future__ import annotations

import re

import pytest

from dflash_controller.model.measured_tables import read_speeds
from hack import figures
from testbed.operator_process import ROOT
from testbed.simulator.table import SEED_TABLES

PAGE = (ROOT / "docs" / "explanation" / "dflash.md").read_text(encoding="utf-8")
WORDS = " ".join(PAGE.split())


@pytest.fixture(scope="module")
def drawn() -> dict[str, bytes]:
    return dict(figures.drawn())


def test_the_figures_are_up_to_date(drawn: dict[str, bytes]) -> None:
    kept = {file.name: file.read_bytes() for file in figures.FOLDER.iterdir()}
    assert kept.keys() == drawn.keys(), "run python -m hack.figures"
    assert [name for name in drawn if kept[name] != drawn[name]] == [], "run python -m hack.figures"


def test_every_figure_is_on_the_page_in_both_schemes(drawn: dict[str, bytes]) -> None:
    assert set(re.findall(r'"figures/([^"]+)"', PAGE)) == drawn.keys()


def test_the_page_counts_right() -> None:
    gains = {c: [figures.gain(one, c) for many in figures.by_model().values() for one in many] for c in (1, 32)}
    quick, busy = ([gain for gain in gains[c] if gain] for c in (1, 32))
    said = re.search(r"In (\d+) of (\d+) cases block 16 is faster at concurrency 1, and in all (\d+) block 8 is at 32", WORDS)
    assert said
    assert [int(number) for number in said.groups()] == [sum(gain > 1 for gain in quick), len(quick), sum(gain < 1 for gain in busy)]
    assert len(quick) == len(busy)
    assert f"up to {100 * (1 - min(busy)):.0f} %" in WORDS


@pytest.fixture(scope="module")
def ratios() -> dict[int, list[float]]:
    """Every published speed with a drafter over the one without, by concurrency."""
    cells = {(one.source, one.model, one.workload, one.concurrency, one.block_size): one.tokens_per_s for one in read_speeds(SEED_TABLES)}
    found: dict[int, list[float]] = {}
    for (source, model, workload, concurrency, block), speed in cells.items():
        if block >= figures.SHORT and (plain := cells.get((source, model, workload, concurrency, 1))):
            found.setdefault(concurrency, []).append(speed / plain)
    return found


@pytest.mark.parametrize("page", ["README.md", "docs/README.md"])
def test_the_landing_pages_name_the_published_range(page: str, ratios: dict[int, list[float]]) -> None:
    every = [ratio for many in ratios.values() for ratio in many]
    assert f"{min(every):.1f} to {max(every):.1f} times" in (ROOT / page).read_text(encoding="utf-8")
    assert max(every) == max(ratios[1]), "the most with one request at a time"
    assert min(every) == min(ratios[32]), "the least with 32"


def test_the_page_names_the_published_range_by_load(ratios: dict[int, list[float]]) -> None:
    one, many = (f"{min(ratios[c]):.1f} to {max(ratios[c]):.1f} times" for c in (1, 32))
    assert f"{one} at concurrency 1, and {many} at 32, over all targets" in WORDS
