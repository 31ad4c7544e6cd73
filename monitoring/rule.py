"""A recording rule, and the expressions that rules of every level are made of. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

WORKLOAD = ("deployment", "revision", "block_size", "engine")
"""What a pod is, beside its own namespace and name."""
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
    """Labels of its series."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels it sets; part of ``keys``."""

    def to_dict(self) -> dict[str, Any]:
        """As in a rule file."""
        return {"record": self.record, "expr": self.expr} | ({"labels": dict(self.labels)} if self.labels else {})


def group(name: str, rules: Iterable[Rule], interval: str | None = None) -> dict[str, Any]:
    """A group of a rule file; Prometheus works through it in order, every ``interval`` (by default its own)."""
    return {"name": name} | ({"interval": interval} if interval else {}) | {"rules": [rule.to_dict() for rule in rules]}


def listed(labels: Iterable[str]) -> str:
    """Labels as in a ``by`` clause."""
    return ", ".join(labels)


def tagged(expr: str) -> str:
    """A figure per pod with the labels that tell what the pod is; pods that belong to no DFlashDeployment drop out."""
    return f"({expr}) * on (namespace, pod) group_left ({listed(WORKLOAD)}) {POD_INFO}"


def summed(level: tuple[str, ...], expr: str) -> str:
    return f"sum by ({listed(level)}) ({expr})"


def quotient(above: str, below: str) -> str:
    """Without a value while ``below`` stands still."""
    return f"{above} / ({below} > 0)"


def any_of(*exprs: str) -> str:
    """The first that has a value, series by series."""
    return "\nor\n".join(exprs)
