"""When a stable revision that does not serve lets a candidate pass without a comparison, and when it does not."""

from __future__ import annotations

import pytest

from dflash_controller.planning.revisions.revision import read
from dflash_controller.render.startup import progress_deadline_s
from tests.support.planning_world import UNDECIDED, World
from tests.unit.planning.test_planner import COMMIT, set_drafter, settled
from tests.unit.planning.test_rollouts import phase, replicas


def on_trial(count: int = 2, **rollout: int) -> World:
    world = settled(replicas=count, rollout=rollout, tuning={"mode": "Off"})
    world.judgement = UNDECIDED
    world.edit(set_drafter(COMMIT))
    world.settle()
    assert phase(world) == "Analyzing"
    return world


def stable(world: World) -> str:
    return str(world.deployment["status"]["stableRevision"]).removeprefix("chat-")


def down(world: World, *, restarts: int = 0) -> None:
    """Stable's pods are not Ready."""
    world.troubles[stable(world)] = {"restarts": restarts}
    for pod in world.pods.values():
        if pod["revision"] == stable(world):
            pod["ready"] = False


def up(world: World) -> None:
    world.troubles.clear()
    world.controllers()


@pytest.mark.parametrize("rollout", [{}, {"maxSurge": 1}])
def test_a_moment_in_which_stable_is_not_ready_promotes_nobody(rollout: dict[str, int]) -> None:
    world = on_trial(**rollout)
    before = stable(world)
    for _ in range(5):
        down(world, restarts=1)
        world.reconcile()
        world.advance(170)
        world.reconcile()
        up(world)
        world.reconcile()
    assert (phase(world), stable(world)) == ("Analyzing", before)


def test_a_moment_at_the_beginning_of_the_trial_is_forgotten() -> None:
    world = settled(replicas=1, rollout={"maxSurge": 1}, tuning={"mode": "Off"})
    world.judgement = UNDECIDED
    down(world, restarts=1)
    world.edit(set_drafter(COMMIT))
    for _ in range(4):
        world.reconcile()
        world.controllers(start=False)
    up(world)
    world.settle()
    world.advance(3600)
    world.settle()
    assert phase(world) == "Analyzing"


def test_a_stable_revision_whose_every_pod_fails_for_three_minutes_is_left() -> None:
    world = on_trial()
    down(world, restarts=1)
    world.reconcile()
    world.advance(179)
    world.reconcile()
    assert phase(world) == "Analyzing"
    assert world.plan().requeue_after_s == 1.0
    world.advance(1)
    world.settle()
    assert phase(world) == "Completed"


def test_a_stable_revision_that_merely_loads_gets_its_start_up_budget() -> None:
    world = on_trial()
    [record] = [found for item in world.of_kind("ControllerRevision") if (found := read(item)) and found.hash == stable(world)]
    down(world)
    world.reconcile()
    world.advance(progress_deadline_s(record.resolved) - 1)
    world.reconcile()
    assert phase(world) == "Analyzing"
    world.advance(1)
    world.settle()
    assert phase(world) == "Completed"


def test_a_stable_revision_that_stopped_for_the_candidate_is_not_called_down() -> None:
    world = on_trial(1)
    for _ in range(10):
        world.advance(600)
        world.settle()
        assert phase(world) == "Analyzing"


@pytest.mark.parametrize(("exits", "promoted"), [(5, True), (1, False)])
def test_a_single_replica_that_was_broken_for_good_lets_the_candidate_pass(exits: int, promoted: bool) -> None:
    world = broken(exits)
    before = stable(world)
    world.advance(180)
    world.edit(set_drafter(COMMIT))
    world.settle()
    assert (stable(world) != before, phase(world)) == ((True, "Completed") if promoted else (False, "Analyzing"))


def broken(exits: int) -> World:
    """The engine of a single replica has just exited, and so many times since its pod was made."""
    world = settled(replicas=1, tuning={"mode": "Off"})
    world.judgement = UNDECIDED
    world.troubles[stable(world)] = {"restarts": exits, "exit_code": 1, "container": "engine", "waiting_reason": "CrashLoopBackOff"}
    for pod in world.pods.values():
        pod["ready"] = False
    world.reconcile()
    return world


def test_a_single_replica_that_exits_again_after_weeks_gets_three_minutes_to_recover() -> None:
    world = broken(exits=6)
    before = stable(world)
    world.edit(set_drafter(COMMIT))
    world.advance(179)
    world.settle()
    assert (phase(world), sorted(replicas(world).values())) == ("Preparing", [1])
    assert "given 3 minutes to recover" in world.deployment["status"]["rollout"]["message"]
    world.troubles.clear()
    world.settle()
    assert (phase(world), stable(world)) == ("Analyzing", before), "it served again, so the candidate is compared with its answers"


def test_a_single_replica_that_does_not_recover_in_three_minutes_is_replaced() -> None:
    world = broken(exits=6)
    before = stable(world)
    world.edit(set_drafter(COMMIT))
    world.advance(179)
    world.settle()
    assert (phase(world), stable(world)) == ("Preparing", before)
    world.advance(1)
    world.settle()
    assert (phase(world), stable(world) != before) == ("Completed", True)
