"""One DFlashDeployment in a demo: changes it and follows what the operator does."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.request import urlopen

from testbed.cluster import Cluster
from testbed.demo_setup import DemoError
from testbed.narration import Teller
from testbed.traffic.scrape import Totals, total
from testbed.traffic.service import ServiceTraffic
from testbed.waiting import wait_until

PATIENCE_S = 600.0
"""Timeout in seconds for every step. It is long, so that a step that is slow on a busy machine does not fail a demo."""
_PATH = "/apis/serving.dflash.io/v1alpha1/namespaces/default/dflashdeployments"
_REASONS = ("TunerTuned", "Promoted")
"""Reasons of events that explain why the operator acts."""

_SETTLING_S = 1.5
"""Seconds for the load to settle after a change."""

Object = dict[str, Any]


class Deployment:
    """A DFlashDeployment in the namespace ``default``. Its waits end once ``stop`` is set."""

    def __init__(self, cluster: Cluster, name: str, stop: threading.Event | None = None) -> None:
        self.cluster = cluster
        self.name = name
        self._stop = stop or threading.Event()

    def create(self, spec: Mapping[str, Any]) -> Deployment:
        """Creates the deployment and waits until it is Ready."""
        manifest = {"apiVersion": "serving.dflash.io/v1alpha1", "kind": "DFlashDeployment", "metadata": {"name": self.name}, "spec": spec}
        self.cluster.api.request("POST", _PATH, manifest)
        return self.wait_ready()

    def patch(self, spec: Mapping[str, Any]) -> str:
        """Runs ``kubectl patch``. Returns the output of kubectl."""
        return self.cluster.kubectl("patch", "dfd", self.name, "--type=merge", f"--patch={json.dumps({'spec': spec})}")

    def wait_ready(self) -> Deployment:
        """Waits until the deployment serves the desired spec."""
        self.cluster.kubectl("wait", "--for=condition=Ready", f"dfd/{self.name}", f"--timeout={PATIENCE_S:.0f}s", timeout=PATIENCE_S + 30)
        return self

    def status(self) -> Object:
        """Returns the status; empty while it belongs to an older generation of the spec."""
        found: Object = self.cluster.api.get(f"{_PATH}/{self.name}")
        status: Object = found.get("status") or {}
        return status if status.get("observedGeneration") == found["metadata"]["generation"] else {}

    def condition(self, type: str) -> Object:
        return next((item for item in self.status().get("conditions", ()) if item["type"] == type), {"status": "Unknown", "message": ""})

    def metrics(self) -> dict[str, float]:
        """Returns the status's metrics of the engines."""
        found: dict[str, float] = self.status().get("metrics") or {}
        return found

    def candidate(self) -> str:
        """Returns the hash of the revision that the last rollout tried."""
        return str(self.status()["rollout"]["revision"]).removeprefix(f"{self.name}-")

    def pods(self) -> list[Object]:
        """Returns the engine pods, without those that are ending."""
        selector = f"serving.dflash.io%2Fdeployment%3D{self.name}%2Cserving.dflash.io%2Frole%3Dengine"
        found: list[Object] = self.cluster.api.get(f"/api/v1/namespaces/default/pods?labelSelector={selector}")["items"]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def urls(self) -> list[str]:
        """Returns the base URLs of the engines."""
        return [f"http://{pod['status']['podIP']}:{pod['spec']['containers'][0]['ports'][0]['containerPort']}" for pod in self.pods()]

    def counters(self) -> Totals:
        """Returns tokens and verify steps from the engines' own /metrics."""
        pages = []
        for url in self.urls():
            with urlopen(f"{url}/metrics", timeout=30) as answer:
                pages.append(answer.read().decode())
        return total(pages)

    def wait(self, condition: Callable[[Object], Any], what: str) -> None:
        """Waits until the status fulfils a condition. Raises DemoError with the current status if it does not."""

        def fulfilled() -> bool:
            if self._stop.is_set():
                raise DemoError(f"{self.name}: nobody waits for {what} any more")
            status = self.status()
            return bool(status and condition(status))

        try:
            wait_until(fulfilled, what, PATIENCE_S, 0.2)
        except TimeoutError:
            raise DemoError(f"{self.name}: waited {PATIENCE_S:.0f} s for {what}. {_standing(self.status())}") from None

    def follow(self, teller: Teller, change: Callable[[], object], label: str, *, end: str = "Completed") -> dict[str, float]:
        """Makes a change and prints what the operator does until the rollout reaches the phase ``end`` and all replicas run this
        speculation.

        Returns the seconds after which each phase was reached. Raises DemoError if the rollout ends differently.
        """
        phase, message = _rollout(self.status())
        heard = {event["metadata"]["uid"] for event in self._events()}
        change()
        begun_s, phases = teller.elapsed_s, dict[str, float]()
        others = {"Completed", "RolledBack", "Held"} - {end}

        def reached(status: Object) -> bool:
            nonlocal phase, message
            for event in self._events():
                if event["metadata"]["uid"] not in heard:
                    heard.add(event["metadata"]["uid"])
                    teller.tell(f"{event['reason']}: {event['message']}")
            before = message
            if phase != (now := _rollout(status))[0]:
                phase, message = now
                phases[phase] = teller.elapsed_s - begun_s
                teller.tell(f"{phase}: {message}" if message != before else phase)
            if ended := others & phases.keys():
                raise DemoError(f"{self.name}: the rollout ended {' and '.join(ended)}, not {end}. {_standing(status)}")
            return bool(end in phases and status["speculation"]["label"] == label)

        self.wait(reached, f"a rollout to end {end} with block size {label}")
        return phases

    def _events(self) -> list[Object]:
        """Returns the events that explain why the operator acts, oldest first."""
        found = self.cluster.api.get(f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3D{self.name}")["items"]
        told = [event for event in found if event["reason"] in _REASONS]
        return sorted(told, key=lambda event: int(event["metadata"]["resourceVersion"]))


@dataclass(frozen=True)
class Followed:
    """A change of load that the block size followed: seconds until then, and the clients' tokens per second before and after."""

    seconds: float
    before: float
    after: float


def follow_load(deployment: Deployment, traffic: ServiceTraffic, teller: Teller, clients: int, label: str, answers: int) -> Followed:
    """Changes the number of clients, waits until the block size has followed, and counts the tokens of ``answers`` more answers."""
    begun = time.monotonic()
    phases = deployment.follow(teller, lambda: traffic.resize(clients), label)
    before = traffic.tokens_per_second(begun + _SETTLING_S, begun + min(phases.values()))
    start = _pause(deployment)
    enough = len(traffic.log.completions) + answers
    deployment.wait(lambda _: len(traffic.log.completions) > enough, f"{answers} more answers")
    end = time.monotonic()
    _pause(deployment)  # Requests that are still running at the end count too, once they are answered.
    after = traffic.tokens_per_second(start, end)
    refuse_failures(traffic)
    return Followed(phases["Completed"], before, after)


def _pause(deployment: Deployment) -> float:
    """Lets the load settle. Returns the time."""
    end = time.monotonic() + _SETTLING_S
    deployment.wait(lambda _: time.monotonic() > end, "the load to settle")
    return time.monotonic()


def refuse_failures(traffic: ServiceTraffic) -> None:
    """Raises DemoError if a request failed."""
    if traffic.failed:
        raise DemoError(f"{traffic.failed} requests failed: {dict(traffic.log.errors)}")


def _rollout(status: Object) -> tuple[str, str]:
    rollout = status.get("rollout") or {}
    return rollout.get("phase", ""), rollout.get("message", "")


def _standing(status: Object) -> str:
    phase, message = _rollout(status)
    told = [f"{phase}: {message}"] if phase else []
    if tuning := status.get("tuning"):
        told.append(f"Tuner {tuning['state']}, {tuning['reason']}: {tuning['message']}")
    told += [f"{item['type']} is {item['status']}: {item['message']}" for item in status.get("conditions", ()) if item["status"] != "True"]
    return ". ".join(told) or "It has no status"
