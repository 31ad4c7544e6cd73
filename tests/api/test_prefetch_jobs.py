"""Jobs that fetch weights, on a real API server with its controllers and scheduler, written and read with the chart's rights alone."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from dflash_controller.api import names
from dflash_controller.cluster import kinds
from dflash_controller.cluster.access import load_configuration
from dflash_controller.cluster.client import Client
from dflash_controller.cluster.errors import PlanConflict
from dflash_controller.cluster.events import EventRecorder
from dflash_controller.cluster.executor import ExecutionResult, Executor
from dflash_controller.cluster.field_ownership import drift
from dflash_controller.cluster.reader import Reader
from dflash_controller.cluster.store import Store
from dflash_controller.model.snapshot import Key, Snapshot
from dflash_controller.planning.state.child_ownership import ref
from dflash_controller.planning.state.plan import Apply, Delete, Plan
from dflash_controller.planning.state.prefetch_progress import PrefetchState, Progress, progress
from dflash_controller.render.prefetch import node_of, prefetch_jobs
from dflash_controller.render.service_account import service_account
from testbed.cluster import Cluster, CommandError
from testbed.operator_process import NAMESPACE as OPERATOR_NAMESPACE
from testbed.operator_process import SERVICE_ACCOUNT
from tests.support.render_inputs import INPUTS, REVISION, deployment, parsed, pod_templates, rendered_workload, resolved

NAME = "qwen"
HOST: dict[str, Any] = {"hostPath": {"path": "/mnt/models"}}
CLAIM: dict[str, Any] = {"persistentVolumeClaim": {"claimName": "models"}}
EVERYTHING: dict[str, Any] = INPUTS["variant-everything-a-user-may-add"]["spec"]


class Operator:
    """What one operator process would have."""

    def __init__(self, client: Client, namespace: str, name: str = NAME) -> None:
        self.key = Key(namespace, name)
        self.client = client
        self.store = Store()
        self.reader = Reader(client, self.store, [namespace])
        events = EventRecorder(client, instance="test", clock=time.monotonic, now=lambda: datetime.now(UTC))
        self.executor = Executor(client, self.store, events, still_leader=lambda: True, clock=time.monotonic)

    def jobs(self, *nodes: str, **spec: Any) -> list[dict[str, Any]]:
        obj = deployment(self.key.name, **spec)
        return prefetch_jobs(self.key.name, self.key.namespace, REVISION, parsed(obj), resolved(obj), nodes)

    async def bring(self, jobs: list[dict[str, Any]]) -> ExecutionResult:
        """As the planner does, each time it looks: what exists is left alone."""
        snapshot = await self.reader.refresh(self.key)
        live = {item["metadata"]["name"] for item in snapshot.others if item["kind"] == "Job"}
        steps = [Apply(job) for job in jobs if job["metadata"]["name"] not in live]
        return await self.executor.execute(Plan(tuple(steps)), snapshot)

    async def delete_jobs(self) -> None:
        """As the planner does: when the Job controller wrote in between, look and plan again."""
        while True:
            snapshot = await self.reader.refresh(self.key)
            jobs = [item for item in snapshot.others if item["kind"] == "Job"]
            try:
                await self.executor.execute(Plan(tuple(Delete(ref(job)) for job in jobs)), snapshot)
            except PlanConflict:
                continue
            return

    async def until(self, what: Callable[[Snapshot], bool], timeout_s: float = 30.0) -> Snapshot:
        async with asyncio.timeout(timeout_s):
            while True:
                if what(snapshot := await self.reader.refresh(self.key)):
                    return snapshot
                await asyncio.sleep(0.1)


def progress_of(jobs: list[dict[str, Any]], snapshot: Snapshot) -> Progress:
    return progress(jobs, snapshot.others, snapshot.pods)


@pytest.fixture
async def client(cluster: Cluster, rights: None) -> AsyncIterator[Client]:
    kubeconfig = await asyncio.to_thread(cluster.service_account_kubeconfig, OPERATOR_NAMESPACE, SERVICE_ACCOUNT)
    async with Client(await load_configuration({"KUBECONFIG": str(kubeconfig)})) as opened:
        yield opened


@pytest.fixture
async def operator(cluster: Cluster, client: Client, namespace: str) -> Operator:
    """An operator, with what has to be there before the first pod: the claim and the pods' identity."""
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "models"},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Ti"}}},
    }
    await asyncio.to_thread(cluster.apply_yaml, claim, namespace)
    await client.apply(kinds.SERVICE_ACCOUNT, service_account(NAME, namespace))
    return Operator(client, namespace)


@pytest.mark.parametrize("storage", [HOST, CLAIM], ids=["host path", "claim"])
async def test_weights_are_fetched_where_they_are_wanted(operator: Operator, storage: dict[str, Any]) -> None:
    jobs = operator.jobs("b200-1", "b200-2", storage=storage)
    assert (await operator.bring(jobs)).writes == len(jobs)
    assert progress_of(jobs, operator.store.snapshot(operator.key)).state is PrefetchState.RUNNING
    snapshot = await operator.until(lambda seen: progress_of(jobs, seen).state is PrefetchState.DONE)
    assert len(snapshot.pods) == len(jobs)
    assert all((pod.role, pod.revision, pod.phase) == (names.ROLE_PREFETCH, REVISION, "Succeeded") for pod in snapshot.pods)
    if storage is HOST:
        assert sorted(str(pod.node) for pod in snapshot.pods) == ["b200-1", "b200-2"] == [str(node_of(job)) for job in jobs]
    else:
        assert all(str(pod.node).startswith("b200-") for pod in snapshot.pods), "where an engine could run"


@pytest.mark.parametrize(
    "spec",
    [{"storage": HOST}, {"storage": CLAIM}, EVERYTHING | {"storage": HOST}, EVERYTHING | {"storage": CLAIM}],
    ids=["host path", "claim", "host path and everything", "claim and everything"],
)
async def test_what_is_rendered_is_what_the_api_server_keeps(operator: Operator, spec: dict[str, Any]) -> None:
    jobs = operator.jobs("b200-1", "b200-2", **spec)
    await operator.bring(jobs)
    for job in jobs:
        live = await operator.client.get(kinds.JOB, operator.key.namespace, job["metadata"]["name"])
        assert drift(job, live) == []
    assert (await operator.bring(jobs)).writes == 0


async def test_a_finished_job_is_left_alone_and_a_deleted_one_runs_again(operator: Operator) -> None:
    jobs = operator.jobs(storage=CLAIM)
    await operator.bring(jobs)
    await operator.until(lambda seen: progress_of(jobs, seen).state is PrefetchState.DONE)
    assert (await operator.bring(jobs)).writes == 0
    await operator.delete_jobs()
    await operator.until(lambda seen: not seen.pods)
    assert (await operator.bring(jobs)).writes == 1
    await operator.until(lambda seen: progress_of(jobs, seen).state is PrefetchState.DONE)


async def test_a_job_that_gives_up_is_told_with_its_pods_last_words(operator: Operator) -> None:
    [job] = operator.jobs(storage=CLAIM, podTemplate={"metadata": {"annotations": {"sim/fail": "yes"}}})
    job["spec"]["backoffLimit"] = 0
    await operator.bring([job])
    snapshot = await operator.until(lambda seen: progress_of([job], seen).state is PrefetchState.FAILED)
    assert progress_of([job], snapshot).message == f"Job {NAME}-{REVISION}-fetch failed: fetch: Error, exit code 1"


async def test_a_job_no_node_takes_tells_why(operator: Operator) -> None:
    jobs = operator.jobs(storage=CLAIM, accelerator={"product": "NVIDIA-GB300"})
    await operator.bring(jobs)
    snapshot = await operator.until(lambda seen: any(pod.unschedulable for pod in seen.pods))
    [pod] = snapshot.pods
    assert pod.unschedulable_since is not None
    assert abs((datetime.now(UTC) - pod.unschedulable_since).total_seconds()) < 60
    assert str(pod.unschedulable) in progress_of(jobs, snapshot).message


async def test_a_cordoned_node_is_fetched_to(operator: Operator, cluster: Cluster) -> None:
    jobs = operator.jobs("b200-6", storage=HOST)
    await asyncio.to_thread(cluster.kubectl, "cordon", "b200-6")
    try:
        await operator.bring(jobs)
        await operator.until(lambda seen: progress_of(jobs, seen).state is PrefetchState.DONE)
    finally:
        await asyncio.to_thread(cluster.kubectl, "uncordon", "b200-6")


async def test_pods_of_the_longest_name_are_known_by_the_beginning_of_theirs(operator: Operator) -> None:
    long = Operator(operator.client, operator.key.namespace, "n" * 40)
    await long.client.apply(kinds.SERVICE_ACCOUNT, service_account(long.key.name, long.key.namespace))
    jobs = prefetch_jobs(long.key.name, long.key.namespace, REVISION, parsed(deployment(storage=HOST)), resolved(deployment()), ["b200-1"])
    [job] = jobs
    assert len(job["metadata"]["name"]) == 63
    await long.bring(jobs)
    snapshot = await long.until(lambda seen: progress_of(jobs, seen).state is PrefetchState.DONE)
    [pod] = snapshot.pods
    assert pod.name[:-5] == job["metadata"]["name"][:58]


async def test_the_deployment_of_the_revision_does_not_count_a_fetching_pod(operator: Operator, cluster: Cluster) -> None:
    namespace = operator.key.namespace
    jobs = operator.jobs(storage=CLAIM, podTemplate={"metadata": {"annotations": {"sim/complete-after": "1h"}}})
    await operator.bring(jobs)
    await operator.until(lambda seen: any(pod.ready for pod in seen.pods))
    workload = rendered_workload(deployment(storage=CLAIM))
    workload["metadata"]["namespace"] = namespace
    workload["metadata"]["annotations"] = {names.ANNOTATION_RECORD: json.dumps({"hash": REVISION, "inputs": {}})}
    workload["spec"]["replicas"] = 1
    await operator.client.apply(kinds.DEPLOYMENT, workload)
    await asyncio.to_thread(cluster.kubectl, "-n", namespace, "rollout", "status", f"deploy/{NAME}-{REVISION}", "--timeout=120s")
    status = (await operator.client.get(kinds.DEPLOYMENT, namespace, f"{NAME}-{REVISION}"))["status"]
    assert (status["replicas"], status["readyReplicas"]) == (1, 1)
    snapshot = await operator.reader.refresh(operator.key)
    assert sorted(pod.role for pod in snapshot.pods) == [names.ROLE_ENGINE, names.ROLE_PREFETCH]
    assert sum(pod.serving for pod in snapshot.pods) == 1
    pods = (await asyncio.to_thread(cluster.get, "-n", namespace, "pods"))["items"]
    assert sorted(item["metadata"]["ownerReferences"][0]["kind"] for item in pods) == ["Job", "ReplicaSet"]


@pytest.mark.parametrize("level", ["privileged", "baseline", "restricted"])
@pytest.mark.parametrize("user", [{}, {"runAsNonRoot": True}], ids=["user of the image", "not root"])
@pytest.mark.parametrize("storage", [HOST, CLAIM], ids=["host path", "claim"])
async def test_a_namespace_that_admits_the_engines_admits_the_fetching_pods(
    operator: Operator, cluster: Cluster, level: str, storage: dict[str, Any], user: dict[str, Any]
) -> None:
    """Pod Security's level restricted asks for a promise that no container runs as root."""
    namespace = operator.key.namespace
    label = f"pod-security.kubernetes.io/enforce={level}"
    await asyncio.to_thread(cluster.kubectl, "label", "namespace", namespace, label)
    pods = {"securityContext": user}
    engine = pod_templates(rendered_workload(deployment(storage=storage, podTemplate=pods)))["engine"]
    [job] = operator.jobs("b200-1", storage=storage, podTemplate=pods)

    def admitted(template: dict[str, Any]) -> bool:
        pod = {**template, "apiVersion": "v1", "kind": "Pod", "metadata": {**template["metadata"], "name": "p", "namespace": namespace}}
        try:
            cluster.kubectl("-n", namespace, "create", "--dry-run=server", "-f", "-", input=json.dumps(pod))
        except CommandError as error:
            if "violates PodSecurity" not in error.stderr:
                raise
            return False
        return True

    answers = [await asyncio.to_thread(admitted, template) for template in (engine, job["spec"]["template"])]
    expected = level == "privileged" or (storage is CLAIM and (level == "baseline" or user != {}))
    assert answers == [expected, expected]


async def test_a_dead_node_is_seen_from_its_terminating_pod(operator: Operator, cluster: Cluster, client: Client, tmp_path: Path) -> None:
    jobs = operator.jobs("b200-7", storage=HOST, podTemplate={"metadata": {"annotations": {"sim/complete-after": "1h"}}})
    await operator.bring(jobs)
    await operator.until(lambda seen: any(pod.ready for pod in seen.pods))
    await asyncio.to_thread(cluster.fail_node, "b200-7")
    try:
        snapshot = await operator.reader.refresh(operator.key)
        assert snapshot.dead_nodes == frozenset(), "no pod is terminating"
        pod = snapshot.pods[0].name
        await asyncio.to_thread(cluster.kubectl, "-n", operator.key.namespace, "delete", "pod", pod, "--wait=false")
        snapshot = await operator.reader.refresh(operator.key)
        assert [item.name for item in snapshot.pods if item.terminating] == [pod]
        assert snapshot.dead_nodes == {"b200-7"} == await operator.reader.dead_nodes(operator.key)
        without_right = await asyncio.to_thread(cluster.service_account_kubeconfig, operator.key.namespace, "default")
        async with Client(await load_configuration({"KUBECONFIG": str(without_right)})) as stranger:
            assert await Reader(stranger, operator.store).dead_nodes(operator.key) == frozenset()
    finally:
        await asyncio.to_thread(cluster.recover_node, "b200-7")
    # kwok's schedule goes on when the node is back.
    await operator.until(lambda seen: not any(item.terminating for item in seen.pods))
