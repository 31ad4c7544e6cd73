"""One DFlashDeployment of a test and what belongs to it, asked of the API server directly: quicker than kubectl, and from any thread."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from testbed import binaries
from testbed.cluster import Cluster
from testbed.gates import each_gate
from testbed.simulator_process import SimulatorProcess
from testbed.waiting import wait_until

PATIENCE_S = 120.0
"""For what takes seconds where nothing else runs."""
API_VERSION = "serving.dflash.io/v1alpha1"
UNJUDGED = {
    "analysis": each_gate(enabled=False),
    "probe": {"enabled": False},
}
"""Part of ``spec.rollout``: a candidate that serves is promoted. For tests of how replicas are replaced, not of when."""
JUDGED = {
    "analysis": each_gate(interval="1s") | {"acceptanceLength": {"interval": "1s", "limit": 15}, "speed": {"interval": "1s", "limit": 25}},
    "probe": {"prompts": 24, "maxTokens": 32, "promptsPerMinute": 6000},
}
"""Part of ``spec.rollout``: judged by a probe of some seconds, looked at every second. So few and short answers tell no small difference,
least of all in speed on a machine that is busy with the test itself: the limits are wide."""
STATE = "serving.dflash.io/state"
TRIAL = "serving.dflash.io/trial"
REVISION = "serving.dflash.io/revision"
LEARNED = "serving.dflash.io/learned"
HISTORY = "serving.dflash.io/history"
_GROUPS = {
    "controllerrevisions": "/apis/apps/v1",
    "deployments": "/apis/apps/v1",
    "jobs": "/apis/batch/v1",
    "replicasets": "/apis/apps/v1",
    "leaderworkersets": "/apis/leaderworkerset.x-k8s.io/v1",
    "services": "/api/v1",
    "serviceaccounts": "/api/v1",
    "pods": "/api/v1",
    "poddisruptionbudgets": "/apis/policy/v1",
    "networkpolicies": "/apis/networking.k8s.io/v1",
}


@dataclass(frozen=True)
class Deployment:
    """The DFlashDeployment of this name, there or not."""

    cluster: Cluster
    namespace: str
    name: str = "chat"

    def create(self, spec: Mapping[str, Any]) -> Deployment:
        manifest = {"apiVersion": API_VERSION, "kind": "DFlashDeployment", "metadata": {"name": self.name}, "spec": spec}
        self.cluster.api.request("POST", self._path(f"/apis/{API_VERSION}", "dflashdeployments"), manifest)
        return self

    def patch(self, **spec: Any) -> None:
        """Merge patch of the spec."""
        self.patch_whole({"spec": spec})

    def patch_whole(self, patch: Mapping[str, Any]) -> None:
        """Merge patch of the object."""
        self.cluster.api.request("PATCH", self._path(f"/apis/{API_VERSION}", "dflashdeployments", self.name), patch)

    def patch_status(self, **status: Any) -> None:
        """Merge patch of the status, which an operator that runs may write over."""
        self.cluster.api.request("PATCH", self._path(f"/apis/{API_VERSION}", "dflashdeployments", self.name, "status"), {"status": status})

    def get(self) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.api.get(self._path(f"/apis/{API_VERSION}", "dflashdeployments", self.name))
        return found

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.get().get("status") or {}
        return found

    def condition(self, type: str) -> tuple[str, str, str]:
        """Status, reason and message; empty ones where there is no such condition."""
        for item in self.status().get("conditions") or ():
            if item["type"] == type:
                return item["status"], item["reason"], item["message"]
        return "", "", ""

    def rollout(self) -> dict[str, Any]:
        """``status.rollout``; empty where there is none."""
        found: dict[str, Any] = self.status().get("rollout") or {}
        return found

    def wait_phase(self, *phases: str, timeout: float = PATIENCE_S) -> dict[str, Any]:
        """Wait until the newest spec's rollout is in one of the phases. Returns ``status.rollout``."""

        def reached() -> dict[str, Any] | None:
            found = self.get()
            status = found.get("status") or {}
            rollout: dict[str, Any] = status.get("rollout") or {}
            seen = status.get("observedGeneration") == found["metadata"]["generation"]
            return rollout if seen and rollout.get("phase") in phases else None

        try:
            return wait_until(reached, "", timeout, 0.1)
        except TimeoutError:
            raise TimeoutError(f"{self.namespace}/{self.name} did not come to {' or '.join(phases)}: {self.rollout()}") from None

    def verdicts(self) -> dict[str, dict[str, Any]]:
        """``status.rollout.analysis`` by metric."""
        return {item["metric"]: item for item in self.rollout().get("analysis") or ()}

    def revisions(self) -> dict[str, dict[str, Any]]:
        """``status.revisions`` by name."""
        return {item["name"]: item for item in self.status().get("revisions") or ()}

    def history(self, revision: str) -> list[tuple[str, str, str]]:
        """Origin, outcome and reason of each change of a revision's state (its whole name), oldest first."""
        found = next(item for item in self.children("controllerrevisions") if item["metadata"]["name"] == revision)
        entries = json.loads(found["metadata"]["annotations"][HISTORY])
        return [(entry["origin"], entry["outcome"], entry["reason"]) for entry in entries]

    def trial(self, revision: str) -> dict[str, Any]:
        """What is stored of the trial of a revision (its whole name): clocks and findings."""
        found = next(item for item in self.children("controllerrevisions") if item["metadata"]["name"] == revision)
        trial: dict[str, Any] = json.loads(found["metadata"]["annotations"][TRIAL])
        return trial

    def edit_trial(self, revision: str, **changes: Any) -> None:
        """Sets parts of what is stored of a trial, for example to an earlier time."""
        patch = {"metadata": {"annotations": {TRIAL: json.dumps(self.trial(revision) | changes)}}}
        self.cluster.api.request("PATCH", self._path("/apis/apps/v1", "controllerrevisions", revision), patch)

    def edit_history(self, revision: str, changed: Callable[[dict[str, str]], dict[str, str]]) -> None:
        """Replaces each entry of a revision's history (its whole name)."""
        found = next(item for item in self.children("controllerrevisions") if item["metadata"]["name"] == revision)
        entries = [changed(entry) for entry in json.loads(found["metadata"]["annotations"][HISTORY])]
        patch = {"metadata": {"annotations": {HISTORY: json.dumps(entries)}}}
        self.cluster.api.request("PATCH", self._path("/apis/apps/v1", "controllerrevisions", revision), patch)

    def learned(self) -> dict[str, Any]:
        """What the tuner has stored of what it knows; empty where it has stored nothing yet."""
        records = [item["metadata"]["annotations"].get(LEARNED) for item in self.children("controllerrevisions")]
        found: dict[str, Any] = json.loads(next(filter(None, records), "{}"))
        return found

    def edit_learned(self, learned: Mapping[str, Any]) -> None:
        """Replaces what the tuner has stored. An operator reads it when it starts, and one that runs overwrites it."""
        for item in self.children("controllerrevisions"):
            if item["metadata"]["annotations"].get(LEARNED):
                patch = {"metadata": {"annotations": {LEARNED: json.dumps(learned)}}}
                self.cluster.api.request("PATCH", self._path("/apis/apps/v1", "controllerrevisions", item["metadata"]["name"]), patch)

    def annotate(self, **operations: str | None) -> None:
        """Set ``serving.dflash.io/`` annotations (``promote``, ``abort``, ``pin``), or with None remove them."""
        annotations = {f"serving.dflash.io/{name}": value for name, value in operations.items()}
        self.patch_whole({"metadata": {"annotations": annotations}})

    def events(self) -> list[tuple[str, str]]:
        """Reason and message of the events about it, in the order they were written."""
        selector = f"fieldSelector=involvedObject.kind%3DDFlashDeployment%2CinvolvedObject.name%3D{self.name}"
        items = self.cluster.api.get(f"{self._path('/api/v1', 'events')}?{selector}")["items"]
        items.sort(key=lambda item: int(item["metadata"]["resourceVersion"]))
        return [(item["reason"], item["message"]) for item in items]

    def is_done(self) -> bool:
        """The newest spec is what runs, and nothing is left to do."""
        deployment = self.get()
        status = deployment.get("status") or {}
        conditions = {item["type"]: item["status"] for item in status.get("conditions") or ()}
        return (
            status.get("observedGeneration") == deployment["metadata"]["generation"]
            and conditions.get("Ready") == "True"
            and conditions.get("Reconciling") == "False"
        )

    def wait_done(self, timeout: float = PATIENCE_S) -> None:
        try:
            wait_until(self.is_done, f"{self.namespace}/{self.name} to be done", timeout, 0.1)
        except TimeoutError as error:
            raise TimeoutError(f"{error}: {self.status()}") from None

    def wait_look(self) -> None:
        """Wait until the operator has decided anew, given a reason to: another history limit, which changes nothing else."""
        kept = (self.get()["spec"].get("rollout") or {}).get("historyLimit", 10)
        self.patch(rollout={"historyLimit": kept - 1 if kept > 8 else 10})
        generation = self.get()["metadata"]["generation"]
        wait_until(lambda: self.status().get("observedGeneration") == generation, f"another look at {self.name}")

    def children(self, kind: str) -> list[dict[str, Any]]:
        """Those with its label, of one kind (``deployments``), by name."""
        items: list[dict[str, Any]] = self.cluster.api.get(self.listing(kind))["items"]
        return sorted(items, key=lambda item: str(item["metadata"]["name"]))

    def listing(self, kind: str) -> str:
        """Path and query of a list of its children of one kind, or of itself (``dflashdeployments``)."""
        if kind == "dflashdeployments":
            return f"{self._path(f'/apis/{API_VERSION}', kind)}?fieldSelector=metadata.name%3D{self.name}"
        return f"{self._path(_GROUPS[kind], kind)}?labelSelector=serving.dflash.io%2Fdeployment%3D{self.name}"

    def names(self, kind: str) -> list[str]:
        return [item["metadata"]["name"] for item in self.children(kind)]

    def states(self) -> list[str]:
        """The states of its revisions, oldest first."""
        revisions = sorted(self.children("controllerrevisions"), key=lambda item: int(item["revision"]))
        return [item["metadata"]["annotations"][STATE] for item in revisions]

    def wait_states(self, *states: str, timeout: float = PATIENCE_S) -> None:
        """Wait until these are the states of its revisions, oldest first."""
        wait_until(lambda: self.states() == list(states), f"the revisions of {self.name} to be {states}", timeout, 0.2)

    def tuning(self) -> dict[str, Any]:
        """``status.tuning``; empty where there is none."""
        found: dict[str, Any] = self.status().get("tuning") or {}
        return found

    def wait_tuning(self, timeout: float = PATIENCE_S, **expected: str) -> dict[str, Any]:
        """Wait until ``status.tuning`` says this. Returns it."""

        def told() -> dict[str, Any] | None:
            shown = self.tuning()
            return shown if expected.items() <= shown.items() else None

        try:
            return wait_until(told, "", timeout, 0.2)
        except TimeoutError:
            raise TimeoutError(f"the tuner of {self.name} did not come to {expected}: {self.tuning()}") from None

    def pod_uids(self, revision: str | None = None) -> set[str]:
        """Of all its pods, or of those of one revision (its whole name)."""
        pods = self.children("pods")
        return {pod["metadata"]["uid"] for pod in pods if revision in (None, f"{self.name}-{pod['metadata']['labels'][REVISION]}")}

    def _path(self, group: str, *parts: str) -> str:
        return "/".join((group, "namespaces", self.namespace, *parts))


@contextmanager
def played_with(simulator: SimulatorProcess, namespace: str, faults: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """While it lasts engines of this namespace have faults, by a shell pattern of their drafter's revision."""
    rules = [{"match": {"namespace": namespace, "drafter_revision": pattern}, "faults": given} for pattern, given in faults.items()]
    simulator.ask("PUT", "/rules", rules)
    try:
        yield
    finally:
        simulator.ask("PUT", "/rules", [])


@dataclass(frozen=True)
class Version:
    """One object as it was from this resource version on; ``gone``: deleted then."""

    number: int
    object: dict[str, Any]
    gone: bool


@contextmanager
def followed(deployment: Deployment, kind: str) -> Iterator[list[Version]]:
    """Every version of its pods, or of itself (``dflashdeployments``), that the API server has while it lasts, those at the start included.

    From the watch stream, so none is missed; the list is complete once it is over.
    """
    path, api = deployment.listing(kind), deployment.cluster.api
    start = api.get(path)
    seen = [Version(int(item["metadata"]["resourceVersion"]), item, gone=False) for item in start["items"]]
    command = [str(binaries.path_of("kubectl")), f"--kubeconfig={deployment.cluster.admin_kubeconfig}", "get", "--raw"]
    command += [f"{path}&watch=true&resourceVersion={start['metadata']['resourceVersion']}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        lines = process.stdout

        def follow() -> None:
            for event in map(json.loads, lines or ()):
                number = int(event["object"]["metadata"]["resourceVersion"])
                seen.append(Version(number, event["object"], gone=event["type"] == "DELETED"))

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield seen
            last = {int(item["metadata"]["resourceVersion"]) for item in api.get(path)["items"]}
            wait_until(lambda: last <= {version.number for version in seen}, "the watch to catch up")
        finally:
            process.kill()
            thread.join()


def rollout_spec(replicas: int, *, rollout: Mapping[str, Any] = UNJUDGED, **more: Any) -> dict[str, Any]:
    """A deployment whose drafter is the commit of forty a's, one replica less at a time."""
    return {
        "target": {"model": "Qwen/Qwen3.5-9B", "revision": "f" * 40},
        "drafter": {"revision": "a" * 40},
        "replicas": replicas,
        "tuning": {"mode": "Off"},
        "rollout": {"maxSurge": 0, "maxUnavailable": 1, **rollout},
        **more,
    }
