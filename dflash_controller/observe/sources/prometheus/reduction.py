"""How the series that Prometheus has of one pod become one number, in PromQL. Pure.

Four steps, of which a series takes those that its scope has ranks for (``model.series.reduced`` does the same without PromQL):

1. Sum over what the engine counts apart (``mode``, ``is_streaming``); of levels, the largest.
2. The largest of the ranks that do the same work.
3. Sum over the data-parallel groups, which serve their own requests.
4. The largest over scrapes: each of them saw the whole pod.

Rates are taken before all that, series by series, because a sum over counters would take a restart of one for a restart of all.

A pod is scraped more than once where a PodMonitor meets annotations, where two Prometheus replicas (a highly available pair) write to one
store that does not deduplicate, and where one Prometheus federates another. ``SCRAPE_IDENTITY`` lists the labels in which such scrapes
differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from dflash_controller.model.series import Series

SCRAPE_IDENTITY = (
    "job",
    "instance",
    "endpoint",
    "service",
    "container",
    "node",
    "prometheus",
    "prometheus_replica",
    "replica",
    "exported_job",
    "exported_instance",
)
"""Labels that say who scraped a pod and how, and nothing about the engine: those that Prometheus and the Prometheus Operator set on
targets, and the usual names of external labels. Others are a setting (``replica_labels``)."""
RENAMED = "exported_"
"""Prometheus puts this before a scraped label that the scrape configuration sets too (unless it honours labels)."""
POD = ("namespace", "pod")


@dataclass(frozen=True, slots=True)
class Selection:
    """Which series of a Prometheus are this cluster's, and how scrapes of one pod differ there."""

    static: Mapping[str, str] = field(default_factory=dict)
    """Labels that every series must have: they tell the clusters of a shared Prometheus apart."""
    replicas: tuple[str, ...] = ()
    """Labels of the scrape's identity beyond ``SCRAPE_IDENTITY``."""


def quoted(value: str) -> str:
    """A PromQL string literal."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def selector(metric: str, match: Iterable[tuple[str, str]], static: Mapping[str, str]) -> str:
    """An instant vector selector; ``static`` labels must be equal (a multi-cluster Prometheus), ``match`` are regular expressions."""
    matchers = [f"{label}={quoted(value)}" for label, value in sorted(static.items())]
    matchers += [f"{label}=~{quoted(pattern)}" for label, pattern in match]
    return f"{metric}{{{','.join(matchers)}}}" if matchers else metric


def of_its_pod(vector: str) -> str:
    """The vector with ``namespace`` and ``pod`` of the engine's pod.

    Where a Prometheus that sets both labels on its targets federates another, they are those of the federated Prometheus, and the engine's
    are renamed.
    """
    for label in POD:
        vector = f'label_replace({vector}, "{label}", "$1", "{RENAMED}{label}", "(.+)")'
    return vector


def per_pod(one: Series, read: Callable[[str], str], selection: Selection | None = None, by: Iterable[str] = ()) -> str:
    """One value per pod (and ``one.by``, and ``by``). ``read`` turns a selector into an instant vector, for instance by ``rate``."""
    selection = selection or Selection()
    vector = of_its_pod(_alternatives(one, read, selection.static))
    kept = tuple(dict.fromkeys((*POD, *((one.by,) if one.by else ()), *by)))
    own = own_labels(one)
    scrape = (*kept, *(label for label in scrape_identity(selection.replicas) if label not in own))
    copies, groups = one.scope.copies, one.scope.groups
    fold = "max" if one.gauge else "sum"
    if not groups:
        vector = f"{fold} by ({_listed(scrape, copies)}) ({vector})"
    elif copies or one.gauge:
        vector = f"{fold} by ({_listed(scrape, copies, groups)}) ({vector})"
        vector = f"max by ({_listed(scrape, groups)}) ({vector})" if copies else vector
        vector = f"sum by ({_listed(scrape)}) ({vector})"
    else:
        vector = f"sum by ({_listed(scrape)}) ({vector})"
    return f"max by ({_listed(kept)}) ({vector})"


def scrape_identity(replicas: Iterable[str] = ()) -> tuple[str, ...]:
    """Labels that tell apart the scrapes of a pod."""
    return tuple(dict.fromkeys((*SCRAPE_IDENTITY, *replicas)))


def own_labels(one: Series) -> frozenset[str]:
    """Labels of the engine that have the name of a label of the scrape."""
    return frozenset(label for label, _ in one.match if label in SCRAPE_IDENTITY)


def _alternatives(one: Series, read: Callable[[str], str], static: Mapping[str, str]) -> str:
    """The series under each name that the labels it is chosen by may have: a PodMonitor sets ``endpoint``, which SGLang sets too."""
    matches: list[list[tuple[str, str]]] = [[]]
    for label, pattern in one.match:
        names = (label, RENAMED + label) if label in own_labels(one) else (label,)
        matches = [[*match, (name, pattern)] for match in matches for name in names]
    vectors = [read(selector(one.metric, match, static)) for match in matches]
    return vectors[0] if len(vectors) == 1 else f"({' or '.join(vectors)})"


def _listed(*labels: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(label for some in labels for label in some))
