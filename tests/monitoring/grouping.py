"""Extra grouping labels: one rule file for a ruler, or a Grafana, that holds several clusters. Pure.

Deployments are told apart by ``namespace`` and ``deployment``. Where one store holds several clusters, two deployments may share both, so
everything is grouped by the label of the cluster too. The generated files have no such label. Every ``by`` and ``on`` clause in them begins
with ``namespace`` (or is empty), so the labels can be put in front of it. The chart does so with its value ``metrics.groupLabels``
(template ``dflash-operator.grouped``), and ``grouped`` does the same for tests that need no Helm. Operators without a clause need no
change: both sides keep the labels.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_CLAUSE = re.compile(r"\b(by|on) \((namespace\b|\))")
_NAMESPACE = "{{ $labels.namespace }}"


def grouped(text: str, labels: Sequence[str]) -> str:
    """Returns PromQL, or a file with PromQL in it, grouped by further labels, and texts of alerts that name them before a namespace."""
    if not labels:
        return text
    listed = ", ".join(labels)
    text = _CLAUSE.sub(lambda found: f"{found[1]} ({listed}" + (")" if found[2] == ")" else f", {found[2]}"), text)
    return text.replace(_NAMESPACE, "".join(f"{{{{ $labels.{label} }}}}/" for label in labels) + _NAMESPACE)


def clauses(text: str) -> list[str]:
    """Returns the labels of every grouping and matching clause of a text, for the test that each can be extended."""
    return re.findall(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)", text)
