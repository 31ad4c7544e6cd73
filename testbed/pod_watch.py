"""History of the engine pods from the API server's own watch stream, so no moment between two evaluations is missed."""

from __future__ import annotations

import json
import subprocess
import threading
from collections import defaultdict
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from testbed import binaries
from testbed.cluster import Cluster
from testbed.waiting import wait_until

_LABEL = "serving.dflash.io/deployment"
_PODS = "/api/v1/pods?labelSelector=serving.dflash.io%2Fdeployment%2Cserving.dflash.io%2Frole%3Dengine"


@dataclass(frozen=True, slots=True)
class Moment:
    """The engine pods of one deployment after one change: those that are Ready and not terminating, and all that exist, terminating ones
    included."""

    version: int
    change: str
    serving: int
    held: int


class PodWatch:
    """Records every change of every engine pod of the cluster during its ``with`` block."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._follow, name="pod-watch", daemon=True)
        self._pods: defaultdict[tuple[str, str], dict[str, tuple[int, bool]]] = defaultdict(dict)
        self._moments: defaultdict[tuple[str, str], list[Moment]] = defaultdict(list)

    def __enter__(self) -> PodWatch:
        start = self._cluster.api.get(_PODS)["metadata"]["resourceVersion"]
        command = [str(binaries.path_of("kubectl")), f"--kubeconfig={self._cluster.admin_kubeconfig}"]
        command += ["get", "--raw", f"{_PODS}&watch=true&resourceVersion={start}"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._thread.join()

    def moments(self, namespace: str, deployment: str) -> list[Moment]:
        """Returns every change of a deployment's pods so far, oldest first. It includes whatever the API server shows now."""
        listing = f"/api/v1/namespaces/{namespace}/pods?labelSelector={_LABEL.replace('/', '%2F')}%3D{deployment}"
        pods = self._pods[namespace, deployment]

        def caught_up() -> bool:
            if not self._thread.is_alive():
                raise RuntimeError("the watch of the pods ended")
            listed = {pod["metadata"]["name"]: int(pod["metadata"]["resourceVersion"]) for pod in self._cluster.api.get(listing)["items"]}
            return listed == {name: version for name, (version, _) in pods.copy().items()}

        wait_until(caught_up, f"the watch of the pods of {namespace}/{deployment}")
        return list(self._moments[namespace, deployment])

    def _follow(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            self._take_in(event["type"], event["object"])

    def _take_in(self, type: str, pod: dict[str, Any]) -> None:
        metadata = pod["metadata"]
        key = metadata["namespace"], metadata["labels"][_LABEL]
        name, pods = metadata["name"], self._pods[key]
        if type == "DELETED":
            pods.pop(name, None)
        else:
            pods[name] = int(metadata["resourceVersion"]), _serves(pod)
        serving = sum(serves for _, serves in pods.values())
        self._moments[key].append(Moment(int(metadata["resourceVersion"]), f"{name} {type.lower()}", serving, held=len(pods)))


def _serves(pod: dict[str, Any]) -> bool:
    ready = any(item["type"] == "Ready" and item["status"] == "True" for item in pod["status"].get("conditions") or ())
    return ready and "deletionTimestamp" not in pod["metadata"]


def breaks(moments: list[Moment], *, least: int, most: int) -> list[Moment]:
    """Returns the moments at which fewer than ``least`` pods served, or more than ``most`` existed. It counts from the first moment with
    ``least``."""
    risen, found = False, []
    for moment in moments:
        risen = risen or moment.serving >= least
        if (risen and moment.serving < least) or moment.held > most:
            found.append(moment)
    return found
