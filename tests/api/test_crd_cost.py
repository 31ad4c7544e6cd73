"""What the CEL rules cost, told by the API server: it names the factor by which an estimate exceeds its budget."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from hack.crd import definition
from testbed.cluster import Cluster, CommandError

COPIES = 50
"""Enough to push every costly rule over its budget."""


def nodes_with_rules(node: Any) -> Iterator[dict[str, Any]]:
    children: Any = ()
    if isinstance(node, dict):
        if "x-kubernetes-validations" in node:
            yield node
        children = node.values()
    elif isinstance(node, list):
        children = node
    for child in children:
        yield from nodes_with_rules(child)


def other_crd() -> dict[str, Any]:
    """The definition under another group, so that the installed one stays out of it."""
    crd: dict[str, Any] = yaml.safe_load(definition())
    crd["metadata"]["name"] = "dflashdeployments.cost.example"
    crd["spec"]["group"] = "cost.example"
    return crd


def factors(cluster: Cluster, crd: dict[str, Any], pattern: str) -> list[float]:
    """The factors by which the API server finds estimates to exceed their budget, over COPIES."""
    with pytest.raises(CommandError) as refusal:
        cluster.kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(crd))
    return [
        float(factor) / COPIES
        for factor in re.findall(pattern + r" exceeds budget by factor of (?:more than )?([0-9.]+)x", refusal.value.stderr)
    ]


def test_all_rules_together_cost_less_than_half_of_the_budget(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    crd = other_crd()
    for node in nodes_with_rules(crd):
        # Without their fixed messages, so that the request stays small enough for the API server.
        node["x-kubernetes-validations"] = [{**rule, "message": "-"} for rule in node["x-kubernetes-validations"]] * COPIES
    (share,) = factors(cluster, crd, "entire OpenAPIv3 schema")
    with capsys.disabled():
        print(f"\nCEL cost: {share:.1%} of the budget of the whole definition")
    assert share < 0.5


def test_each_rule_costs_less_than_half_of_its_budget(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    crd = other_crd()
    count = f"[{','.join('0' * COPIES)}]"
    for node in nodes_with_rules(crd):
        for rule in node["x-kubernetes-validations"]:
            rule.pop("messageExpression", None)
            rule["rule"] = f"{count}.all(i, {rule['rule']})"
    shares = factors(cluster, crd, "estimated rule cost")
    with capsys.disabled():
        print(f"\nCEL cost: {max(shares):.1%} of the budget of one rule for the dearest")
    assert max(shares) < 0.5
