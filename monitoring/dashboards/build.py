"""What every dashboard is made of: variables, links, rows. Pure.

Dashboards ask for the recording rules ``dflash:*`` wherever there is one, so one panel shows both engines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

from monitoring import links

DATASOURCE = models.DataSourceRef("prometheus", "${datasource}")
TAG = "dflash"

OF = 'namespace=~"$namespace", deployment=~"$deployment"'
"""Selects what the variables choose."""
BY = "namespace, deployment"

Panel = Builder[models.Panel]


@dataclass(frozen=True, slots=True)
class Rows:
    """Panels under one heading, from left to right; a row of the grid is 24 wide."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True)
class Event:
    """Marks on every panel of a dashboard, where ``expr`` has a series; ``text`` may name its labels."""

    name: str
    expr: str
    text: str
    color: str


class _Annotation(models.AnnotationQuery):
    """With the two fields that Grafana's Prometheus source reads and the SDK leaves out."""

    def __init__(self, event: Event) -> None:
        super().__init__(event.name, DATASOURCE, icon_color=event.color, expr=event.expr)
        self._text = event.text

    def to_json(self) -> dict[str, object]:
        return super().to_json() | {"titleFormat": self.name, "textFormat": self._text, "step": "30s"}


class _AnnotationBuilder(Builder[models.AnnotationQuery]):
    def __init__(self, event: Event) -> None:
        self._event = event

    def build(self) -> models.AnnotationQuery:
        return _Annotation(self._event)


def selected(metric: str, *matchers: str, **labels: str) -> str:
    """A selector; ``labels`` must match these regular expressions."""
    found = [*matchers, *(f'{name}=~"{pattern}"' for name, pattern in labels.items())]
    return f"{metric}{{{', '.join(found)}}}"


def of(metric: str, *matchers: str, **labels: str) -> str:
    """A metric of the chosen deployments."""
    return selected(metric, OF, *matchers, **labels)


def in_role(roles: str = "stable|candidate") -> str:
    """Multiplies a ``dflash:revision_*`` by 1 and gives it the role that the revision has at each moment.

    While one operator hands over to another, two of them may tell the role of a revision: one is taken, or the whole query would fail.
    """
    told = selected("dflash:revision_info", role=roles)
    return f"* on ({BY}, revision) group_left (role) topk by ({BY}, revision) (1, {told})"


def by_role(metric: str, roles: str = "stable|candidate", *matchers: str, **labels: str) -> str:
    """A ``dflash:revision_*`` of the chosen deployments, with the role of each revision."""
    return f"{of(metric, *matchers, **labels)} {in_role(roles)}"


def stable(metric: str, *matchers: str, **labels: str) -> str:
    """A ``dflash:revision_*`` of what is in force, one series per deployment."""
    return f"max by ({BY}) ({by_role(metric, 'stable', *matchers, **labels)})"


def appeared(metric: str, what: str, *matchers: str) -> str:
    """Series that began within the last minute, of deployments that are older than that."""
    now, labels = of(metric, *matchers), f"{BY}, {what}"
    return (
        f"(group by ({labels}) ({now}) unless group by ({labels}) ({of(metric)} offset 1m))"
        f" and on ({BY}) group by ({BY}) ({of(metric)} offset 1m)"
    )


def coded(metric: str, label: str, words: Sequence[str]) -> str:
    """A metric that says by a label which of ``words`` holds, as the word's place in them: what a state timeline can draw."""
    parts = (f"{place} * {of(metric, **{label: word})}" for place, word in enumerate(words))
    return f"max by ({BY}) ({' or '.join(parts)})"


def runbook(name: str) -> Builder[models.DashboardLink]:
    """Link of a panel to ``docs/runbooks/NAME.md``."""
    return builders.DashboardLink(f"Runbook: {name}").type(models.DashboardLinkType.LINK).url(links.runbook(name)).target_blank(True)


def page(title: str, path: str) -> Builder[models.DashboardLink]:
    """Link of a panel to a page of ``docs/``."""
    return builders.DashboardLink(title).type(models.DashboardLinkType.LINK).url(f"{links.DOCS}/{path}").target_blank(True)


def drill_down(title: str, uid: str) -> dict[str, object]:
    """Link of a table's cell to another dashboard, for the row's deployment."""
    row = "var-namespace=${__data.fields.Namespace}&var-deployment=${__data.fields.Deployment}"
    return {"title": title, "url": f"/d/{uid}?{row}&${{datasource:queryparam}}&${{__url_time_range}}"}


def variables(*, several: bool, revision: bool = False) -> list[Builder[models.VariableModel]]:
    """Data source, namespace, deployment. ``several``: all of them from the start; otherwise one deployment, and more on request."""
    chosen = [
        _label("namespace", "Namespace", "label_values(dflash:revision_info, namespace)", everything=True),
        _label(
            "deployment",
            "Deployment",
            'label_values(dflash:revision_info{namespace=~"$namespace"}, deployment)',
            everything=several,
        ),
    ]
    if revision:
        chosen.append(_label("revision", "Revision", f"label_values(dflash:revision_info{{{OF}}}, revision)", everything=True))
    return [source_variable(), *chosen]


def source_variable() -> Builder[models.VariableModel]:
    return builders.DatasourceVariable("datasource").label("Data source").type("prometheus")


def operator_variable() -> Builder[models.VariableModel]:
    """The namespaces in which operators run."""
    return _label("operator", "Operator's namespace", "label_values(dflash_leader, namespace)", everything=True)


def _label(name: str, label: str, query: str, *, everything: bool) -> Builder[models.VariableModel]:
    variable = (
        builders.QueryVariable(name)
        .label(label)
        .datasource(DATASOURCE)
        .query(query)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(everything)
    )
    if everything:
        variable.all_value(".+").current(models.VariableOption(True, ["All"], ["$__all"]))
    return variable


def dashboard(
    uid: str,
    title: str,
    description: str,
    chosen: Sequence[Builder[models.VariableModel]],
    rows: Sequence[Rows],
    *,
    guide: str,
    events: Sequence[Event] = (),
) -> models.Dashboard:
    """The whole of it; ``guide`` is the page of ``docs/`` that says more."""
    made = (
        builders.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags([TAG])
        .timezone("browser")
        .time("now-3h", "now")
        .refresh("30s")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .readonly()
        .variables(list(chosen))
        .annotations([_AnnotationBuilder(event) for event in events])
        .link(
            builders.DashboardLink("DFlash")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .as_dropdown(True)
            .include_vars(True)
            .keep_time(True)
        )
        .link(page("How to read it", guide))
    )
    for row in rows:
        made.with_row(builders.Row(row.title))
        for panel in row.panels:
            made.with_panel(panel)
    built = made.build()
    for number, made_panel in enumerate(built.panels or (), start=1):
        made_panel.id_val = number
    return built


def rendered(built: models.Dashboard) -> str:
    """The JSON that Grafana imports."""
    return json.dumps(built, cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def words_of(words: Sequence[str], colors: Mapping[str, str]) -> models.ValueMap:
    """Shows ``coded`` numbers as their words again."""
    return models.ValueMap(
        {str(place): models.ValueMappingResult(word, colors.get(word, "blue"), index=place) for place, word in enumerate(words)}
    )
