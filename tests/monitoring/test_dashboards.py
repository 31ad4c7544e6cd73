"""Dashboards: what is committed is what is generated, every panel says what it shows, and asks for what exists."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from dflash_controller.runtime.metrics import Metrics
from hack.pictures import overview
from monitoring import links
from monitoring.dashboards import ALL, DIRECTORY, FILES
from monitoring.dashboards.queries import EMPTY_BY_NATURE, OF_ONE_ENGINE, UNRECORDED_BY_NATURE, dashboards, panels, queries
from monitoring.recording_rules import rules

ROOT = Path(__file__).parents[2]
JSON = dashboards(ROOT / DIRECTORY)
MOST_BYTES = 150_000
OF_ANY_TARGET = {"up", "process_cpu_seconds_total", "process_resident_memory_bytes", "scrape_samples_scraped"}
"""What Prometheus itself and every Python process export."""
UIDS = {name: f"dflash-{name}" for name in ("fleet", "speculation", "tuner", "rollout", "operator", "startup")}
"""People bookmark them."""


def test_committed_files_are_those_generated() -> None:
    assert {f"{DIRECTORY}/{name}.json" for name in JSON} == set(FILES)
    for path, content in FILES.items():
        assert (ROOT / path).read_text(encoding="utf-8") == content(), f"{path}: python -m hack.dashboards"


def test_uids_never_change() -> None:
    assert {name: dashboard["uid"] for name, dashboard in JSON.items()} == UIDS


@pytest.mark.parametrize("name", ALL)
def test_every_panel_says_what_it_shows(name: str) -> None:
    shown = panels(JSON[name])
    assert len(shown) >= 10
    for panel in shown:
        assert len(panel.spec["description"]) > 5, panel.title
        assert panel.spec["fieldConfig"]["defaults"]["unit"], panel.title
        assert panel.spec["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel.title
        assert panel.queries, panel.title
        refs = [query.ref for query in panel.queries]
        assert len(set(refs)) == len(refs), panel.title
        assert all(query.legend != "__auto" for query in panel.queries) or panel.kind in ("table", "xychart"), panel.title
    titles = [panel.title for panel in shown]
    assert sorted(set(titles)) == sorted(titles)


@pytest.mark.parametrize("name", ALL)
def test_panels_fill_the_grid_and_do_not_overlap(name: str) -> None:
    boxes = [(panel["title"], panel["gridPos"]) for panel in JSON[name]["panels"]]
    for (title, one), (other, two) in itertools.combinations(boxes, 2):
        apart = one["x"] + one["w"] <= two["x"] or two["x"] + two["w"] <= one["x"]
        apart = apart or one["y"] + one["h"] <= two["y"] or two["y"] + two["h"] <= one["y"]
        assert apart, (title, other)
    for top in {box["y"] for _, box in boxes}:
        assert sum(box["w"] for _, box in boxes if box["y"] == top) == 24, [title for title, box in boxes if box["y"] == top]


@pytest.mark.parametrize("name", ALL)
def test_variables_choose_source_namespace_and_deployment(name: str) -> None:
    variables = {item["name"]: item for item in JSON[name]["templating"]["list"]}
    wanted = {"datasource", "operator"} if name == "operator" else {"datasource", "namespace", "deployment"}
    assert wanted <= set(variables)
    asked = {found for query in queries(JSON[name]) for found in re.findall(r"\$([a-z]\w*)", query.expr)}
    assert asked <= {*variables, "__range", "__rate_interval"}
    assert set(variables) - {"datasource"} <= asked, "a variable that changes nothing"


@pytest.mark.parametrize("name", ALL)
def test_queries_ask_for_what_the_rules_record_or_the_operator_exports(name: str) -> None:
    """And for no series of one engine: those are what the rules are for."""
    exported = set(re.findall(r"^# TYPE (\S+)", Metrics().page().decode(), re.MULTILINE))
    exported |= {f"{metric}{end}" for metric in exported for end in ("_bucket", "_total")}
    # The work queue's gauges exist once there is a queue.
    exported |= {"dflash_workqueue_depth", "dflash_workqueue_oldest_seconds"}
    known = {rule.record for rule in rules()} | exported | OF_ANY_TARGET
    for query in queries(JSON[name]):
        metrics = set(re.findall(r"[a-z_:][a-z0-9_:]*(?=\{)|\bdflash[:_][a-z0-9_:]+", query.expr))
        assert metrics, query
        assert metrics <= known, (query.panel, metrics - known)


@pytest.mark.parametrize("name", ALL)
def test_a_join_finds_one_role_whoever_tells_it(name: str) -> None:
    """Two operators may, while one hands over to the other; one moment of it would make a query of hours fail."""
    for query in queries(JSON[name]):
        assert query.expr.count("group_left (role)") == query.expr.count("group_left (role) topk by (namespace, deployment, revision) (1, ")


@pytest.mark.parametrize("name", ALL)
def test_links_lead_somewhere(name: str) -> None:
    text = (ROOT / DIRECTORY / f"{name}.json").read_text(encoding="utf-8")
    for path in re.findall(re.escape(links.DOCS) + r'/([^"#]+)', text):
        assert (ROOT / "docs" / path).is_file(), path
    for uid in re.findall(r'"/d/([\w-]+)', text):
        assert uid in UIDS.values()
    (others, guide) = JSON[name]["links"]
    assert (others["tags"], others["includeVars"]) == (["dflash"], True)
    assert guide["url"].startswith(links.DOCS)


def test_exceptions_are_few_and_of_panels_that_exist() -> None:
    titles = {(query.dashboard, query.panel) for dashboard in JSON.values() for query in queries(dashboard)}
    assert set(EMPTY_BY_NATURE) | set(OF_ONE_ENGINE) <= titles
    assert set(UNRECORDED_BY_NATURE) <= {rule.record for rule in rules()}
    assert all("annotation" in panel for _, panel in EMPTY_BY_NATURE), "only marks may be missing on a healthy system"
    spec: dict[tuple[str, str], Any] = {(panel.dashboard, panel.title): panel.spec for board in JSON.values() for panel in panels(board)}
    for key in OF_ONE_ENGINE:
        assert spec[key]["fieldConfig"]["defaults"]["noValue"], key


def test_the_picture_of_the_readme_is_cut_out_of_those(tmp_path: Path) -> None:
    drawn = tmp_path / "overview.png"
    overview.main(drawn)
    assert drawn.read_bytes() == overview.FILE.read_bytes(), "python -m hack.pictures.overview"
    assert "](docs/dashboards/overview.png)" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ALL)
def test_there_is_a_small_picture_of_each(name: str) -> None:
    picture = ROOT / "docs" / "dashboards" / f"{name}.png"
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert picture.stat().st_size < MOST_BYTES
    assert f"(../dashboards/{name}.png)" in (ROOT / "docs" / "reference" / "dashboards.md").read_text(encoding="utf-8")
