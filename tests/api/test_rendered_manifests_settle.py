"""What is rendered is accepted by a real API server, written with the chart's rights alone, and not a second time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dflash_controller.api.names import FIELD_MANAGER
from dflash_controller.cluster.field_ownership import drift
from testbed.cluster import Cluster, CommandError
from testbed.waiting import wait_until
from tests.support.render_inputs import CUSTOM_KINDS, INPUTS, rendered

CHART = Path(__file__).parents[2] / "charts" / "dflash-operator"

Operator = Callable[..., str]


@pytest.fixture(scope="module")
def operator(cluster: Cluster) -> Iterator[Operator]:
    """``kubectl`` in a namespace of its own, with the rights that the chart gives the operator and no others."""
    namespace = cluster.create_namespace()
    release = f"operator-{namespace}"
    values = f"deployment.create=false,crds.install=false,admissionPolicy.enabled=false,fullnameOverride={release}"
    options = ("--namespace", namespace, "--set", values)
    cluster.helm("install", release, str(CHART), *options)
    kubeconfig = cluster.service_account_kubeconfig(namespace, release)

    def kubectl(*arguments: str, input: str | None = None) -> str:
        return cluster.kubectl("--namespace", namespace, *arguments, input=input, kubeconfig=kubeconfig)

    yield kubectl
    cluster.helm("uninstall", release, "--namespace", namespace)
    cluster.delete_namespace(namespace)


def apply(operator: Operator, manifests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The live objects after a server-side apply as the operator does it."""
    options = ("--server-side", "--force-conflicts", "--field-manager", FIELD_MANAGER, "--show-managed-fields", "-o", "json")
    live: list[dict[str, Any]] = json.loads(operator("apply", *options, "-f", "-", input=yaml.safe_dump_all(manifests)))["items"]
    return live


def versions(live: list[dict[str, Any]]) -> list[str]:
    return [item["metadata"]["resourceVersion"] for item in live]


@pytest.mark.parametrize("case", INPUTS)
def test_a_second_apply_changes_nothing_and_is_known_not_to(operator: Operator, case: str) -> None:
    manifests = [manifest for manifest in rendered(INPUTS[case]) if manifest["kind"] not in CUSTOM_KINDS]
    for manifest in manifests:
        del manifest["metadata"]["namespace"]
        if manifest["kind"] == "Deployment":
            manifest["spec"]["replicas"] = 0
    live = apply(operator, manifests)
    assert len(live) >= 4
    assert [drift(manifest, item) for manifest, item in zip(manifests, live, strict=True)] == [[]] * len(live)
    # Controllers write their status once after the first apply; an apply that was a write would never come to rest.
    wait_until(lambda: versions(apply(operator, manifests)) == versions(apply(operator, manifests)), "two applies without a write", 10)


@pytest.mark.parametrize(
    "forbidden",
    [
        ("list", "secrets"),
        ("get", "secrets"),
        ("patch", "dflashdeployments.serving.dflash.io"),
        ("update", "dflashdeployments.serving.dflash.io"),
        ("create", "pods"),
        ("create", "rolebindings.rbac.authorization.k8s.io"),
        ("create", "leases.coordination.k8s.io", "--namespace=default"),
    ],
    ids=" ".join,
)
def test_the_operator_has_no_other_rights(operator: Operator, forbidden: tuple[str, ...]) -> None:
    with pytest.raises(CommandError):
        operator("auth", "can-i", "--quiet", *forbidden)


def test_the_operator_may_hold_a_lease_in_its_own_namespace(operator: Operator) -> None:
    assert operator("auth", "can-i", "create", "leases.coordination.k8s.io").strip() == "yes"
