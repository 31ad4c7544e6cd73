"""``kubectl dflash`` on a real API server, beside an operator that does what it asks for."""

from __future__ import annotations

import io
import json
import tarfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from dflash_controller.api.names import ANNOTATION_RATES
from dflash_controller.cli import failures
from dflash_controller.cli.program import run
from testbed.cluster import Cluster
from testbed.traffic.mix import Mix
from testbed.traffic.service import ServiceTraffic
from testbed.waiting import wait_until
from tests.cluster.conftest import Dflash
from tests.conftest import StartOperator
from tests.support.deployment import API_VERSION, JUDGED, PATIENCE_S, Deployment, rollout_spec

OLD, NEW = "a" * 40, "b" * 40
UNDECIDED = {**JUDGED, "probe": {"prompts": 64, "promptsPerMinute": 1}}
"""A probe of an hour: a trial is still under way whenever the test looks."""


def spec_of(drafter: str) -> dict[str, Any]:
    spec = rollout_spec(2, rollout=UNDECIDED)
    return {**spec, "target": {**spec["target"], "revision": OLD}, "drafter": {**spec.get("drafter", {}), "revision": drafter}}


def written(path: Path, spec: dict[str, Any]) -> str:
    manifest = {"apiVersion": API_VERSION, "kind": "DFlashDeployment", "metadata": {"name": "chat"}, "spec": spec}
    path.write_text(yaml.safe_dump(manifest), encoding="utf-8")
    return str(path)


def test_a_person_follows_and_steers_rollouts(
    start_operator: StartOperator, cluster: Cluster, namespace: str, dflash: Dflash, tmp_path: Path
) -> None:
    start_operator(warm_up_seconds="1")
    deployment = Deployment(cluster, namespace).create(spec_of(OLD))
    deployment.wait_done()
    old = deployment.status()["stableRevision"]
    [stored] = [item["data"]["workload"] for item in deployment.children("controllerrevisions")]

    # What runs is what render says, with a cluster and without.
    status, out, _ = dflash("render", "chat", "-o", "json")
    assert (status, json.loads(out)["revision"]) == (0, old)
    live = json.loads(out)["objects"][-1]
    assert live["spec"].pop("replicas") == 2
    assert live == stored
    status, out, _ = dflash("render", written(tmp_path / "old.yaml", spec_of(OLD)), "-o", "json")
    offline = json.loads(out)["objects"][-1]
    assert offline["spec"].pop("replicas") == 2
    assert (status, offline) == (0, stored)

    status, out, _ = dflash("status", "chat")
    assert status == 0
    assert f"chat in {namespace}: Ready=True" in out
    assert "2/2 serving" in out
    assert old in out
    assert dflash("status")[1].split()[8:11] == ["chat", "True", "2/2"]
    assert namespace in dflash("status", "--all-namespaces")[1]

    # Nothing differs; then a file asks for another drafter.
    assert dflash("diff", "chat")[0] == failures.OK
    # Its engines took long to start, so the next revision may take longer.
    cluster.kubectl("-n", namespace, "annotate", "controllerrevision", old, f'{ANNOTATION_RATES}={{"load":20000000}}')
    status, out, _ = dflash("diff", written(tmp_path / "new.yaml", spec_of(NEW)), "-o", "json")
    told = json.loads(out)
    assert (
        f"chat, if it was replaced by this file: the operator would make {told['askedFor']}"
        in dflash("diff", str(tmp_path / "new.yaml"))[1]
    )
    assert (status, told["running"], told["new"]) == (failures.NEGATIVE, old, True)
    assert told["fields"] == [f'spec.drafter.revision: "{OLD}" -> "{NEW}"']
    assert "acceptanceLength" in told["compared"]
    deployment.patch(drafter={"revision": NEW})
    candidate = deployment.wait_phase("Analyzing")["revision"]
    assert candidate == told["askedFor"], "diff names the revision that the operator makes"
    [made] = [item["data"]["workload"] for item in deployment.children("controllerrevisions") if item["metadata"]["name"] == candidate]
    before, after = (each["spec"]["template"]["spec"]["containers"][0]["startupProbe"]["failureThreshold"] for each in (stored, made))
    assert after > before
    assert f"+          failureThreshold: {after}\n" in told["diff"], "and the start-up budget that it gives it"

    status, out, _ = dflash("diff", "chat")
    assert (status, f"{candidate} is what the spec asks for, and is on trial already beside {old}; " in out) == (failures.NEGATIVE, True)

    # What runs, what is on trial beside it, and what the tuner waits for.
    said = dflash("explain", "chat")[1]
    assert "Where it comes from: " in said
    assert f"On trial: block size {deployment.revisions()[candidate]['speculation']}, {candidate} (since " in said
    assert f'the spec asks for it (spec.drafter.revision: "{OLD}" -> "{NEW}")' in said
    trial = json.loads(dflash("explain", "chat", "-o", "json")[1])["background"]["onTrial"]
    assert (trial["revision"], trial["origin"]) == (candidate, "User")

    # Nobody is there to agree, so nothing is done; --dry-run does nothing either.
    status, out, err = dflash("rollout", "promote", "chat")
    assert (status, "--yes" in err) == (failures.USAGE, True)
    assert f"{candidate} becomes the active revision" in out
    assert dflash("rollout", "promote", "chat", "--dry-run")[0] == 0
    assert "annotations" not in deployment.get()["metadata"]
    assert dflash("rollout", "promote", "chat", "--yes")[0] == 0
    deployment.wait_done()
    assert deployment.status()["stableRevision"] == candidate
    status, out, _ = dflash("rollout", "history", "chat", "-o", "json")
    promoted = [entry for entry in json.loads(out)["history"] if entry["revision"] == candidate][-1]
    assert (promoted["state"], promoted["askedBy"], promoted["reason"]) == ("Stable", "User", "PromotedByHand")
    assert dflash("rollout", "status", "chat")[0] == failures.OK
    assert dflash("rollout", "diff", "chat")[0] == failures.NEGATIVE

    # Back by the spec, and that is aborted.
    assert dflash("rollout", "undo", "chat", "--yes")[0] == 0
    assert deployment.get()["spec"]["drafter"]["revision"] == OLD
    assert deployment.wait_phase("Analyzing")["revision"] == old
    assert dflash("rollout", "abort", "chat", "--yes")[0] == 0
    deployment.wait_phase("RolledBack")
    status, out, _ = dflash("rollout", "status", "chat")
    assert (status, "RolledBack" in out) == (failures.NEGATIVE, True)
    status, out, _ = dflash("diff", "chat")
    assert (status, out.partition("\n")[0]) == (
        failures.NEGATIVE,
        f"chat: no engine restarts: {old} failed before, so it is not tried again until the spec or spec.restartId changes; "
        f"{candidate} keeps serving",
    )
    assert f'asked for   spec.drafter.revision: "{NEW}" -> "{OLD}"' in dflash("status", "chat")[1]
    assert "Stalled=True Aborted" in dflash("status", "chat")[1]

    # Back by a pin, which needs no trial; and off again.
    assert dflash("rollout", "pin", "chat", old, "--yes")[0] == 0
    wait_until(lambda: deployment.status()["stableRevision"] == old, "the pinned revision")
    assert dflash("rollout", "pin", "chat", "--off", "--yes")[0] == 0
    assert not any(key.endswith("/pin") for key in deployment.get()["metadata"]["annotations"])

    assert dflash("rollout", "pause", "chat")[0] == 0
    assert deployment.get()["spec"]["rollout"]["paused"] is True
    assert dflash("rollout", "pause", "chat")[0] == failures.NEGATIVE
    assert dflash("rollout", "resume", "chat")[0] == 0
    assert dflash("rollout", "restart", "chat", "--yes")[0] == 0
    assert deployment.get()["spec"]["restartId"]
    managers = {entry["manager"] for entry in deployment.get()["metadata"]["managedFields"]}
    assert "kubectl-dflash" in managers, "who asked is told in the object"

    status, out, _ = dflash("explain", "chat")
    assert (status, f"{namespace}/chat: block size" in out) == (0, True)
    assert "Where it comes from: trained size (active since " in out, "none of these changes was one of the block size"


def test_a_spec_that_is_refused_or_not_seen_is_a_negative_answer(
    start_operator: StartOperator, cluster: Cluster, namespace: str, dflash: Dflash
) -> None:
    deployment = Deployment(cluster, namespace).create(rollout_spec(1))
    status, out, _ = dflash("rollout", "status", "chat")
    assert (status, "has not seen this change yet (generation 1, seen none)" in out) == (failures.NEGATIVE, True)
    operator = start_operator()
    assert dflash("rollout", "status", "chat", "--wait", "--timeout", str(PATIENCE_S))[0] == failures.OK
    deployment.wait_done()
    deployment.patch(blockSize=32)
    wait_until(lambda: deployment.condition("Stalled")[:2] == ("True", "InvalidSpec"), "the refusal")
    assert deployment.rollout()["phase"] == "Completed", "that of the spec before"
    for options in ((), ("--wait",)):
        status, out, _ = dflash("rollout", "status", "chat", *options)
        assert (status, out.startswith("chat: Stalled, InvalidSpec: spec.blockSize")) == (failures.NEGATIVE, True), out
    operator.stop()
    deployment.patch(blockSize=16)
    seen, wanted = deployment.status()["observedGeneration"], deployment.get()["metadata"]["generation"]
    assert seen < wanted
    said = f"(generation {wanted}, seen {seen})"
    status, out, _ = dflash("rollout", "status", "chat")
    assert (status, f"has not seen this change yet {said}" in out) == (failures.NEGATIVE, True)
    assert f"The operator has not seen this spec {said}" in dflash("status", "chat")[1]
    assert f"The operator has not seen this spec {said}" in dflash("explain", "chat")[1]
    cells = dflash("status")[1].splitlines()[1].split()
    assert (cells[1], cells[-1]) == ("Unknown", "NotSeen")


def test_after_the_last_request_status_and_explain_say_idle(
    start_operator: StartOperator, cluster: Cluster, namespace: str, dflash: Dflash
) -> None:
    start_operator(warm_up_seconds="1")
    deployment = Deployment(cluster, namespace).create(rollout_spec(1))
    deployment.wait_done()

    def shows(speed: bool) -> bool:
        metrics = deployment.status().get("metrics") or {}
        return "acceptanceLength" in metrics and "concurrency" in metrics and (metrics["tokensPerSecond"] > 0) is speed

    mix = Mix({"gsm8k": 1.0}, max_tokens=200, prompt_tokens=24)
    with ServiceTraffic(cluster, namespace, "chat", model=deployment.get()["spec"]["target"]["model"], concurrency=8, mix=mix):
        wait_until(lambda: shows(speed=True), "the metrics of traffic", PATIENCE_S)
        out = dflash("status", "chat")[1]
        assert "tokens/s, all replicas" in out
        assert "requests in service per replica" in out
        assert "idle since" not in out
    wait_until(lambda: shows(speed=False), "the metrics of no traffic", PATIENCE_S)
    measured = deployment.status()["metrics"]
    assert measured["concurrency"] > 0, "the operator keeps it: it is that of an engine that is busy"
    out = dflash("status", "chat")[1]
    assert f"idle since {measured['measuredAt']} or earlier" in out
    assert "tokens per verify step, when there was traffic" in out
    assert "tokens/s" not in out
    assert "requests in service" not in out
    assert f"no traffic since {measured['measuredAt']} or earlier" in dflash("explain", "chat")[1]


def test_what_the_cluster_refuses_is_one_sentence(cluster: Cluster, namespace: str, dflash: Dflash, tmp_path: Path) -> None:
    status, _, err = dflash("status", "nothing")
    assert (status, err) == (failures.CLUSTER, f"error: DFlashDeployment nothing in namespace {namespace} does not exist\n")
    Deployment(cluster, namespace).create(spec_of(OLD))
    missing = "no-such-namespace"
    for words, within, said in (
        (("status",), missing, f"error: there is no namespace {missing}. See kubectl get namespaces\n"),
        (("status", "nothing"), missing, f"does not exist. There is no namespace {missing}\n"),
        (("rollout", "status", "chat"), "default", f"There is one in namespace {namespace}; name it with --namespace\n"),
    ):
        status, _, err = dflash(*words, within=within)
        assert (status, err.endswith(said)) == (failures.CLUSTER, True), err
    cluster.wait_for_service_account(namespace)
    status, _, err = dflash("status", kubeconfig=cluster.service_account_kubeconfig(namespace, "default"))
    assert (status, err.startswith("error: not allowed: ")) == (failures.CLUSTER, True)
    assert err.count("\n") == 1
    config = yaml.safe_load(cluster.admin_kubeconfig.read_text(encoding="utf-8"))
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    gone = tmp_path / "gone"
    gone.write_text(yaml.safe_dump(config), encoding="utf-8")
    status, _, err = dflash("status", kubeconfig=gone)
    assert (status, "https://127.0.0.1:1 does not answer" in err, err.count("\n")) == (failures.CLUSTER, True, 1)


def test_context_and_namespace_are_those_of_kubectl(
    cluster: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    Deployment(cluster, namespace).create(spec_of(OLD))
    config = yaml.safe_load(cluster.admin_kubeconfig.read_text(encoding="utf-8"))
    [context] = config["contexts"]
    first, second = tmp_path / "first", tmp_path / "second"
    # The first file that names a current context decides; the second has the cluster, the user and the namespace.
    first.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "current-context": "mine"}), encoding="utf-8")
    own = {"name": "mine", "context": {**context["context"], "namespace": namespace}}
    second.write_text(yaml.safe_dump({**config, "contexts": [context, own]}), encoding="utf-8")
    monkeypatch.setenv("KUBECONFIG", f"{first}:{tmp_path / 'absent'}:{second}")
    assert run(["status"]) == 0
    assert "chat" in capsys.readouterr().out
    assert run(["status", "--context", context["name"], "-n", "default"]) == 0
    assert "No DFlashDeployment in namespace default." in capsys.readouterr().out
    assert run(["status", "--context", "other"]) == failures.USAGE
    assert "mine" in capsys.readouterr().err


def test_doctor_finds_what_a_cluster_lacks(cluster: Cluster, namespace: str, dflash: Dflash) -> None:
    status, out, _ = dflash("doctor", "-o", "json")
    found = {item["name"]: item for item in json.loads(out)}
    assert (status, found["operator"]["result"]) == (failures.NEGATIVE, "FAILED"), "the operator of the test bed is no Deployment"
    for name in ("Kubernetes", "CustomResourceDefinition", "GPU nodes", "your rights"):
        assert found[name]["result"] == "ok", found[name]
    assert "NVIDIA-B200" in found["GPU nodes"]["text"]
    there = {"PodMonitor": "podmonitors" in cluster.kubectl("api-resources", "-o", "name")}
    there["LeaderWorkerSet"] = "leaderworkersets" in cluster.kubectl("api-resources", "-o", "name")
    there["storage classes"] = bool(cluster.kubectl("get", "storageclasses", "-o", "name"))
    assert {name: found[name]["result"] for name in there} == {name: "ok" if yes else "advice" for name, yes in there.items()}
    assert found["Prometheus"]["result"] == "unknown", "nobody says where it is"
    renewed = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "dflash-operator"},
        "spec": {"holderIdentity": "elsewhere", "renewTime": renewed, "leaseDurationSeconds": 15},
    }
    cluster.apply_yaml(lease, namespace)
    [operator] = [item for item in json.loads(dflash("doctor", "-o", "json")[1]) if item["name"] == "operator"]
    assert (operator["result"], f"{namespace}/dflash-operator is held by elsewhere" in operator["text"]) == ("advice", True)
    lease["spec"]["renewTime"] = "2026-01-01T00:00:00.000000Z"
    cluster.apply_yaml(lease, namespace)
    [operator] = [item for item in json.loads(dflash("doctor", "-o", "json")[1]) if item["name"] == "operator"]
    assert (operator["result"], f"{namespace}/dflash-operator says that an operator ran until 2026" in operator["text"]) == ("FAILED", True)
    cluster.wait_for_service_account(namespace)
    stranger = cluster.service_account_kubeconfig(namespace, "default")
    found = {item["name"]: item for item in json.loads(dflash("doctor", "-o", "json", kubeconfig=stranger)[1])}
    assert found["CustomResourceDefinition"]["result"] == found["GPU nodes"]["result"] == "unknown"
    assert "you may not patch dflashdeployments" in found["your rights"]["text"]


def test_a_bug_report_holds_everything_but_secrets(
    start_operator: StartOperator, cluster: Cluster, namespace: str, dflash: Dflash, tmp_path: Path
) -> None:
    canary = "cAnArY4242zzz"
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hub"}, "stringData": {"HF_TOKEN": f"hf_{canary}"}}
    cluster.apply_yaml(secret, namespace)
    start_operator()
    spec = spec_of(OLD)
    env = [{"name": "INNOCENT", "value": canary}, {"name": "NCCL_DEBUG", "value": "WARN"}]
    engine = {"env": env, "extraArgs": [f"--api-key={canary}"]}
    deployment = Deployment(cluster, namespace).create(
        {**spec, "engine": engine, "huggingFace": {"tokenSecretRef": {"name": "hub", "key": "HF_TOKEN"}}}
    )
    deployment.wait_done()
    file = tmp_path / "chat.tar.gz"
    status, out, _ = dflash("diagnose", "chat", "-o", str(file))
    assert status == 0
    with tarfile.open(file) as archive:
        found = {entry.name: (archive.extractfile(entry) or io.BytesIO()).read().decode() for entry in archive}
    assert {f"chat/{name}.yaml" for name in ("dflashdeployment", "controllerrevisions", "deployments", "pods", "events")} <= found.keys()
    assert set(out.split()) == {name.removeprefix("chat/") for name in found}
    assert [name for name, text in found.items() if canary in text] == []
    assert "NCCL_DEBUG" in found["chat/controllerrevisions.yaml"]
    assert "tokenSecretRef" in found["chat/dflashdeployment.yaml"]
    assert "the operator's log: no pod of any namespace has the label" in found["chat/not-read.txt"], "it is a process of the test bed"
    assert dflash("diagnose", "chat", "-o", str(tmp_path / "no" / "such" / "folder"))[0] == failures.USAGE
