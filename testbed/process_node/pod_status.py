"""The status of a pod as the kubelet reports it, from the states of its containers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

_OURS = ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")
MESSAGE_LIMIT = 2048
"""Most bytes of the log that become a termination message, and at most 80 lines (kubelet, FallbackToLogsOnError)."""
_MESSAGE_LINES = 80


def timestamp(at: datetime | None = None) -> str:
    """Returns a time as the API writes it."""
    return (at or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(slots=True)
class ContainerState:
    """What is known about a container. Exactly one of ``running_since``, ``terminated`` and ``waiting`` is set."""

    name: str
    image: str
    waiting: Mapping[str, str] | None
    running_since: str | None = None
    terminated: Mapping[str, Any] | None = None
    last: Mapping[str, Any] | None = None
    """How it ended the last time."""
    restarts: int = 0
    started: bool = False
    """Whether its startup probe has succeeded."""
    ready: bool = False
    id: str = ""

    def waits(self, reason: str, message: str = "") -> None:
        if self.terminated:
            self.last = self.terminated
        self.waiting = {"reason": reason, **({"message": message} if message else {})}
        self.running_since = self.terminated = None
        self.started = self.ready = False

    def runs(self, since: str, id: str, restarts: int = 0) -> None:
        if self.terminated:
            self.last = self.terminated
        self.waiting = self.terminated = None
        self.running_since, self.id, self.restarts = since, id, restarts
        self.started = self.ready = False

    def ended(self, code: int, message: str) -> None:
        self.terminated = {
            "exitCode": code,
            "reason": "Completed" if code == 0 else "Error",
            "startedAt": self.running_since,
            "finishedAt": timestamp(),
            "containerID": self.id,
            **({"message": message} if message else {}),
        }
        self.waiting = self.running_since = None
        self.started = self.ready = False

    def to_json(self) -> dict[str, Any]:
        state: dict[str, Any] = {"running": {"startedAt": self.running_since}} if self.running_since else {}
        if self.terminated:
            state = {"terminated": dict(self.terminated)}
        elif self.waiting:
            state = {"waiting": dict(self.waiting)}
        return {
            "name": self.name,
            "image": self.image,
            "imageID": "",
            "ready": self.ready,
            "started": self.started,
            "restartCount": self.restarts,
            "state": state,
            "lastState": {"terminated": dict(self.last)} if self.last else {},
            **({"containerID": self.id} if self.id else {}),
        }


def phase(states: Sequence[ContainerState], restart_policy: str) -> str:
    """Returns the phase: Pending, Running, Succeeded or Failed."""
    if all(state.terminated for state in states):
        codes = [int(state.terminated["exitCode"]) for state in states if state.terminated]
        if restart_policy == "Never" or (restart_policy == "OnFailure" and not any(codes)):
            return "Failed" if any(codes) else "Succeeded"
    ever = any(state.running_since or state.terminated or state.last for state in states)
    return "Running" if ever else "Pending"


def pod_status(
    pod: Mapping[str, Any], states: Sequence[ContainerState], address: str, host_address: str, started_at: str, final: str | None = None
) -> dict[str, Any]:
    """Returns the whole status to write: conditions of others are kept, and transition times of what did not change. ``final`` is the
    phase of a pod that ends."""
    now = timestamp()
    what = final or phase(states, pod["spec"].get("restartPolicy") or "Always")
    over = what in ("Succeeded", "Failed")
    waiting = [state.name for state in states if not state.ready]
    gates = [gate["conditionType"] for gate in pod["spec"].get("readinessGates") or ()]
    before: list[Mapping[str, Any]] = (pod.get("status") or {}).get("conditions") or []
    fulfilled = {item["type"] for item in before if item["status"] == "True"}
    reason = {"reason": "PodCompleted" if what == "Succeeded" else "PodFailed"} if over else {"reason": "ContainersNotReady"}
    unready = {"status": "False", **reason, **({"message": f"containers with unready status: [{' '.join(waiting)}]"} if not over else {})}
    containers_ready: dict[str, Any] = {"status": "True"} if not waiting and not over else unready
    ready = containers_ready
    if ready["status"] == "True" and not fulfilled.issuperset(gates):
        ready = {"status": "False", "reason": "ReadinessGatesNotReady"}
    created = {"status": "True"} if what != "Pending" or any(state.id for state in states) else {"status": "False"}
    mine = {"PodReadyToStartContainers": created, "Initialized": {"status": "True"}, "ContainersReady": containers_ready, "Ready": ready}
    return {
        "phase": what,
        "conditions": [*_kept(before), *(_condition(type, mine[type], before, now) for type in _OURS)],
        "containerStatuses": [state.to_json() for state in states],
        "hostIP": host_address,
        "hostIPs": [{"ip": host_address}],
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": started_at,
        "qosClass": (pod.get("status") or {}).get("qosClass", "Burstable"),
    }


def _kept(before: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [dict(item) for item in before if item["type"] not in _OURS]


def _condition(type: str, value: Mapping[str, Any], before: Iterable[Mapping[str, Any]], now: str) -> dict[str, Any]:
    old = next((item for item in before if item["type"] == type), None)
    since = old.get("lastTransitionTime", now) if old and old["status"] == value["status"] else now
    # The API server merges conditions by type, so a reason that no longer applies is removed by name.
    return {"type": type, "lastTransitionTime": since, "reason": None, "message": None, **value}


def termination_message(log: bytes) -> str:
    """Returns the end of a log that the kubelet takes for the message of a failed container: 80 lines, 2,048 bytes at most."""
    lines = log[-16 * MESSAGE_LIMIT :].decode(errors="replace").splitlines()[-_MESSAGE_LINES:]
    return "\n".join(lines).encode()[-MESSAGE_LIMIT:].decode(errors="ignore")


class BackOff:
    """How long a container that ended waits for its next start: not at all the first time, then 10 s, doubled up to 5 min.

    It begins anew after a run of twice the longest wait (kubelet: kuberuntime and client-go's flowcontrol).
    """

    def __init__(self, first_s: float = 10.0, most_s: float = 300.0) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._next_s = 0.0

    def after(self, ran_s: float) -> float:
        """Returns the seconds to wait after a run of ``ran_s`` seconds."""
        if ran_s > 2 * self._most_s:
            self._next_s = 0.0
        wait_s = self._next_s
        self._next_s = min(self._most_s, max(self._first_s, 2 * self._next_s))
        return wait_s
