"""The Helm chart, rendered by the real Helm."""

from __future__ import annotations

import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from dflash_controller.cluster import kinds
from dflash_controller.runtime.settings import Settings
from testbed import binaries

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "dflash-operator"
KUBERNETES = "1.35"
NAMESPACE = "dflash-system"


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([binaries.path_of("helm"), *arguments], capture_output=True, text=True, check=False, timeout=60)


@cache
def template(*sets: str) -> list[dict[str, Any]]:
    """The manifests for ``--set`` values."""
    options = [word for value in sets for word in ("--set", value)]
    done = helm("template", "dflash-operator", str(CHART), "--namespace", NAMESPACE, "--kube-version", KUBERNETES, *options)
    assert done.returncode == 0, done.stderr
    return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]


def of_kind(manifests: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def rules(kind: str) -> dict[str, set[str]]:
    """Verbs by group/resource."""
    [role] = of_kind(template(), kind)
    return {
        f"{group}/{resource}": set(rule["verbs"]) for rule in role["rules"] for group in rule["apiGroups"] for resource in rule["resources"]
    }


def test_lint_finds_nothing() -> None:
    done = helm("lint", "--strict", "--kube-version", KUBERNETES, str(CHART))
    assert done.returncode == 0, done.stdout


def test_kubernetes_accepts_every_manifest() -> None:
    for manifest in template():
        if manifest["kind"] != "CustomResourceDefinition":
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


def test_the_crd_is_the_generated_one_and_is_kept_on_uninstall() -> None:
    [crd] = of_kind(template(), "CustomResourceDefinition")
    annotations = crd["metadata"].pop("annotations")
    assert annotations == {"helm.sh/resource-policy": "keep"}
    assert crd == yaml.safe_load((CHART / "files" / "crd.yaml").read_text())


def test_keeping_and_installing_the_crd_can_be_switched_off() -> None:
    [crd] = of_kind(template("crds.keep=false"), "CustomResourceDefinition")
    assert "annotations" not in crd["metadata"]
    assert not of_kind(template("crds.install=false"), "CustomResourceDefinition")


def test_without_operator_only_crd_and_rights_remain() -> None:
    kinds = {manifest["kind"] for manifest in template("operator.enabled=false")}
    assert kinds == {"CustomResourceDefinition", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}


def test_the_operator_never_writes_a_spec_and_sees_no_secret() -> None:
    cluster = rules("ClusterRole")
    assert cluster["serving.dflash.io/dflashdeployments"] == {"get", "list", "watch"}
    assert not any("secrets" in resource or "*" in resource for resource in cluster)
    assert not any("*" in verbs for verbs in cluster.values())


def test_the_operator_may_write_every_child_it_renders() -> None:
    cluster = rules("ClusterRole")
    children = {
        "apps/controllerrevisions",
        "apps/deployments",
        "leaderworkerset.x-k8s.io/leaderworkersets",
        "batch/jobs",
        "/services",
        "/serviceaccounts",
        "policy/poddisruptionbudgets",
        "networking.k8s.io/networkpolicies",
        "monitoring.coreos.com/podmonitors",
    }
    for resource in children:
        assert cluster[resource] == {"get", "list", "watch", "create", "patch", "delete"}, resource
    writable = {resource for resource, verbs in cluster.items() if "delete" in verbs}
    assert writable == children


def test_the_operator_may_read_all_it_watches() -> None:
    cluster = rules("ClusterRole")
    for kind in kinds.STORED:
        assert {"get", "list", "watch"} <= cluster[f"{kind.group}/{kind.plural}"], kind.name
    assert cluster["/events"] == {"get", "create"}
    assert cluster["/nodes"] == {"get"}, "one at a time, and never written"


def test_leases_are_written_in_the_operators_own_namespace_only() -> None:
    assert rules("Role") == {"coordination.k8s.io/leases": {"get", "create", "update", "patch"}}
    assert "coordination.k8s.io/leases" not in rules("ClusterRole")


def test_the_operator_pod_meets_the_restricted_standard() -> None:
    [deployment] = of_kind(template(), "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert deployment["spec"]["replicas"] == 2


def environment(*sets: str) -> dict[str, str]:
    """Variables of the operator container; those taken from the pod have a stand-in."""
    [deployment] = of_kind(template(*sets), "Deployment")
    return {variable["name"]: variable.get("value", "pod") for variable in deployment["spec"]["template"]["spec"]["containers"][0]["env"]}


def test_the_operator_understands_the_environment_it_gets() -> None:
    settings = Settings.from_environment(environment("operator.port=9000", "operator.settings.PROMETHEUS_URL=http://prometheus:9090"))
    assert (settings.http_port, settings.prometheus_url) == (9000, "http://prometheus:9090")
    assert (settings.pod_name, settings.lease_namespace) == ("pod", "pod")


def test_every_setting_of_the_operator_can_be_set() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    offered = schema["properties"]["operator"]["properties"]["settings"]["properties"]
    decided_by_the_chart = {"http_host", "http_port", "lease_namespace", "pod_name"}
    assert {name.lower() for name in offered} == set(Settings.model_fields) - decided_by_the_chart


@pytest.mark.parametrize(
    "value", ["operators.enabled=false", "image.pullPolicy=Sometimes", "operator.settings.MISSPELT=x", "operator.replicas=-1"]
)
def test_a_misspelt_value_is_refused(value: str) -> None:
    done = helm("template", "dflash-operator", str(CHART), "--kube-version", KUBERNETES, "--set", value)
    assert done.returncode != 0
    assert "values don't meet the specifications of the schema" in done.stderr


def test_every_value_is_in_the_schema() -> None:
    """The other direction of additionalProperties: a value of values.yaml that the schema lacks would be refused anyway, so both agree."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(values) == set(schema["properties"]) - {"global"}
    for section, inner in values.items():
        properties = schema["properties"][section].get("properties")
        if isinstance(inner, dict) and properties:
            assert set(inner) == set(properties), section
