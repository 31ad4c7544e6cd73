"""Pods whose weights an init container fetches: what it is asked for, what the engine then loads, and where neither is so."""

from __future__ import annotations

import json
from typing import Any

import kubernetes_validate
import pytest

from dflash_controller.engines import ENGINES
from dflash_controller.engines.resolve import OperatorDefaults, Resolved
from dflash_controller.fetch.program import parser
from dflash_controller.fetch.selection import parse_wanted
from dflash_controller.model.fetch_progress import LIMIT_VARIABLE, PORT
from dflash_controller.planning.revisions.rendering import render
from dflash_controller.render.prefetch import prefetch_jobs
from tests.support.render_inputs import NAMESPACE, REVISION, deployment, parsed, pod_templates, resolved

IMAGE = "images.example.com/dflash-operator@sha256:" + "1" * 64
DEFAULTS = OperatorDefaults(fetch_image=IMAGE)
TARGET, DRAFTER = "a" * 40, "b" * 40
CLAIM: dict[str, Any] = {"persistentVolumeClaim": {"claimName": "models"}}
STORAGES: dict[str, dict[str, Any]] = {"emptyDir": {"emptyDir": {}}, "claim": CLAIM, "hostPath": {"hostPath": {"path": "/mnt/models/qwen"}}}
TOKEN = {"tokenSecretRef": {"name": "hub", "key": "HF_TOKEN"}}


def pinned(engine_name: str = "sglang", **spec: Any) -> dict[str, Any]:
    return deployment(
        **{
            "target": {"model": "Qwen/Qwen3.5-9B", "revision": TARGET},
            "drafter": {"revision": DRAFTER},
            "storage": CLAIM,
            "engine": {"name": engine_name},
        }
        | spec
    )


def workload(obj: dict[str, Any], facts: Resolved | None = None) -> dict[str, Any]:
    spec, found = parsed(obj), facts or resolved(obj, DEFAULTS)
    return render("qwen", NAMESPACE, REVISION, spec, found, _speculation(found), ("/mnt",))


def _speculation(found: Resolved) -> Any:
    from dflash_controller.api.defaults import speculation_of

    return speculation_of(found.trained_block_size)


def pod(obj: dict[str, Any], role: str = "engine") -> dict[str, Any]:
    spec = pod_templates(workload(obj))[role]["spec"]
    assert isinstance(spec, dict)
    return spec


def environment(container: dict[str, Any]) -> dict[str, str]:
    return {variable["name"]: variable.get("value", "") for variable in container.get("env", [])}


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_an_init_container_fetches_what_the_engine_then_loads_from_fixed_paths(engine: str, storage: str) -> None:
    found = pod(pinned(engine, storage=STORAGES[storage]))
    [init], [container] = found["initContainers"], found["containers"]
    given = parser().parse_args(init["args"])
    assert init["image"] == IMAGE
    assert [parse_wanted(text) for text in given.model] == [
        parse_wanted(f"Qwen/Qwen3.5-9B@{TARGET}"),
        parse_wanted(f"z-lab/Qwen3.5-9B-DFlash@{DRAFTER}"),
    ]
    assert not given.prune, "the template is for ever, and what may be deleted changes"
    command = " ".join(container["args"])
    assert "/models/target" in command
    assert "/models/drafter" in command
    assert "revision" not in command
    assert "--served-model-name=Qwen/Qwen3.5-9B" in container["args"]
    assert environment(container)["HF_HUB_OFFLINE"] == "1"
    below = "qwen/" if storage == "hostPath" else ""
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    [into] = [mount for mount in init["volumeMounts"] if mount["mountPath"] == str(given.into)]
    for path, directory in (
        ("/models/target", f"models/Qwen--Qwen3.5-9B/{TARGET}"),
        ("/models/drafter", f"models/z-lab--Qwen3.5-9B-DFlash/{DRAFTER}"),
    ):
        prefix = "models/qwen/" if storage == "hostPath" else below
        assert mounts[path]["subPath"] == prefix + directory
        assert mounts[path]["readOnly"] is True
        assert mounts[path]["name"] == into["name"]
    names = [volume["name"] for volume in found["volumes"]]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_a_change_of_drafter_leaves_the_engines_command_line_as_it_is(engine: str) -> None:
    """vLLM's compile cache is keyed by it."""
    before, after = (pod(pinned(engine, drafter={"revision": revision})) for revision in (DRAFTER, "c" * 40))
    assert before["containers"][0]["args"] == after["containers"][0]["args"]
    assert before["initContainers"] != after["initContainers"]


def test_every_pod_of_a_group_fetches() -> None:
    obj = pinned("vllm", parallelism={"tensor": 16, "nodes": 2})
    assert pod(obj, "worker")["initContainers"] == pod(obj)["initContainers"]
    assert "/models/target" in pod(obj, "worker")["containers"][0]["args"]


@pytest.mark.parametrize(
    "spec",
    [
        {"target": {"model": "Qwen/Qwen3.5-9B"}},
        {"target": {"model": "Qwen/Qwen3.5-9B", "revision": "main"}},
        {"drafter": {}},
        {"storage": {"persistentVolumeClaim": {"claimName": "models", "readOnly": True}}},
        {"storage": None},
    ],
    ids=["no revision", "branch", "drafter without revision", "read-only claim", "no storage"],
)
def test_the_engine_downloads_by_itself_where_nothing_can_be_fetched_for_it(spec: dict[str, Any]) -> None:
    obj = pinned(**spec)
    obj["spec"] = {key: value for key, value in obj["spec"].items() if value is not None}
    found = pod(obj)
    assert "initContainers" not in found
    assert "--model-path=Qwen/Qwen3.5-9B" in found["containers"][0]["args"]
    assert resolved(pinned(), OperatorDefaults()).fetch_image is None, "nor without an image"


def test_the_token_is_for_the_fetching_container_alone() -> None:
    found = pod(pinned(huggingFace=TOKEN))
    [init], [container] = found["initContainers"], found["containers"]
    assert environment(init)["HF_TOKEN_PATH"]
    assert "hugging-face-token" in {mount["name"] for mount in init["volumeMounts"]}
    assert "HF_TOKEN_PATH" not in environment(container)
    assert "hugging-face-token" not in {mount["name"] for mount in container["volumeMounts"]}


def test_of_the_users_variables_those_about_the_hub_are_for_the_fetching_container() -> None:
    given = {
        "HF_ENDPOINT": "http://mirror",
        "HTTPS_PROXY": "http://p",
        "no_proxy": "x",
        "SSL_CERT_FILE": "/c",
        "PYTHONPATH": "/e",
        "X": "1",
    }
    obj = pinned(engine={"env": [{"name": name, "value": value} for name, value in given.items()]})
    [init] = pod(obj)["initContainers"]
    assert {name: value for name, value in environment(init).items() if name in given} == {
        name: value for name, value in given.items() if name not in ("PYTHONPATH", "X")
    }
    assert set(environment(init)) - set(given) == {"HF_HOME"}


def test_the_fetching_container_keeps_to_the_restricted_level_but_on_a_nodes_directory() -> None:
    for storage, user in (("claim", {"runAsNonRoot": True}), ("emptyDir", {"runAsNonRoot": True}), ("hostPath", {"runAsUser": 0})):
        found = pod(pinned(storage=STORAGES[storage]))
        assert found["initContainers"][0]["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            **user,
        }
        assert found["securityContext"].get("fsGroup") == (65532 if storage == "claim" else None)


def test_the_users_resources_keep_the_pods_quality_of_service() -> None:
    own = {"requests": {"cpu": "16", "memory": "128Gi"}, "limits": {"cpu": "16", "memory": "128Gi"}}
    assert pod(pinned(podTemplate={"resources": own}))["initContainers"][0]["resources"] == own
    assert pod(pinned())["initContainers"][0]["resources"]["requests"] == {"cpu": "500m", "memory": "1Gi"}


@pytest.mark.parametrize("storage", ["claim", "hostPath"])
def test_a_job_runs_the_same_program_and_deletes_what_no_revision_keeps(storage: str) -> None:
    obj = pinned(storage=STORAGES[storage], huggingFace=TOKEN)
    facts = resolved(obj, DEFAULTS)
    [job] = prefetch_jobs("qwen", NAMESPACE, REVISION, parsed(obj), facts, ["n1"], ("/mnt",), (facts.target, facts.drafter))
    kubernetes_validate.validate(job, "1.35", strict=True)
    spec = job["spec"]["template"]["spec"]
    [container], [init] = spec["containers"], pod(obj)["initContainers"]
    for field in ("image", "command", "env", "volumeMounts", "securityContext"):
        assert container[field] == init[field]
    assert container["args"][: len(init["args"])] == init["args"]
    given = parser().parse_args(container["args"])
    assert (given.prune, given.keep, given.deployment) == (True, given.model, f"{NAMESPACE}/qwen")
    assert spec["securityContext"] == pod(obj)["securityContext"]
    [careful] = prefetch_jobs("qwen", NAMESPACE, REVISION, parsed(obj), facts, ["n1"], ("/mnt",))
    assert "--prune" not in careful["spec"]["template"]["spec"]["containers"][0]["args"]


@pytest.mark.parametrize("storage", STORAGES)
def test_kubernetes_accepts_the_pods(storage: str) -> None:
    template = pod_templates(workload(pinned(storage=STORAGES[storage], huggingFace=TOKEN)))["engine"]
    kubernetes_validate.validate({"apiVersion": "v1", "kind": "Pod", **template}, "1.35", strict=True)


def test_a_revision_stored_by_an_earlier_release_is_rendered_as_it_was() -> None:
    facts = resolved(pinned(), OperatorDefaults())
    stored = json.loads(json.dumps(facts.to_json()))
    del stored["fetch_image"], stored["defaults"]["fetch_image"]
    again = Resolved.from_json(stored)
    assert again == facts
    assert workload(pinned(), again) == workload(pinned(), facts)


def writable(container: dict[str, Any]) -> dict[str, str | None]:
    """The part of the storage behind each path that the container may write; None: all of it."""
    mounts = [mount for mount in container["volumeMounts"] if mount["name"] == "storage" and not mount.get("readOnly")]
    return {mount["mountPath"]: mount.get("subPath") for mount in mounts}


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("role", ["engine", "worker"])
def test_of_the_storage_an_engine_may_write_the_caches_of_its_namespace_alone(engine: str, storage: str, role: str) -> None:
    obj = pinned(engine, storage=STORAGES[storage], parallelism={"tensor": 16, "nodes": 2})
    found = pod(obj, role)
    [init], [container] = found["initContainers"], found["containers"]
    below = "models/qwen/" if storage == "hostPath" else ""
    assert writable(container) == {"/var/lib/dflash/cache": f"{below}engine-cache/{NAMESPACE}"}
    assert writable(init) == {"/var/lib/dflash": below.rstrip("/") or None}
    paths = {name: value for name, value in environment(container).items() if "/var/lib/dflash" in value}
    assert {"HF_HOME", "TRITON_CACHE_DIR"} <= paths.keys()
    assert all(value.startswith("/var/lib/dflash/cache/") for value in paths.values())


def test_a_revision_whose_image_makes_no_directory_for_caches_is_rendered_as_it_was() -> None:
    facts = resolved(pinned("vllm"), DEFAULTS)
    stored = json.loads(json.dumps(facts.to_json()))
    assert Resolved.from_json(stored) == facts
    del stored["defaults"]["fetch_makes_cache"]
    earlier = Resolved.from_json(stored)
    [container] = pod_templates(workload(pinned("vllm"), earlier))["engine"]["spec"]["containers"]
    [today] = pod_templates(workload(pinned("vllm"), facts))["engine"]["spec"]["containers"]
    assert writable(container) == {"/var/lib/dflash": None}
    changed = {name for name, value in environment(container).items() if environment(today)[name] != value}
    assert (changed, environment(container)["HF_HOME"]) == ({"HF_HOME"}, "/var/lib/dflash/huggingface")
    assert container | {"env": 0, "volumeMounts": 0} == today | {"env": 0, "volumeMounts": 0}


def test_an_edit_keeps_the_form_of_the_active_revision() -> None:
    from dflash_controller.catalog import Catalog
    from dflash_controller.engines.resolve import resolve

    edited = parsed(pinned(drafter={"revision": "c" * 40}))
    for before, expected in ((resolved(pinned(), OperatorDefaults()), None), (resolved(pinned(), DEFAULTS), IMAGE)):
        newer = OperatorDefaults(fetch_image="images.example.com/dflash-operator:newer")
        after = resolve(edited, "qwen", NAMESPACE, Catalog.load(), newer, before)
        assert isinstance(after, Resolved)
        assert after.fetch_image == expected


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_rules_about_the_target_know_its_name_whatever_the_path(engine: str) -> None:
    facts = resolved(pinned(engine), DEFAULTS)
    request = facts.launch_request(_speculation(facts))
    assert (request.target.model, request.target_source.model) == ("Qwen/Qwen3.5-9B", "/models/target")
    assert list(ENGINES[engine].problems(request)) == []


@pytest.mark.parametrize(
    ("storage", "resources", "limit"),
    [
        ({"emptyDir": {}}, {}, None),
        ({"emptyDir": {"sizeLimit": "100Gi"}}, {}, 100 * 2**30),
        ({"emptyDir": {"sizeLimit": "100Gi"}}, {"limits": {"ephemeral-storage": "50Gi"}}, 50 * 2**30),
        ({"emptyDir": {}}, {"limits": {"ephemeral-storage": "50Gi"}}, 50 * 2**30),
        (CLAIM, {"limits": {"ephemeral-storage": "50Gi"}}, None),
    ],
)
def test_the_program_is_told_what_an_emptydir_may_hold(storage: dict[str, Any], resources: dict[str, Any], limit: int | None) -> None:
    [init] = pod(pinned(storage=storage, podTemplate={"resources": resources}))["initContainers"]
    assert environment(init).get(LIMIT_VARIABLE) == (None if limit is None else str(limit))
    assert f"--listen={PORT}" in init["args"]
    assert init["ports"] == [{"name": "progress", "containerPort": PORT, "protocol": "TCP"}]


def test_an_image_that_holds_the_weights_is_mounted_read_only_and_loaded_offline() -> None:
    reference = "registry.example.com/weights/qwen@sha256:" + "2" * 64
    obj = pinned(storage={"image": {"reference": reference, "pullPolicy": "IfNotPresent"}})
    template = pod_templates(workload(obj))["engine"]
    kubernetes_validate.validate({"apiVersion": "v1", "kind": "Pod", **template}, "1.35", strict=True)
    found = template["spec"]
    assert "initContainers" not in found
    assert {"name": "storage", "image": {"reference": reference, "pullPolicy": "IfNotPresent"}} in found["volumes"]
    [container] = found["containers"]
    assert {"name": "storage", "mountPath": "/var/lib/dflash", "readOnly": True} in container["volumeMounts"]
    assert environment(container)["HF_HOME"] == "/var/lib/dflash/huggingface"
    assert environment(container)["HF_HUB_OFFLINE"] == "1"
    assert "TRITON_CACHE_DIR" not in environment(container), "nothing can be written there"
    assert prefetch_jobs("qwen", NAMESPACE, REVISION, parsed(obj), resolved(obj, DEFAULTS), ["n1"]) == []
