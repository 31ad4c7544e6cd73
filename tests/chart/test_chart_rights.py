"""The operator's rights: what its code does, and not one verb more."""

from __future__ import annotations

from typing import Any

import pytest

from dflash_controller.cluster import kinds
from tests.chart.rendering import MONITORING, NAMESPACE, Manifest, installer_role, manifests, of_kind

READ = {"get", "list", "watch"}
DEPLOYMENTS = "serving.dflash.io/dflashdeployments"
# By what the code calls: cluster.reader (get, list), runtime.watch (kopf lists and watches), cluster.executor (create, apply, merge patch,
# delete), cluster.events, cluster.lease. Pods are never asked for one by one, and never written.
INSIDE = {
    DEPLOYMENTS: READ,
    f"{DEPLOYMENTS}/status": {"patch"},
    f"{DEPLOYMENTS}/finalizers": {"update"},
    **{
        f"{kind.group}/{kind.plural}": READ | {"create", "patch"} | ({"delete"} if kind in kinds.DELETED else set())
        for kind in kinds.CHILDREN
        if kind is not kinds.POD
    },
    "/pods": {"list", "watch"},
    "/events": {"get", "create"},
}
EVERYWHERE = {"apiextensions.k8s.io/customresourcedefinitions": {"list", "watch"}, "/nodes": {"get"}}
LEASES = {"coordination.k8s.io/leases": {"get", "create", "update"}}
WRITE = {"create", "update", "patch", "delete"}
ADMIN = {
    "apps/deployments": READ | WRITE,
    "apps/controllerrevisions": READ,
    "batch/jobs": READ | WRITE,
    **{f"/{name}": READ | WRITE for name in ("services", "serviceaccounts", "pods", "events")},
    "policy/poddisruptionbudgets": READ | WRITE,
    "networking.k8s.io/networkpolicies": READ | WRITE,
    "coordination.k8s.io/leases": READ | WRITE,
}
"""What Kubernetes' ClusterRole ``admin`` has of the operator's rights (1.35, plugin/pkg/auth/authorizer/rbac/bootstrappolicy/policy.go)."""
NAMESPACED: dict[str, Any] = {"watchNamespaces": ["team-a", "team-b"]}


def rules(role: Manifest) -> dict[str, set[str]]:
    """Verbs by group/resource."""
    found: dict[str, set[str]] = {}
    for rule in role["rules"]:
        for resource in (f"{group}/{name}" for group in rule["apiGroups"] for name in rule["resources"]):
            found.setdefault(resource, set()).update(rule["verbs"])
    return found


def granted(values: dict[str, Any]) -> dict[str | None, dict[str, set[str]]]:
    """What the operator's ServiceAccount may do, by namespace; None is everywhere. Told from the bindings, as the API server does."""
    rendered = manifests(values)
    roles = {(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]): rules(one) for one in rendered if "rules" in one}
    found: dict[str | None, dict[str, set[str]]] = {}
    for binding in [*of_kind(rendered, "ClusterRoleBinding"), *of_kind(rendered, "RoleBinding")]:
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "dflash-operator", "namespace": NAMESPACE}]
        namespace = binding["metadata"].get("namespace")
        found.setdefault(namespace, {}).update(roles[binding["roleRef"]["kind"], namespace, binding["roleRef"]["name"]])
    return found


def test_serving_all_namespaces() -> None:
    assert granted({}) == {None: INSIDE | EVERYWHERE, NAMESPACE: LEASES}


def test_serving_some_namespaces() -> None:
    assert granted(NAMESPACED) == {"team-a": INSIDE, "team-b": INSIDE, NAMESPACE: LEASES, None: {"/nodes": {"get"}}}


def test_serving_the_own_namespace() -> None:
    own = {"watchNamespaces": [NAMESPACE], "rbac": {"readNodes": False}}
    assert granted(own) == {NAMESPACE: INSIDE | LEASES}


def test_a_user_without_cluster_rights_can_install() -> None:
    off = {"crds": {"install": False}, "admissionPolicy": {"enabled": False}}
    values = {**NAMESPACED, **off, "rbac": {"readNodes": False, "aggregateRoles": False}}
    assert {manifest["metadata"].get("namespace") for manifest in manifests(values)} == {"team-a", "team-b", NAMESPACE}


def test_the_documented_role_has_what_an_admin_lacks() -> None:
    """The API server lets nobody make a Role with rights that they do not have themselves."""
    handed_on = granted({"watchNamespaces": [NAMESPACE], "rbac": {"readNodes": False}})[NAMESPACE]
    lacking = {resource: verbs - ADMIN.get(resource, set()) for resource, verbs in handed_on.items()}
    made = {f"{group}/{kind.lower()}s": READ | WRITE for group, _, kind in (api.split("/") for api in MONITORING)}
    assert rules(installer_role()) == {resource: verbs for resource, verbs in lacking.items() if verbs} | made


@pytest.mark.parametrize("values", [{}, NAMESPACED], ids=["all", "some"])
def test_no_right_is_a_wildcard_or_reaches_secrets(values: dict[str, Any]) -> None:
    for role in (one for one in manifests(values) if "rules" in one):
        for rule in role["rules"]:
            words = [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
            assert not {"*", "secrets", "escalate", "bind", "impersonate", "pods/exec"} & set(words)


def test_the_lease_is_the_one_the_operator_is_told_of() -> None:
    for values, name in (({}, "dflash-operator"), ({"settings": {"leaseName": "other"}}, "other")):
        [role] = [one for one in of_kind(manifests(values), "Role") if one["metadata"]["name"].endswith("leader-election")]
        assert [rule.get("resourceNames") for rule in role["rules"]] == [None, [name]]
        [deployment] = of_kind(manifests(values), "Deployment")
        variables = {one["name"]: one.get("value") for one in deployment["spec"]["template"]["spec"]["containers"][0]["env"]}
        assert variables["DFLASH_LEASE_NAME"] == name


def test_users_get_deployments_with_the_clusters_own_roles() -> None:
    roles = {one["metadata"]["name"].rpartition("-")[2]: one for one in of_kind(manifests(), "ClusterRole")}
    aggregated = {
        name: {
            label.rpartition("-")[2] for label in role["metadata"]["labels"] if label.startswith("rbac.authorization.k8s.io/aggregate-to-")
        }
        for name, role in roles.items()
    }
    assert aggregated == {"view": {"view", "edit", "admin"}, "edit": {"edit", "admin"}, "operator": set()}
    assert rules(roles["view"]) == {f"{DEPLOYMENTS}{part}": READ for part in ("", "/status", "/scale")}
    assert f"{DEPLOYMENTS}/status" not in rules(roles["edit"]), "the status is the operator's"
    assert not [one for one in of_kind(manifests({"rbac": {"aggregateRoles": False}}), "ClusterRole") if "-view" in one["metadata"]["name"]]
