"""What the pods of a revision promise, one promise per test."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from dflash_controller.render.prefetch import prefetch_jobs
from dflash_controller.render.startup import progress_deadline_s, startup_budget_s
from tests.support.render_inputs import REVISION, deployment, engine_container, parsed, pod_templates, rendered_workload, resolved

TWO_NODES: dict[str, Any] = {"parallelism": {"tensor": 16, "nodes": 2}}


def pod(obj: dict[str, Any], role: str = "engine") -> dict[str, Any]:
    template = pod_templates(rendered_workload(obj))[role]
    assert isinstance(template["spec"], dict)
    return template["spec"]


def env(obj: dict[str, Any]) -> dict[str, str]:
    return {variable["name"]: variable.get("value", "") for variable in engine_container(obj).get("env", [])}


def test_one_node_is_a_deployment_and_two_are_a_leader_worker_set() -> None:
    assert rendered_workload(deployment())["kind"] == "Deployment"
    assert rendered_workload(deployment(**TWO_NODES))["kind"] == "LeaderWorkerSet"


@pytest.mark.parametrize("obj", [deployment(), deployment(**TWO_NODES)], ids=["one node", "two nodes"])
def test_what_changes_during_a_revision_is_not_rendered(obj: dict[str, Any]) -> None:
    changed = rendered_workload(obj | {"spec": obj["spec"] | {"replicas": 7, "service": {"type": "NodePort"}, "suspend": True}})
    assert changed == rendered_workload(obj)
    assert "replicas" not in changed["spec"]
    assert "ownerReferences" not in changed["metadata"]


def test_the_name_is_deployment_and_hash() -> None:
    assert rendered_workload(deployment("chat"))["metadata"]["name"] == f"chat-{REVISION}"


def test_the_longest_name_leaves_room_for_the_workers_of_a_leader_worker_set() -> None:
    assert len(rendered_workload(deployment("a" * 40))["metadata"]["name"]) <= 50


def test_pods_tell_deployment_revision_block_size_and_role() -> None:
    labels = pod_templates(rendered_workload(deployment(blockSize=8)))["engine"]["metadata"]["labels"]
    assert labels == {
        "app.kubernetes.io/managed-by": "dflash-operator",
        "serving.dflash.io/deployment": "qwen",
        "serving.dflash.io/revision": REVISION,
        "serving.dflash.io/block-size": "8",
        "serving.dflash.io/role": "engine",
    }


def test_the_operators_labels_win_over_the_users() -> None:
    users = {"serving.dflash.io/role": "worker", "team": "search"}
    labels = pod_templates(rendered_workload(deployment(podTemplate={"metadata": {"labels": users}})))["engine"]["metadata"]["labels"]
    assert labels["serving.dflash.io/role"] == "engine"
    assert labels["team"] == "search"


def test_a_user_may_stop_plain_scraping() -> None:
    users = {"prometheus.io/scrape": "false"}
    template = pod_templates(rendered_workload(deployment(podTemplate={"metadata": {"annotations": users}})))["engine"]
    assert template["metadata"]["annotations"]["prometheus.io/scrape"] == "false"


def test_only_leaders_have_the_engine_role_and_are_scraped() -> None:
    templates = pod_templates(rendered_workload(deployment(**TWO_NODES)))
    roles = {role: template["metadata"]["labels"]["serving.dflash.io/role"] for role, template in templates.items()}
    assert roles == {"engine": "engine", "worker": "worker"}
    assert "annotations" not in templates["worker"]["metadata"]


def test_a_pod_of_a_multi_node_replica_takes_its_share_of_the_accelerators() -> None:
    for role in ("engine", "worker"):
        assert engine_container(deployment(**TWO_NODES), role)["resources"]["limits"] == {"nvidia.com/gpu": "8"}


def test_accelerators_cannot_be_set_by_hand_and_other_resources_are_passed_on() -> None:
    obj = deployment(parallelism={"tensor": 4}, podTemplate={"resources": {"requests": {"cpu": 16}, "limits": {"memory": "64Gi"}}})
    assert engine_container(obj)["resources"] == {"requests": {"cpu": "16"}, "limits": {"memory": "64Gi", "nvidia.com/gpu": "4"}}


def test_ipc_lock_is_added_with_rdma_only() -> None:
    rdma = {"rdma": {"resource": "rdma/hca", "count": 2}}
    plain, pinning = engine_container(deployment()), engine_container(deployment(accelerator=rdma))
    assert plain["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert pinning["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert pinning["resources"]["limits"]["rdma/hca"] == "2"


def test_engine_pods_hold_no_api_token() -> None:
    spec = pod(deployment("default"))
    assert spec["automountServiceAccountToken"] is False
    assert spec["serviceAccountName"] == "default-engine"
    assert spec["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}


def test_the_users_environment_replaces_ours_and_names_stay_unique() -> None:
    obj = deployment(
        storage={"persistentVolumeClaim": {"claimName": "models"}},
        engine={"env": [{"name": "HF_HOME", "value": "/elsewhere"}, {"name": "BLANK", "value": ""}]},
    )
    names = [variable["name"] for variable in engine_container(obj)["env"]]
    assert len(names) == len(set(names))
    assert env(obj)["HF_HOME"] == "/elsewhere"
    assert {"name": "BLANK"} in engine_container(obj)["env"], "the API server drops an empty value, so it must not be rendered"


def test_the_token_is_a_file_and_not_in_the_environment() -> None:
    obj = deployment(huggingFace={"tokenSecretRef": {"name": "hub", "key": "token.txt"}})
    path = env(obj)["HF_TOKEN_PATH"]
    mounted = {mount["name"]: mount["mountPath"] for mount in engine_container(obj)["volumeMounts"]}
    [volume] = [volume for volume in pod(obj)["volumes"] if "secret" in volume]
    assert volume["secret"] == {"secretName": "hub", "items": [{"key": "token.txt", "path": "token"}]}
    assert path == f"{mounted[volume['name']]}/token"
    assert "HF_TOKEN" not in env(obj)


def test_storage_holds_weights_and_compile_caches() -> None:
    variables = env(deployment(engine={"name": "vllm"}, storage={"persistentVolumeClaim": {"claimName": "models"}}))
    assert variables["HF_HOME"] == "/var/lib/dflash/huggingface"
    assert variables["VLLM_CACHE_ROOT"].startswith("/var/lib/dflash/cache/vllm-")


def test_a_read_only_claim_downloads_and_writes_nothing() -> None:
    obj = deployment(storage={"persistentVolumeClaim": {"claimName": "models", "readOnly": True}})
    assert env(obj)["HF_HUB_OFFLINE"] == "1"
    assert not any(name.endswith(("_CACHE_DIR", "_CACHE_ROOT")) for name in env(obj))
    [mount] = [mount for mount in engine_container(obj)["volumeMounts"] if mount["name"] == "storage"]
    assert mount["readOnly"] is True


def test_shared_memory_is_memory_backed() -> None:
    [volume] = [volume for volume in pod(deployment())["volumes"] if volume["name"] == "shm"]
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "32Gi"}


def test_an_empty_dir_without_limit_is_left_to_the_api_servers_default() -> None:
    [volume] = [volume for volume in pod(deployment(storage={"emptyDir": {}}))["volumes"] if volume["name"] == "storage"]
    assert volume == {"name": "storage"}


def test_pods_go_to_nodes_with_the_accelerator_and_a_user_may_choose_another() -> None:
    assert pod(deployment())["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-B200"}
    chosen = deployment(scheduling={"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-B200-SHARED", "zone": "a"}})
    assert pod(chosen)["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-B200-SHARED", "zone": "a"}


def test_the_accelerators_taint_is_tolerated_once() -> None:
    ours = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    theirs = {"key": "maintenance", "operator": "Exists"}
    assert pod(deployment(scheduling={"tolerations": [ours, theirs]}))["tolerations"] == [ours, theirs]


def test_an_affinity_keeps_its_empty_selectors() -> None:
    term = {"topologyKey": "zone", "namespaceSelector": {}, "labelSelector": {"matchLabels": {"a": "b"}}, "namespaces": []}
    obj = deployment(scheduling={"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}})
    [kept] = pod(obj)["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert kept == {"topologyKey": "zone", "namespaceSelector": {}, "labelSelector": {"matchLabels": {"a": "b"}}}


@pytest.mark.parametrize("grace", [30, 31, 60, 600, 86400])
def test_pause_and_drain_fit_into_the_grace_period(grace: int) -> None:
    facts = resolved(deployment(engine={"name": "vllm"}, podTemplate={"terminationGracePeriodSeconds": grace}))
    container = engine_container(deployment(engine={"name": "vllm"}, podTemplate={"terminationGracePeriodSeconds": grace}))
    assert facts.pre_stop_s >= 1
    assert facts.drain_s >= 10
    assert facts.pre_stop_s + facts.drain_s + 10 <= grace
    assert container["lifecycle"] == {"preStop": {"sleep": {"seconds": facts.pre_stop_s}}}
    assert f"--shutdown-timeout={facts.drain_s}" in container["args"]


def test_the_start_up_budget_grows_with_the_weights() -> None:
    small = replace(resolved(deployment()), weight_bytes=20_000_000_000, load_bytes_per_s=500_000_000)
    large = replace(small, weight_bytes=800_000_000_000)
    assert startup_budget_s(small) == 660
    assert startup_budget_s(large) == 3000
    assert progress_deadline_s(large) > startup_budget_s(large)


def test_the_startup_probe_lasts_for_the_budget() -> None:
    probe = engine_container(deployment())["startupProbe"]
    budget = startup_budget_s(resolved(deployment()))
    assert probe["periodSeconds"] * probe["failureThreshold"] == math.ceil(budget / 10) * 10


def test_liveness_is_more_patient_than_readiness() -> None:
    container = engine_container(deployment())
    failure_threshold = {
        name: container[name]["periodSeconds"] * container[name]["failureThreshold"] for name in ("livenessProbe", "readinessProbe")
    }
    assert failure_threshold["livenessProbe"] >= 300
    assert failure_threshold["readinessProbe"] <= 60


def test_workers_of_vllm_have_no_probe_and_those_of_sglang_one() -> None:
    target = {"model": "Qwen/Qwen3.5-397B-A17B"}
    vllm = engine_container(deployment(target=target, engine={"name": "vllm"}, **TWO_NODES), "worker")
    sglang = engine_container(deployment(target=target, engine={"name": "sglang"}, **TWO_NODES), "worker")
    assert not {"startupProbe", "readinessProbe", "livenessProbe", "ports"} & set(vllm)
    assert {"startupProbe", "readinessProbe", "livenessProbe"} & set(sglang) == {"readinessProbe"}


def test_unicode_in_a_model_id_reaches_the_command_line_only() -> None:
    facts = {"hybrid": False, "weightSize": "10Gi"}
    drafter = {"model": "作者/草稿", "trainedBlockSize": 16}
    manifest = rendered_workload(deployment(target={"model": "作者/模型"} | facts, drafter=drafter))
    [template] = pod_templates(manifest).values()
    assert any("作者/模型" in arg for arg in template["spec"]["containers"][0]["args"])
    for part in (manifest["metadata"], template["metadata"]):
        assert str(part).isascii()


@pytest.mark.parametrize(
    ("path", "roots", "volume", "sub_path"),
    [
        ("/mnt/models/qwen/a", ["/mnt", "/mnt/models", "/mnt/mod"], "/mnt/models", "qwen/a"),
        ("/mnt/models/qwen/", ["/mnt/models/"], "/mnt/models", "qwen"),
        ("/mnt/models", ["/mnt/models"], "/mnt/models", None),
        ("/mnt/models", ["/"], "/", "mnt/models"),
        ("/mnt/models", ["/srv"], "/mnt/models", None),
    ],
)
def test_a_host_path_is_mounted_as_a_part_of_its_allowed_directory_which_no_symbolic_link_can_leave(
    path: str, roots: list[str], volume: str, sub_path: str | None
) -> None:
    obj = deployment(storage={"hostPath": {"path": path}})
    spec = pod_templates(rendered_workload(obj, roots))["engine"]["spec"]
    assert {"name": "storage", "hostPath": {"path": volume, "type": "DirectoryOrCreate"}} in spec["volumes"]
    [mount] = [mount for mount in spec["containers"][0]["volumeMounts"] if mount["name"] == "storage"]
    assert mount == {"name": "storage", "mountPath": "/var/lib/dflash"} | ({"subPath": sub_path} if sub_path else {})
    [job] = prefetch_jobs("qwen", "ns", "r1", parsed(obj), resolved(obj), ["n1"], roots)
    fetching = job["spec"]["template"]["spec"]
    assert [item for item in fetching["volumes"] if item["name"] == "storage"] == [
        item for item in spec["volumes"] if item["name"] == "storage"
    ]
    assert mount in fetching["containers"][0]["volumeMounts"]


@pytest.mark.parametrize(
    ("engine", "port"), [({"name": "vllm"}, "29500"), ({"version": "0.5.20"}, "20000"), ({"version": "0.5.21"}, None)], ids=str
)
def test_a_worker_that_would_end_at_once_waits_for_its_leader(engine: dict[str, Any], port: str | None) -> None:
    worker = engine_container(deployment(engine=engine, **TWO_NODES), "worker")
    if port is None:
        assert "lifecycle" not in worker, "ranks of SGLang wait by themselves since 0.5.21"
        return
    assert worker["lifecycle"]["preStop"]["exec"]["command"][-1] == port
    assert any(f"$(LWS_LEADER_ADDRESS):{port}" in argument or argument == f"--master-port={port}" for argument in worker["args"])


def test_a_worker_is_not_process_1_which_no_signal_ends_while_it_loads() -> None:
    assert pod(deployment(**TWO_NODES), "worker")["shareProcessNamespace"] is True
    assert "shareProcessNamespace" not in pod(deployment(**TWO_NODES))


def test_the_wait_for_the_leader_lasts_until_its_port_is_closed() -> None:
    command = engine_container(deployment(engine={"name": "vllm"}, **TWO_NODES), "worker")["lifecycle"]["preStop"]["exec"]["command"]
    with socket.create_server(("127.0.0.1", 0)) as leader:
        asked = [sys.executable, *command[1:-1], str(leader.getsockname()[1])]
        waiting = subprocess.Popen(asked, env={**os.environ, "LWS_LEADER_ADDRESS": "127.0.0.1"})
        for _ in range(3):
            leader.accept()[0].close()
        assert waiting.poll() is None
    assert waiting.wait(timeout=120) == 0


@pytest.mark.parametrize("roles", [{}, TWO_NODES], ids=["one node", "two nodes"])
def test_every_pod_of_a_deployment_runs_as_the_user_that_the_spec_names(roles: dict[str, Any]) -> None:
    user = {"runAsNonRoot": True, "runAsUser": 65532, "runAsGroup": 0, "fsGroup": 2000}
    obj = deployment(podTemplate={"securityContext": user}, **roles)
    for template in pod_templates(rendered_workload(obj)).values():
        assert template["spec"]["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}, **user}


def test_without_a_user_in_the_spec_pods_run_as_the_one_of_the_image() -> None:
    assert pod(deployment())["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}


@pytest.mark.parametrize("role", ["engine", "worker"])
def test_a_read_only_root_has_scratch_volumes_where_engines_write(role: str) -> None:
    spec = pod(deployment(podTemplate={"readOnlyRootFilesystem": True}, **TWO_NODES), role)
    [container] = spec["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert {variable["name"]: variable.get("value") for variable in container["env"]}["HOME"] == "/var/lib/dflash-home"
    writable = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert {"/tmp", "/var/lib/dflash-home", "/dev/shm"} <= writable.keys()
    volumes = {volume["name"]: {key for key in volume if key != "name"} for volume in spec["volumes"]}
    assert all(volumes[writable[path]] <= {"emptyDir"} for path in ("/tmp", "/var/lib/dflash-home"))


@pytest.mark.parametrize("written", [{}, {"readOnlyRootFilesystem": False}])
def test_the_root_is_writable_unless_the_user_says_otherwise(written: dict[str, Any]) -> None:
    spec = pod(deployment(podTemplate=written))
    assert spec == pod(deployment())
    assert "readOnlyRootFilesystem" not in spec["containers"][0]["securityContext"]
    assert "HOME" not in env(deployment(podTemplate=written))


def test_the_users_home_wins() -> None:
    engine = {"env": [{"name": "HOME", "value": "/scratch"}]}
    assert env(deployment(podTemplate={"readOnlyRootFilesystem": True}, engine=engine))["HOME"] == "/scratch"


def test_the_uid_of_the_pod_is_the_key_of_sglang_and_vllm_has_none() -> None:
    [key] = [variable for variable in engine_container(deployment())["env"] if variable["name"] == "DFLASH_ADMIN_KEY"]
    assert key["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.uid"}}
    assert "--admin-api-key=$(DFLASH_ADMIN_KEY)" in engine_container(deployment())["args"]
    assert "DFLASH_ADMIN_KEY" not in env(deployment(engine={"name": "vllm"}))


def test_a_secret_of_the_user_is_the_key_instead() -> None:
    source = {"secretKeyRef": {"name": "keys", "key": "admin"}}
    found = engine_container(deployment(engine={"env": [{"name": "DFLASH_ADMIN_KEY", "valueFrom": source}]}))
    [key] = [variable for variable in found["env"] if variable["name"] == "DFLASH_ADMIN_KEY"]
    assert key["valueFrom"] == source
    assert "--admin-api-key=$(DFLASH_ADMIN_KEY)" in found["args"]
