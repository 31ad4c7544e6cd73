"""A recording rule, and the expressions that rules of every level use. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

WORKLOAD = ("deployment", "revision", "block_size", "engine")
"""Labels that identify the workload of a pod, in addition to its namespace and name."""
POD = ("namespace", "pod", *WORKLOAD)
REVISION = ("namespace", *WORKLOAD)
DEPLOYMENT = ("namespace", "deployment")
QUANTILES = ("0.5", "0.95", "0.99")

POD_INFO = "dflash:pod_info"
REVISION_INFO = "dflash:revision_info"


@dataclass(frozen=True, slots=True)
class Rule:
    """One recording rule."""

    record: str
    expr: str
    """PromQL."""
    keys: tuple[str, ...]
    """Labels of the rule's series."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels that the rule sets; they are part of ``keys``."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the rule as in a rule file."""
        return {"record": self.record, "expr": self.expr} | ({"labels": dict(self.labels)} if self.labels else {})


def group(name: str, rules: Iterable[Rule], interval: str | None = None) -> dict[str, Any]:
    """Returns a group of a rule file. Prometheus evaluates it in order, every ``interval`` (by default Prometheus' own)."""
    return {"name": name} | ({"interval": interval} if interval else {}) | {"rules": [rule.to_dict() for rule in rules]}


def listed(labels: Iterable[str]) -> str:
    """Returns labels as in a ``by`` clause."""
    return ", ".join(labels)


def tagged(expr: str) -> str:
    """Returns a figure per pod with the labels of the pod's workload. Pods that belong to no DFlashDeployment are left out."""
    return f"({expr}) * on (namespace, pod) group_left ({listed(WORKLOAD)}) {POD_INFO}"


def summed(level: tuple[str, ...], expr: str) -> str:
    return f"sum by ({listed(level)}) ({expr})"


def quotient(above: str, below: str) -> str:
    """Returns a quotient that has no value while ``below`` is 0."""
    return f"{above} / ({below} > 0)"


def any_of(*exprs: str) -> str:
    """Returns the first expression that has a value, series by series."""
    return "\nor\n".join(exprs)
