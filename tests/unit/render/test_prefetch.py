"""The Jobs that fetch weights: where they run, what they run, and who must not take their pods for engines."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import kubernetes_validate
import pytest

from dflash_controller.api.names import child_labels
from dflash_controller.render.pod import PRODUCT_LABEL
from dflash_controller.render.prefetch import SCRIPT, node_of, prefetch_jobs
from tests.support.render_inputs import INPUTS, NAMESPACE, REVISION, VARIANTS, deployment, parsed, pod_templates, rendered, resolved

HOST: dict[str, Any] = {"hostPath": {"path": "/mnt/models"}}
CLAIM: dict[str, Any] = {"persistentVolumeClaim": {"claimName": "models"}}
EVERYTHING: dict[str, Any] = VARIANTS["variant-everything-a-user-may-add"]["spec"]


def jobs(obj: dict[str, Any], *nodes: str) -> list[dict[str, Any]]:
    return prefetch_jobs(obj["metadata"]["name"], NAMESPACE, REVISION, parsed(obj), resolved(obj), nodes)


def pod(job: dict[str, Any]) -> dict[str, Any]:
    spec = job["spec"]["template"]["spec"]
    assert isinstance(spec, dict)
    return spec


def engine_pod(obj: dict[str, Any]) -> dict[str, Any]:
    spec = pod_templates(rendered(obj)[-1])["engine"]["spec"]
    assert isinstance(spec, dict)
    return spec


def test_weights_kept_on_nodes_are_fetched_to_each_of_them() -> None:
    made = jobs(deployment(storage=HOST), "n1", "n2", "n3")
    assert [node_of(job) for job in made] == ["n1", "n2", "n3"]
    assert len({job["metadata"]["name"] for job in made}) == 3
    assert jobs(deployment(storage=HOST)) == []


def test_weights_kept_in_a_claim_are_fetched_once_to_any_node() -> None:
    [job] = jobs(deployment(storage=CLAIM), "n1", "n2", "n3")
    assert job["metadata"]["name"] == f"qwen-{REVISION}-fetch"
    assert node_of(job) is None
    assert jobs(deployment(storage=CLAIM)) == [job], "depends on the revision alone: a Job's template is immutable"


@pytest.mark.parametrize(
    "storage",
    [{}, {"storage": {"emptyDir": {}}}, {"storage": {"persistentVolumeClaim": {"claimName": "models", "readOnly": True}}}],
    ids=["no storage", "emptyDir", "read-only claim"],
)
def test_nothing_is_fetched_where_it_would_not_stay(storage: dict[str, Any]) -> None:
    assert jobs(deployment(**storage), "n1") == []


def test_a_node_has_the_same_job_whatever_the_other_nodes_are() -> None:
    assert jobs(deployment(storage=HOST), "n2") == jobs(deployment(storage=HOST), "n1", "n2", "n3")[1:2]


def test_the_longest_names_stay_within_what_a_label_can_carry() -> None:
    [job] = jobs(deployment("a" * 40, storage=HOST), "ip-10-0-0-1.very-long-region-name-1.compute.internal")
    hash = "rabcdefg"
    assert len(job["metadata"]["name"].replace(REVISION, hash)) == 63
    assert job["metadata"]["name"].startswith("a" * 40 + f"-{REVISION}-fetch-")


def test_jobs_are_found_by_their_labels_and_owned_by_nobody_yet() -> None:
    [job] = jobs(deployment(storage=CLAIM))
    labels = child_labels("qwen") | {"serving.dflash.io/revision": REVISION}
    assert job["metadata"] == {"name": f"qwen-{REVISION}-fetch", "namespace": NAMESPACE, "labels": labels}
    assert job["spec"]["template"]["metadata"]["labels"] == labels | {"serving.dflash.io/role": "prefetch"}


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()) and all(
        labels.get(expression["key"]) in expression["values"] for expression in selector.get("matchExpressions", [])
    )


@pytest.mark.parametrize("two_nodes", [{}, {"parallelism": {"tensor": 16, "nodes": 2}}], ids=["one node", "two nodes"])
def test_no_selector_but_a_deployments_own_takes_the_pods_for_engines(two_nodes: dict[str, Any]) -> None:
    """A Deployment finds its pods through its ReplicaSets, whose selector has the template's hash besides."""
    users: dict[str, Any] = {"podTemplate": {"metadata": {"labels": {"app": "chat"}}}}
    obj = deployment(storage=CLAIM, **two_nodes, **users)
    [job] = jobs(obj)
    labels = job["spec"]["template"]["metadata"]["labels"]
    engines = pod_templates(rendered(obj)[-1])["engine"]["metadata"]["labels"]
    by_kind = {manifest["kind"]: manifest["spec"] for manifest in rendered(obj) if "spec" in manifest}
    selectors = [
        {"matchLabels": by_kind["Service"]["selector"]},
        by_kind["PodDisruptionBudget"]["selector"],
        by_kind["NetworkPolicy"]["podSelector"],
        by_kind["PodMonitor"]["selector"],
        {"matchLabels": {"app": "chat"}},
        {"matchLabels": {"serving.dflash.io/deployment": "qwen", "serving.dflash.io/role": "engine"}},
    ]
    assert [selects(selector, engines) for selector in selectors] == [True] * len(selectors)
    assert [selects(selector, labels) for selector in selectors] == [False] * len(selectors)


def test_the_pod_sees_the_volume_the_token_and_the_environment_of_the_engine() -> None:
    obj = deployment(
        storage=CLAIM,
        huggingFace={"tokenSecretRef": {"name": "hub", "key": "HF_TOKEN"}},
        engine={"env": [{"name": "HF_ENDPOINT", "value": "http://mirror"}, {"name": "HF_HUB_VERBOSITY", "value": "info"}]},
    )
    [job] = jobs(obj)
    [fetch], [engine] = pod(job)["containers"], engine_pod(obj)["containers"]
    assert pod(job)["volumes"] == [volume for volume in engine_pod(obj)["volumes"] if volume["name"] != "shm"]
    assert fetch["volumeMounts"] == [mount for mount in engine["volumeMounts"] if mount["name"] != "shm"]
    seen = {variable["name"]: variable.get("value") for variable in fetch["env"]}
    assert len(seen) == len(fetch["env"])
    for variable in engine["env"]:
        if variable["name"].startswith("HF_"):
            assert seen[variable["name"]] == variable["value"]
    assert (seen["HF_HOME"], seen["HF_ENDPOINT"], seen["HF_HUB_VERBOSITY"]) == ("/var/lib/dflash/huggingface", "http://mirror", "info")


def test_the_pod_is_secured_as_the_engines_are_and_takes_no_accelerator() -> None:
    obj = deployment(storage=CLAIM, accelerator={"rdma": {"resource": "rdma/hca", "count": 2}})
    [job] = jobs(obj)
    [container], spec, engine = pod(job)["containers"], pod(job), engine_pod(obj)
    for field in ("serviceAccountName", "automountServiceAccountToken", "enableServiceLinks", "securityContext"):
        assert spec[field] == engine[field]
    assert container["image"] == engine["containers"][0]["image"]
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert not any("/" in resource for part in container["resources"].values() for resource in part)
    assert "ports" not in container


def test_placement_follows_the_users_scheduling_where_any_node_will_do() -> None:
    fast = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["nvme"]}]}
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [fast]}}
    scheduling = EVERYTHING["scheduling"] | {"affinity": {"nodeAffinity": affinity, "podAntiAffinity": {"x": "y"}}}
    obj = deployment(**EVERYTHING | {"storage": CLAIM, "scheduling": scheduling})
    spec, engine = pod(jobs(obj)[0]), engine_pod(obj)
    for field in ("nodeSelector", "tolerations", "priorityClassName", "schedulerName", "imagePullSecrets"):
        assert spec[field] == engine[field]
    assert PRODUCT_LABEL in spec["nodeSelector"]
    assert spec["affinity"]["nodeAffinity"] == engine["affinity"]["nodeAffinity"]
    assert "podAntiAffinity" not in spec["affinity"], "keeps engines apart, not a download from them"
    assert "runtimeClassName" not in spec
    assert "topologySpreadConstraints" not in spec
    [beside] = spec["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert beside["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"


def test_a_job_for_a_node_goes_there_and_nowhere_else_even_if_the_node_is_cordoned() -> None:
    spec = pod(jobs(deployment(**EVERYTHING | {"storage": HOST}), "n1")[0])
    assert spec["affinity"] == {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]
            }
        }
    }
    assert "nodeSelector" not in spec
    keys = [toleration["key"] for toleration in spec["tolerations"]]
    assert keys == ["nvidia.com/gpu", "maintenance", "node.kubernetes.io/unschedulable"]


def test_it_ends_by_itself_and_is_kept_until_it_was_read() -> None:
    [job] = jobs(deployment(storage=CLAIM, target={"model": "Qwen/Qwen3.5-9B", "weightSize": "98G"}, drafter={"weightSize": "2G"}))
    assert job["spec"]["backoffLimit"] == 3
    assert job["spec"]["activeDeadlineSeconds"] == 4 * 300 + 600, "four tries at 100 GB / 500 MB/s x 1.5, and scheduling"
    assert pod(job)["restartPolicy"] == "Never"
    assert "ttlSecondsAfterFinished" not in job["spec"]


@pytest.mark.parametrize("case", INPUTS)
def test_kubernetes_accepts_them_for_every_example(case: str) -> None:
    obj = INPUTS[case]
    for storage in (HOST, CLAIM):
        for job in jobs({**obj, "spec": {**obj["spec"], "storage": storage}}, "n1"):
            kubernetes_validate.validate(job, "1.35", strict=True)


# The script, with a hub that writes down what it is asked for.

HUB = """
import json, os
def snapshot_download(repo_id, *, revision=None, ignore_patterns=None):
    with open(os.environ["ASKED"], "a") as file:
        file.write(json.dumps([repo_id, revision, ignore_patterns]) + "\\n")
    if repo_id == os.environ.get("BROKEN"):
        raise RuntimeError("401 Client Error.\\n\\nAccess to the model\\n is restricted")
"""


def run_script(tmp_path: Path, job: dict[str, Any], **environment: str) -> tuple[subprocess.CompletedProcess[str], str]:
    (tmp_path / "huggingface_hub.py").write_text(HUB)
    asked = tmp_path / "asked"
    [container] = pod(job)["containers"]
    assert container["command"] == ["python3", "-c", SCRIPT]
    done = subprocess.run(
        [sys.executable, *container["command"][1:], *container["args"]],
        env={"PYTHONPATH": str(tmp_path), "ASKED": str(asked), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    return done, asked.read_text()


PINNED = deployment(storage=CLAIM, drafter={"revision": "0123456789abcdef0123456789abcdef01234567"})


def test_the_script_fetches_target_and_drafter_at_their_revisions(tmp_path: Path) -> None:
    done, asked = run_script(tmp_path, jobs(PINNED)[0])
    assert done.returncode == 0, done.stderr
    assert asked.splitlines() == [
        '["Qwen/Qwen3.5-9B", null, ["original/*"]]',
        '["z-lab/Qwen3.5-9B-DFlash", "0123456789abcdef0123456789abcdef01234567", ["original/*"]]',
    ]


def test_the_script_ends_with_one_line_that_says_what_could_not_be_fetched(tmp_path: Path) -> None:
    done, _ = run_script(tmp_path, jobs(PINNED)[0], BROKEN="z-lab/Qwen3.5-9B-DFlash")
    assert done.returncode == 1
    assert done.stderr == (
        "z-lab/Qwen3.5-9B-DFlash@0123456789abcdef0123456789abcdef01234567: "
        "RuntimeError: 401 Client Error. Access to the model is restricted\n"
    )


def test_the_real_hub_takes_what_the_script_gives_it() -> None:
    inspect.signature(huggingface_hub.snapshot_download).bind("a/b", revision=None, ignore_patterns=["original/*"])
