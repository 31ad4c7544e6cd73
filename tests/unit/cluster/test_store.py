"""The store: never backwards, nothing resurrected, and news only where a decision could depend on it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dflash_controller.api import names
from dflash_controller.cluster import kinds
from dflash_controller.cluster.store import Entry, Store
from dflash_controller.model.snapshot import Key

KEY = Key("ns", "demo")
NEWS = frozenset({KEY})
NO_NEWS: frozenset[Key] = frozenset()


def child(kind: kinds.Kind = kinds.SERVICE, name: str = "demo", version: int = 1, **fields: Any) -> dict[str, Any]:
    metadata = {
        "namespace": "ns",
        "name": name,
        "uid": f"uid-{name}",
        "resourceVersion": str(version),
        "labels": names.child_labels("demo"),
    }
    return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata | fields.pop("metadata", {}), **fields}


def deployment(version: int = 1, **fields: Any) -> dict[str, Any]:
    return child(kinds.DFLASH_DEPLOYMENT, version=version, **fields)


HASH = "raaaaaaa"
RECORD = {"hash": HASH, "inputs": {}}


def pod(version: int = 1, name: str = "demo-x", owner: str = f"demo-{HASH}", **status: Any) -> dict[str, Any]:
    labels = names.child_labels("demo") | {names.LABEL_REVISION: HASH, names.LABEL_ROLE: "engine", names.LABEL_BLOCK_SIZE: "8"}
    controller = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"{owner}-55f", "uid": owner, "controller": True}
    metadata = {"labels": labels | {"pod-template-hash": "55f"}, "ownerReferences": [controller]}
    return child(kinds.POD, name=name, version=version, metadata=metadata, spec={"nodeName": "n1"}, status=status)


def workload(name: str = f"demo-{HASH}", record: dict[str, Any] | None = RECORD, **labels: str) -> dict[str, Any]:
    annotations = {} if record is None else {names.ANNOTATION_RECORD: json.dumps(record)}
    metadata = {"labels": names.child_labels("demo") | {names.LABEL_REVISION: HASH} | labels, "annotations": annotations}
    return child(kinds.DEPLOYMENT, name, metadata=metadata, spec={"replicas": 1})


def revision(name: str = f"demo-{HASH}", data: dict[str, Any] | None = RECORD, **labels: str) -> dict[str, Any]:
    metadata = {"labels": names.child_labels("demo") | {names.LABEL_REVISION: HASH} | labels}
    return child(kinds.CONTROLLER_REVISION, name, metadata=metadata, data=data, revision=1)


def entries(kind: kinds.Kind, *objects: dict[str, Any]) -> list[Entry]:
    return [Entry.of(kind, obj) for obj in objects]


def seen_version(store: Store, kind: kinds.Kind = kinds.SERVICE, name: str = "demo") -> int | None:
    return store.version((kind, "ns", name))


def test_children_are_found_by_label_and_sorted_into_the_snapshot() -> None:
    store = Store()
    store.put(kinds.DFLASH_DEPLOYMENT, deployment())
    store.put(kinds.DEPLOYMENT, workload())
    store.put(kinds.CONTROLLER_REVISION, revision())
    store.put(kinds.SERVICE, child())
    store.put(kinds.POD, pod())
    store.put(kinds.SERVICE, child(name="stranger", metadata={"labels": {}}))
    snapshot = store.snapshot(KEY)
    assert snapshot.deployment is not None
    assert [item["metadata"]["name"] for item in (*snapshot.revisions, *snapshot.workloads, *snapshot.others)] == [
        "demo-raaaaaaa",
        "demo-raaaaaaa",
        "demo",
    ]
    assert [item.name for item in snapshot.pods] == ["demo-x"]
    assert not snapshot.live
    assert store.keys() == NEWS
    assert store.snapshot(Key("other", "demo")).deployment is None


@pytest.mark.parametrize("version", [4, 5])
def test_an_older_or_equal_version_never_replaces_a_newer_one(version: int) -> None:
    store = Store()
    store.put(kinds.SERVICE, child(version=5, spec={"a": 1}))
    assert store.put(kinds.SERVICE, child(version=version, spec={"a": 2})) == NO_NEWS
    assert store.snapshot(KEY).others[0]["spec"] == {"a": 1}


def test_versions_are_numbers_not_text() -> None:
    store = Store()
    store.put(kinds.SERVICE, child(version=9))
    assert store.put(kinds.SERVICE, child(version=10, spec={"a": 2})) == NEWS


def test_a_deleted_object_is_not_resurrected_by_old_news_but_by_a_new_object() -> None:
    store = Store()
    store.put(kinds.SERVICE, child(version=5))
    assert store.remove(kinds.SERVICE, child(version=7)) == NEWS
    assert store.put(kinds.SERVICE, child(version=6)) == NO_NEWS
    assert seen_version(store) is None
    assert store.put(kinds.SERVICE, child(version=8)) == NEWS


def test_a_late_deletion_does_not_remove_the_successor() -> None:
    store = Store()
    store.put(kinds.SERVICE, child(version=9))
    assert store.remove(kinds.SERVICE, child(version=7)) == NO_NEWS
    assert seen_version(store) == 9


def test_a_list_drops_what_is_gone_and_keeps_what_is_newer_than_it() -> None:
    store = Store()
    for name, version in (("gone", 3), ("stays", 4), ("newer", 12)):
        store.put(kinds.SERVICE, child(name=name, version=version))
    store.put(kinds.NETWORK_POLICY, child(kinds.NETWORK_POLICY, version=2))
    assert store.replace(kinds.SERVICE, entries(kinds.SERVICE, child(name="stays", version=4)), 10) == NEWS
    assert [seen_version(store, name=name) for name in ("gone", "stays", "newer")] == [None, 4, 12]
    assert seen_version(store, kinds.NETWORK_POLICY) == 2


def test_what_a_list_did_not_contain_is_not_brought_back_by_older_news() -> None:
    store = Store()
    store.put(kinds.SERVICE, child(name="known", version=3))
    store.replace(kinds.SERVICE, [], 10)
    assert store.put(kinds.SERVICE, child(name="known", version=4)) == NO_NEWS
    assert store.put(kinds.SERVICE, child(name="never-seen", version=9)) == NO_NEWS
    assert store.put(kinds.SERVICE, child(name="never-seen", version=11)) == NEWS


def test_a_list_of_one_deployment_or_namespace_leaves_the_others_alone() -> None:
    store = Store()
    store.put(kinds.SERVICE, child(name="mine", version=1))
    store.put(kinds.SERVICE, child(name="theirs", version=1, metadata={"labels": names.child_labels("other")}))
    store.put(kinds.SERVICE, child(name="far", version=1, metadata={"namespace": "far"}))
    assert store.replace(kinds.SERVICE, [], 10, key=KEY) == NEWS
    assert (seen_version(store, name="mine"), seen_version(store, name="theirs")) == (None, 1)
    assert store.replace(kinds.SERVICE, [], 10, namespace="far") == {Key("far", "demo")}
    assert seen_version(store, name="theirs") == 1


def test_the_status_of_the_deployment_itself_is_no_news() -> None:
    store = Store()
    assert store.put(kinds.DFLASH_DEPLOYMENT, deployment(1, spec={"replicas": 1}, metadata={"generation": 1})) == NEWS
    assert store.put(kinds.DFLASH_DEPLOYMENT, deployment(2, spec={"replicas": 1}, metadata={"generation": 1}, status={"x": 1})) == NO_NEWS
    shown = store.snapshot(KEY).deployment
    assert shown is not None
    assert shown["status"] == {"x": 1}
    assert store.put(kinds.DFLASH_DEPLOYMENT, deployment(3, spec={"replicas": 2}, metadata={"generation": 2}, status={"x": 1})) == NEWS
    promote = {"generation": 2, "annotations": {f"{names.GROUP}/promote": "demo-a"}}
    assert store.put(kinds.DFLASH_DEPLOYMENT, deployment(4, spec={"replicas": 2}, metadata=promote, status={"x": 1})) == NEWS


def test_the_status_of_a_workload_is_news() -> None:
    store = Store()
    store.put(kinds.DEPLOYMENT, child(kinds.DEPLOYMENT, version=1, status={"observedGeneration": 1}))
    assert store.put(kinds.DEPLOYMENT, child(kinds.DEPLOYMENT, version=2, status={"observedGeneration": 2})) == NEWS


def test_a_pod_that_changes_only_where_nobody_looks_is_no_news() -> None:
    store = Store()
    ready = [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z"}]
    assert store.put(kinds.POD, pod(1, phase="Running", conditions=ready)) == NEWS
    assert store.put(kinds.POD, pod(2, phase="Running", conditions=[*ready, {"type": "Extra", "status": "True"}])) == NO_NEWS
    assert seen_version(store, kinds.POD, "demo-x") == 2
    assert store.snapshot(KEY).pods[0].resource_version == "2"
    assert store.put(kinds.POD, pod(3, phase="Running", conditions=[{"type": "Ready", "status": "False"}])) == NEWS


def test_being_scheduled_is_no_news_and_yet_is_known() -> None:
    store = Store()
    store.put(kinds.POD, pod(1, phase="Pending") | {"spec": {}})
    assert store.snapshot(KEY).pods[0].node is None
    scheduled = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z"}]
    assert store.put(kinds.POD, pod(2, phase="Pending", conditions=scheduled)) == NO_NEWS
    assert store.snapshot(KEY).pods[0].node == "n1"


def test_a_pod_that_was_not_ready_for_a_moment_is_news() -> None:
    def ready(since: str) -> list[dict[str, str]]:
        return [{"type": "Ready", "status": "True", "lastTransitionTime": since}]

    store = Store()
    store.put(kinds.POD, pod(1, phase="Running", conditions=ready("2026-01-02T03:04:05Z")))
    assert store.put(kinds.POD, pod(2, phase="Running", conditions=ready("2026-01-02T03:09:05Z"))) == NEWS


def test_a_pod_that_stays_unschedulable_is_news_once() -> None:
    since = {"type": "PodScheduled", "status": "False", "message": "no node", "lastTransitionTime": "2026-01-02T03:04:05Z"}
    store = Store()
    assert store.put(kinds.POD, pod(1, phase="Pending", conditions=[since])) == NEWS
    assert store.put(kinds.POD, pod(2, phase="Pending", conditions=[since | {"lastProbeTime": "2026-01-02T03:05:05Z"}])) == NO_NEWS


def test_the_jobs_of_a_deployment_are_among_its_other_children_with_their_status() -> None:
    store = Store()
    store.put(kinds.JOB, child(kinds.JOB, f"demo-{HASH}-fetch", status={"active": 1}))
    assert store.put(kinds.JOB, child(kinds.JOB, f"demo-{HASH}-fetch", version=2, status={"succeeded": 1})) == NEWS
    [job] = store.snapshot(KEY).others
    assert (job["kind"], job["status"]) == ("Job", {"succeeded": 1})


def test_bookkeeping_of_other_managers_is_dropped_and_the_source_left_as_it_was() -> None:
    ours = {"manager": names.FIELD_MANAGER, "operation": "Apply", "fieldsV1": {"f:spec": {}}}
    source = child(metadata={"managedFields": [{"manager": "kubectl", "operation": "Update"}, ours]})
    store = Store()
    store.put(kinds.SERVICE, source)
    assert store.snapshot(KEY).others[0]["metadata"]["managedFields"] == [ours]
    assert len(source["metadata"]["managedFields"]) == 2


def test_a_child_that_changes_hands_is_news_for_both() -> None:
    store = Store()
    store.put(kinds.SERVICE, child(version=1))
    moved = child(version=2, metadata={"labels": names.child_labels("other")})
    assert store.put(kinds.SERVICE, moved) == {KEY, Key("ns", "other")}
    assert store.put(kinds.SERVICE, child(version=3, metadata={"labels": {}})) == {Key("ns", "other")}
    assert store.keys() == NO_NEWS


def test_an_object_that_holds_a_name_is_shown_until_it_is_a_child_or_gone() -> None:
    store = Store()
    store.put(kinds.DFLASH_DEPLOYMENT, deployment())
    stranger = child(version=3, metadata={"labels": {}})
    store.claim(KEY, kinds.SERVICE, stranger)
    assert store.snapshot(KEY).others[0]["metadata"]["uid"] == "uid-demo"
    store.put(kinds.SERVICE, child(version=4))
    assert len(store.snapshot(KEY).others) == 1
    assert store.claims(KEY) == ()


def test_optional_kinds_are_shown_as_served() -> None:
    store = Store()
    assert store.snapshot(KEY).kinds == frozenset()
    store.served = frozenset(kinds.STORED)
    assert store.snapshot(KEY).kinds == {"LeaderWorkerSet", "PodMonitor"}


def door(store: Store) -> tuple[list[str], tuple[str, ...]]:
    """Returns the names of the members of a snapshot, and its strangers."""
    seen = store.snapshot(KEY)
    objects = [f"{item['kind']} {item['metadata']['name']}" for item in (*seen.revisions, *seen.workloads, *seen.others)]
    return [*objects, *(f"Pod {item.name}" for item in seen.pods)], seen.strangers


def put(store: Store, *objects: dict[str, Any]) -> None:
    for item in objects:
        store.put(kinds.kind_of(item), item)


def test_a_stranger_is_named_and_stays_outside_with_its_pods() -> None:
    store = Store()
    put(store, revision(), workload(), pod(), workload("demo-debug"), pod(name="copied", owner="demo-debug"), child(name="gateway"))
    put(store, child(kinds.POD, "bare"), revision("other-rbbbbbbb"), child(kinds.JOB, "demo-raaaaaaa-fetch-by-hand"))
    members, strangers = door(store)
    assert members == [f"ControllerRevision demo-{HASH}", f"Deployment demo-{HASH}", "Pod demo-x"]
    assert strangers == (
        "ControllerRevision other-rbbbbbbb",
        "Deployment demo-debug",
        "Job demo-raaaaaaa-fetch-by-hand",
        "Pod bare",
        "Service gateway",
    )
    assert [(key, item.name) for key, item in store.pods()] == [(KEY, "demo-x")]
    assert [item["metadata"]["name"] for item in store.revisions()] == [f"demo-{HASH}"]


@pytest.mark.parametrize("copy", [workload, revision])
@pytest.mark.parametrize("label", [HASH, "rbbbbbbb"])
def test_a_copy_under_another_name_that_could_be_ours_disagrees_with_its_record(copy: Any, label: str) -> None:
    store = Store()
    copied = copy("demo-rbbbbbbb", **{names.LABEL_REVISION: label})
    put(store, copied)
    assert door(store) == ([], (f"{copied['kind']} demo-rbbbbbbb",))


@pytest.mark.parametrize("made", [workload, revision])
def test_a_record_of_an_earlier_operator_is_judged_by_name_and_label(made: Any) -> None:
    old = {"inputs": {"anything": "in any canonical form"}}
    store = Store()
    put(store, made(f"demo-{HASH}", old), made("demo-rbbbbbbb", old))
    members, strangers = door(store)
    kind = made()["kind"]
    assert (members, strangers) == ([f"{kind} demo-{HASH}"], (f"{kind} demo-rbbbbbbb",))


def test_a_revision_label_that_was_edited_disowns_nothing() -> None:
    store = Store()
    put(store, workload(**{names.LABEL_REVISION: "edited"}))
    assert door(store) == ([f"Deployment demo-{HASH}"], ())


def test_a_workload_without_its_record_is_ours_while_its_revision_is() -> None:
    store = Store()
    put(store, workload(record=None))
    assert door(store) == ([], (f"Deployment demo-{HASH}",))
    put(store, revision())
    assert door(store)[0] == [f"ControllerRevision demo-{HASH}", f"Deployment demo-{HASH}"]


def test_a_revision_without_our_inputs_is_not_ours_and_what_a_controller_derives_is_not_news() -> None:
    store = Store()
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": f"demo-{HASH}", "uid": "set", "controller": True}
    derived = revision(f"demo-{HASH}-5d8f", {"spec": {}})
    derived["metadata"]["ownerReferences"] = [owner]
    put(store, derived, revision("demo-rbbbbbbb", {"spec": {}}))
    assert door(store) == ([], ("ControllerRevision demo-rbbbbbbb",))


def test_many_pods_of_one_stranger_are_one_name() -> None:
    store = Store()
    put(store, *(pod(name=f"copied-{number}", owner="demo-debug") for number in range(50)))
    assert door(store) == ([], ("Deployment demo-debug",))


def test_a_stranger_that_has_a_name_we_need_is_shown_until_it_is_gone() -> None:
    store = Store()
    copied = workload("demo-rbbbbbbb")
    identity = (kinds.DEPLOYMENT, "ns", "demo-rbbbbbbb")
    put(store, copied)
    assert store.belongs(identity) is None
    store.claim(KEY, kinds.DEPLOYMENT, copied)
    put(store, {**copied, "metadata": copied["metadata"] | {"resourceVersion": "2"}})
    assert door(store) == (["Deployment demo-rbbbbbbb"], ())
    store.remove(kinds.DEPLOYMENT, {**copied, "metadata": copied["metadata"] | {"resourceVersion": "3"}})
    store.unclaim(KEY, identity)
    assert door(store) == ([], ())


def test_pods_of_a_copy_whose_name_could_be_ours_are_its_own() -> None:
    store = Store()
    put(store, workload(), pod(), pod(name="copied", owner="demo-rbbbbbbb"), workload("demo-rbbbbbbb"))
    assert door(store) == ([f"Deployment demo-{HASH}", "Pod demo-x"], ("Deployment demo-rbbbbbbb",))
    assert [item.name for _, item in store.pods()] == ["demo-x"]
