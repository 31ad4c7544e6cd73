"""All panels of all dashboards against a real Prometheus: one row per entity, no two lines of one name, no ratio without enough samples,
predictions compared over the window of the measurement."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitoring.dashboards import ALL, DIRECTORY, samples
from monitoring.dashboards import panels as panel_builders
from monitoring.dashboards.queries import Panel, PanelQuery, dashboards, panels
from monitoring.engine_queries import RATE_WINDOW
from monitoring.recording_rules import rules
from tests.monitoring import panel_worlds as worlds
from tests.monitoring.recorded import Answers, prometheus

ROOT = Path(__file__).parents[2]
JSON = dashboards(ROOT / DIRECTORY)
PANELS = [panel for name in ALL for panel in panels(JSON[name])]
VARIABLES = {"namespace": ".+", "deployment": ".+", "revision": ".+", "operator": ".+", "__range": "15m", "__rate_interval": "2m"}
OF_GAUGES = {"Share of the budget": "the slowest start and its budget are two levels that the operator exports together"}
"""Panels with a quotient that has no samples, and why."""
OF_ONE_RULE = {
    "Share of the candidate": "both parts are sums of one rule, so a new candidate is missing from neither",
    "Traffic on the candidate": "as above",
}
"""Shares that may include a revision that was not observed for the whole window, and why."""
OF_NO_COUNT = {"Tokens per second of a pod": "a rate of each pod, which idle time lowers, and no mean of samples"}
"""Panels with a quotient that may have a value without traffic, and why."""

END = time.time() // 7200 * 7200 - 86400
CROWD, NEWCOMER, TRICKLE, ONCE, RAMP, UNEVEN, TRIAL = (END + 7200 * place for place in range(7))
"""The time at which each world is looked at."""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answers]:
    series = [
        *worlds.crowd(CROWD),
        *worlds.newcomer(NEWCOMER),
        *worlds.trickle(TRICKLE),
        *worlds.ramp(RAMP),
        *worlds.uneven(UNEVEN),
        *worlds.trial(TRIAL),
        *worlds.operators(ONCE, ("servicemonitor",)),
    ]
    with prometheus(series, tmp_path_factory.mktemp("panels")) as running:
        yield running


def named(panel: Panel) -> str:
    return f"{panel.dashboard}: {panel.title}"


def shown_fields(panel: Panel) -> dict[str, str]:
    [names] = [step["options"]["renameByName"] for step in panel.spec["transformations"] if step["id"] == "organize"]
    return dict(names)


def key_labels(panel: Panel) -> frozenset[str]:
    """Labels that every query of a table has after its outermost aggregation."""
    found = [re.match(r"\w+ by \(([\w, ]+)\)", query.expr) for query in panel.queries]
    assert all(found), f"{named(panel)}: a query is not aggregated by the keys of the row"
    return frozenset.intersection(*(frozenset(one[1].split(", ")) for one in found if one))


TABLES = [panel for panel in PANELS if panel.kind == "table"]


@pytest.mark.parametrize("panel", TABLES, ids=named)
def test_a_table_has_one_row_per_entity(panel: Panel, answers: Answers) -> None:
    """Grafana merges the rows of two queries where all labels that both have are equal; else it shows two."""
    keys, own = key_labels(panel), []
    assert keys <= set(shown_fields(panel)), "a key is not shown, so rows look alike"
    rows: dict[str, set[tuple[str, ...]]] = {}
    for query in panel.queries:
        found = [labels for labels, _ in answers.query(query.filled(VARIABLES), CROWD)]
        assert found, f"{query.ref}: {query.expr}"
        tuples = [tuple(labels.get(key, "") for key in sorted(keys)) for labels in found]
        assert max(Counter(tuples).values()) == 1, f"{query.ref} splits a row: {found[:3]}"
        assert all(all(values) for values in tuples), f"{query.ref} lacks a key: {found[0]}"
        rows[query.ref] = set(tuples)
        further = {label for labels in found for label in labels} - keys
        assert len(further) <= 1, f"{query.ref} has labels that may split a row: {further}"
        own += further
    assert len(set(own)) == len(own), f"two columns with a label of one name: {sorted(own)}"
    assert set(own) <= set(shown_fields(panel))
    # A row of one column alone would be no entity.
    every = set.union(*rows.values())
    assert all(any(row in some for ref, some in rows.items() if ref != other) for other, mine in rows.items() for row in mine), every


@pytest.mark.parametrize("keys", [("namespace", "deployment"), ("deployment",)])
def test_a_table_with_two_columns_of_one_name_is_refused(keys: tuple[str, ...]) -> None:
    column = panel_builders.Column("Stable revision", "dflash:revision_info", label="revision")
    with pytest.raises(ValueError, match="one name"):
        panel_builders.rows("Table", "…", keys, [column, panel_builders.Column("Stable-revision", "dflash:revision_pods")])


NUMBERS = [panel for panel in PANELS if panel.kind == "stat"]


@pytest.mark.parametrize("panel", NUMBERS, ids=named)
def test_a_single_number_comes_from_a_single_series_and_others_have_names(panel: Panel, answers: Answers) -> None:
    """A number for each deployment is named by its legend."""
    [query] = panel.queries
    found = answers.query(query.filled(VARIABLES), CROWD)
    if query.labels:
        assert query.labels == {"namespace", "deployment"}
        assert len({tuple(sorted(labels.items())) for labels, _ in found}) == len(found) == len(worlds.NAMESPACES) * len(worlds.DEPLOYMENTS)
        assert all(set(labels) == query.labels for labels, _ in found)
    else:
        assert len(found) == 1, query.expr


def test_a_deployment_of_which_two_operators_tell_counts_once(answers: Answers) -> None:
    counted = [
        panel for panel in NUMBERS if "dflash:rollout_phase" in panel.queries[0].expr or "dflash:tuner_state" in panel.queries[0].expr
    ]
    assert len(counted) >= 6
    most = len(worlds.NAMESPACES) * len(worlds.DEPLOYMENTS)
    found = {panel.title: [value for _, value in answers.query(panel.queries[0].filled(VARIABLES), CROWD)] for panel in counted}
    assert found["Deployments known"] == [most]
    assert all(values in ([0.0], [most]) for values in found.values()), found


def value_of(dashboard: str, panel: str, answers: Answers, at: float, ref: str = "A") -> dict[str, float]:
    """The values of a panel's query by deployment; a number that has none is under an empty name."""
    [query] = [
        query for one in PANELS if (one.dashboard, one.title) == (f"dflash-{dashboard}", panel) for query in one.queries if query.ref == ref
    ]
    return {labels.get("deployment", ""): round(value, 9) for labels, value in answers.query(query.filled(VARIABLES), at)}


def ref_of(dashboard: str, panel: str, heading: str) -> str:
    [fields] = [shown_fields(one) for one in PANELS if (one.dashboard, one.title) == (f"dflash-{dashboard}", panel)]
    return {name: field for field, name in fields.items()}[heading].removeprefix("Value #")


def test_a_broken_deployment_is_seen_beside_a_large_healthy_one(answers: Answers) -> None:
    """Of all requests 0.2 % fail, which would be green."""
    assert value_of("fleet", "Failed, worst deployment", answers, UNEVEN) == {"": 0.2}
    assert value_of("fleet", "Deployments with > 5 % failed", answers, UNEVEN) == {"": 1.0}
    assert value_of("fleet", "Failed requests", answers, UNEVEN) == {"chat": 0.0, "code": 0.2}
    assert value_of("fleet", "Deployments with > 5 % failed", answers, TRIAL) == {"": 0.0}


def test_a_collapsed_candidate_is_seen_beside_its_stable_revision(answers: Answers) -> None:
    """Both together have 4.6 tokens per step, which would be green."""
    of_table = {heading: ref_of("fleet", "Deployments", heading) for heading in ("Acceptance length", "Lowest revision")}
    assert value_of("fleet", "Deployments", answers, TRIAL, of_table["Acceptance length"]) == {"chat": 5.0}
    assert value_of("fleet", "Deployments", answers, TRIAL, of_table["Lowest revision"]) == {"chat": 1.01}
    assert value_of("speculation", "Acceptance length", answers, TRIAL) == {"chat": 5.0}
    assert value_of("speculation", "Drafts accepted", answers, TRIAL) == {"chat": 4.0}


@pytest.mark.parametrize(
    ("heading", "label", "wanted"),
    [
        ("Unit", "unit", {"speed": "tokens/s of a request", "errors": "% of requests"}),
        ("Limit in", "limit_in", {"speed": "% less", "errors": "points more"}),
    ],
)
def test_a_verdict_has_the_units_of_its_metric(heading: str, label: str, wanted: dict[str, str], answers: Answers) -> None:
    [verdicts] = [panel for panel in PANELS if (panel.dashboard, panel.title) == ("dflash-rollout", "Verdicts")]
    assert shown_fields(verdicts)[label] == heading
    [query] = [query for query in verdicts.queries if f", {label}) (" in query.expr.partition("topk")[0]]
    assert {labels["metric"]: labels[label] for labels, _ in answers.query(query.filled(VARIABLES), CROWD)} == wanted


LINES = [panel for panel in PANELS if panel.kind in ("timeseries", "bargauge", "state-timeline", "heatmap")]


@pytest.mark.parametrize("panel", LINES, ids=named)
def test_no_two_lines_of_a_panel_have_one_name(panel: Panel, answers: Answers) -> None:
    """Also with deployments, revisions and pods of equal names in two namespaces."""
    names: Counter[str] = Counter()
    for query in panel.queries:
        for labels, _ in answers.query(query.filled(VARIABLES), CROWD):
            names[re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda found, labels=labels: labels.get(found[1], "?"), query.legend)] += 1  # type: ignore[misc]
    assert names, panel.queries
    assert not [name for name, count in names.items() if count > 1], names
    assert not [name for name in names if "?" in name], names


def quotients() -> frozenset[str]:
    """Rules that are a quotient or a quantile, or read one that is."""
    known: set[str] = set()
    while True:
        found = {
            rule.record
            for rule in rules()
            if " / " in rule.expr or "histogram_quantile" in rule.expr or known & set(re.findall(r"dflash:[\w:]+", rule.expr))
        }
        if found <= known:
            return frozenset(known)
        known |= found


# The use of the cache is what an engine reports, and no count of anything.
QUOTIENTS = quotients() - {"dflash:deployment_kv_cache_usage"}
RATIOS = [
    query
    for panel in PANELS
    for query in panel.queries
    if (" / " in query.expr or "histogram_quantile" in query.expr or QUOTIENTS & set(re.findall(r"dflash:[\w:]+", query.expr)))
    and query.dashboard != "dflash-operator"
    and query.panel not in OF_GAUGES
]


def asked(query: PanelQuery) -> str:
    return f"{query.dashboard}: {query.panel}: {query.ref}"


def test_ratios_are_found_among_rules_and_panels() -> None:
    assert {"dflash:revision_error_ratio", "dflash:revision_ttft_seconds", "dflash:revision_replica_speed"} <= QUOTIENTS
    assert not {"dflash:revision_pods", "dflash:revision_requests:rate2m"} & QUOTIENTS
    assert len(RATIOS) > 30


@pytest.mark.parametrize("query", [query for query in RATIOS if query.panel not in OF_NO_COUNT], ids=asked)
def test_a_ratio_needs_enough_samples(query: PanelQuery, answers: Answers) -> None:
    """One request in two minutes, which failed: no panel shows 100 %."""
    assert answers.query(query.filled(VARIABLES), TRICKLE) == []
    assert answers.query(query.filled(VARIABLES), CROWD), "it has no value with enough samples either"


@pytest.mark.parametrize("query", [query for query in RATIOS if query.panel not in OF_ONE_RULE], ids=asked)
def test_a_ratio_needs_both_its_parts_over_the_whole_window(query: PanelQuery, answers: Answers) -> None:
    """A candidate whose failures were counted twice and its finished requests once is in no panel, and changes no total."""
    found = answers.query(query.filled(VARIABLES), NEWCOMER)
    shown = [labels for labels, _ in found if "rnew" in str(labels.values()) or labels.get("role") == "candidate"]
    assert not shown, "the candidate's first point is shown"
    if "failed_requests" in query.expr and "sum_over_time" not in query.expr:
        # One deployment fails more than 5 %, and 10 % of its requests do.
        wanted = 1.0 if query.expr.startswith("count(") else 0.1
        assert {round(value, 9) for _, value in found} == {wanted}, "the candidate's failures are in the total"


OF_OPERATORS = [query for panel in PANELS if panel.dashboard == "dflash-operator" for query in panel.queries]


@pytest.mark.parametrize("query", OF_OPERATORS, ids=asked)
def test_a_second_scrape_of_the_operator_changes_no_number(query: PanelQuery, answers: Answers) -> None:
    """CROWD has two scrape jobs for each process, ONCE has one."""
    once, twice = ({str(labels): value for labels, value in answers.query(query.filled(VARIABLES), at)} for at in (ONCE, CROWD))
    if "time() - " in query.expr:  # an age is that at the time of the look
        once, twice = (dict.fromkeys(found, 0.0) for found in (once, twice))
    assert once
    assert twice == pytest.approx(once), query.expr


PREDICTION = "dflash:tuner_predicted_tokens_per_second"
MEASURED_AT_ONCE = "dflash:tuner_measured_tokens_per_second"
"""The operator exports it together with the prediction, for the same window and load."""


def _reads(record: str, what: str) -> bool:
    """Whether a rule reads ``what``, itself or through others."""
    exprs = {rule.record: rule.expr for rule in rules()}
    seen, left = set(), [record]
    while left:
        name = left.pop()
        if name in seen:
            continue
        seen.add(name)
        expr = exprs.get(name, "")
        if what in expr:
            return True
        left += re.findall(r"dflash:[\w:]+", expr)
    return False


def _compares(panel: Panel) -> bool:
    """Whether a panel shows predictions beside values measured over the window of the rates."""
    text = " ".join(query.expr for query in panel.queries)
    return PREDICTION in text and any(_reads(name, f"[{RATE_WINDOW}]") for name in re.findall(r"dflash:revision_[\w:]+", text))


def test_predictions_are_compared_over_the_window_of_the_measurement() -> None:
    compared = [panel for panel in PANELS if _compares(panel)]
    assert {panel.title for panel in compared} == {"Speed by block size: measured and predicted", "Measured against predicted speed"}
    for panel in compared:
        for query in panel.queries:
            if PREDICTION in query.expr and MEASURED_AT_ONCE not in query.expr:
                averaged = re.findall(rf"avg_over_time\({PREDICTION}{{[^}}]*}}\[{RATE_WINDOW}\]\)", query.expr)
                assert len(averaged) == query.expr.count(PREDICTION), query.expr
            elif PREDICTION in query.expr:
                assert "replica_speed" not in query.expr, "two measurements of one speed"


def test_a_load_that_jumps_is_no_error_of_the_predictions(answers: Answers) -> None:
    [query] = [query for panel in PANELS if panel.title == "Measured against predicted speed" for query in panel.queries]
    found = {labels["deployment"]: value for labels, value in answers.query(query.filled(VARIABLES), RAMP)}
    assert found == {"code": pytest.approx(0.95)}


def test_the_window_of_the_ratios_is_that_of_the_rates() -> None:
    assert f"{samples.WINDOW_S // 60}m" == RATE_WINDOW
