"""A cluster in memory for the planner: plans are carried out at once, Deployments obey, pods start when told to.

The real API server, controllers and executor are used on the cluster level; here the question is what is decided, thousands of times.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

from dflash_controller.analysis.verdict import AnalysisDecision, AnalysisRequest, Judgement
from dflash_controller.api import names
from dflash_controller.api.conditions import Reason
from dflash_controller.catalog.catalog import Catalog
from dflash_controller.cluster.pods import project
from dflash_controller.engines.resolve import OperatorDefaults
from dflash_controller.model.counters import Answer, Evidence, ProbeRun
from dflash_controller.model.metrics_health import NOT_MEASURED
from dflash_controller.model.probe import ProbeRequest
from dflash_controller.model.snapshot import Key, Pod, Snapshot
from dflash_controller.planning.planner import decide
from dflash_controller.planning.replicas.count import revision_of
from dflash_controller.planning.revisions.roles import read_stored
from dflash_controller.planning.state.child_ownership import is_generated, is_generated_pod, members
from dflash_controller.planning.state.inputs import Blocker, Knowledge, PlannerInputs
from dflash_controller.planning.state.plan import Adopt, Annotate, Apply, Create, Delete, Event, Part, Plan, Ref

CATALOG = Catalog.load()
KEY = Key("models", "chat")
NODES = ("b200-0", "b200-1", "b200-2", "b200-3")
PASSED = Judgement(AnalysisDecision.PROMOTE, Reason.ANALYSIS_PASSED, "every limit was kept")
UNDECIDED = Judgement(AnalysisDecision.CONTINUE, Reason.ANALYZING, "too few samples")
FAILED = Judgement(AnalysisDecision.FAIL, Reason.ANALYSIS_FAILED, "acceptanceLength 1.02 against 6.4; at most 5 % less is allowed")
BIASED = Judgement(AnalysisDecision.HOLD, Reason.REPLICA_BIAS, "replicas of one revision differ by 9 %")


class World:
    """One DFlashDeployment with everything below it."""

    def __init__(self, spec: dict[str, Any], *, defaults: OperatorDefaults | None = None) -> None:
        self.versions = itertools.count(1)
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.defaults = defaults or OperatorDefaults()
        self.deployment = self._stamped(
            {
                "apiVersion": names.API_VERSION,
                "kind": names.KIND,
                "metadata": {"namespace": KEY.namespace, "name": KEY.name, "generation": 1},
                "spec": spec,
            }
        )
        self.children: dict[tuple[str, str], dict[str, Any]] = {}
        self.pods: dict[str, dict[str, Any]] = {}
        self.kinds = frozenset[str]()
        self.metrics = NOT_MEASURED
        self.metric_values: dict[str, float] | None = None
        """Metrics of the stable revision worth showing, by status field."""
        self.judgement = PASSED
        """What the analysis says of any candidate."""
        self.question: AnalysisRequest | None = None
        self.evidence: Evidence | None = None
        """What it was asked about last."""
        self.asked = 0
        """How many times it was asked."""
        self.probes: tuple[ProbeRun, ...] = ()
        self.probe_error: str | None = None
        self.probe_waited_s: dict[str, float] = {}
        self.warm_up_s = 0.0
        self.tuning = Knowledge()
        self.refusals: dict[Part, Blocker] = {}
        """Writes that the API server has just refused."""
        self.answering = True
        """The probe is answered at once."""
        self.capacity: int | None = None
        """Pods that the living nodes hold; None: any number. Fewer than there are evict nobody."""
        self.dead_nodes = frozenset[str]()
        self.overdue = frozenset[str]()
        """Revisions whose Deployments exceed their progress deadline."""
        self.restarts = 3
        """Of a broken pod."""
        self.refused: dict[str, str] = {}
        """What the API server answers to those who create pods, by revision; the time of it is when it was first said."""
        self.troubles: dict[str, dict[str, Any]] = {}
        """Fields of pods that are not Ready, by revision: what keeps them from it."""
        self.raw: dict[str, dict[str, Any]] = {}
        """Pods that are not Ready as the API server has them, by revision. Name, labels and times are the world's."""

    # What a user does.

    def edit(self, change: Callable[[dict[str, Any]], None]) -> None:
        change(self.deployment["spec"])
        self.deployment["metadata"]["generation"] += 1

    # What the operator does.

    def plan(self) -> Plan:
        context = PlannerInputs(
            self.now,
            self.defaults,
            CATALOG,
            metric_values=self.metric_values,
            metrics=self.metrics,
            probes=self.probes,
            probe_error=self.probe_error,
            probe_waited_s=self.probe_waited_s,
            warm_up_s=self.warm_up_s,
            tuning=self.tuning,
            refusals=self.refusals,
        )
        with patch("dflash_controller.planning.rollout.canary.judge", self._judge):
            snapshot = self.snapshot()
            return decide(snapshot, read_stored(snapshot.revisions), context)

    def _judge(self, question: AnalysisRequest, evidence: Evidence, now_s: float) -> Judgement:
        self.question, self.evidence = question, evidence
        self.asked += 1
        return self.judgement

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def snapshot(self) -> Snapshot:
        pods = [self._pod(name, pod) for name, pod in self.pods.items()]
        found = members(
            [(item, is_generated(item, KEY.name)) for item in _copy(list(self.children.values()))],
            [(pod, is_generated_pod(pod, KEY.name)) for pod in pods],
        )
        return Snapshot(
            KEY,
            _copy(self.deployment),
            revisions=found.revisions,
            workloads=found.workloads,
            others=found.others,
            pods=found.pods,
            kinds=self.kinds,
            dead_nodes=self.dead_nodes,
            strangers=found.strangers,
        )

    def reconcile(self, *, stop_after: int | None = None) -> int:
        """Carry out one plan; ``stop_after`` steps only, as an operator killed in the middle does. Returns the writes made."""
        return self.carry_out(self.plan(), stop_after=stop_after)

    def carry_out(self, plan: Plan, *, stop_after: int | None = None) -> int:
        """The second half of a reconcile. What the probe brought is gone with an operator that is killed."""
        written = 0
        for step in plan.steps[:stop_after]:
            written += self._carry_out(step)
        if stop_after is not None:
            self.probes = ()
            return written
        if self.answering:
            self.probes = _answers(plan.probe, self.now.timestamp())
        if plan.status is not None:
            self.deployment["status"] = {key: value for key, value in plan.status.items() if value is not None}
        return written

    def settle(self, rounds: int = 60) -> None:
        """Operator and controllers take turns, every new pod becoming ready, until a round changes nothing."""
        for _ in range(rounds):
            written = self.reconcile()
            moved = self.controllers()
            if not written and not moved and not self.probes:
                return
        raise AssertionError("does not settle")

    # What the cluster does.

    def controllers(self, *, start: bool = True) -> bool:
        """Terminating pods go, workloads make and remove pods, and pods that have a node become ready.

        A Deployment removes pods that are not ready first. A LeaderWorkerSet removes its highest groups, workers after their leader.
        """
        before = {name: dict(pod) for name, pod in self.pods.items()}
        self.pods = {name: pod for name, pod in self.pods.items() if not pod["terminating"] or self._lasts(pod)}
        self._place()
        for pod in self.pods.values():
            held = pod["broken"] or pod["revision"] in {*self.troubles, *self.raw}
            pod["ready"] = pod["ready"] or (start and not held and not pod["terminating"] and pod["node"] is not None)
        obey = {"Deployment": self._obey, "LeaderWorkerSet": self._obey_groups}
        seen = [obey[kind](workload) for (kind, _), workload in list(self.children.items()) if kind in obey]
        self._place()
        return any(seen) or self.pods != before

    def lose_node(self, node: str) -> None:
        """Its pods are evicted, and nobody is there to end them."""
        self.dead_nodes |= {node}
        for pod in self.pods.values():
            if pod["node"] == node:
                pod.update(ready=False, terminating=True)

    def condition(self, type: str) -> str:
        return str(next(item["status"] for item in self.deployment["status"]["conditions"] if item["type"] == type))

    def reason(self, type: str) -> str:
        return str(next(item["reason"] for item in self.deployment["status"]["conditions"] if item["type"] == type))

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [item for (found, _), item in self.children.items() if found == kind]

    def serving(self) -> int:
        return sum(pod["ready"] and not pod["terminating"] for pod in self.pods.values())

    def recreate_group(self, revision: str, index: int) -> None:
        """A pod of the group was restarted or lost, so the whole group goes and comes back."""
        for pod in self.pods.values():
            if (pod["revision"], pod["group"]) == (revision, str(index)):
                pod.update(ready=False, terminating=True)

    def _obey(self, workload: dict[str, Any]) -> bool:
        told = self._told(workload)
        labels = workload["spec"]["template"]["metadata"]["labels"]
        mine = [pod for pod in self.pods.values() if pod["workload"] == workload["metadata"]["name"] and not pod["terminating"]]
        refused = revision_of(workload) in self.refused
        for _ in range(0 if refused else workload["spec"]["replicas"] - len(mine)):
            self._start_pod(f"{workload['metadata']['name']}-{next(self.versions)}", workload, labels)
        for pod in sorted(mine, key=lambda pod: pod["ready"])[: max(0, len(mine) - workload["spec"]["replicas"])]:
            pod["terminating"] = True
        return told

    def _obey_groups(self, workload: dict[str, Any]) -> bool:
        told, name, replicas = self._told(workload), workload["metadata"]["name"], workload["spec"]["replicas"]
        template = workload["spec"]["leaderWorkerTemplate"]
        self._store_set_revision(workload, name)
        mine = {pod_name: pod for pod_name, pod in self.pods.items() if pod["workload"] == name}
        for index in range(replicas):
            group, leader = [pod_name for pod_name, pod in mine.items() if pod["group"] == str(index)], f"{name}-{index}"
            if not group:
                self._start_pod(leader, workload, template["leaderTemplate"]["metadata"]["labels"], group=str(index))
            elif leader in mine and not mine[leader]["terminating"]:
                self._store_set_revision(workload, leader)
                for worker in range(1, template["size"]):
                    if f"{leader}-{worker}" not in mine:
                        labels = template["workerTemplate"]["metadata"]["labels"]
                        self._start_pod(f"{leader}-{worker}", workload, labels, group=str(index), worker=worker)
        for pod in mine.values():
            outlived = pod["worker"] and f"{name}-{pod['group']}" not in mine
            if outlived or (int(pod["group"]) >= replicas and not pod["worker"]):
                pod["terminating"] = True
        return told

    def _store_set_revision(self, workload: dict[str, Any], name: str) -> None:
        """The controller of a StatefulSet stores its template, and puts the set's labels and annotations on it."""
        metadata = workload["metadata"]
        owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name, "uid": f"set-{name}", "controller": True}
        key = ("ControllerRevision", f"{name}-5d8f")
        if key not in self.children:
            copied = {
                "apiVersion": "apps/v1",
                "kind": "ControllerRevision",
                "metadata": {
                    "namespace": KEY.namespace,
                    "name": key[1],
                    "labels": dict(metadata["labels"]),
                    "annotations": dict(metadata["annotations"]),
                    "ownerReferences": [owner],
                },
                "data": {"spec": {"template": {}}},
                "revision": 1,
            }
            self.children[key] = self._stamped(copied)

    def _told(self, workload: dict[str, Any]) -> bool:
        """Whether the workload's status is another than before."""
        status: dict[str, Any] = {"observedGeneration": workload["metadata"]["generation"]}
        if revision_of(workload) in self.overdue:
            status["conditions"] = [{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}]
        refused = self.refused.get(revision_of(workload))
        if refused is not None:
            since = next(
                (item["lastTransitionTime"] for item in _conditions(workload) if item["type"] == "ReplicaFailure"), self.now.isoformat()
            )
            said = {"reason": "FailedCreate", "message": refused, "lastTransitionTime": since}
            status["conditions"] = [*status.get("conditions", ()), {"type": "ReplicaFailure", "status": "True", **said}]
        told, workload["status"] = workload.get("status") != status, status
        return told

    def _start_pod(self, name: str, workload: dict[str, Any], labels: dict[str, str], *, group: str | None = None, worker: int = 0) -> None:
        self.pods[name] = {
            "revision": revision_of(workload),
            "workload": workload["metadata"]["name"],
            "group": group,
            "worker": worker,
            "labels": labels,
            "ready": False,
            "terminating": False,
            "broken": False,
            "hangs": False,
            "made": self.now,
            "node": None,
        }

    def _place(self) -> None:
        """Pods get nodes in the order they were made, and keep them."""
        living = [node for node in NODES if node not in self.dead_nodes]
        held = [pod["node"] for pod in self.pods.values() if pod["node"] is not None and pod["node"] not in self.dead_nodes]
        for pod in self.pods.values():
            if pod["node"] is None and not pod["terminating"] and living and (self.capacity is None or len(held) < self.capacity):
                pod["node"] = min(living, key=held.count)
                held.append(pod["node"])

    def _lasts(self, pod: dict[str, Any]) -> bool:
        return bool(pod["hangs"]) or pod["node"] in self.dead_nodes

    def _carry_out(self, step: Any) -> int:
        match step:
            case Create(manifest):
                key = (manifest["kind"], manifest["metadata"]["name"])
                assert key not in self.children
                self.children[key] = self._stamped(_copy(dict(manifest)))
            case Annotate(ref, annotations, revision):
                item = self._fenced(ref)
                item["metadata"].setdefault("annotations", {}).update(annotations)
                if revision is not None:
                    item["revision"] = revision
                self._touch(item)
            case Adopt(ref, owners, labels):
                item = self._fenced(ref)
                item["metadata"]["labels"] |= labels
                item["metadata"]["ownerReferences"] = [dict(owner) for owner in owners]
                self._touch(item)
            case Delete(ref):
                self._fenced(ref)
                del self.children[ref.kind, ref.name]
            case Event():
                return 0
            case Apply(manifest, fence):
                return self._apply(dict(manifest), fence)
        return 1

    def _apply(self, manifest: dict[str, Any], fence: Ref | None) -> int:
        key = (manifest["kind"], manifest["metadata"]["name"])
        live = self.children.get(key)
        assert (live is None) == (fence is None)
        if live is None:
            self.children[key] = self._stamped(_copy(manifest))
            return 1
        wanted = {**live, **manifest, "metadata": {**live["metadata"], **manifest["metadata"]}}
        if wanted == live:
            return 0
        wanted = _copy(wanted)
        if wanted.get("spec") != live.get("spec"):
            wanted["metadata"]["generation"] += 1
        self.children[key] = wanted
        self._touch(wanted)
        return 1

    def _fenced(self, ref: Ref) -> dict[str, Any]:
        item = self.children[ref.kind, ref.name]
        assert item["metadata"]["uid"] == ref.uid
        return item

    def _stamped(self, item: dict[str, Any]) -> dict[str, Any]:
        item["metadata"] |= {"uid": f"uid-{next(self.versions)}", "generation": 1}
        self._touch(item)
        return item

    def _touch(self, item: dict[str, Any]) -> None:
        item["metadata"]["resourceVersion"] = str(next(self.versions))

    def _pod(self, name: str, pod: dict[str, Any]) -> Pod:
        if not pod["ready"]:
            pod.pop("ready_since", None)
        if not pod["ready"] and pod["revision"] in self.raw:
            metadata = {
                "name": name,
                "uid": name,
                "resourceVersion": "1",
                "labels": {**pod["labels"], "pod-template-hash": "7d4b9c"},
                "creationTimestamp": pod["made"].isoformat(),
                "ownerReferences": [
                    {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"{pod['workload']}-7d4b9c", "uid": "set", "controller": True}
                ],
            }
            return replace(project({"metadata": metadata, **self.raw[pod["revision"]]}), terminating=pod["terminating"])
        found = Pod(
            name=name,
            uid=pod.get("uid", name),
            resource_version="1",
            revision=pod["revision"],
            role=pod["labels"][names.LABEL_ROLE],
            node=pod["node"],
            ip="127.1.0.1",
            phase="Running",
            ready=pod["ready"],
            ready_since=pod.setdefault("ready_since", self.now) if pod["ready"] else None,
            terminating=pod["terminating"],
            restarts=self.restarts if pod["broken"] else 0,
            waiting_reason="CrashLoopBackOff" if pod["broken"] else None,
            message="exit code 2: unrecognized arguments" if pod["broken"] else None,
            unschedulable=None if pod["node"] else "0/4 nodes are available: 4 Insufficient nvidia.com/gpu",
            unschedulable_since=None if pod["node"] else pod["made"],
            created_at=pod["made"],
            scheduled_since=pod["made"] if pod["node"] else None,
            container="engine" if pod["broken"] else None,
            exit_code=2 if pod["broken"] else None,
            workload=pod["workload"],
            group=pod["group"],
            worker_index=pod["worker"],
            controller=pod["workload"] and f"Deployment {pod['workload']}",
        )
        return found if pod["ready"] else replace(found, **{**self.troubles.get(pod["revision"], {}), **pod.get("facts", {})})


def _conditions(workload: dict[str, Any]) -> list[dict[str, Any]]:
    return list((workload.get("status") or {}).get("conditions") or ())


def _copy(value: Any) -> Any:
    """As copy.deepcopy, several times faster."""
    return pickle.loads(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))


_ANSWER = Answer(100, 20.0, 1.0, "a")


def _answers(request: ProbeRequest | None, at_s: float) -> tuple[ProbeRun, ...]:
    if request is None:
        return ()
    asked = (request.candidate, request.reference)
    answers = (_ANSWER,) * request.prompts
    return tuple(ProbeRun(side.revision, request.prompts_name, answers, float(round(at_s))) for side in asked if side is not None)
