"""A cluster in memory for the planner: plans are carried out at once, Deployments obey, pods start when told to.

The real API server, controllers and executor are used on the cluster level; here the question is what is decided, thousands of times.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from dflash_controller.api import names
from dflash_controller.catalog.catalog import Catalog
from dflash_controller.engines.resolve import OperatorDefaults
from dflash_controller.planning.context import NOT_MEASURED, Context
from dflash_controller.planning.decide import decide
from dflash_controller.planning.plan import Adopt, Annotate, Apply, Create, Delete, Event, Plan, Ref
from dflash_controller.planning.snapshot import Key, Pod, Snapshot

CATALOG = Catalog.load()
KEY = Key("models", "chat")


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

    # What a user does.

    def edit(self, change: Callable[[dict[str, Any]], None]) -> None:
        change(self.deployment["spec"])
        self.deployment["metadata"]["generation"] += 1

    # What the operator does.

    def plan(self) -> Plan:
        return decide(self.snapshot(), Context(self.now, self.defaults, CATALOG, metrics=self.metrics))

    def snapshot(self) -> Snapshot:
        of = [copy.deepcopy(item) for item in self.children.values()]
        return Snapshot(
            KEY,
            copy.deepcopy(self.deployment),
            revisions=tuple(item for item in of if item["kind"] == "ControllerRevision"),
            workloads=tuple(item for item in of if item["kind"] in ("Deployment", "LeaderWorkerSet")),
            others=tuple(item for item in of if item["kind"] not in ("ControllerRevision", "Deployment", "LeaderWorkerSet")),
            pods=tuple(self._pod(name, pod) for name, pod in self.pods.items()),
            kinds=self.kinds,
        )

    def reconcile(self, *, stop_after: int | None = None) -> int:
        """Carry out one plan; ``stop_after`` steps only, as an operator killed in the middle does. Returns the writes made."""
        plan = self.plan()
        written = 0
        for step in plan.steps[:stop_after]:
            written += self._carry_out(step)
        if stop_after is None and plan.status is not None:
            self.deployment["status"] = {key: value for key, value in plan.status.items() if value is not None}
        return written

    def settle(self, rounds: int = 60) -> None:
        """Operator and controllers take turns, every new pod becoming ready, until a round changes nothing."""
        for _ in range(rounds):
            written = self.reconcile()
            moved = self.controllers()
            if not written and not moved:
                return
        raise AssertionError("does not settle")

    # What the cluster does.

    def controllers(self, *, start: bool = True) -> bool:
        """Terminating pods go, Deployments make and remove pods (not ready ones first), and new pods become ready."""
        before = copy.deepcopy(self.pods)
        self.pods = {name: pod for name, pod in self.pods.items() if not pod["terminating"]}
        for pod in self.pods.values():
            pod["ready"] = pod["ready"] or (start and not pod["broken"])
        for (kind, _), workload in self.children.items():
            if kind == "Deployment":
                self._obey(workload)
        return self.pods != before

    def condition(self, type: str) -> str:
        return next(item["status"] for item in self.deployment["status"]["conditions"] if item["type"] == type)

    def reason(self, type: str) -> str:
        return next(item["reason"] for item in self.deployment["status"]["conditions"] if item["type"] == type)

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [item for (found, _), item in self.children.items() if found == kind]

    def serving(self) -> int:
        return sum(pod["ready"] and not pod["terminating"] for pod in self.pods.values())

    def _obey(self, workload: dict[str, Any]) -> None:
        workload["status"] = {"observedGeneration": workload["metadata"]["generation"]}
        labels = workload["spec"]["template"]["metadata"]["labels"]
        revision = labels[names.LABEL_REVISION]
        mine = [pod for pod in self.pods.values() if pod["revision"] == revision and not pod["terminating"]]
        for _ in range(workload["spec"]["replicas"] - len(mine)):
            name = f"{workload['metadata']['name']}-{next(self.versions)}"
            self.pods[name] = {"revision": revision, "labels": labels, "ready": False, "terminating": False, "broken": False}
        for pod in sorted(mine, key=lambda pod: pod["ready"])[: max(0, len(mine) - workload["spec"]["replicas"])]:
            pod["terminating"] = True

    def _carry_out(self, step: Any) -> int:
        match step:
            case Create(manifest):
                key = (manifest["kind"], manifest["metadata"]["name"])
                assert key not in self.children
                self.children[key] = self._stamped(copy.deepcopy(dict(manifest)))
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
            self.children[key] = self._stamped(copy.deepcopy(manifest))
            return 1
        wanted = {**live, **copy.deepcopy(manifest), "metadata": {**live["metadata"], **copy.deepcopy(manifest["metadata"])}}
        if wanted == live:
            return 0
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
        return Pod(
            name=name,
            uid=name,
            resource_version="1",
            revision=pod["revision"],
            role=pod["labels"][names.LABEL_ROLE],
            ip="127.1.0.1",
            phase="Running",
            ready=pod["ready"],
            terminating=pod["terminating"],
            restarts=3 if pod["broken"] else 0,
            waiting_reason="CrashLoopBackOff" if pod["broken"] else None,
            message="exit code 2: unrecognized arguments" if pod["broken"] else None,
            unschedulable=None,
        )
