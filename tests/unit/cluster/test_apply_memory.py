"""Futile applies are not repeated; fights over a field are told and slowed down."""

from __future__ import annotations

from typing import Any

from dflash_controller.api.names import FIELD_MANAGER
from dflash_controller.cluster import kinds
from dflash_controller.cluster.apply import ApplyDecision, ApplyMemory

IDENTITY = (kinds.SERVICE, "ns", "demo")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def manifest(port: int = 1) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "demo", "namespace": "ns"}, "spec": {"port": port}}


def live(port: int, version: int = 1, **spec: Any) -> dict[str, Any]:
    ours = {"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": {"f:spec": {"f:port": {}}}}
    return {
        "metadata": {"name": "demo", "namespace": "ns", "resourceVersion": str(version), "managedFields": [ours]},
        "spec": {"port": port, **spec},
        "status": {"tick": version},
    }


def test_a_settled_object_is_left_alone_and_a_missing_one_is_made() -> None:
    memory = ApplyMemory(Clock())
    assert memory.decide(IDENTITY, manifest(), live(1)) == ApplyDecision(send=False)
    assert memory.decide(IDENTITY, manifest(), None) == ApplyDecision(send=True)


def test_a_futile_apply_is_not_repeated_until_something_but_the_status_moves() -> None:
    memory = ApplyMemory(Clock())
    assert memory.decide(IDENTITY, manifest(2), live(1)).send
    memory.applied(IDENTITY, manifest(2), live(1, 7), live(1, 7))
    assert memory.decide(IDENTITY, manifest(2), live(1, 8)) == ApplyDecision(send=False)
    assert memory.decide(IDENTITY, manifest(2), live(1, 9, other=1)).send
    assert memory.decide(IDENTITY, manifest(3), live(1, 8)).send


def put_back(memory: ApplyMemory) -> ApplyDecision:
    decision = memory.decide(IDENTITY, manifest(1), live(2))
    if decision.send:
        memory.applied(IDENTITY, manifest(1), live(2, 1), live(1, 2))
    return decision


def test_the_third_time_within_ten_minutes_is_a_fight_that_slows_down() -> None:
    clock = Clock()
    memory = ApplyMemory(clock)
    memory.applied(IDENTITY, manifest(1), None, live(1))
    assert [put_back(memory) for _ in range(2)] == [ApplyDecision(send=True)] * 2
    pauses = []
    for _ in range(9):
        decision = put_back(memory)
        assert decision.send
        assert decision.conflict
        assert decision.retry_after_s is not None
        pauses.append(decision.retry_after_s)
        clock.now += decision.retry_after_s - 1.0
        assert put_back(memory) == ApplyDecision(send=False, retry_after_s=1.0, contested=True)
        clock.now += 1.0
    assert pauses == [60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 3600.0, 3600.0, 3600.0]


def test_an_object_counts_as_contested_from_the_third_time_until_it_has_been_left_alone() -> None:
    clock = Clock()
    memory = ApplyMemory(clock)
    memory.applied(IDENTITY, manifest(1), None, live(1))
    seen = []
    for _ in range(3):
        put_back(memory)
        seen.append(memory.decide(IDENTITY, manifest(1), live(1)).contested)
    assert seen == [False, False, True]
    clock.now += 600.0
    assert memory.decide(IDENTITY, manifest(1), live(1)).contested
    clock.now += 61.0
    assert not memory.decide(IDENTITY, manifest(1), live(1)).contested


def test_a_repair_now_and_then_is_no_fight_and_a_quiet_time_ends_one() -> None:
    clock = Clock()
    memory = ApplyMemory(clock)
    memory.applied(IDENTITY, manifest(1), None, live(1))
    for _ in range(6):
        assert put_back(memory) == ApplyDecision(send=True)
        clock.now += 400.0
    for _ in range(4):
        put_back(memory)
    clock.now += 10_000.0
    assert put_back(memory) == ApplyDecision(send=True)


def test_a_new_manifest_is_never_held_back() -> None:
    clock = Clock()
    memory = ApplyMemory(clock)
    memory.applied(IDENTITY, manifest(1), None, live(1))
    for _ in range(3):
        put_back(memory)
    assert not put_back(memory).send
    assert memory.decide(IDENTITY, manifest(5), live(2)) == ApplyDecision(send=True)


def test_only_writes_that_were_carried_out_count() -> None:
    """One that meets a conflict is decided anew, often several times in a second after an edit."""
    memory = ApplyMemory(Clock())
    memory.applied(IDENTITY, manifest(1), None, live(1))
    for _ in range(10):
        assert memory.decide(IDENTITY, manifest(1), live(2)) == ApplyDecision(send=True)
    assert [put_back(memory) for _ in range(2)] == [ApplyDecision(send=True)] * 2
    assert put_back(memory).conflict == (("f:spec", "f:port"),)


def test_a_field_that_nobody_fights_about_is_put_back_during_the_pause_of_another() -> None:
    memory, asked = ApplyMemory(Clock()), manifest(1) | {"spec": {"port": 1, "type": "ClusterIP"}}

    def changed(**spec: Any) -> dict[str, Any]:
        found = live(**{"port": 1, "type": "ClusterIP", **spec})
        found["metadata"]["managedFields"][0]["fieldsV1"] = {"f:spec": {"f:port": {}, "f:type": {}}}
        return found

    def put_it_back(**spec: Any) -> ApplyDecision:
        decision = memory.decide(IDENTITY, asked, changed(**spec))
        if decision.send:
            memory.applied(IDENTITY, asked, changed(**spec), changed(version=2))
        return decision

    memory.applied(IDENTITY, asked, None, changed())
    decisions = [put_it_back(port=2) for _ in range(3)]
    assert (decisions[-1].conflict, decisions[-1].retry_after_s) == ((("f:spec", "f:port"),), 60.0)
    assert not put_it_back(port=3).send
    assert put_it_back(type="NodePort") == ApplyDecision(send=True)
    both = put_it_back(port=2, type="NodePort")
    assert (both.send, both.conflict) == (True, (("f:spec", "f:port"),)), "an apply is one for the whole object"
    assert not put_it_back(port=2).send


def test_objects_that_are_gone_are_forgotten() -> None:
    memory = ApplyMemory(Clock())
    memory.applied(IDENTITY, manifest(2), live(1, 7), live(1, 7))
    memory.prune(lambda identity: False)
    assert memory.decide(IDENTITY, manifest(2), live(1, 8)).send
