"""The types of panels. Pure.

Every panel has a title, a description, a unit and at least one query. A legend refers to labels that each series of its query has.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from grafana_foundation_sdk.builders import bargauge, common, heatmap, prometheus, stat, statetimeline, table, timeseries, xychart
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import heatmap as heatmap_models
from grafana_foundation_sdk.models import prometheus as prometheus_models
from grafana_foundation_sdk.models import xychart as xychart_models

from monitoring.dashboards.build import DATASOURCE, decoded

HEIGHT = 8

Levels = Sequence[tuple[float | None, str]]
"""Thresholds: from which value which color applies; the first has no value."""


@dataclass(frozen=True, slots=True)
class Query:
    """A query; ``legend`` names a series by its labels: ``{{deployment}} {{role}}``."""

    expr: str
    legend: str = ""
    dashed: bool = False
    """Drawn dashed: an expected value, not a measured one. Then ``legend`` must begin like no other."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: the largest value of an instant query for the row's keys, or, if ``label`` is given, the value of this label in
    the series with the largest value."""

    title: str
    expr: str
    unit: str = "none"
    """Of the number. ``short`` writes thousands as K, so it may not be rounded to whole ones: 2,520 would be 3 K."""
    label: str = ""
    decimals: int | None = None
    levels: Levels = ()
    colors: Mapping[str, str] = field(default_factory=dict)
    """Colors of words that the column shows."""

    def __post_init__(self) -> None:
        if self.unit == "short" and self.decimals == 0:
            raise ValueError(f"{self.title}: thousands without decimals cannot be compared")

    @property
    def field(self) -> str:
        """The title as the name of a label."""
        return re.sub(r"\W+", "_", self.title.lower())

    def keyed(self, keys: Sequence[str]) -> Column:
        """Returns the column with one series for each set of ``keys``, and with no other label than them and its own."""
        by = ", ".join(keys)
        if not self.label:
            return replace(self, expr=f"max by ({by}) ({self.expr})")
        found = f"topk by ({by}) (1, {self.expr})"
        if self.field != self.label:
            found = f'label_replace({found}, "{self.field}", "$1", "{self.label}", "(.*)")'
        return replace(self, expr=f"group by ({by}, {self.field}) ({found})", label=self.field)


def one(
    title: str,
    description: str,
    unit: str,
    expr: str,
    *,
    levels: Levels = (),
    span: int = 4,
    decimals: int | None = None,
    nothing: str = "",
    legend: str = "",
) -> stat.Panel:
    """Returns a panel with a single current number, or one for each series if ``legend`` names them; ``nothing`` is the text without one.

    A number for several deployments is the worst of them, or a sum of all; a mean, or a share of all requests, would hide the one that
    is broken.
    """
    panel = (
        stat.Panel()
        .title(title)
        .description(description)
        .unit(unit)
        .datasource(DATASOURCE)
        .with_target(_target(Query(expr, legend or title)).instant())
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .graph_mode(common_models.BigValueGraphMode.NONE)
        .color_mode(common_models.BigValueColorMode.VALUE)
        .thresholds(_thresholds(levels or [(None, "text")]))
        .height(4)
        .span(span)
    )
    if nothing:
        panel.no_value(nothing)
    return panel if decimals is None else panel.decimals(decimals)


def lines(
    title: str,
    description: str,
    unit: str,
    *queries: Query,
    span: int = 12,
    stacked: bool = False,
    levels: Levels = (),
    least: float | None = 0,
    nothing: str = "",
) -> timeseries.Panel:
    """Returns a panel with series over time. ``levels`` are drawn as lines; ``nothing`` is the text shown without series."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .unit(unit)
        .datasource(DATASOURCE)
        .line_width(2)
        .fill_opacity(25 if stacked else 4)
        .show_points(common_models.VisibilityMode.NEVER)
        .legend(
            common.VizLegendOptions()
            .display_mode(common_models.LegendDisplayMode.LIST)
            .placement(common_models.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI).sort(common_models.SortOrder.DESCENDING))
        .height(HEIGHT)
        .span(span)
    )
    for letter, query in zip(string.ascii_uppercase, queries, strict=False):
        panel.with_target(_target(query, letter).range())
        if query.dashed:
            panel.override_by_query(letter, [models.DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [8, 6]})])
    if stacked:
        panel.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL))
    if levels:
        panel.thresholds(_thresholds(levels))
        panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(common_models.GraphThresholdsStyleMode.DASHED))
    if least is not None:
        panel.min(least)
    return panel.no_value(nothing) if nothing else panel


def states(
    title: str, description: str, query: Query, words: Sequence[str], colors: Mapping[str, str], *, span: int = 24
) -> statetimeline.Panel:
    """Returns a panel that shows which of ``words`` applied when; the query returns their positions."""
    return (
        statetimeline.Panel()
        .title(title)
        .description(description)
        .unit("none")
        .datasource(DATASOURCE)
        .with_target(_target(query).range())
        .mappings([decoded(words, colors)])
        .merge_values(True)
        .show_value(common_models.VisibilityMode.AUTO)
        .fill_opacity(70)
        .line_width(0)
        .height(HEIGHT)
        .span(span)
    )


def heat(title: str, description: str, unit: str, query: Query, axis: str, *, span: int = 12, nothing: str = "") -> heatmap.Panel:
    """Returns a panel with one row of cells per series over time."""
    return (
        heatmap.Panel()
        .title(title)
        .description(description)
        .unit(unit)
        .datasource(DATASOURCE)
        .with_target(_target(query).range().format(prometheus_models.PromQueryFormat.TIME_SERIES))
        .calculate(False)
        .rows_frame(heatmap.RowsHeatmapOptions().layout(common_models.HeatmapCellLayout.UNKNOWN).value(title))
        .cell_values(heatmap.CellValues().unit(unit))
        .color(
            heatmap.HeatmapColorOptions()
            .mode(heatmap_models.HeatmapColorMode.SCHEME)
            .scheme("RdYlGn")
            .scale(heatmap_models.HeatmapColorScale.LINEAR)
            .steps(64)
            .min(0)
            .max(1)
        )
        .y_axis(heatmap.YAxisConfig().axis_label(axis).reverse(True))
        .show_legend()
        .height(HEIGHT)
        .span(span)
        .no_value(nothing)
    )


def scatter(title: str, description: str, x: Column, y: Column, by: str, *, span: int = 12, nothing: str = "") -> xychart.Panel:
    """Returns a panel with one point for each moment at which both have a value, colored by a label."""
    panel = (
        xychart.Panel()
        .title(title)
        .description(description)
        .unit(y.unit)
        .datasource(DATASOURCE)
        .mapping(xychart_models.SeriesMapping.AUTO)
        .show(xychart_models.XYShowMode.POINTS)
        .point_size(xychart.XychartFieldConfigPointSize().fixed(5))
        .with_transformation(models.DataTransformerConfig("merge", options={}))
        .with_transformation(_organized({by: by}, [x, y]))
        .with_transformation(models.DataTransformerConfig("partitionByValues", options={"fields": [by], "keepFields": False}))
        .override_by_name(x.title, [models.DynamicConfigValue("unit", x.unit), models.DynamicConfigValue("custom.axisLabel", x.title)])
        .override_by_name(y.title, [models.DynamicConfigValue("custom.axisLabel", y.title)])
        .height(HEIGHT)
        .span(span)
    )
    for letter, column in zip("AB", (x, y), strict=True):
        panel.with_target(_target(Query(column.expr), letter).range().format(prometheus_models.PromQueryFormat.TABLE))
    return panel.no_value(nothing) if nothing else panel


def rows(
    title: str,
    description: str,
    keys: Sequence[str],
    columns: Sequence[Column],
    *,
    links: Mapping[str, dict[str, object]] | None = None,
    order: str = "",
    span: int = 24,
    height: int = HEIGHT,
    nothing: str = "",
) -> table.Panel:
    """Returns a table with one row for each set of ``keys``, sorted by the column ``order``. ``links`` belong to the cells of a column;
    ``nothing`` is the text shown without rows.

    Grafana's merge splits a row where queries differ in the value of a label that they share. So every query is aggregated by exactly the
    keys, and a column that shows a label gives it a name of its own. Raises ValueError if two columns would have one name.
    """
    fields = [*keys, *(column.field for column in columns)]
    if len(set(fields)) < len(fields):
        raise ValueError(f"two columns of {title} have one name: {fields}")
    columns = [column.keyed(keys) for column in columns]
    panel = (
        table.Panel()
        .title(title)
        .description(description)
        .unit("short")
        .datasource(DATASOURCE)
        .with_transformation(models.DataTransformerConfig("merge", options={}))
        .with_transformation(_organized({key: shown_as(key) for key in keys}, columns))
        .cell_height(common_models.TableCellHeight.SM)
        .filterable(True)
        .height(height)
        .span(span)
    )
    for letter, column in zip(string.ascii_uppercase[: len(columns)], columns, strict=True):
        panel.with_target(_target(Query(column.expr), letter).instant().format(prometheus_models.PromQueryFormat.TABLE))
        wanted = [models.DynamicConfigValue("unit", column.unit)]
        if column.decimals is not None:
            wanted.append(models.DynamicConfigValue("decimals", column.decimals))
        if column.levels:
            wanted.append(models.DynamicConfigValue("thresholds", _thresholds(column.levels).build().to_json()))
        if column.colors:
            words = {word: {"color": color, "index": place} for place, (word, color) in enumerate(column.colors.items())}
            wanted.append(models.DynamicConfigValue("mappings", [{"type": "value", "options": words}]))
        if column.levels or column.colors:
            wanted.append(models.DynamicConfigValue("custom.cellOptions", {"type": "color-text"}))
        panel.override_by_name(column.title, wanted)
    for name, link in (links or {}).items():
        panel.override_by_name(name, [models.DynamicConfigValue("links", [link])])
    if nothing:
        # Grafana would show it in every empty cell too.
        panel.no_value(nothing).override_by_regexp(".*", [models.DynamicConfigValue("noValue", "")])
    if order:
        panel.sort_by([common.TableSortByFieldState().display_name(order).desc(False)])
    return panel


def bars(
    title: str,
    description: str,
    unit: str,
    query: Query,
    *,
    span: int = 12,
    levels: Levels = (),
    most: float | None = None,
    nothing: str = "",
) -> bargauge.Panel:
    """Returns a panel with one bar for the current value of each series. ``most`` is a full bar; by default the largest value is."""
    panel = (
        bargauge.Panel()
        .title(title)
        .description(description)
        .unit(unit)
        .datasource(DATASOURCE)
        .with_target(_target(query).instant())
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .orientation(common_models.VizOrientation.HORIZONTAL)
        .display_mode(common_models.BarGaugeDisplayMode.BASIC)
        .thresholds(_thresholds(levels or [(None, "blue")]))
        .min(0)
        .height(HEIGHT)
        .span(span)
    )
    if most is not None:
        panel.max(most)
    return panel.no_value(nothing) if nothing else panel


def shown_as(label: str) -> str:
    """Returns the heading of a column that shows a label."""
    return label.replace("_", " ").capitalize()


def _target(query: Query, ref: str = "A") -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(query.expr).legend_format(query.legend or "__auto").ref_id(ref).datasource(DATASOURCE)


def _thresholds(levels: Levels) -> builders.ThresholdsConfig:
    steps = [models.Threshold(value, color) for value, color in levels]
    return builders.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)


def _organized(keys: Mapping[str, str], columns: Sequence[Column]) -> models.DataTransformerConfig:
    """Returns a transformation that orders and names the columns, and hides the time and the values of label columns."""
    names = dict(keys)
    hidden = {"Time": True}
    for letter, column in zip(string.ascii_uppercase, columns, strict=False):
        value = "Value" if len(columns) == 1 else f"Value #{letter}"
        if column.label:
            names[column.label] = column.title
            hidden[value] = True
        else:
            names[value] = column.title
    places = {name: place for place, name in enumerate(names)}
    return models.DataTransformerConfig(
        "organize", options={"excludeByName": hidden, "indexByName": places, "renameByName": names, "includeByName": {}}
    )
