"""The manifest against the live object and the fields the API server says are the operator's."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from dflash_controller.api.names import FIELD_MANAGER
from dflash_controller.cluster.field_ownership import drift, other_managers, readable

MANIFEST: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "demo", "namespace": "ns", "labels": {"app": "demo"}},
    "spec": {
        "replicas": 2,
        "selector": {"matchLabels": {"app": "demo"}},
        "template": {
            "metadata": {"finalizers": ["example.com/a"]},
            "spec": {
                "containers": [
                    {
                        "name": "engine",
                        "args": ["--x"],
                        "ports": [{"containerPort": 8000}],
                        "resources": {"limits": {"cpu": "1000m", "memory": "1024Mi"}},
                    }
                ],
                "volumes": [{"name": "shm", "emptyDir": {}}],
                "tolerations": [{"key": "gpu", "operator": "Exists"}],
            },
        },
    },
}

FIELDS: dict[str, Any] = {
    "f:metadata": {"f:labels": {"f:app": {}}},
    "f:spec": {
        "f:replicas": {},
        "f:selector": {},
        "f:template": {
            "f:metadata": {"f:finalizers": {'v:"example.com/a"': {}}},
            "f:spec": {
                "f:containers": {
                    'k:{"name":"engine"}': {
                        ".": {},
                        "f:name": {},
                        "f:args": {},
                        "f:ports": {'k:{"containerPort":8000,"protocol":"TCP"}': {".": {}, "f:containerPort": {}}},
                        "f:resources": {"f:limits": {"f:cpu": {}, "f:memory": {}}},
                    }
                },
                "f:volumes": {'k:{"name":"shm"}': {".": {}, "f:name": {}, "f:emptyDir": {}}},
                "f:tolerations": {},
            },
        },
    },
}


def owned_by(manager: str, fields: dict[str, Any], operation: str = "Apply", time: str = "t1", **more: str) -> dict[str, Any]:
    return {"manager": manager, "operation": operation, "fieldsV1": fields, "time": time, **more}


def live() -> dict[str, Any]:
    """As the API server would return it: defaults filled in, quantities spelled its way, other managers' fields beside ours."""
    obj = deepcopy(MANIFEST)
    obj["metadata"] |= {"uid": "u", "resourceVersion": "5", "generation": 1, "annotations": {"deployment.kubernetes.io/revision": "1"}}
    obj["metadata"]["managedFields"] = [
        owned_by("kube-controller-manager", {"f:metadata": {"f:annotations": {"f:deployment.kubernetes.io/revision": {}}}}, "Update"),
        owned_by(FIELD_MANAGER, {"f:status": {"f:x": {}}}, subresource="status"),
        owned_by(FIELD_MANAGER, deepcopy(FIELDS)),
    ]
    obj["spec"] |= {"progressDeadlineSeconds": 600, "strategy": {"type": "RollingUpdate"}}
    container = pod(obj)["containers"][0]
    container["ports"][0] |= {"protocol": "TCP"}
    container["resources"]["limits"] = {"cpu": "1", "memory": "1Gi"}
    container["imagePullPolicy"] = "IfNotPresent"
    pod(obj)["containers"].insert(0, {"name": "sidecar", "image": "mesh"})
    obj["status"] = {"readyReplicas": 2}
    return obj


def pod(obj: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = obj["spec"]["template"]["spec"]
    return spec


def fields(obj: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = obj["metadata"]["managedFields"][-1]["fieldsV1"]
    return tree


def drifted(manifest: dict[str, Any], obj: dict[str, Any]) -> list[str]:
    return [readable(path) for path in drift(manifest, obj)]


def test_defaults_foreign_fields_and_spellings_are_no_drift() -> None:
    assert drifted(MANIFEST, live()) == []


def change(obj: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    *parents, last = path.split(".")
    target: Any = obj
    for part in parents:
        target = target[int(part)] if part.isdigit() else target[part]
    target[int(last) if last.isdigit() else last] = value
    return obj


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("spec.replicas", 3, "spec.replicas"),
        ("spec.selector.matchLabels.app", "x", "spec.selector"),
        ("metadata.labels.app", "x", "metadata.labels.app"),
        ("spec.template.metadata.finalizers", ["example.com/b"], "spec.template.metadata.finalizers"),
        ("spec.template.spec.containers.1.args", ["--x", "--y"], "spec.template.spec.containers[name=engine].args"),
        ("spec.template.spec.containers.1.resources.limits.cpu", "2", "spec.template.spec.containers[name=engine].resources.limits.cpu"),
        ("spec.template.spec.tolerations", [], "spec.template.spec.tolerations"),
        ("spec.template.spec.volumes", [], "spec.template.spec.volumes[name=shm].name"),
    ],
)
def test_a_changed_live_value_is_drift(path: str, value: Any, field: str) -> None:
    assert field in drifted(MANIFEST, change(live(), path, value))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.replicas", 3),
        ("spec.template.spec.containers.0.args", ["--z"]),
        ("spec.template.spec.containers.0.ports", [{"containerPort": 9000}]),
        ("spec.template.spec.containers.0.resources.limits.memory", "1025Mi"),
        ("spec.template.spec.volumes.0.emptyDir", {"medium": "Memory"}),
        ("metadata.annotations", {"example.com/new": "1"}),
    ],
)
def test_a_changed_manifest_is_drift(path: str, value: Any) -> None:
    assert drifted(change(deepcopy(MANIFEST), path, value), live())


def test_a_field_another_manager_took_is_drift_even_with_the_right_value() -> None:
    obj = live()
    del fields(obj)["f:spec"]["f:replicas"]
    assert drifted(MANIFEST, obj) == ["spec.replicas"]


def test_a_field_of_ours_that_is_no_longer_rendered_is_drift() -> None:
    obj = live()
    fields(obj)["f:spec"]["f:paused"] = {}
    pod_fields = fields(obj)["f:spec"]["f:template"]["f:spec"]
    pod_fields["f:containers"]['k:{"name":"old"}'] = {".": {}, "f:name": {}}
    assert drifted(MANIFEST, obj) == ["spec.template.spec.containers[name=old]", "spec.paused"]


def test_an_object_without_our_fields_needs_an_apply_though_all_values_fit() -> None:
    obj = live()
    obj["metadata"]["managedFields"] = []
    assert drifted(MANIFEST, obj) == ["metadata", "spec"]


def test_none_in_a_manifest_is_absence() -> None:
    assert drifted(change(deepcopy(MANIFEST), "spec.paused", None), live()) == []


def test_true_is_not_one() -> None:
    obj = live()
    fields(obj)["f:spec"]["f:paused"] = {}
    obj["spec"]["paused"] = 1
    assert drifted(change(deepcopy(MANIFEST), "spec.paused", True), obj) == ["spec.paused"]


def test_quantities_are_numbers_only_where_quantities_stand() -> None:
    obj, manifest = change(live(), "metadata.labels.app", "1"), change(deepcopy(MANIFEST), "metadata.labels.app", "1000m")
    assert drifted(manifest, obj) == ["metadata.labels.app"]


def test_the_other_managers_of_a_field_are_named_latest_first() -> None:
    obj = live()
    obj["metadata"]["managedFields"] += [
        owned_by("early", {"f:spec": {"f:replicas": {}}}, "Update", "2026-01-01T00:00:00Z"),
        owned_by("late", {"f:spec": {"f:replicas": {}}}, "Update", "2026-01-02T00:00:00Z"),
        owned_by("whole", {"f:spec": {"f:template": {"f:spec": {"f:tolerations": {}}}}}, "Update", "2026-01-03T00:00:00Z"),
        owned_by("elsewhere", {"f:spec": {"f:minReadySeconds": {}}}, "Update", "2026-01-04T00:00:00Z"),
    ]
    assert other_managers(obj, [("f:spec", "f:replicas")]) == ("late", "early")
    assert other_managers(obj, [("f:spec", "f:template", "f:spec", "f:tolerations", "v:x")]) == ("whole",)
