"""The objects of the admission policy: for whom they are, what they are called, and how to do without them."""

from __future__ import annotations

from typing import Any

import pytest

from dflash_controller.catalog import Catalog
from dflash_controller.engines.releases import TABLE, read_table
from hack.admission_policy import policy_spec
from tests.chart.rendering import NAMESPACE, Manifest, manifests, of_kind, render


def policy(values: dict[str, Any]) -> tuple[Manifest, Manifest]:
    """The policy and its binding."""
    [rule] = of_kind(manifests(values), "ValidatingAdmissionPolicy")
    [binding] = of_kind(manifests(values), "ValidatingAdmissionPolicyBinding")
    return rule, binding


def test_the_policy_is_that_of_this_catalog_and_refuses_everywhere() -> None:
    rule, binding = policy({})
    assert rule["spec"] == policy_spec(Catalog.load(), TABLE)
    assert binding["spec"] == {"policyName": rule["metadata"]["name"], "validationActions": ["Deny"]}


def test_the_policy_is_for_the_served_namespaces_only() -> None:
    _, binding = policy({"watchNamespaces": ["team-a", "team-b"]})
    assert binding["spec"]["matchResources"]["namespaceSelector"] == {
        "matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["team-a", "team-b"]}]
    }


@pytest.mark.parametrize(
    ("values", "name"),
    [({}, "dflash-operator"), ({"fullnameOverride": "x"}, "x"), ({"fullnameOverride": "n" * 50}, "n" * 50)],
    ids=["default", "override", "longest"],
)
def test_policy_and_binding_have_the_name_of_the_release_in_its_namespace(values: dict[str, Any], name: str) -> None:
    assert {one["metadata"]["name"] for one in policy(values)} == {f"{NAMESPACE}.{name}"}


def test_the_policy_can_be_left_out_or_only_warn() -> None:
    kinds = {manifest["kind"] for manifest in manifests({"admissionPolicy": {"enabled": False}})}
    assert not [kind for kind in kinds if kind.startswith("ValidatingAdmission")]
    _, binding = policy({"admissionPolicy": {"validationActions": ["Warn"]}})
    assert binding["spec"]["validationActions"] == ["Warn"]


def test_the_policy_needs_no_cluster_to_ask() -> None:
    """A GitOps tool renders without one, and must not leave the policy out."""
    assert "kind: ValidatingAdmissionPolicyBinding" in render({}, version="1.30").stdout


def test_an_oldest_release_that_the_policy_cannot_compare_is_a_mistake() -> None:
    entry = '{title: X, floor: "1.2.3rc1", floorReason: r, default: "1.2.3", tested: [{version: "1.2.3", overlays: []}]}'
    with pytest.raises(ValueError, match="compares with major"):
        policy_spec(Catalog.load(), read_table(f"x: {entry}"))
