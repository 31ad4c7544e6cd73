"""What the render tests share: from a DFlashDeployment to the manifests made of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from dflash_controller.api.defaults import block_size, speculation_of
from dflash_controller.api.parse import parse_spec
from dflash_controller.api.types import Spec
from dflash_controller.catalog import Catalog
from dflash_controller.engines import ENGINES
from dflash_controller.engines.resolve import OperatorDefaults, Resolved, resolve
from dflash_controller.render.disruption_budget import pod_disruption_budget
from dflash_controller.render.monitor import pod_monitor
from dflash_controller.render.network_policy import network_policy
from dflash_controller.render.service import service
from dflash_controller.render.service_account import service_account
from dflash_controller.render.workload import workload

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMESPACE = "inference"
REVISION = "r7f6c2d4"
FETCHED = "fetched"
"""Name of deployments whose weights an init container fetches: the operator knows an image for it."""
FETCH_IMAGE = "images.example.com/dflash-operator@sha256:" + "1" * 64


def deployment(name: str = "qwen", **spec: Any) -> dict[str, Any]:
    """A DFlashDeployment of Qwen3.5-9B, with spec fields replaced or added."""
    return {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"target": {"model": "Qwen/Qwen3.5-9B"}} | spec}


def example(file: str) -> dict[str, Any]:
    """One file of examples/."""
    loaded: dict[str, Any] = yaml.safe_load((EXAMPLES / file).read_text())
    return loaded


def parsed(obj: dict[str, Any]) -> Spec:
    spec = parse_spec(obj)
    assert isinstance(spec, Spec), spec
    return spec


def resolved(obj: dict[str, Any], defaults: OperatorDefaults | None = None) -> Resolved:
    image = FETCH_IMAGE if obj["metadata"]["name"] == FETCHED else ""
    found = resolve(parsed(obj), obj["metadata"]["name"], NAMESPACE, Catalog.load(), defaults or OperatorDefaults(fetch_image=image))
    assert isinstance(found, Resolved), found
    return found


def rendered_workload(obj: dict[str, Any], host_path_roots: Sequence[str] = ("/mnt",)) -> dict[str, Any]:
    """The workload of the first revision."""
    spec, facts = parsed(obj), resolved(obj)
    engine = ENGINES[facts.engine]
    speculation = speculation_of(block_size(spec, facts.trained_block_size))
    launch = engine.launch(facts.launch_request(speculation))
    probes = engine.probes(facts.version)
    return workload(obj["metadata"]["name"], NAMESPACE, REVISION, spec, facts, launch, probes, speculation, host_path_roots)


def rendered(obj: dict[str, Any]) -> list[dict[str, Any]]:
    """Every manifest of a deployment with one revision."""
    name, spec, facts = obj["metadata"]["name"], parsed(obj), resolved(obj)
    return [
        service_account(name, NAMESPACE),
        service(name, NAMESPACE, spec, facts.port),
        pod_disruption_budget(name, NAMESPACE),
        network_policy(name, NAMESPACE, multi_node=facts.nodes > 1, fetches=bool(facts.fetch_image)),
        pod_monitor(name, NAMESPACE),
        rendered_workload(obj),
    ]


def pod_templates(manifest: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The pod templates of a workload by role."""
    if manifest["kind"] == "Deployment":
        return {"engine": manifest["spec"]["template"]}
    group = manifest["spec"]["leaderWorkerTemplate"]
    return {"engine": group["leaderTemplate"], "worker": group["workerTemplate"]}


def engine_container(obj: dict[str, Any], role: str = "engine") -> dict[str, Any]:
    [container] = pod_templates(rendered_workload(obj))[role]["spec"]["containers"]
    assert isinstance(container, dict)
    return container


CUSTOM_KINDS = {"LeaderWorkerSet", "PodMonitor"}

VARIANTS: dict[str, dict[str, Any]] = {
    "variant-persistent-volume-and-token": deployment(
        engine={"name": "vllm"},
        storage={"persistentVolumeClaim": {"claimName": "models"}},
        huggingFace={"tokenSecretRef": {"name": "hub", "key": "HF_TOKEN"}},
    ),
    "variant-read-only-volume": deployment(storage={"persistentVolumeClaim": {"claimName": "models", "readOnly": True}}),
    "variant-host-path": deployment(storage={"hostPath": {"path": "/mnt/models/qwen"}}),
    "variant-empty-dir": deployment(storage={"emptyDir": {"sizeLimit": "80Gi"}}),
    "variant-vllm-two-nodes-rdma": deployment(
        target={"model": "Qwen/Qwen3.5-397B-A17B"},
        engine={"name": "vllm"},
        parallelism={"tensor": 16, "nodes": 2},
        accelerator={"product": "NVIDIA-H200", "rdma": {"resource": "rdma/hca_shared_devices_a", "count": 8}},
    ),
    "variant-everything-a-user-may-add": deployment(
        target={"model": "Qwen/Qwen3.5-9B", "revision": "c202236235762e1c871ad0ccb60c8ee5ba337b9a"},
        engine={
            "name": "sglang",
            "version": "0.5.19",
            "image": "images.example.com/sglang@sha256:" + "0" * 64,
            "extraArgs": ["--mem-fraction-static=0.7"],
            "env": [
                {"name": "NCCL_DEBUG", "value": "WARN"},
                {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "serving"}}},
            ],
            "maxConcurrency": 64,
        },
        blockSize=8,
        scheduling={
            "nodeSelector": {"topology.kubernetes.io/zone": "a"},
            "tolerations": [{"key": "maintenance", "operator": "Equal", "value": "soon", "effect": "NoSchedule"}],
            "affinity": {
                "podAntiAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": [
                        {
                            "topologyKey": "kubernetes.io/hostname",
                            "namespaceSelector": {},
                            "labelSelector": {"matchLabels": {"app": "noisy"}},
                        }
                    ]
                }
            },
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway"}
            ],
            "priorityClassName": "serving",
            "schedulerName": "gang-scheduler",
            "runtimeClassName": "nvidia",
        },
        podTemplate={
            "metadata": {"labels": {"team": "search"}, "annotations": {"prometheus.io/scrape": "false"}},
            "imagePullSecrets": [{"name": "registry"}],
            "terminationGracePeriodSeconds": 900,
            "readOnlyRootFilesystem": True,
            "resources": {"requests": {"cpu": 16, "memory": "128Gi"}, "limits": {"memory": "256Gi", "ephemeral-storage": "50Gi"}},
        },
        service={"port": 9000, "type": "LoadBalancer", "annotations": {"example.com/internal": "true"}},
    ),
    "variant-fetched-into-a-claim": deployment(
        FETCHED,
        target={"model": "Qwen/Qwen3.5-9B", "revision": "a" * 40},
        drafter={"revision": "b" * 40},
        engine={"name": "vllm", "env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}, {"name": "NCCL_DEBUG", "value": "WARN"}]},
        storage={"persistentVolumeClaim": {"claimName": "models"}},
        huggingFace={"tokenSecretRef": {"name": "hub", "key": "HF_TOKEN"}},
    ),
    "variant-fetched-to-two-nodes": deployment(
        FETCHED,
        target={"model": "Qwen/Qwen3.5-397B-A17B", "revision": "a" * 40},
        drafter={"revision": "b" * 40},
        parallelism={"tensor": 16, "nodes": 2},
        storage={"hostPath": {"path": "/mnt/models"}},
    ),
    "variant-without-speculation": deployment(blockSize=1),
}
INPUTS = {f"example-{path.stem}": example(path.name) for path in sorted(EXAMPLES.glob("*.yaml"))} | VARIANTS
"""Every example, and variants that reach the rest of the renderer, by the name of their golden file."""
