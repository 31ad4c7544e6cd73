"""A story: a DFlashDeployment that is created and changed, told to an operator that may be killed at any of its writes."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.cluster import Cluster
from testbed.operator_forks import OperatorForks
from testbed.operator_process import OperatorProcess
from testbed.pod_watch import Moment, PodWatch, breaks
from testbed.waiting import wait_until
from testbed.write_proxy import Write, WriteProxy
from tests.support.deployment import REVISION, Deployment

QUIET_SECONDS = 0.4
SETTLE_SECONDS = 90.0


@dataclass(frozen=True)
class Change:
    """A merge patch of the spec, and the bounds that hold from then until it is done: serving replicas at least, pods at most."""

    patch: Mapping[str, Any]
    least: int
    most: int
    done: Callable[[Deployment], bool] = Deployment.is_done
    """Whether the next change may come."""


@dataclass(frozen=True)
class Story:
    """``changes[0]`` is the spec at creation; each later one is made when the one before is done."""

    title: str
    changes: tuple[Change, ...]
    states: tuple[str, ...]
    """Of its revisions at the end, sorted."""
    killed_from: int = 0
    """The first change in which the operator is killed; those before it are another story's."""


@dataclass
class Ending:
    """``state`` is all that the operator left behind, without what differs from one run to the next."""

    state: dict[str, Any]
    writes: list[Write]
    before: list[int]
    """How many of them came before each change."""
    broken: list[Moment]
    killed_at: Write | None


class Telling:
    """One run of a story in a namespace of its own.

    The operator dies once the API server has its write, before it hears of that. To die before the write is sent is to leave the server
    as it was after the write before.
    """

    def __init__(self, cluster: Cluster, watch: PodWatch, kubeconfig: Path, story: Story, forks: OperatorForks) -> None:
        namespace = cluster.create_namespace("kill")
        self._watch = watch
        self._story = story
        self._deployment = Deployment(cluster, namespace)
        self._proxy = WriteProxy(kubeconfig, cluster.directory / f"{namespace}.kubeconfig")
        settings = {
            "namespaces": namespace,
            "leader_election": "false",
            "log_format": "text",
            "scrape_seconds": "3600",
            "warm_up_seconds": "0",
        }
        self._operator = OperatorProcess(cluster, settings, name=namespace, kubeconfig=self._proxy.kubeconfig, forks=forks)
        self._killed_at: Write | None = None
        self._dead = threading.Event()

    def run(self, kill_at: int = 0) -> Ending:
        """To the end, the operator killed at that write (0: never) and started again."""
        with self._proxy:
            try:
                self._arrange(kill_at)
                self._operator.start()
                before, broken = [], []
                for change in self._story.changes:
                    before.append(len(self._proxy.writes))
                    broken += self._make(change)
                writes = list(self._proxy.writes)
                self._wait_quiet()
                return Ending(self._state(), writes, before, broken, self._killed_at)
            finally:
                self._operator.kill()
                self._deployment.cluster.delete_namespace(self._deployment.namespace)

    def _arrange(self, kill_at: int) -> None:
        def strike(write: Write, status: int) -> bool:
            if write.number != kill_at:
                return True
            self._operator.kill()
            self._killed_at = write
            self._dead.set()
            return False

        self._proxy.after = strike

    def _make(self, change: Change) -> list[Moment]:
        told = len(self._moments())
        if change is self._story.changes[0]:
            self._deployment.create(change.patch)
        else:
            self._deployment.patch(**change.patch)
        self._wait(lambda: change.done(self._deployment), "the change to be done")
        return breaks(self._moments()[max(told - 1, 0) :], least=change.least, most=change.most)

    def _moments(self) -> list[Moment]:
        return self._watch.moments(self._deployment.namespace, self._deployment.name)

    def _wait_quiet(self) -> None:
        """Until the operator has nothing left to write: its children may be cleaned up after the change is done.

        One that was started again must have looked first.
        """
        seen = [(0, 0)]

        def quiet() -> bool:
            before, seen[0] = seen[0], (len(self._proxy.writes), self._operator.reconciles())
            return before == seen[0] and seen[0][1] > 0 and not self._dead.is_set()

        self._wait(quiet, "the operator to write no more", QUIET_SECONDS)

    def _wait(self, condition: Callable[[], bool], what: str, interval: float = 0.1) -> None:
        def look() -> bool:
            if self._dead.is_set():
                self._dead.clear()
                self._proxy.pass_all()
                self._operator.start()
            return condition()

        wait_until(look, f"{what} in {self._deployment.namespace} (see {self._operator.log})", SETTLE_SECONDS, interval)

    def _state(self) -> dict[str, Any]:
        state = {kind: self._timeless({item["metadata"]["name"]: item for item in self._deployment.children(kind)}) for kind in _CHILDREN}
        for children in state.values():
            for child in children.values():
                child.pop("status", None)  # written by others
        state["pods"] = sorted(
            (pod["metadata"]["labels"][REVISION], pod["status"]["phase"], "deletionTimestamp" in pod["metadata"])
            for pod in self._deployment.children("pods")
        )
        state["deployment"] = self._timeless(self._deployment.get())
        shown = state["deployment"]["status"]
        # Nothing is measured here, and how long that takes to be said is a matter of when the process started.
        shown["conditions"] = [item for item in shown["conditions"] if item["type"] != "MetricsAvailable"]
        # Verdicts are of evidence in memory; what they led to is stored, and told in the reason and the message.
        for told in ("analysis", "analyzedAt"):
            shown["rollout"].pop(told, None)
        for revision in state["controllerrevisions"].values():
            annotations = revision["metadata"]["annotations"]
            annotations.pop("serving.dflash.io/probe", None)
            if annotations["serving.dflash.io/state"] == "Superseded":
                # How far its trial had come when it was given up is a matter of when the process stopped.
                annotations.pop("serving.dflash.io/trial", None)
        return state

    def _timeless(self, value: Any) -> Any:
        """Without identities, versions, times and the namespace's name."""
        if isinstance(value, Mapping):
            return {key: self._timeless(item) for key, item in value.items() if key not in _VARYING}
        if isinstance(value, list):
            return [self._timeless(item) for item in value]
        if isinstance(value, str):
            return _UID.sub("UID", _TIME.sub("TIME", value.replace(self._deployment.namespace, "NAMESPACE")))
        return value


_CHILDREN = ("controllerrevisions", "deployments", "services", "serviceaccounts", "poddisruptionbudgets", "networkpolicies")
_VARYING = frozenset({"uid", "resourceVersion", "generation", "observedGeneration", "managedFields", "clusterIP", "clusterIPs", "nodePort"})
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
