"""Pods at the door of the store."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from dflash_controller.api import names
from dflash_controller.cluster.pods import project
from dflash_controller.model.fetch_report import FetchReason, FetchReport
from dflash_controller.model.snapshot import Pod

LABELS = {names.LABEL_DEPLOYMENT: "demo", names.LABEL_REVISION: "abc", names.LABEL_ROLE: "engine"}


def raw(status: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    fixed = {
        "name": "p",
        "namespace": "ns",
        "uid": "u",
        "resourceVersion": "7",
        "creationTimestamp": "2026-11-28T10:00:00Z",
        "labels": LABELS,
    }
    return {"metadata": fixed | metadata, "spec": {"nodeName": "n1"}, "status": status}


def test_a_serving_pod() -> None:
    pod = project(
        raw(
            {
                "phase": "Running",
                "podIP": "127.1.0.5",
                "conditions": [
                    {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-02T03:00:00Z"},
                    {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z"},
                ],
                "containerStatuses": [{"name": "engine", "restartCount": 2, "state": {}}, {"name": "proxy", "restartCount": 4}],
                "initContainerStatuses": [
                    {"name": "weights", "restartCount": 1, "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
                ],
            }
        )
    )
    assert pod.serving
    assert (pod.revision, pod.role, pod.node, pod.ip) == ("abc", "engine", "n1", "127.1.0.5")
    assert pod.ready_since == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert (pod.restarts, pod.waiting_reason, pod.message, pod.unschedulable) == (2, None, None, None)
    assert pod.unschedulable_since is None


def test_when_a_pod_was_made_is_kept() -> None:
    metadata = {"name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "7", "labels": LABELS}
    assert project({"metadata": metadata}).created_at is None
    made = project({"metadata": metadata | {"creationTimestamp": "2026-11-28T10:00:00Z"}}).created_at
    assert made == datetime(2026, 11, 28, 10, tzinfo=UTC)


def test_a_terminating_pod_does_not_serve_even_while_ready() -> None:
    pod = project(raw({"conditions": [{"type": "Ready", "status": "True"}]}, deletionTimestamp="t"))
    assert pod.terminating
    assert not pod.serving


def test_a_crash_loop_tells_the_reason_and_the_last_words_of_the_engine() -> None:
    last = {
        "terminated": {"exitCode": 1, "reason": "Error", "message": "unrecognized arguments: --x\n", "finishedAt": "2026-01-02T00:00:00Z"}
    }
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}}
    pod = project(raw({"containerStatuses": [{"name": "engine", "restartCount": 5, "state": waiting, "lastState": last}]}))
    assert pod.waiting_reason == "CrashLoopBackOff"
    assert pod.message == "engine: unrecognized arguments: --x"


def test_of_two_failures_the_newest_is_told() -> None:
    def ended(name: str, at: str, code: int = 137) -> dict[str, Any]:
        return {"name": name, "restartCount": 1, "state": {"terminated": {"exitCode": code, "reason": "OOMKilled", "finishedAt": at}}}

    pod = project(raw({"containerStatuses": [ended("engine", "2026-01-02T00:00:00Z"), ended("sidecar", "2026-01-01T00:00:00Z")]}))
    assert pod.message == "engine: OOMKilled, exit code 137"


def test_an_image_that_cannot_be_pulled() -> None:
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "manifest unknown"}}
    pod = project(raw({"containerStatuses": [{"name": "engine", "restartCount": 0, "state": waiting}]}))
    assert (pod.waiting_reason, pod.message) == ("ImagePullBackOff", "engine: manifest unknown")


def test_an_unschedulable_pod_and_an_evicted_one() -> None:
    message = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."
    since = "2026-01-02T03:04:05Z"
    conditions = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message, "lastTransitionTime": since}]
    waiting = project({**raw({"phase": "Pending", "conditions": conditions}), "spec": {}})
    assert (waiting.unschedulable, waiting.node) == (message, None)
    assert waiting.unschedulable_since == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert (
        project(raw({"phase": "Failed", "message": "The node was low on resource: memory."})).message
        == "The node was low on resource: memory."
    )


def test_since_when_a_pod_has_not_been_ready() -> None:
    conditions = [{"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-02T03:04:05Z"}]
    pod = project(raw({"conditions": conditions}))
    assert (pod.ready_since, pod.unready_since) == (None, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))


def test_a_pod_without_status_or_labels() -> None:
    pod = project({"metadata": {"name": "p", "uid": "u", "resourceVersion": "1"}})
    assert (pod.phase, pod.ready, pod.revision) == ("Pending", False, "")
    assert (pod.node, pod.ready_since, pod.unschedulable_since) == (None, None, None)


def test_what_is_known_of_an_exit_is_kept_by_container() -> None:
    last = {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-01-02T00:00:00Z"}}
    pod = project(
        raw(
            {
                "containerStatuses": [
                    {"name": "sidecar", "restartCount": 0, "state": {"running": {}}},
                    {"name": "engine", "restartCount": 1, "state": {"running": {}}, "lastState": last},
                ]
            }
        )
    )
    assert (pod.container, pod.exit_code, pod.exit_reason, pod.waiting_reason) == ("engine", 137, "OOMKilled", None)


def test_a_container_that_cannot_be_created_comes_before_one_that_exits() -> None:
    exits = {
        "name": "a",
        "restartCount": 3,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"exitCode": 1}},
    }
    refused = {"name": "engine", "restartCount": 0, "state": {"waiting": {"reason": "ErrImagePull", "message": "denied"}}}
    pod = project(raw({"containerStatuses": [exits, refused]}))
    assert (pod.container, pod.waiting_reason, pod.message) == ("engine", "ErrImagePull", "engine: denied")


def test_a_secret_that_is_gone_after_an_exit_is_what_keeps_the_pod() -> None:
    state = {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "s" not found'}}
    container = {"name": "engine", "restartCount": 1, "state": state, "lastState": {"terminated": {"exitCode": 1, "reason": "Error"}}}
    pod = project(raw({"containerStatuses": [container]}))
    assert (pod.waiting_reason, pod.message, pod.exit_code) == ("CreateContainerConfigError", 'engine: secret "s" not found', 1)


def test_a_gated_pod_names_its_gates_and_a_scheduled_one_its_time() -> None:
    gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "blocked"}
    pod = project({**raw({"conditions": [gated]}), "spec": {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}})
    assert (pod.gated, pod.unschedulable) == (True, "scheduling gates kueue.x-k8s.io/admission")
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z"}
    assert project(raw({"conditions": [scheduled]})).scheduled_since == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_what_a_pod_mounts_is_kept_only_while_it_is_not_set_up() -> None:
    volumes = [
        {"name": "a", "secret": {"secretName": "hf-token"}},
        {"name": "b", "projected": {"sources": [{"configMap": {"name": "kube-root-ca.crt"}}, {"secret": {"name": "ca"}}]}},
        {"name": "c", "emptyDir": {}},
    ]

    def mounts(status: str, phase: str = "Pending") -> tuple[str, ...] | None:
        pod = raw({"phase": phase, "conditions": [{"type": "PodReadyToStartContainers", "status": status}]})
        return project({**pod, "spec": {"nodeName": "n1", "volumes": volumes}}).mounts

    assert mounts("False") == ("Secret/ca", "Secret/hf-token")
    assert mounts("True") is None
    assert mounts("False", "Succeeded") is None
    assert project(raw({"phase": "Failed", "reason": "Evicted"})).reason == "Evicted"


HASH = "raaaaaaa"
GROUPS = "leaderworkerset.sigs.k8s.io"


def controlled(kind: str, name: str, *, version: str = "apps/v1", group: str = "", **metadata: Any) -> Pod:
    labels = LABELS | {f"{GROUPS}/{key}": value for key, value in (part.split("=") for part in group.split())}
    owner = {"apiVersion": version, "kind": kind, "name": name, "uid": "u", "controller": True}
    return project(raw({}, ownerReferences=[owner], labels=labels | metadata.pop("labels", {}), **metadata))


@pytest.mark.parametrize(
    ("pod", "workload", "controller"),
    [
        (controlled("ReplicaSet", f"demo-{HASH}-55f", labels={"pod-template-hash": "55f"}), f"demo-{HASH}", f"Deployment demo-{HASH}"),
        # A ReplicaSet that was copied keeps the label and has another name.
        (controlled("ReplicaSet", f"demo-{HASH}-debug", labels={"pod-template-hash": "55f"}), None, f"ReplicaSet demo-{HASH}-debug"),
        (controlled("ReplicaSet", f"demo-{HASH}"), None, f"ReplicaSet demo-{HASH}"),
        (controlled("StatefulSet", f"demo-{HASH}", group=f"name=demo-{HASH} group-index=3"), f"demo-{HASH}", f"StatefulSet demo-{HASH}"),
        (controlled("StatefulSet", f"demo-{HASH}-3", group="group-index=3"), f"demo-{HASH}", f"StatefulSet demo-{HASH}-3"),
        (
            controlled(
                "StatefulSet",
                f"demo-{HASH}-x7k2p",
                group=f"name=demo-{HASH} group-key=f00",
                annotations={f"{GROUPS}/leader-name": f"demo-{HASH}-x7k2p"},
            ),
            f"demo-{HASH}",
            f"StatefulSet demo-{HASH}-x7k2p",
        ),
        (
            controlled(
                "StatefulSet", f"demo-{HASH}-3-debug", group=f"name=demo-{HASH}", annotations={f"{GROUPS}/leader-name": f"demo-{HASH}-3"}
            ),
            f"demo-{HASH}-3-debug",
            f"StatefulSet demo-{HASH}-3-debug",
        ),
        (controlled("Job", f"demo-{HASH}-fetch", version="batch/v1"), f"demo-{HASH}-fetch", f"Job demo-{HASH}-fetch"),
        (controlled("ReplicaSet", f"demo-{HASH}-55f", version="example.com/v1"), None, f"ReplicaSet demo-{HASH}-55f"),
        (project(raw({}, ownerReferences=[{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "x", "uid": "u"}])), None, None),
        (project(raw({})), None, None),
    ],
)
def test_a_pod_belongs_to_the_workload_that_its_owners_lead_to(pod: Pod, workload: str | None, controller: str | None) -> None:
    assert (pod.workload, pod.controller) == (workload, controller)


def test_the_revision_of_a_pod_is_that_of_its_workload_even_if_its_label_was_edited() -> None:
    assert controlled("StatefulSet", f"demo-{HASH}-0").revision == HASH
    assert controlled("Job", f"demo-{HASH}-fetch", version="batch/v1", labels={names.LABEL_ROLE: "prefetch"}).revision == "abc"


def test_a_pod_of_a_group_knows_its_place() -> None:
    pod = controlled("StatefulSet", f"demo-{HASH}-3", group="group-index=3 worker-index=2 group-key=f00")
    assert (pod.group, pod.worker_index) == ("3", 2)
    named = controlled("StatefulSet", f"demo-{HASH}-3", group="group-key=f00 worker-index=0")
    assert (named.group, named.worker_index) == ("f00", 0)
    assert (project(raw({})).group, project(raw({})).worker_index) == (None, 0)


SIDECAR_LOOPS = {
    "name": "istio-proxy",
    "restartCount": 9,
    "ready": False,
    "state": {"waiting": {"reason": "CrashLoopBackOff"}},
    "lastState": {"terminated": {"exitCode": 255, "reason": "Error"}},
}


def test_restarts_are_those_of_the_containers_that_the_operator_renders() -> None:
    engine = {"name": "engine", "restartCount": 1, "ready": True, "state": {"running": {}}, "lastState": {"terminated": {"exitCode": 1}}}
    pod = project(raw({"containerStatuses": [engine, SIDECAR_LOOPS], "initContainerStatuses": [{"name": "istio-init", "restartCount": 3}]}))
    assert (pod.restarts, pod.container, pod.foreign) == (1, "istio-proxy", True)


def test_another_container_is_named_only_while_it_is_not_ready_and_the_engine_is_not_the_cause() -> None:
    loads = {"name": "engine", "restartCount": 0, "ready": False, "state": {"running": {}}}
    runs = {**SIDECAR_LOOPS, "ready": True, "state": {"running": {}}}
    exited = {**loads, "restartCount": 1, "lastState": {"terminated": {"exitCode": 1}}}
    found = [project(raw({"containerStatuses": [*pair]})) for pair in ((loads, runs), (loads, SIDECAR_LOOPS), (exited, SIDECAR_LOOPS))]
    assert [(pod.container, pod.foreign) for pod in found] == [(None, False), ("istio-proxy", True), ("engine", False)]


def fetching(state: dict[str, Any], last: dict[str, Any] | None = None) -> Pod:
    init = {"name": "dflash-fetch", "restartCount": 1, "state": state, "lastState": last or {}}
    engine = {"name": "engine", "restartCount": 0, "state": {"waiting": {"reason": "PodInitializing"}}}
    return project(raw({"phase": "Pending", "initContainerStatuses": [init], "containerStatuses": [engine]}))


REPORTED = {"terminated": {"exitCode": 11, "reason": "Error", "message": FetchReport(FetchReason.GATED, "accept the terms").to_json()}}


def test_the_report_of_a_failed_fetch_is_read() -> None:
    pod = fetching({"waiting": {"reason": "CrashLoopBackOff"}}, REPORTED)
    assert (pod.container, pod.fetch, pod.message) == ("dflash-fetch", FetchReason.GATED, "dflash-fetch: accept the terms")
    assert fetching({"running": {}}, REPORTED).fetch is FetchReason.GATED, "told until it is done"


def test_a_pod_fetches_while_its_container_for_that_runs() -> None:
    assert fetching({"running": {"startedAt": "2026-11-28T10:00:00Z"}}, REPORTED).fetching
    assert not fetching({"waiting": {"reason": "CrashLoopBackOff"}}, REPORTED).fetching
    assert not fetching({"terminated": {"exitCode": 0, "reason": "Completed"}}).fetching
    other = {"name": "weights", "restartCount": 0, "state": {"running": {}}}
    assert not project(raw({"phase": "Pending", "initContainerStatuses": [other]})).fetching


def test_a_fetch_that_is_done_has_no_failure_any_more() -> None:
    pod = fetching({"terminated": {"exitCode": 0, "reason": "Completed"}}, REPORTED)
    assert (pod.fetch, pod.message, pod.exit_code) == (None, None, None)


def test_only_a_container_of_ours_can_report_a_fetch() -> None:
    other = {"name": "istio-init", "restartCount": 1, "state": REPORTED}
    assert project(raw({"phase": "Pending", "initContainerStatuses": [other]})).fetch is None
