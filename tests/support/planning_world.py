"""A cluster in memory for the planner: plans are carried out at once, Deployments obey, pods start when told to.

The real API server, controllers and executor are used on the cluster level; here the question is what is decided, thousands of times.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

from dflash_controller.analysis.verdict import AnalysisDecision, AnalysisRequest, Judgement
from dflash_controller.api import names
from dflash_controller.api.conditions import Reason
from dflash_controller.api.speculation import Fixed
from dflash_controller.catalog.catalog import Catalog
from dflash_controller.cluster.kinds import DELETED, find_kind
from dflash_controller.cluster.pods import project
from dflash_controller.engines.protocol import Launch, LaunchRequest
from dflash_controller.engines.resolve import OperatorDefaults
from dflash_controller.engines.sglang.launch import SGLang
from dflash_controller.engines.vllm.launch import VLLM
from dflash_controller.model.counters import Answer, Evidence, ProbeRun
from dflash_controller.model.fetch_progress import FetchProgress
from dflash_controller.model.hub import HubKnowledge
from dflash_controller.model.metrics_health import NOT_MEASURED
from dflash_controller.model.probe import ProbeRequest
from dflash_controller.model.snapshot import Key, Pod, Snapshot
from dflash_controller.planning.planner import decide
from dflash_controller.planning.replicas.count import revision_of
from dflash_controller.planning.revisions.roles import read_stored
from dflash_controller.planning.state.blockers import refused_write
from dflash_controller.planning.state.child_ownership import is_generated, is_generated_pod, members
from dflash_controller.planning.state.inputs import Blocker, Knowledge, PlannerInputs
from dflash_controller.planning.state.plan import Adopt, Annotate, Apply, Create, Delete, Event, Part, Plan, Ref
from dflash_controller.tuner.decision import TunerDecision, TunerInputs
from dflash_controller.tuner.learned import Learned
from dflash_controller.tuner.priors import Prior

CATALOG = Catalog.load()
KEY = Key("models", "chat")
NODES = ("b200-0", "b200-1", "b200-2", "b200-3")
NO_GPU = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu"
PASSED = Judgement(AnalysisDecision.PROMOTE, Reason.ANALYSIS_PASSED, "every limit was kept")
UNDECIDED = Judgement(AnalysisDecision.CONTINUE, Reason.ANALYZING, "too few samples")
FAILED = Judgement(AnalysisDecision.FAIL, Reason.ANALYSIS_FAILED, "acceptanceLength 1.02 against 6.4; at most 5 % less is allowed")
BIASED = Judgement(AnalysisDecision.HOLD, Reason.REPLICA_BIAS, "replicas of one revision differ by 9 %")


WORKLOADS = ("Deployment", "LeaderWorkerSet")
STATUS = "Status"
"""Stands for a kind where the status of the DFlashDeployment is meant."""
CONFLICT = 409
PASSING_FAILURES = 2
"""Refusals in a row that may pass, before the status says so."""


@dataclass(frozen=True)
class Refusal(Exception):
    """What the API server answers to a write."""

    code: int
    message: str

    @property
    def passing(self) -> bool:
        return self.code == 429 or self.code >= 500


@dataclass
class Advice:
    """Stands for ``tuner.policy.decide``: wants one block, under the conditions in which the tuner changes something at all."""

    wants: int | None = None
    failures: int | None = None
    """Trials of that block that had failed when it was first wanted. One more, and it is wanted no more."""

    def decide(self, inputs: TunerInputs, learned: Learned, *, prior: Prior) -> TunerDecision:
        failures = sum(change.block == self.wants and not change.kept for change in inputs.changes)
        self.failures = failures if self.failures is None else self.failures
        if inputs.policy.mode == "Off":
            return TunerDecision("Off", Reason.TUNING_OFF, "off")
        if inputs.frozen:
            return TunerDecision("Frozen", Reason.FROZEN, inputs.frozen)
        outage = inputs.replicas == 1 and not inputs.surge and not inputs.policy.allow_downtime
        wants = Fixed(self.wants) if self.wants and failures <= self.failures else inputs.speculation
        may_change = inputs.policy.mode == "Auto" and not (inputs.leaving or inputs.degraded or outage)
        change = wants if may_change and wants != inputs.speculation else None
        return TunerDecision("Tuning", Reason.TUNED, f"wants {wants.label()}", wants, change, {"gainPercent": 20.0})


class World:
    """One DFlashDeployment with everything below it."""

    def __init__(self, spec: dict[str, Any], *, defaults: OperatorDefaults | None = None) -> None:
        self.versions = itertools.count(1)
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.lived_s = 0.0
        """Seconds that have really passed."""
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
        self.fetching: dict[str, FetchProgress] = {}
        """How far pods are that fetch weights, as they answer."""
        self.warm_up_s = 0.0
        self.hub = HubKnowledge()
        """What the model hub says; without an endpoint it is not asked."""
        self.field_conflicts: tuple[str, ...] = ()
        self.tuning = Knowledge()
        self.advice: Advice | None = None
        """Decides in place of the tuner. None: the tuner decides, and has learned what ``tuning`` says."""
        self.flags: tuple[str, ...] = ()
        """What the operator's release adds to every command line."""
        self.refusals: dict[Part, Blocker] = {}
        """Writes that the API server has just refused."""
        self.refuses: dict[str, Refusal] = {}
        """What the API server answers to writes, by kind."""
        self.failures = 0
        """Reconciles in a row with a write that was refused."""
        self.obstructed = False
        """Whether a write of the last reconcile was refused."""
        self.status_written = False
        """Whether the last reconcile wrote the status, or found it as it is."""
        self.strangers: dict[tuple[str, str], dict[str, Any]] = {}
        """Objects of users that carry our label."""
        self.stranger_pods: dict[str, dict[str, Any]] = {}
        self.answering = True
        """The probe is answered at once."""
        self.capacity: int | None = None
        """Pods that the living nodes hold; None: any number. Fewer than there are evict nobody."""
        self.crashing = set[str]()
        """Revisions over several nodes whose engines exit. Each exit replaces the whole group."""
        self.gated = False
        """Pods without a node have scheduling gates."""
        self.dead_nodes = frozenset[str]()
        self.overdue = frozenset[str]()
        """Revisions whose Deployments exceed their progress deadline."""
        self.restarts = 3
        """Of a broken pod."""
        self.refused: dict[str, str] = {}
        """What the API server answers to those who create pods, by revision; the time of it is when it was first said."""
        self.troubles: dict[str, dict[str, Any]] = {}
        """Fields of pods that are not Ready, by revision: what keeps them from it."""
        self.shown: dict[str, dict[str, Any]] = {}
        """Fields of pods that are Ready, by revision."""
        self.raw: dict[str, dict[str, Any]] = {}
        """Pods that are not Ready as the API server has them, by revision. Name, labels and times are the world's."""

    # What a user does.

    def edit(self, change: Callable[[dict[str, Any]], None]) -> None:
        change(self.deployment["spec"])
        self.deployment["metadata"]["generation"] += 1

    # What the operator does.

    def plan(self) -> Plan:
        """What the operator would do now."""
        self.seen = self.snapshot()
        return self._decide(self._context())

    def _context(self) -> PlannerInputs:
        tuning = self.tuning if self.advice is None else Knowledge(learned=Learned(), measured=3)
        return PlannerInputs(
            self.now,
            self.defaults,
            CATALOG,
            metric_values=self.metric_values,
            metrics=self.metrics,
            probes=self.probes,
            probe_error=self.probe_error,
            probe_waited_s=self.probe_waited_s,
            fetching=self.fetching,
            warm_up_s=self.warm_up_s,
            tuning=tuning,
            field_conflicts=self.field_conflicts,
            hub=self.hub,
            refusals=self.refusals,
        )

    def _decide(self, context: PlannerInputs) -> Plan:
        with ExitStack() as patches:
            patches.enter_context(patch("dflash_controller.planning.rollout.canary.judge", self._judge))
            if self.advice is not None:
                patches.enter_context(patch("dflash_controller.planning.tuning.decide", self.advice.decide))
            if self.flags:
                patches.enter_context(_release(self.flags))
            return decide(self.seen, read_stored(self.seen.revisions), context)

    def _judge(self, question: AnalysisRequest, evidence: Evidence, now_s: float) -> Judgement:
        self.question, self.evidence = question, evidence
        self.asked += 1
        return self.judgement

    def advance(self, seconds: float) -> None:
        """Time passes; with negative seconds, the clock of the operator's machine is put back."""
        self.now += timedelta(seconds=seconds)
        self.lived_s += max(0.0, seconds)

    def snapshot(self) -> Snapshot:
        pods = [self._pod(name, pod) for name, pod in {**self.pods, **self.stranger_pods}.items()]
        served = [item for (kind, _), item in self.children.items() if self.is_served(kind)]
        found = members(
            [(item, is_generated(item, KEY.name)) for item in (*served, *self.strangers.values())],
            [(pod, is_generated_pod(pod, KEY.name)) for pod in pods],
        )
        return Snapshot(
            KEY,
            dict(self.deployment),
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
        """The second half of a reconcile, as the executor does it. What the probe brought is gone with an operator that is killed.

        A refused write stops its own part if that is the rollout. A conflict drops the plan.
        """
        written, left, refused, self.status_written = 0, stop_after, dict[Part, Refusal](), False
        self.obstructed = False
        for part, steps in plan.parts:
            for step in steps[:left]:
                left = None if left is None else left - 1
                try:
                    written += self._carry_out(step)
                except Refusal as error:
                    self.obstructed = True
                    if error.code == CONFLICT:
                        return written
                    refused.setdefault(part, error)
                    if part is Part.ROLLOUT:
                        break
        if stop_after is not None:
            self.probes = ()
            return written
        if self.answering:
            self.probes = _answers(plan.probe, self.now.timestamp())
        if not refused:
            self.failures = 0
            self._write_status(plan)
            return written
        self.failures += 1
        told = {part: error for part, error in refused.items() if self.failures > PASSING_FAILURES or not error.passing}
        if told:
            blockers = {
                part: refused_write(error.message, forbidden=error.code == 403, passing=error.passing) for part, error in told.items()
            }
            self._write_status(self._decide(replace(self._context(), probes=(), refusals=blockers)))
        return written

    def _write_status(self, plan: Plan) -> None:
        if plan.status is not None and STATUS not in self.refuses:
            self.deployment["status"] = {key: value for key, value in plan.status.items() if value is not None}
            self.status_written = True

    def is_served(self, kind: str) -> bool:
        """Whether the cluster knows the kind."""
        return kind not in ("LeaderWorkerSet", "PodMonitor") or kind in self.kinds

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
            if pod["revision"] in self.crashing and pod["group"] is not None and pod["node"] is not None:
                pod.update(ready=False, terminating=True, restarts=1)
            held = pod["broken"] or pod["revision"] in self.troubles or pod["revision"] in self.raw
            pod["ready"] = pod["ready"] or (start and not held and not pod["terminating"] and pod["node"] is not None)
        obey = {"Deployment": self._obey, "LeaderWorkerSet": self._obey_groups}
        seen = [obey[kind](workload) for (kind, _), workload in list(self.children.items()) if kind in obey]
        self._place()
        return any(seen) or self.pods != before

    def break_pod(self, pod: dict[str, Any], restarts: int) -> None:
        """Its engine exits and is started again, so many times so far."""
        pod.update(broken=True, ready=False, restarts=max(restarts, pod.get("restarts", 0)))

    def flicker(self, pod: dict[str, Any]) -> None:
        """It misses a readiness probe and is Ready again with the next."""
        pod["ready"] = False

    def orphan(self, workload: str) -> None:
        """``kubectl delete --cascade=orphan``: the pods stay."""
        self.children = {(kind, name): item for (kind, name), item in self.children.items() if name != workload or kind not in WORKLOADS}

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
        for index in range(replicas if revision_of(workload) not in self.refused else 0):
            leader = f"{name}-{index}"
            if not any(pod["group"] == str(index) for pod in mine.values()):
                self._start_pod(leader, workload, template["leaderTemplate"]["metadata"]["labels"], group=str(index))
            elif leader not in mine or mine[leader]["terminating"]:
                continue
            # The workers are created as soon as their leader exists.
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
            "uid": f"pod-{next(self.versions)}",
            "restarts": 0,
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
        living = [] if self.gated else [node for node in NODES if node not in self.dead_nodes]
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
                key = self._may_write(manifest["kind"], manifest["metadata"]["name"])
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
                assert find_kind(ref.api_version, ref.kind) in DELETED, "the chart grants no more"
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
            self._may_write(*key)
            self.children[key] = self._stamped(_copy(manifest))
            return 1
        wanted = {**live, **manifest, "metadata": {**live["metadata"], **manifest["metadata"]}}
        if wanted == live:
            return 0
        self._may_write(*key)
        wanted = _copy(wanted)
        if wanted.get("spec") != live.get("spec"):
            wanted["metadata"]["generation"] += 1
        self.children[key] = wanted
        self._touch(wanted)
        return 1

    def _may_write(self, kind: str, name: str) -> tuple[str, str]:
        """Raises the API server's refusal. It knows the kind, and the object is no user's: the operator must see to that."""
        assert (kind, name) not in self.strangers, f"{kind} {name} is a user's, and is written"
        assert self.is_served(kind), f"{kind} {name} is written, and the cluster does not know the kind"
        if kind in self.refuses:
            raise self.refuses[kind]
        return (kind, name)

    def _fenced(self, ref: Ref) -> dict[str, Any]:
        key = self._may_write(ref.kind, ref.name)
        item = self.children[key]
        assert item["metadata"]["uid"] == ref.uid
        # What the operator has seen stays as it was.
        self.children[key] = {**item, "metadata": _copy(item["metadata"])}
        return self.children[key]

    def _stamped(self, item: dict[str, Any]) -> dict[str, Any]:
        item["metadata"] |= {"uid": f"uid-{next(self.versions)}", "generation": 1}
        self._touch(item)
        return item

    def _touch(self, item: dict[str, Any]) -> None:
        item["metadata"]["resourceVersion"] = str(next(self.versions))

    def _pod(self, name: str, pod: dict[str, Any]) -> Pod:
        if not pod["ready"]:
            pod.pop("ready_since", None)
            pod.setdefault("unready_since", self.now)
        else:
            pod.pop("unready_since", None)
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
            unready_since=pod.get("unready_since"),
            terminating=pod["terminating"],
            restarts=max(pod.get("restarts", 0), self.restarts if pod["broken"] else 0),
            waiting_reason="CrashLoopBackOff" if pod["broken"] else None,
            message="exit code 2: unrecognized arguments" if pod["broken"] else None,
            unschedulable=None if pod["node"] else "kueue.x-k8s.io/admission" if self.gated else NO_GPU,
            gated=self.gated and not pod["node"],
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
        if pod["ready"]:
            return replace(found, **self.shown.get(pod["revision"], {}))
        return replace(found, **{**self.troubles.get(pod["revision"], {}), **pod.get("facts", {})})


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


@contextmanager
def _release(flags: tuple[str, ...]) -> Iterator[None]:
    """A release of the operator whose command lines have these flags too."""
    with patch.object(SGLang, "launch", _more(SGLang.launch, flags)), patch.object(VLLM, "launch", _more(VLLM.launch, flags)):
        yield


def _more(launch: Any, flags: tuple[str, ...]) -> Any:
    def launched(engine: Any, request: LaunchRequest) -> Launch:
        found: Launch = launch(engine, request)
        return replace(found, args=(*found.args, *flags), worker_args=(*found.worker_args, *flags) if found.worker_args else ())

    return launched
