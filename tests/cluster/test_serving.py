"""From ``kubectl apply`` to answered completions, and what happens to the objects below."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from openai import OpenAI

from testbed.cluster import Cluster
from testbed.simulator_process import SimulatorProcess
from testbed.waiting import wait_until
from tests.conftest import Kubectl, StartOperator
from tests.support.deployment import Deployment

ROOT = Path(__file__).parents[2]
COMMIT = "a" * 40


def manifest(name: str = "chat", **spec: Any) -> str:
    return yaml.safe_dump(
        {
            "apiVersion": "serving.dflash.io/v1alpha1",
            "kind": "DFlashDeployment",
            "metadata": {"name": name},
            "spec": {"target": {"model": "Qwen/Qwen3.5-9B"}, **spec},
        }
    )


def get(kubectl: Kubectl, *what: str) -> Any:
    return json.loads(kubectl("get", *what, "-o", "json"))


def status(kubectl: Kubectl, name: str = "chat") -> dict[str, Any]:
    return Deployment(kubectl.cluster, kubectl.namespace, name).status()


def condition(kubectl: Kubectl, type: str, name: str = "chat") -> tuple[str, str, str]:
    return Deployment(kubectl.cluster, kubectl.namespace, name).condition(type)


def ready(kubectl: Kubectl, name: str = "chat") -> None:
    kubectl("wait", "--for=condition=Ready", f"dfd/{name}", "--timeout=120s")


def test_apply_serves_completions_and_tells_the_truth(start_operator: StartOperator, kubectl: Kubectl) -> None:
    start_operator()
    kubectl("apply", "-f", "-", input=manifest(replicas=2, drafter={"revision": COMMIT}))
    ready(kubectl)
    pods = get(kubectl, "pods", "-l", "serving.dflash.io/role=engine")["items"]
    assert len(pods) == 2
    url = f"http://{pods[0]['status']['podIP']}:30000/v1"
    client = OpenAI(base_url=url, api_key="EMPTY")
    for _ in range(3):
        answer = client.chat.completions.create(
            model="Qwen/Qwen3.5-9B", messages=[{"role": "user", "content": "Why is the sky blue?"}], max_tokens=2000
        )
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 2000
    row = dict(zip(*(line.split() for line in kubectl("get", "dfd", "chat").splitlines()), strict=False))
    assert row["READY"] == "True"
    shown = wait_until(lambda: (found := status(kubectl).get("metrics") or {}).get("acceptanceLength") and found, "metrics in the status")
    assert 1 < shown["acceptanceLength"] <= 16
    assert shown["blockSize"] == 16
    now = status(kubectl)
    assert (now["serving"], now["drafterRevision"], now["speculation"]["label"]) == ("2/2", COMMIT, "16")
    assert condition(kubectl, "MetricsAvailable")[:2] == ("True", "Measured")


def test_scale_goes_through_the_subresource_and_makes_no_revision(start_operator: StartOperator, kubectl: Kubectl) -> None:
    start_operator()
    kubectl("apply", "-f", "-", input=manifest())
    ready(kubectl)
    kubectl("scale", "dfd/chat", "--replicas=3")
    wait_until(lambda: status(kubectl)["serving"] == "3/3", "three replicas")
    scale = json.loads(kubectl("get", "--raw", _path(kubectl, "/scale")))
    assert scale["status"] == {"replicas": 3, "selector": "serving.dflash.io/deployment=chat,serving.dflash.io/role=engine"}
    kubectl("scale", "dfd/chat", "--replicas=0")
    wait_until(lambda: condition(kubectl, "Ready")[:2] == ("True", "ScaledToZero"), "no replicas")
    assert len(get(kubectl, "controllerrevisions")["items"]) == 1


def _path(kubectl: Kubectl, tail: str = "") -> str:
    namespace = get(kubectl, "dfd", "chat")["metadata"]["namespace"]
    return f"/apis/serving.dflash.io/v1alpha1/namespaces/{namespace}/dflashdeployments/chat{tail}"


def test_deleted_and_edited_children_are_put_back_and_foreign_fields_left(start_operator: StartOperator, kubectl: Kubectl) -> None:
    start_operator()
    kubectl("apply", "-f", "-", input=manifest())
    ready(kubectl)
    uid = get(kubectl, "service", "chat")["metadata"]["uid"]
    kubectl("delete", "service/chat", "pdb/chat", "networkpolicy/chat")
    kubectl("annotate", "serviceaccount/chat-engine", "team=ml")
    wait_until(lambda: get(kubectl, "service,pdb,networkpolicy", "-l", "serving.dflash.io/deployment=chat")["items"][2:], "the children")
    assert get(kubectl, "service", "chat")["metadata"]["uid"] != uid
    kubectl("patch", "service/chat", "--type=merge", "-p", '{"spec":{"selector":{"serving.dflash.io/role":"stranger"}}}')
    wait_until(lambda: get(kubectl, "service", "chat")["spec"]["selector"]["serving.dflash.io/role"] == "engine", "the selector")
    assert get(kubectl, "serviceaccount", "chat-engine")["metadata"]["annotations"] == {"team": "ml"}
    name = status(kubectl)["stableRevision"]
    template = get(kubectl, "deployment", name)["spec"]["template"]
    kubectl("delete", f"deployment/{name}")
    wait_until(lambda: status(kubectl)["serving"] == "1/1" and get(kubectl, "deployments")["items"], "the workload")
    assert get(kubectl, "deployment", name)["spec"]["template"] == template


def test_children_survive_an_orphaning_delete_and_are_adopted_by_the_next(start_operator: StartOperator, kubectl: Kubectl) -> None:
    start_operator()
    kubectl("apply", "-f", "-", input=manifest(replicas=2))
    ready(kubectl)
    before = {pod["metadata"]["uid"] for pod in get(kubectl, "pods")["items"]}
    revision = status(kubectl)["stableRevision"]
    kubectl("delete", "dfd/chat", "--cascade=orphan")
    kubectl("apply", "-f", "-", input=manifest(replicas=2))
    ready(kubectl)
    own = get(kubectl, "dfd", "chat")["metadata"]["uid"]
    children = get(
        kubectl, "controllerrevisions,deployments,services,pdb,networkpolicies,serviceaccounts", "-l", "serving.dflash.io/deployment=chat"
    )
    assert {item["metadata"]["ownerReferences"][0]["uid"] for item in children["items"]} == {own}
    assert {pod["metadata"]["uid"] for pod in get(kubectl, "pods")["items"]} == before
    assert status(kubectl)["stableRevision"] == revision


def test_a_name_that_is_taken_stalls_and_is_never_touched(start_operator: StartOperator, kubectl: Kubectl) -> None:
    kubectl("create", "service", "clusterip", "chat", "--tcp=80:80")
    before = get(kubectl, "service", "chat")["metadata"]["resourceVersion"]
    start_operator()
    kubectl("apply", "-f", "-", input=manifest())
    wait_until(lambda: condition(kubectl, "Stalled")[:2] == ("True", "NameTaken"), "Stalled")
    assert "Service chat exists and is not the operator's" in condition(kubectl, "Stalled")[2]
    assert get(kubectl, "service", "chat")["metadata"]["resourceVersion"] == before


def test_a_deleted_deployment_takes_everything_with_it(start_operator: StartOperator, kubectl: Kubectl) -> None:
    start_operator()
    kubectl("apply", "-f", "-", input=manifest())
    ready(kubectl)
    kubectl("delete", "dfd/chat", "--timeout=20s")
    kinds = "controllerrevisions,deployments,services,pdb,networkpolicies,pods"
    wait_until(lambda: not get(kubectl, kinds, "-l", "serving.dflash.io/deployment=chat")["items"], "everything to be gone")


def test_a_suspended_deployment_is_left_alone(start_operator: StartOperator, kubectl: Kubectl) -> None:
    start_operator()
    kubectl("apply", "-f", "-", input=manifest(replicas=2))
    ready(kubectl)
    kubectl("patch", "dfd/chat", "--type=merge", "-p", '{"spec":{"suspend":true,"replicas":4}}')
    wait_until(lambda: condition(kubectl, "Reconciling")[1] == "Suspended", "suspension")
    kubectl("delete", "service/chat")
    generation = get(kubectl, "dfd", "chat")["metadata"]["generation"]
    wait_until(lambda: status(kubectl)["observedGeneration"] == generation, "the status")
    assert len(get(kubectl, "pods")["items"]) == 2
    kubectl("patch", "dfd/chat", "--type=merge", "-p", '{"spec":{"suspend":false}}')
    wait_until(lambda: status(kubectl)["serving"] == "4/4", "four replicas")
    assert get(kubectl, "service", "chat")


INVALID = sorted(path for path in (ROOT / "tests" / "api" / "invalid").glob("*.yaml") if "# by: operator" in path.read_text())


@pytest.mark.parametrize("path", INVALID, ids=lambda path: path.stem)
def test_what_only_the_operator_can_refuse_stalls_with_the_reason(path: Path, start_operator: StartOperator, kubectl: Kubectl) -> None:
    text = path.read_text()
    expected = next(line.removeprefix("# expect:").strip() for line in text.splitlines() if line.startswith("# expect:"))
    name = yaml.safe_load(text)["metadata"]["name"]
    start_operator()
    kubectl("apply", "-f", str(path))
    wait_until(lambda: condition(kubectl, "Stalled", name)[0] == "True", "Stalled")
    assert expected in condition(kubectl, "Stalled", name)[2]
    assert condition(kubectl, "Ready", name)[0] == "False"
    assert not get(kubectl, "pods")["items"]


def test_an_engine_that_refuses_its_command_line_is_named(
    start_operator: StartOperator, kubectl: Kubectl, simulator: SimulatorProcess
) -> None:
    start_operator()
    kubectl("apply", "-f", "-", input=manifest(engine={"extraArgs": ["--no-such-flag=1"]}))
    wait_until(lambda: "no-such-flag" in condition(kubectl, "Ready")[2], "the engine's own words in the condition")
    assert condition(kubectl, "Ready")[:2] == ("False", "EngineFailing")
    assert condition(kubectl, "Reconciling")[0] == "True"
    wait_until(lambda: condition(kubectl, "Stalled")[:2] == ("True", "EngineFailing"), "Stalled")


def test_an_operator_that_was_away_catches_up(start_operator: StartOperator, kubectl: Kubectl, cluster: Cluster) -> None:
    operator = start_operator()
    kubectl("apply", "-f", "-", input=manifest())
    ready(kubectl)
    operator.kill()
    kubectl("patch", "dfd/chat", "--type=merge", "-p", '{"spec":{"replicas":2}}')
    kubectl("delete", "service/chat")
    operator.start().wait_to_lead()
    wait_until(lambda: status(kubectl)["serving"] == "2/2", "two replicas")
    assert get(kubectl, "service", "chat")


@pytest.mark.parametrize("kind", ["deployment", "controllerrevision", "service"])
def test_a_child_that_lost_its_label_is_found_by_its_name_and_gets_it_back(
    kind: str, start_operator: StartOperator, kubectl: Kubectl
) -> None:
    start_operator()
    kubectl("apply", "-f", "-", input=manifest(replicas=2))
    ready(kubectl)
    pods = {pod["metadata"]["uid"] for pod in get(kubectl, "pods")["items"]}
    name = "chat" if kind == "service" else status(kubectl)["stableRevision"]
    kubectl("label", f"{kind}/{name}", "serving.dflash.io/deployment-")
    labelled = lambda: get(kubectl, kind, name)["metadata"].get("labels", {}).get("serving.dflash.io/deployment") == "chat"  # noqa: E731
    wait_until(labelled, "the label")
    kubectl("scale", "dfd/chat", "--replicas=3")
    wait_until(lambda: status(kubectl)["serving"] == "3/3", "three replicas")
    assert pods <= {pod["metadata"]["uid"] for pod in get(kubectl, "pods")["items"]}


def test_what_the_api_server_refuses_below_is_told_in_the_status(start_operator: StartOperator, kubectl: Kubectl) -> None:
    start_operator()
    kubectl("apply", "-f", "-", input=manifest(scheduling={"affinity": {"nodeAffinity": {"foo": 1}}}))
    wait_until(lambda: condition(kubectl, "Stalled")[:2] == ("True", "InvalidSpec"), "Stalled")
    assert "nodeAffinity.foo" in condition(kubectl, "Stalled")[2]
    kubectl("patch", "dfd/chat", "--type=json", "-p", '[{"op":"remove","path":"/spec/scheduling"}]')
    ready(kubectl)
    assert condition(kubectl, "Stalled")[0] == "False"


def test_pods_that_cannot_be_made_are_not_called_starting(start_operator: StartOperator, kubectl: Kubectl) -> None:
    start_operator()
    kubectl("apply", "-f", "-", input=manifest(scheduling={"priorityClassName": "nope"}))
    wait_until(lambda: condition(kubectl, "Stalled")[:2] == ("True", "PodsRefused"), "Stalled")
    assert "no PriorityClass with name nope" in condition(kubectl, "Ready")[2]


def test_ready_waits_for_every_replica_of_a_scaling_and_names_the_scheduler(start_operator: StartOperator, kubectl: Kubectl) -> None:
    start_operator()
    kubectl("apply", "-f", "-", input=manifest(replicas=2, accelerator={"product": "NVIDIA-B200"}, parallelism={"tensor": 8}))
    ready(kubectl)
    kubectl("scale", "dfd/chat", "--replicas=40")
    wait_until(lambda: condition(kubectl, "Ready")[:2] == ("False", "InsufficientAccelerators"), "the scheduler's word")
    assert "Insufficient nvidia.com/gpu" in condition(kubectl, "Ready")[2]


def test_a_name_that_becomes_free_is_taken_without_a_restart(start_operator: StartOperator, kubectl: Kubectl) -> None:
    kubectl("create", "service", "clusterip", "chat", "--tcp=80:80")
    start_operator()
    kubectl("apply", "-f", "-", input=manifest())
    wait_until(lambda: condition(kubectl, "Stalled")[:2] == ("True", "NameTaken"), "Stalled")
    kubectl("delete", "service/chat")
    kubectl("annotate", "dfd/chat", "look=again")
    ready(kubectl)


def test_an_engine_that_serves_fewer_requests_than_asked_says_so(start_operator: StartOperator, kubectl: Kubectl) -> None:
    """80 slots of state at five a request: SGLang serves 16 of the 32 that are asked for, and says so only in its metrics."""
    start_operator()
    engine = {"name": "sglang", "maxConcurrency": 32, "extraArgs": ["--max-mamba-cache-size=80"]}
    kubectl("apply", "-f", "-", input=manifest(drafter={"revision": COMMIT}, engine=engine))
    ready(kubectl)
    wait_until(lambda: status(kubectl).get("effectiveMaxConcurrency") == 16, "the engines' own limit in the status")
    notices = {notice["reason"]: notice["message"] for notice in status(kubectl)["notices"]}
    assert "serves 16 requests at once, not the 32 of spec.engine.maxConcurrency" in notices["ConcurrencyLimited"]
    assert "Remove --max-mamba-cache-size from spec.engine.extraArgs" in notices["ConcurrencyLimited"]
    deployment = Deployment(kubectl.cluster, kubectl.namespace, "chat")
    told = wait_until(lambda: [reason for reason, _ in deployment.events() if reason == "ConcurrencyLimited"], "an event")
    assert len(told) == 1
