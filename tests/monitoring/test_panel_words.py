"""Panels say what they show: how several deployments are combined, what a rollout does to a rate, which block size, whose rollout."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dflash_controller.analysis import positions
from dflash_controller.analysis.probe import PROBE_METRICS, TEXT
from dflash_controller.api.gates import GATE_SPECS
from hack.pictures.text import value_text
from monitoring import alerts
from monitoring.dashboards import ALL, DIRECTORY, samples
from monitoring.dashboards.panels import Column
from monitoring.dashboards.phases import TUNED_TOO
from monitoring.dashboards.queries import OF_ONE_ENGINE, Panel, PanelQuery, dashboards, panels
from monitoring.dashboards.rollout import LIMIT_UNITS, UNITS, VERDICT_COLORS
from monitoring.dashboards.speculation import EQUAL_BLOCKS
from monitoring.dashboards.tuner import SHORT_LIVED
from monitoring.serving_alerts import FAILING

ROOT = Path(__file__).parents[2]
PANELS = [panel for name in ALL for panel in panels(dashboards(ROOT / DIRECTORY)[name])]
PROTECTED = re.compile(r"\(dflash:\w+:rate2m\{[^}]*\} and on \([\w, ]+\) dflash:\w+\{[^}]*\} offset 2m\)")
"""A rate of what was scraped for the whole window."""
WORST = re.compile(r"\b(largest|lowest|longest|slowest|worst)\b", re.IGNORECASE)


def named(panel: Panel) -> str:
    return f"{panel.dashboard}: {panel.title}"


def described(panel: Panel) -> str:
    return str(panel.spec["description"])


def exprs(panel: Panel) -> str:
    return "\n".join(query.expr for query in panel.queries)


def properties(panel: Panel, field: str) -> dict[str, object]:
    overrides = [item["properties"] for item in panel.spec["fieldConfig"]["overrides"] if item["matcher"]["options"] == field]
    return {one["id"]: one["value"] for properties in overrides for one in properties}


def headings(panel: Panel) -> list[str]:
    [names] = [step["options"]["renameByName"] for step in panel.spec["transformations"] if step["id"] == "organize"]
    return list(names.values())


def only(dashboard: str, title: str) -> Panel:
    [panel] = [panel for panel in PANELS if (panel.dashboard, panel.title) == (f"dflash-{dashboard}", title)]
    return panel


# An operator's numbers are about its processes, not about deployments.
NUMBERS = [panel for panel in PANELS if panel.kind == "stat" and panel.dashboard != "dflash-operator"]


@pytest.mark.parametrize("panel", NUMBERS, ids=named)
def test_a_number_of_several_deployments_is_the_worst_or_all_and_says_so(panel: Panel) -> None:
    """A mean of deployments, or one share of all their requests, hides the one that is broken."""
    [query] = panel.queries
    if "{{deployment}}" in query.legend:
        assert "each selected deployment" in described(panel)
        return
    combined = query.expr.partition("(")[0]
    assert combined in ("count", "max", "min", "sum"), query.expr
    if combined in ("max", "min"):
        assert WORST.search(described(panel)), described(panel)
    if combined == "sum":
        assert re.search(r"\ball\b", described(panel)), described(panel)


def test_a_rollout_and_a_failing_deployment_are_two_numbers() -> None:
    titles = [panel.title for panel in PANELS]
    assert "Needs attention" not in titles
    assert {"Rollouts held or rolled back", "Deployments with > 5 % failed"} <= set(titles)
    [failing] = [alert for alert in alerts.alerts() if alert.name == "DFlashRequestsFailing"]
    assert f"> {FAILING:g}\n" in failing.expr
    assert f"> {FAILING:g})" in exprs(only("fleet", "Deployments with > 5 % failed"))


def _summed(panel: Panel) -> bool:
    """Whether it shows a sum of rates over pods, among them some that were not scraped for the whole window."""
    return ":rate2m" in PROTECTED.sub("", exprs(panel)) or panel.title == "Tokens per second of a pod"


def test_sums_of_rates_over_pods_are_found() -> None:
    found = {panel.title for panel in PANELS if _summed(panel)}
    assert {"Generated tokens", "Finished requests", "Tokens per second", "Requests per second", "Requests by role"} <= found
    assert {"Share of the candidate", "Traffic on the candidate", "Drafted tokens: accepted and wasted", "Deployments"} <= found
    assert not {"Acceptance length", "Failed requests", "Time to first token, p95", "Requests running"} & found


@pytest.mark.parametrize("panel", [panel for panel in PANELS if _summed(panel)], ids=named)
def test_a_sum_of_rates_over_pods_says_what_a_rollout_does_to_it(panel: Panel) -> None:
    assert samples.OVER_PODS in described(panel)


def _has_quantiles(panel: Panel) -> bool:
    return bool(re.search(r"histogram_quantile|quantile=~", exprs(panel)))


@pytest.mark.parametrize("panel", [panel for panel in PANELS if _has_quantiles(panel)], ids=named)
def test_a_quantile_says_what_its_bucket_hides(panel: Panel) -> None:
    assert samples.BUCKETS in described(panel)


def test_quantiles_are_found() -> None:
    assert {panel.dashboard for panel in PANELS if _has_quantiles(panel)} == {"dflash-fleet", "dflash-rollout", "dflash-operator"}


def _has_acceptance(panel: Panel) -> bool:
    return "accepted_tokens:rate2m" in exprs(panel) and "steps:rate2m" in exprs(panel) and " / " in exprs(panel)


ACCEPTANCES = [panel for panel in PANELS if _has_acceptance(panel)]


@pytest.mark.parametrize("panel", [panel for panel in ACCEPTANCES if panel.kind == "timeseries"], ids=named)
def test_lines_of_acceptance_lengths_name_the_block_size(panel: Panel) -> None:
    """After a change from 16 to 8 it falls, and no drafter is worse."""
    assert all("{{block_size}}" in query.legend for query in panel.queries)
    assert EQUAL_BLOCKS in described(panel)


def test_acceptance_lengths_are_found() -> None:
    kinds = {panel.kind for panel in ACCEPTANCES}
    assert kinds == {"stat", "table", "timeseries", "xychart"}
    [cloud] = [panel for panel in ACCEPTANCES if panel.kind == "xychart"]
    assert all('"block_size"))' in query.expr for query in cloud.queries)


RATIOS_OF_DRAFTS = [
    query
    for panel in PANELS
    for query in panel.queries
    if re.search(r"(accepted|wasted)_tokens:rate2m", query.expr) and " / " in query.expr
]


@pytest.mark.parametrize("query", RATIOS_OF_DRAFTS, ids=lambda query: f"{query.dashboard}: {query.panel}: {query.ref}")
def test_no_ratio_of_drafts_mixes_stable_and_candidate(query: PanelQuery) -> None:
    """A collapsed candidate serves one replica of many: in the mean of all it is not seen."""
    for keys in re.findall(r"sum by \(([\w, ]+)\) \(\(dflash:", query.expr):
        assert {"revision", "pod"} & set(keys.split(", ")), keys


TABLES_OF_ROLLOUTS = [panel for panel in PANELS if panel.kind == "table" and re.search("dflash:rollout_(phase|verdict)", exprs(panel))]


@pytest.mark.parametrize("panel", TABLES_OF_ROLLOUTS, ids=named)
def test_a_table_of_phases_or_verdicts_names_the_candidate(panel: Panel) -> None:
    assert "Candidate" in headings(panel)
    assert "dflash:rollout_info" in exprs(panel)


def test_who_asked_for_a_rollout_is_shown() -> None:
    assert {named(panel) for panel in TABLES_OF_ROLLOUTS} == {
        "dflash-fleet: Deployments",
        "dflash-rollout: Phase and revisions",
        "dflash-rollout: Verdicts",
    }
    assert "Asked by" in headings(only("rollout", "Phase and revisions"))
    assert '"revision", "origin"' in exprs(only("fleet", "Deployments"))


def _has_phases(panel: Panel) -> bool:
    return panel.kind in ("state-timeline", "timeseries", "bargauge") and "rollout_phase" in exprs(panel)


@pytest.mark.parametrize("panel", [panel for panel in PANELS if _has_phases(panel)], ids=named)
def test_phases_over_time_say_that_a_change_of_the_tuner_is_a_rollout(panel: Panel) -> None:
    assert TUNED_TOO in described(panel)


def test_phases_over_time_are_found() -> None:
    titles = {panel.title for panel in PANELS if _has_phases(panel)}
    assert titles == {"Rollout phase", "Phase over time", "Phases reached, all deployments", "Time in each phase"}


def test_every_verdict_has_its_units() -> None:
    metrics = {*GATE_SPECS, *PROBE_METRICS.values(), TEXT, positions.METRIC}
    assert set(UNITS) == set(LIMIT_UNITS) == metrics
    assert (LIMIT_UNITS["speed"], LIMIT_UNITS["errors"], LIMIT_UNITS["restarts"]) == (
        "% less",
        "points more",
        "in all",
    )
    assert "collapsed: tokens per step" in LIMIT_UNITS["acceptanceLength"]


def test_a_verdict_without_values_is_no_trouble() -> None:
    assert VERDICT_COLORS["Inconclusive"] not in ("yellow", "orange", "red")
    verdicts = only("rollout", "Verdicts")
    assert verdicts.spec["fieldConfig"]["defaults"]["noValue"] == "No rollout yet"
    assert properties(verdicts, ".*") == {"noValue": ""}, "every empty cell would say it too"
    assert verdicts.spec["gridPos"]["h"] >= 12, "two deployments have sixteen metrics"


@pytest.mark.parametrize("panel", [panel for panel in PANELS if panel.kind == "table"], ids=named)
def test_numbers_of_a_table_have_enough_digits_to_be_compared(panel: Panel) -> None:
    for heading in headings(panel):
        found = properties(panel, heading)
        if "unit" in found and not re.search("s$|percent", str(found["unit"])):
            decimals = found.get("decimals")
            one, other = (value_text(value, str(found["unit"]), decimals) for value in (2480.0, 2520.0))  # type: ignore[arg-type]
            assert one != other, heading


def test_thousands_without_decimals_are_refused() -> None:
    with pytest.raises(ValueError, match="thousands"):
        Column("Tokens/s", "dflash:revision_replica_speed", "short", decimals=0)


def test_a_panel_of_one_engine_names_it() -> None:
    spelled = {"vllm": "(vLLM)", "sglang": "(SGLang)"}
    for (_, title), (engine, _) in OF_ONE_ENGINE.items():
        assert title.endswith(spelled[engine])


@pytest.mark.parametrize("title", ["Decisions", "Predicted gain", "Cost of switching and of not switching", "Confidence in the gain"])
def test_numbers_of_a_decision_say_that_the_deciding_one_may_be_missing(title: str) -> None:
    assert SHORT_LIVED in described(only("tuner", title))


def test_every_phase_that_was_reached_is_counted_and_none_is_made_up() -> None:
    expr = exprs(only("rollout", "Phases reached, all deployments"))
    assert "label_replace" not in expr
    assert expr.count("dflash_rollout_phases_total") == 1


def test_the_share_that_failed_is_seen_by_deployment_by_side_and_by_pod() -> None:
    shown = [only("fleet", "Failed requests"), only("rollout", "Failed requests"), only("rollout", "Failed requests of each pod")]
    for panel in shown:
        [query] = panel.queries
        levels = [(step["value"], step["color"]) for step in panel.spec["fieldConfig"]["defaults"]["thresholds"]["steps"]]
        assert levels == [(None, "transparent"), (0.01, "orange"), (0.05, "red")]
        assert [link["title"] for link in panel.spec["links"]] == ["Runbook: requests-failing"]
    assert "{{pod}} ({{revision}})" in query.legend
    marks = dashboards(ROOT / DIRECTORY)["fleet"]["annotations"]["list"]
    assert [item["name"] for item in marks if item.get("expr")] == ["Revision"]


def test_the_guide_names_panels_and_columns_that_exist() -> None:
    text = (ROOT / "docs" / "reference" / "dashboards.md").read_text(encoding="utf-8")
    known = {panel.title for panel in PANELS} | {heading for panel in PANELS if panel.kind == "table" for heading in headings(panel)}
    known |= {panel.title.partition(":")[0] for panel in PANELS} | {"DFlash", "How to read it"}
    assert _emphasized(text) - known == set()


@pytest.mark.parametrize("name", ALL)
def test_a_description_names_panels_of_its_own_dashboard(name: str) -> None:
    shown = panels(dashboards(ROOT / DIRECTORY)[name])
    for panel in shown:
        assert _emphasized(described(panel)) <= {other.title for other in shown}, panel.title


def _emphasized(text: str) -> set[str]:
    """What stands in single asterisks and begins with a capital."""
    return {" ".join(found.split()) for found in re.findall(r"(?<!\*)\*([A-Z][^*\n]*(?:\n[^*\n]+)?)\*(?!\*)", text)}
