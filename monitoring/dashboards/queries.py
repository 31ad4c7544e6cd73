"""All queries of the dashboards' JSON, with their variables filled in, for tests against a real Prometheus and for pictures. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_VARIABLE = re.compile(r"\$(?:\{([a-z_]\w*)\}|([a-z_]\w*))")
"""A variable of Grafana. ``$1`` is no variable but a group of ``label_replace``."""
_LABEL = re.compile(r"\{\{\s*(\w+)\s*\}\}")

EMPTY_BY_NATURE: Mapping[tuple[str, str], str] = {
    ("dflash-fleet", "annotation Revision"): "a mark stands for a minute after a revision changed its role",
    ("dflash-speculation", "annotation Tuner"): "a mark stands for a minute after a decision, and most minutes have none",
    ("dflash-speculation", "annotation Revision"): "a mark stands for a minute after a revision changed its role",
    ("dflash-tuner", "annotation Tuner"): "as above",
    ("dflash-tuner", "annotation Revision"): "as above",
    ("dflash-rollout", "annotation Tuner"): "as above",
    ("dflash-rollout", "annotation Revision"): "as above",
}
"""By dashboard and panel: queries that may have no series on a healthy system, and why."""
UNRECORDED_BY_NATURE: Mapping[str, str] = {
    "dflash:notice": "a healthy deployment has no notices",
    "dflash:tuner_crossover_concurrency": "if one block size is the fastest at every load there is no crossover",
}
"""By name: recording rules that may have no series on a healthy system, and why."""
OF_ONE_ENGINE: Mapping[tuple[str, str], tuple[str, str]] = {
    ("dflash-speculation", "Acceptance by position (vLLM)"): ("vllm", "SGLang has no such series"),
    ("dflash-startup", "Phases of a start (SGLang)"): ("sglang", "vLLM has no such series"),
}
"""By dashboard and panel: the only engine that exports the panel's data, and why the other does not. The empty panel says so."""


@dataclass(frozen=True, slots=True)
class PanelQuery:
    """One query of a panel, an annotation or a variable."""

    dashboard: str
    """Uid of the dashboard."""
    panel: str
    """Title of the panel; ``annotation NAME`` or ``variable NAME`` for those."""
    ref: str
    expr: str
    """PromQL with variables."""
    legend: str
    instant: bool
    kind: str
    """Type of the panel; ``annotation`` or ``variable``."""
    labels: frozenset[str]
    """Labels that every series of the result must have: the ones in its legend or shown by a table."""

    def filled(self, values: Mapping[str, str]) -> str:
        """Returns the query with its variables filled in. Raises KeyError if ``values`` lacks one."""
        return _VARIABLE.sub(lambda found: values[found[1] or found[2]], self.expr)


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel from the JSON, except rows."""

    dashboard: str
    title: str
    kind: str
    spec: Mapping[str, Any]
    queries: tuple[PanelQuery, ...]


def dashboards(directory: Path) -> dict[str, dict[str, Any]]:
    """Returns the JSON of every dashboard in a directory, by file name without extension."""
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(directory.glob("*.json"))}


def panels(dashboard: Mapping[str, Any]) -> list[Panel]:
    """Returns its panels in order, including those in collapsed rows."""
    flat = [inner for panel in dashboard["panels"] for inner in (panel, *panel.get("panels", ()))]
    return [
        Panel(dashboard["uid"], panel["title"], panel["type"], panel, tuple(_of_panel(dashboard["uid"], panel)))
        for panel in flat
        if panel["type"] != "row"
    ]


def queries(dashboard: Mapping[str, Any]) -> list[PanelQuery]:
    """Returns the queries of its panels, annotations and variables."""
    found = [query for panel in panels(dashboard) for query in panel.queries]
    uid = dashboard["uid"]
    for item in dashboard["annotations"].get("list", ()):
        if item.get("expr"):
            labels = frozenset(_LABEL.findall(item["textFormat"]))
            found.append(PanelQuery(uid, f"annotation {item['name']}", "A", item["expr"], item["textFormat"], False, "annotation", labels))
    for item in dashboard["templating"]["list"]:
        if item["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((.+), (\w+)\)", item["query"]).groups()  # type: ignore[union-attr]
            expr = f"group by ({label}) ({metric})"
            found.append(PanelQuery(uid, f"variable {item['name']}", "A", expr, "", True, "variable", frozenset({label})))
    return found


def _of_panel(uid: str, panel: Mapping[str, Any]) -> Iterator[PanelQuery]:
    shown = _columns(panel)
    grouped = [_grouped(target["expr"]) for target in panel["targets"]]
    keys = frozenset.intersection(*filter(None, grouped)) if any(grouped) else frozenset()
    for target, own in zip(panel["targets"], grouped, strict=True):
        legend = target["legendFormat"]
        # All queries of a table share the labels of its rows; some show another label in addition.
        labels = frozenset(_LABEL.findall(legend)) if shown is None else shown & (keys | own)
        yield PanelQuery(uid, panel["title"], target["refId"], target["expr"], legend, bool(target.get("instant")), panel["type"], labels)


def _columns(panel: Mapping[str, Any]) -> frozenset[str] | None:
    """Returns the labels that a table shows; None for other panels."""
    for step in panel.get("transformations", ()):
        if step["id"] == "organize":
            return frozenset(name for name in step["options"]["renameByName"] if not name.startswith("Value"))
    return None


def _grouped(expr: str) -> frozenset[str]:
    """Returns the labels that the outermost aggregation of an expression keeps."""
    found = re.match(r"\w+ by \(([\w, ]+)\)", expr)
    return frozenset(found[1].split(", ")) if found else frozenset()
