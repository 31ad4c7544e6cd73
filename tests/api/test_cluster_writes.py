"""Writes against a real API server: sent only when they change something, refused when the plan is out of date."""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dflash_controller.api import names
from dflash_controller.cluster import kinds
from dflash_controller.cluster.access import load_configuration
from dflash_controller.cluster.client import USER_AGENT, Client
from dflash_controller.cluster.errors import Conflict, Invalid, LostLeadership, NotFound, PlanConflict, Unavailable
from dflash_controller.cluster.events import EventRecorder
from dflash_controller.cluster.executor import Executor
from dflash_controller.cluster.field_ownership import drift, readable
from dflash_controller.cluster.kinds import Kind, kind_of
from dflash_controller.cluster.reader import Reader
from dflash_controller.cluster.store import Store
from dflash_controller.model.snapshot import Key
from dflash_controller.planning.state.plan import Adopt, Annotate, Apply, Create, Delete, Event, Part, Plan, Ref
from testbed.audit import WRITE_VERBS
from testbed.cluster import Cluster

GOLDEN = sorted((Path(__file__).parents[1] / "unit" / "golden" / "manifests").glob("*.yaml"))


class Operator:
    """What one operator process would have, with a clock and a lease the test holds."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.key = Key(namespace, "demo")
        self.client = client
        self.store = Store()
        self.reader = Reader(client, self.store, [namespace])
        self.time = 0.0
        self.leads = True
        events = EventRecorder(client, instance="test", clock=time.monotonic, now=lambda: datetime.datetime.now(datetime.UTC))
        self.executor = Executor(client, self.store, events, still_leader=lambda: self.leads, clock=lambda: self.time)

    async def run(self, *steps: Any, **plan: Any) -> Any:
        """Carry out a plan made from a live snapshot."""
        return await self.executor.execute(Plan(steps, **plan), await self.reader.refresh(self.key))

    async def read(self, kind: Kind, name: str = "demo") -> dict[str, Any]:
        return await self.client.get(kind, self.key.namespace, name)


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    async with Client(await load_configuration({"KUBECONFIG": str(cluster.admin_kubeconfig)})) as opened:
        yield opened


@pytest.fixture
async def operator(client: Client, namespace: str) -> Operator:
    """An operator with one DFlashDeployment."""
    manifest = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"namespace": namespace, "name": "demo"},
        "spec": {"target": {"model": "Qwen/Qwen3.5-9B"}},
    }
    await client.create(kinds.DFLASH_DEPLOYMENT, manifest)
    return Operator(client, namespace)


async def writes_since(mark: int, cluster: Cluster, namespace: str) -> list[str]:
    """Writes in the namespace by this project's client; those of the control plane itself do not matter."""
    events = await asyncio.to_thread(cluster.audit, mark, verbs=WRITE_VERBS)
    return [event["requestURI"] for event in events if namespace in event["requestURI"] and event.get("userAgent") == USER_AGENT]


def ref(obj: dict[str, Any]) -> Ref:
    metadata = obj["metadata"]
    return Ref(obj["apiVersion"], obj["kind"], metadata["namespace"], metadata["name"], metadata["uid"], metadata["resourceVersion"])


def service(namespace: str, port: int = 8000, labels: dict[str, str] | None = None) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": namespace, "name": "demo", "labels": names.child_labels("demo") if labels is None else labels},
        "spec": {"selector": names.engine_selector("demo"), "ports": [{"name": "http", "port": port, "targetPort": "http"}]},
    }


RECORD = {names.ANNOTATION_RECORD: '{"hash":"raaaaaaa","inputs":{}}'}
THEIRS = {"selector": {"app": "theirs"}, "ports": [{"name": "http", "port": 8000}]}


def workload(namespace: str, replicas: int = 1) -> dict[str, Any]:
    labels = names.child_labels("demo") | {names.LABEL_ROLE: "engine"}
    container = {
        "name": "engine",
        "image": "engine:1",
        "args": ["--a", "--b=1"],
        "ports": [{"name": "http", "containerPort": 8000}],
        "env": [{"name": "A", "value": "1"}, {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "resources": {"limits": {"nvidia.com/gpu": 1, "cpu": "1500m", "memory": "1024Mi"}},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"namespace": namespace, "name": "demo-raaaaaaa", "labels": names.child_labels("demo"), "annotations": RECORD},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "containers": [container],
                    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
                    "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "2048Mi"}}],
                },
            },
        },
    }


def revision(namespace: str) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {"namespace": namespace, "name": "demo-raaaaaaa", "labels": names.child_labels("demo")},
        "revision": 1,
        "data": {"z": 1, "inputs": {"model": "ä😀 <b>&\x7f\x9f\u2028", "rate": 0.05, "whole": 2.0, "big": 123456789012}},
    }


@pytest.mark.parametrize("golden", [path.read_text() for path in GOLDEN], ids=[path.stem for path in GOLDEN])
async def test_a_second_apply_of_what_the_operator_renders_is_not_sent(client: Client, namespace: str, golden: str) -> None:
    manifests = [manifest for manifest in yaml.safe_load_all(golden) if not kind_of(manifest).optional]
    assert manifests
    for manifest in manifests:
        manifest["metadata"]["namespace"] = namespace
        live = await client.apply(kind_of(manifest), manifest)
        assert drift(manifest, live) == [], manifest["kind"]


async def test_a_settled_plan_writes_nothing_whatever_spelling_quantities_have(operator: Operator, cluster: Cluster) -> None:
    namespace = operator.key.namespace
    await operator.run(Apply(workload(namespace, 0)), Apply(service(namespace)), status={"observedGeneration": 1})
    await asyncio.to_thread(
        cluster.kubectl, "-n", namespace, "wait", "deploy/demo-raaaaaaa", "--for=jsonpath={.status.observedGeneration}=1"
    )
    mark = await asyncio.to_thread(cluster.audit_mark)
    live = await operator.read(kinds.DEPLOYMENT, "demo-raaaaaaa")
    steps = (
        Apply(workload(namespace, 0), fence=ref(live), fenced=True),
        Apply(service(namespace), fence=ref(await operator.read(kinds.SERVICE))),
    )
    result = await operator.run(*steps, status={"observedGeneration": 1, "candidateRevision": None})
    assert (result.writes, result.skipped, result.status_written) == (0, 2, False)
    assert await writes_since(mark, cluster, namespace) == []


@pytest.mark.parametrize(
    ("patch", "field"),
    [
        ({"spec": {"replicas": 5}}, "spec.replicas"),
        ({"metadata": {"labels": {names.LABEL_MANAGED_BY: "someone"}}}, f"metadata.labels.{names.LABEL_MANAGED_BY}"),
        ({"spec": {"template": {"spec": {"tolerations": []}}}}, "spec.template.spec.tolerations"),
    ],
)
async def test_an_edited_child_is_put_back_and_foreign_fields_are_left_alone(operator: Operator, patch: dict[str, Any], field: str) -> None:
    namespace = operator.key.namespace
    await operator.run(Apply(workload(namespace)))
    foreign = {"metadata": {"annotations": {"example.com/theirs": "yes"}}, "spec": {"minReadySeconds": 3}}
    await edit(operator, foreign)
    live = await operator.read(kinds.DEPLOYMENT, "demo-raaaaaaa")
    assert (await operator.run(Apply(workload(namespace), fence=ref(live)))).writes == 0
    edited = await edit(operator, patch)
    assert any(readable(path).startswith(field) for path in drift(workload(namespace), edited))
    assert (await operator.run(Apply(workload(namespace), fence=ref(edited)))).writes == 1
    after = await operator.read(kinds.DEPLOYMENT, "demo-raaaaaaa")
    assert drift(workload(namespace), after) == []
    assert after["metadata"]["annotations"]["example.com/theirs"] == "yes"
    assert after["spec"]["minReadySeconds"] == 3


async def edit(operator: Operator, patch: dict[str, Any]) -> dict[str, Any]:
    """Another manager's hand."""
    return await patch_as(operator, "somebody", kinds.DEPLOYMENT, "demo-raaaaaaa", patch)


async def patch_as(operator: Operator, manager: str, kind: Kind, name: str, patch: dict[str, Any]) -> dict[str, Any]:
    response = await operator.client._dynamic.request(
        "patch",
        kind.path(operator.key.namespace, name),
        body=patch,
        content_type="application/merge-patch+json",
        field_manager=manager,
        serialize=False,
    )
    answer: dict[str, Any] = await response.json()
    return answer


async def test_a_field_no_longer_rendered_is_taken_away(operator: Operator) -> None:
    namespace = operator.key.namespace
    before = service(namespace)
    before["metadata"]["annotations"] = {"example.com/x": "1"}
    await operator.run(Apply(before))
    live = await operator.read(kinds.SERVICE)
    assert (await operator.run(Apply(service(namespace), fence=ref(live)))).writes == 1
    assert "annotations" not in (await operator.read(kinds.SERVICE))["metadata"]


async def test_an_apply_that_changed_nothing_is_not_repeated(operator: Operator) -> None:
    namespace = operator.key.namespace
    ignored = service(namespace) | {"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}}
    await operator.run(Apply(ignored))
    results = []
    for _ in range(3):
        results.append(await operator.run(Apply(ignored, fence=ref(await operator.read(kinds.SERVICE)))))
    assert [result.writes for result in results] == [1, 0, 0]


async def test_a_stale_fence_is_a_conflict_and_corrects_the_store(operator: Operator) -> None:
    namespace = operator.key.namespace
    await operator.run(Apply(workload(namespace)))
    snapshot = await operator.reader.refresh(operator.key)
    planned = ref(dict(snapshot.workloads[0]))
    edited = await edit(operator, {"metadata": {"annotations": {"example.com/now": "1"}}})
    with pytest.raises(PlanConflict):
        await operator.executor.execute(Plan((Apply(workload(namespace, 3), fence=planned, fenced=True),)), snapshot)
    corrected = operator.store.snapshot(operator.key).workloads[0]
    assert int(corrected["metadata"]["resourceVersion"]) >= int(edited["metadata"]["resourceVersion"])
    assert corrected["spec"]["replicas"] == 1


async def test_a_child_deleted_in_the_meantime_is_a_conflict_not_a_new_object(operator: Operator) -> None:
    namespace = operator.key.namespace
    await operator.run(Apply(service(namespace)))
    snapshot = await operator.reader.refresh(operator.key)
    fence = ref(dict(snapshot.others[0]))
    await operator.client.delete(kinds.SERVICE, namespace, "demo", uid=fence.uid)
    with pytest.raises(PlanConflict):
        await operator.executor.execute(Plan((Apply(service(namespace, 9000), fence=fence),)), snapshot)
    with pytest.raises(NotFound):
        await operator.read(kinds.SERVICE)
    assert operator.store.snapshot(operator.key).others == ()


async def test_deletion_demands_uid_and_version(operator: Operator) -> None:
    namespace = operator.key.namespace
    await operator.run(Apply(service(namespace)))
    live = await operator.read(kinds.SERVICE)
    with pytest.raises(Conflict):
        await operator.client.delete(kinds.SERVICE, namespace, "demo", uid="00000000-0000-0000-0000-000000000000")
    stale = ref(live)
    await patch_as(operator, "somebody", kinds.SERVICE, "demo", {"metadata": {"annotations": {"a": "b"}}})
    with pytest.raises(PlanConflict):
        await operator.run(Delete(stale))
    result = await operator.run(Delete(ref(await operator.read(kinds.SERVICE))))
    assert result.writes == 1
    assert operator.store.snapshot(operator.key).others == ()
    with pytest.raises(NotFound):
        await operator.read(kinds.SERVICE)


async def test_deleting_what_is_gone_already_is_done(operator: Operator) -> None:
    namespace = operator.key.namespace
    await operator.run(Apply(service(namespace)))
    snapshot = await operator.reader.refresh(operator.key)
    gone = ref(dict(snapshot.others[0]))
    await operator.client.delete(kinds.SERVICE, namespace, "demo", uid=gone.uid)
    result = await operator.executor.execute(Plan((Delete(gone),)), snapshot)
    assert result.writes == 0


async def test_revisions_are_created_once_annotated_and_numbered(operator: Operator) -> None:
    namespace = operator.key.namespace
    await operator.run(Create(revision(namespace)))
    created = await operator.read(kinds.CONTROLLER_REVISION, "demo-raaaaaaa")
    await operator.run(Annotate(ref(created), {names.ANNOTATION_STATE: "Stable"}, revision=7))
    after = await operator.read(kinds.CONTROLLER_REVISION, "demo-raaaaaaa")
    assert (after["metadata"]["annotations"], after["revision"]) == ({names.ANNOTATION_STATE: "Stable"}, 7)
    assert after["data"] == revision(namespace)["data"]
    with pytest.raises(PlanConflict):
        await operator.run(Annotate(ref(created), {names.ANNOTATION_STATE: "Failed"}))
    with pytest.raises(PlanConflict):
        await operator.run(Create(revision(namespace)))


async def test_a_plan_may_write_twice_to_one_object(operator: Operator) -> None:
    namespace = operator.key.namespace
    orphan = await operator.client.apply(kinds.SERVICE, service(namespace))
    parent = await operator.read(kinds.DFLASH_DEPLOYMENT)
    owner = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": "demo",
        "uid": parent["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    adopted = service(namespace)
    adopted["spec"]["publishNotReadyAddresses"] = True
    adopted["metadata"]["ownerReferences"] = [owner]
    result = await operator.run(Adopt(ref(orphan), (owner,), names.child_labels("demo")), Apply(adopted, fence=ref(orphan), fenced=True))
    assert result.writes == 2
    after = await operator.read(kinds.SERVICE)
    assert (after["metadata"]["ownerReferences"], after["spec"]["publishNotReadyAddresses"]) == ([owner], True)
    assert drift(adopted, after) == []


async def test_a_name_held_by_a_stranger_is_shown_to_the_next_plan(operator: Operator) -> None:
    namespace = operator.key.namespace
    stranger = await operator.client.create(kinds.SERVICE, service(namespace, labels={"app": "theirs"}) | {"spec": THEIRS})
    with pytest.raises(PlanConflict):
        await operator.run(Apply(service(namespace)))
    assert (await operator.read(kinds.SERVICE))["spec"]["selector"] == {"app": "theirs"}
    snapshot = await operator.reader.refresh(operator.key)
    assert [item["metadata"]["uid"] for item in snapshot.others] == [stranger["metadata"]["uid"]]
    # Even a plan that would write to it is refused, until it is a child by its label.
    with pytest.raises(PlanConflict):
        await operator.run(Apply(service(namespace), fence=ref(dict(snapshot.others[0])), fenced=True))
    await patch_as(operator, "user", kinds.SERVICE, "demo", {"metadata": {"labels": names.child_labels("demo")}})
    snapshot = await operator.reader.refresh(operator.key)
    taken = await operator.run(Apply(service(namespace), fence=ref(dict(snapshot.others[0])), fenced=True))
    assert taken.writes == 1
    assert operator.store.claims(operator.key) == ()
    assert len(operator.store.snapshot(operator.key).others) == 1


async def test_a_plan_that_would_write_to_an_object_that_is_not_ours_is_dropped(operator: Operator) -> None:
    manifest = workload(operator.key.namespace)
    manifest["metadata"]["name"] = "demo-debug"
    stranger = ref(await operator.client.create(kinds.DEPLOYMENT, manifest))
    assert (await operator.reader.refresh(operator.key)).strangers == ("Deployment demo-debug",)
    steps = (
        Delete(stranger),
        Annotate(stranger, {names.ANNOTATION_STATE: "Failed"}),
        Adopt(stranger, (), names.child_labels("demo")),
        Apply(manifest, fence=stranger, fenced=True),
        Apply(manifest, fence=stranger),
    )
    for step in steps:
        with pytest.raises(PlanConflict, match="not the operator's"):
            await operator.run(step)
    assert (await operator.read(kinds.DEPLOYMENT, "demo-debug"))["metadata"]["uid"] == stranger.uid


async def test_a_stranger_that_goes_away_frees_the_name(operator: Operator) -> None:
    namespace = operator.key.namespace
    stranger = await operator.client.create(kinds.SERVICE, service(namespace, labels={}))
    with pytest.raises(PlanConflict):
        await operator.run(Apply(service(namespace)))
    await operator.client.delete(kinds.SERVICE, namespace, "demo", uid=stranger["metadata"]["uid"])
    await operator.run(Apply(service(namespace)))
    assert (await operator.read(kinds.SERVICE))["metadata"]["labels"] == names.child_labels("demo")


async def test_the_status_is_fenced_by_the_deployment_it_was_planned_from(operator: Operator) -> None:
    snapshot = await operator.reader.refresh(operator.key)
    await patch_as(operator, "user", kinds.DFLASH_DEPLOYMENT, "demo", {"spec": {"replicas": 3}})
    with pytest.raises(PlanConflict):
        await operator.executor.execute(Plan(status={"observedGeneration": 1}), snapshot)
    result = await operator.run(status={"observedGeneration": 2, "stableRevision": "demo-raaaaaaa"})
    assert result.status_written
    await operator.run(status={"observedGeneration": 2})
    written = await operator.read(kinds.DFLASH_DEPLOYMENT)
    assert written["status"] == {"observedGeneration": 2}
    assert written["spec"]["replicas"] == 3


async def test_nothing_is_written_once_leadership_is_lost(operator: Operator, cluster: Cluster) -> None:
    namespace = operator.key.namespace
    snapshot = await operator.reader.refresh(operator.key)
    operator.leads = False
    plans = (
        Plan((Apply(service(namespace)),)),
        Plan((Create(revision(namespace)),)),
        Plan(status={"observedGeneration": 1}),
        Plan((Event("Normal", "Told", "never"),)),
    )
    mark = await asyncio.to_thread(cluster.audit_mark)
    for plan in plans:
        with pytest.raises(LostLeadership):
            await operator.executor.execute(plan, snapshot)
    assert await writes_since(mark, cluster, namespace) == []


async def test_an_irreversible_plan_needs_a_live_snapshot(operator: Operator) -> None:
    await operator.run(Apply(service(operator.key.namespace)))
    plan = Plan((Delete(ref(await operator.read(kinds.SERVICE))),))
    with pytest.raises(ValueError, match="live"):
        await operator.executor.execute(plan, operator.store.snapshot(operator.key))


async def test_an_event_is_told_once_even_after_a_restart(operator: Operator, client: Client) -> None:
    event = Event("Warning", "SomethingHappened", "it did " + "x" * 2000)
    assert (await operator.run(event)).events == 1
    assert (await operator.run(event)).events == 0
    restarted = Operator(client, operator.key.namespace)
    assert (await restarted.run(event)).events == 0
    assert (await restarted.run(Event("Warning", "SomethingHappened", "and again"))).events == 1
    told = [item async for page, _ in client.pages(kinds.EVENT, operator.key.namespace) for item in page]
    ours = [item for item in told if item["reason"] == "SomethingHappened"]
    assert len(ours) == 2
    assert {item["involvedObject"]["name"] for item in ours} == {"demo"}
    assert max(len(item["message"]) for item in ours) == 1024


async def test_a_refused_object_is_invalid_and_an_unanswered_call_unavailable(operator: Operator, cluster: Cluster) -> None:
    broken = service(operator.key.namespace)
    broken["spec"]["ports"][0]["port"] = 0
    refused = (await operator.run(Apply(broken))).refused[Part.SERVING]
    assert isinstance(refused, Invalid)
    assert "port" in str(refused)
    unknown = service(operator.key.namespace)
    unknown["spec"]["noSuchField"] = 1
    refused = (await operator.run(Apply(unknown))).refused[Part.SERVING]
    assert isinstance(refused, Invalid)
    assert "noSuchField" in str(refused)
    configuration = await load_configuration({"KUBECONFIG": str(cluster.admin_kubeconfig)})
    configuration.host = "https://127.0.0.1:1"
    async with Client(configuration, total_s=2.0) as nobody:
        with pytest.raises(Unavailable):
            await nobody.get(kinds.SERVICE, "a", "b")


async def test_a_refused_write_stops_the_rollout_only(operator: Operator) -> None:
    namespace = operator.key.namespace
    broken = service(namespace)
    broken["spec"]["ports"][0]["port"] = 0
    snapshot = await operator.reader.refresh(operator.key)
    plan = Plan(
        serving=(Apply(broken), Apply(workload(namespace))),
        rollout=(Apply(broken), Create(revision(namespace))),
        accessories=(Apply(broken), Apply(service(namespace))),
        status={"observedGeneration": 1},
    )
    result = await operator.executor.execute(plan, snapshot)
    assert list(result.refused) == [Part.SERVING, Part.ROLLOUT, Part.ACCESSORIES]
    assert (result.writes, result.status_written) == (2, False)
    assert await operator.read(kinds.DEPLOYMENT, workload(namespace)["metadata"]["name"])
    assert await operator.read(kinds.SERVICE)
    with pytest.raises(NotFound):
        await operator.read(kinds.CONTROLLER_REVISION, revision(namespace)["metadata"]["name"])


async def test_a_fight_over_a_field_is_reported_and_slows_down(operator: Operator) -> None:
    namespace = operator.key.namespace
    await operator.run(Apply(service(namespace)))
    outcomes = []
    for _ in range(4):
        edited = await patch_as(operator, "rival", kinds.SERVICE, "demo", {"metadata": {"labels": {names.LABEL_MANAGED_BY: "rival"}}})
        outcomes.append(await operator.run(Apply(service(namespace), fence=ref(edited))))
        operator.time += 20.0
    assert [(outcome.writes, outcome.events, outcome.retry_after_s) for outcome in outcomes] == [
        (1, 0, None),
        (1, 0, None),
        (1, 1, 60.0),
        (0, 0, 40.0),
    ]
    assert [bool(outcome.uncontested) for outcome in outcomes] == [True, True, False, False]
    (told_of,) = outcomes[2].conflicts.values()
    assert told_of.startswith("Service demo: field manager rival keeps changing")
    told = [item async for page, _ in operator.client.pages(kinds.EVENT, namespace) for item in page]
    conflict = next(item for item in told if item["reason"] == "FieldFight")
    assert "rival" in conflict["message"]
    assert f"metadata.labels.{names.LABEL_MANAGED_BY}" in conflict["message"]


async def test_a_resync_finds_what_the_watch_missed(operator: Operator) -> None:
    namespace = operator.key.namespace
    await operator.run(Apply(service(namespace)), Apply(workload(namespace)))
    assert operator.key in await operator.reader.resync() or operator.store.keys() == {operator.key}
    live = await operator.read(kinds.SERVICE)
    await operator.client.delete(kinds.SERVICE, namespace, "demo", uid=live["metadata"]["uid"])
    assert len(operator.store.snapshot(operator.key).others) == 1
    assert await operator.reader.resync() >= {operator.key}
    snapshot = operator.store.snapshot(operator.key)
    assert (len(snapshot.others), len(snapshot.workloads)) == (0, 1)
    fresh = Operator(operator.client, namespace)
    await fresh.reader.resync()
    # A controller may have written its status in between.
    assert [item["metadata"]["uid"] for item in fresh.store.snapshot(operator.key).workloads] == [
        item["metadata"]["uid"] for item in snapshot.workloads
    ]


async def test_lists_are_read_in_pages(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash_controller.cluster.client.PAGE_SIZE", 2)
    for letter in "abcde":
        record = revision(operator.key.namespace)
        record["metadata"]["name"] = f"demo-raaaaaa{letter}"
        await operator.client.create(kinds.CONTROLLER_REVISION, record)
    pages = [
        len(page)
        async for page, _ in operator.client.pages(kinds.CONTROLLER_REVISION, operator.key.namespace, selector=kinds.CHILD_SELECTOR)
    ]
    assert pages == [2, 2, 1]
    assert len((await operator.reader.refresh(operator.key)).revisions) == 5
