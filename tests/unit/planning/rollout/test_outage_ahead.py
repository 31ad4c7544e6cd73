"""The event OutageAhead and its condition: told once before the only replica stops, and not while it does not stop."""

from __future__ import annotations

from typing import Any

import pytest

from dflash_controller.planning.state.plan import Event
from tests.support.planning_world import UNDECIDED, Advice, World
from tests.unit.planning.test_planner import COMMIT, set_drafter, settled
from tests.unit.planning.test_rollouts import replicas

WAITS: dict[str, dict[str, Any]] = {
    "OutsideWindow": {"rollout": {"window": {"schedule": "0 22 * * *", "duration": "2h", "timeZone": "Europe/Berlin"}}},
    "Paused": {"rollout": {"paused": True}},
}


def told(world: World, rounds: int = 6) -> list[str]:
    """The reasons of the events of some reconciles."""
    found = []
    for _ in range(rounds):
        found += [step.reason for step in world.plan().steps if isinstance(step, Event)]
        world.reconcile()
        world.controllers()
        world.advance(25)
    return found


def test_a_candidate_of_the_tuner_that_waits_for_a_second_replica_announces_no_outage() -> None:
    world = settled(replicas=2, rollout={"probe": {"enabled": False}}, tuning={"mode": "Auto"})
    world.judgement, world.advice = UNDECIDED, Advice(8)
    world.reconcile()
    assert world.deployment["status"]["candidateRevision"]
    world.edit(lambda spec: spec.update(replicas=1))
    reasons = told(world)
    assert world.deployment["status"]["rollout"]["reason"] == "DowntimeNotAllowed"
    assert "OutageAhead" not in reasons
    assert world.reason("RolloutHealthy") == "DowntimeNotAllowed"
    assert world.serving() == 1


@pytest.mark.parametrize("reason", ["OutsideWindow", "Paused"])
def test_a_candidate_that_waits_for_the_user_s_time_announces_no_outage_after_its_first_plan(reason: str) -> None:
    world = settled(replicas=1, **WAITS[reason])
    world.edit(set_drafter(COMMIT))
    world.reconcile()
    assert "OutageAhead" not in told(world)
    assert (world.deployment["status"]["rollout"]["reason"], world.reason("Reconciling"), world.serving()) == (reason, reason, 1)


def test_a_candidate_that_an_invalid_spec_keeps_waiting_announces_no_outage() -> None:
    world = settled(replicas=1, **WAITS["OutsideWindow"])
    world.edit(set_drafter(COMMIT))
    told(world)
    world.edit(lambda spec: spec.update(blockSize=32))
    assert told(world).count("OutageAhead") == 0
    assert world.reason("RolloutHealthy") == "InvalidSpec"


def test_an_outage_for_the_tuner_is_announced_once() -> None:
    world = settled(replicas=1, rollout={"probe": {"enabled": False}}, tuning={"mode": "Auto", "allowDowntime": True})
    world.judgement, world.advice = UNDECIDED, Advice(8)
    assert told(world).count("OutageAhead") == 1
    assert sorted(replicas(world).values()) == [0, 1]


def test_an_outage_for_the_user_is_announced_once() -> None:
    world = settled(replicas=1, rollout={"probe": {"enabled": False}})
    world.judgement = UNDECIDED
    world.edit(set_drafter(COMMIT))
    assert told(world).count("OutageAhead") == 1
    assert sorted(replicas(world).values()) == [0, 1]
