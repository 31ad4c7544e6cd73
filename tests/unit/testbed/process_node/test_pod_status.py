"""The status of a pod as the kubelet reports it."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.process_node.pod_status import BackOff, ContainerState, phase, pod_status, termination_message


def state() -> ContainerState:
    return ContainerState("engine", "image", {"reason": "ContainerCreating"})


def running(*, ready: bool) -> ContainerState:
    made = state()
    made.runs("2026-01-01T00:00:00Z", "process://7")
    made.started = made.ready = ready
    return made


def ended(code: int) -> ContainerState:
    made = running(ready=True)
    made.ended(code, "")
    return made


def conditions(status: dict[str, Any]) -> dict[str, str]:
    return {item["type"]: item["status"] for item in status["conditions"]}


def status_of(made: ContainerState, before: list[dict[str, str]] | None = None, **spec: Any) -> dict[str, Any]:
    pod = {"spec": spec, "status": {"conditions": before or []}}
    return pod_status(pod, [made], "127.1.250.1", "127.1.250.254", "2026-01-01T00:00:00Z")


def test_a_running_container_is_ready_only_when_its_probe_says_so() -> None:
    starting, ready = status_of(running(ready=False)), status_of(running(ready=True))
    assert (starting["phase"], conditions(starting)["Ready"], conditions(starting)["ContainersReady"]) == ("Running", "False", "False")
    assert (ready["phase"], conditions(ready)["Ready"], conditions(ready)["ContainersReady"]) == ("Running", "True", "True")
    assert ready["podIP"] == "127.1.250.1"


def test_conditions_of_others_stay_and_a_transition_time_changes_with_the_status_only() -> None:
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}
    unready = {"type": "Ready", "status": "False", "lastTransitionTime": "2020-01-01T00:00:00Z"}
    same = status_of(running(ready=False), [scheduled, unready])["conditions"]
    other = status_of(running(ready=True), [scheduled, unready])["conditions"]
    assert scheduled in same
    assert next(item for item in same if item["type"] == "Ready")["lastTransitionTime"] == "2020-01-01T00:00:00Z"
    assert next(item for item in other if item["type"] == "Ready")["lastTransitionTime"] > "2020-01-01T00:00:00Z"


def test_a_readiness_gate_holds_the_pod_back_but_not_its_containers() -> None:
    gated = {"readinessGates": [{"conditionType": "example.com/open"}]}
    closed = conditions(status_of(running(ready=True), **gated))
    opened = conditions(status_of(running(ready=True), [{"type": "example.com/open", "status": "True"}], **gated))
    assert (closed["ContainersReady"], closed["Ready"], opened["Ready"]) == ("True", "False", "True")


@pytest.mark.parametrize(
    ("made", "policy", "expected"),
    [
        (state(), "Always", "Pending"),
        (ended(1), "Always", "Running"),
        (ended(0), "OnFailure", "Succeeded"),
        (ended(1), "OnFailure", "Running"),
        (ended(0), "Never", "Succeeded"),
        (ended(137), "Never", "Failed"),
    ],
)
def test_the_phase_follows_from_exit_codes_and_restart_policy(made: ContainerState, policy: str, expected: str) -> None:
    assert phase([made], policy) == expected


def test_a_crash_shows_its_exit_code_while_it_waits_and_after_the_restart() -> None:
    crashed = ended(137)
    assert crashed.to_json()["state"]["terminated"]["exitCode"] == 137
    crashed.waits("CrashLoopBackOff", "back-off 10s")
    waiting = crashed.to_json()
    assert waiting["state"] == {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    assert waiting["lastState"]["terminated"]["exitCode"] == 137
    crashed.runs("2026-01-01T00:01:00Z", "process://8")
    assert crashed.to_json()["lastState"]["terminated"]["containerID"] == "process://7"


def test_restarts_wait_as_long_as_the_kubelets() -> None:
    back_off = BackOff()
    assert [back_off.after(5.0) for _ in range(8)] == [0, 10, 20, 40, 80, 160, 300, 300]
    assert [back_off.after(ran) for ran in (601.0, 5.0)] == [0, 10]


def test_a_termination_message_is_the_end_of_the_log() -> None:
    assert termination_message(b"\n".join(b"line %d" % number for number in range(100))).startswith("line 20\n")
    assert len(termination_message(b"x" * 5000)) == 2048
