"""The parts of every dashboard: variables, links, rows. Pure.

Dashboards query the recording rules ``dflash:*`` wherever there is one, so that one panel shows both engines.
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
"""Label matchers for the selected values of the variables."""
KEYS = ("namespace", "deployment")
"""Labels that identify a deployment."""
BY = ", ".join(KEYS)
NAME = "/".join(f"{{{{{label}}}}}" for label in KEYS)
"""The part of a legend that names a deployment. Two namespaces may each have one of the same name."""
REVISION_KEYS = (*KEYS, "revision")
POD_KEYS = ("namespace", "pod")

Panel = Builder[models.Panel]


@dataclass(frozen=True, slots=True)
class Rows:
    """Panels under one heading, from left to right; the grid is 24 columns wide."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True)
class Event:
    """Marks on every panel of a dashboard when ``expr`` has a series; ``text`` may refer to its labels."""

    name: str
    expr: str
    text: str
    color: str


class _Annotation(models.AnnotationQuery):
    """An annotation with the two fields that Grafana's Prometheus source reads but the SDK lacks."""

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
    """Returns a selector; ``labels`` are regular expressions that must match."""
    found = [*matchers, *(f'{name}=~"{pattern}"' for name, pattern in labels.items())]
    return f"{metric}{{{', '.join(found)}}}"


def of(metric: str, *matchers: str, **labels: str) -> str:
    """Selects a metric of the selected deployments."""
    return selected(metric, OF, *matchers, **labels)


def in_role(roles: str = "stable|candidate") -> str:
    """Returns a factor of 1 that adds to a ``dflash:revision_*`` the role of the revision at each moment.

    During a handover two operators may export the role of a revision. One of them is taken, because otherwise the query would fail.
    """
    roles_now = selected("dflash:revision_info", role=roles)
    revision = ", ".join(REVISION_KEYS)
    return f"* on ({revision}) group_left (role) topk by ({revision}) (1, {roles_now})"


def by_role(metric: str, roles: str = "stable|candidate", *matchers: str, **labels: str) -> str:
    """Selects a ``dflash:revision_*`` of the selected deployments, with the role of each revision."""
    return f"{of(metric, *matchers, **labels)} {in_role(roles)}"


def of_stable(expr: str) -> str:
    """Returns the value of the stable revision from an expression with one series per revision: one series per deployment."""
    return f"max by ({BY}) ({expr} {in_role('stable')})"


def deployments(expr: str) -> str:
    """Returns the number of deployments that an expression has series of; 0 without any. Two operators may tell of one of them."""
    return f"count(group by ({BY}) ({expr})) or vector(0)"


def appeared(metric: str, what: str, *matchers: str) -> str:
    """Selects series that began within the last minute, of deployments that are older than that."""
    now, labels = of(metric, *matchers), f"{BY}, {what}"
    return (
        f"(group by ({labels}) ({now}) unless group by ({labels}) ({of(metric)} offset 1m))"
        f" and on ({BY}) group by ({BY}) ({of(metric)} offset 1m)"
    )


def coded(metric: str, label: str, words: Sequence[str]) -> str:
    """Returns a query that maps the value of ``label`` to its position in ``words``, which a state timeline can draw."""
    parts = (f"{place} * {of(metric, **{label: word})}" for place, word in enumerate(words))
    return f"max by ({BY}) ({' or '.join(parts)})"


def runbook(name: str) -> Builder[models.DashboardLink]:
    """Returns a panel's link to ``docs/runbooks/NAME.md``."""
    return builders.DashboardLink(f"Runbook: {name}").type(models.DashboardLinkType.LINK).url(links.runbook(name)).target_blank(True)


def page(title: str, path: str) -> Builder[models.DashboardLink]:
    """Returns a panel's link to a page of ``docs/``."""
    return builders.DashboardLink(title).type(models.DashboardLinkType.LINK).url(f"{links.DOCS}/{path}").target_blank(True)


def drill_down(title: str, uid: str) -> dict[str, object]:
    """Returns the link of a table's cell to another dashboard, for the row's deployment."""
    row = "var-namespace=${__data.fields.Namespace}&var-deployment=${__data.fields.Deployment}"
    return {"title": title, "url": f"/d/{uid}?{row}&${{datasource:queryparam}}&${{__url_time_range}}"}


def variables(*, several: bool, revision: bool = False) -> list[Builder[models.VariableModel]]:
    """Returns the variables data source, namespace and deployment. ``several`` selects all deployments at first, otherwise one."""
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
    """Returns the variable with the namespaces of the operators."""
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
    """Returns the dashboard; ``guide`` is its page in ``docs/``."""
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
    """Returns the JSON that Grafana imports."""
    return json.dumps(built, cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def decoded(words: Sequence[str], colors: Mapping[str, str]) -> models.ValueMap:
    """Returns the mapping that shows ``coded`` numbers as words again."""
    return models.ValueMap(
        {str(place): models.ValueMappingResult(word, colors.get(word, "blue"), index=place) for place, word in enumerate(words)}
    )
