"""One replica is left in the middle of a trial: it stays the active revision's."""

from __future__ import annotations

import pytest

from dflash_controller.api import names
from tests.support.planning_world import UNDECIDED, World
from tests.unit.planning.test_planner import COMMIT, set_drafter, settled, states
from tests.unit.planning.test_rollouts import annotate, candidate, phase, replicas


def on_trial(count: int, **rollout: int) -> World:
    world = settled(replicas=count, rollout=rollout, tuning={"mode": "Off"})
    world.judgement = UNDECIDED
    world.edit(set_drafter(COMMIT))
    world.settle()
    assert phase(world) == "Analyzing"
    return world


def scale(world: World, count: int) -> None:
    """As an autoscaler does, with no less than one replica serving at any moment."""
    world.edit(lambda spec: spec.update(replicas=count))
    for _ in range(20):
        world.reconcile()
        world.controllers()
        assert world.serving() >= 1
    world.settle()


def only_stable_runs(world: World) -> bool:
    counts = {name: count for name, count in replicas(world).items() if count}
    return counts == {world.deployment["status"]["stableRevision"]: 1}


@pytest.mark.parametrize("count", [2, 3])
def test_scaling_to_one_in_mid_trial_keeps_stable_and_the_trial_goes_on_with_two(count: int) -> None:
    world = on_trial(count)
    scale(world, 1)
    assert (phase(world), world.deployment["status"]["rollout"]["reason"]) == ("Preparing", "ScaledToOne")
    assert only_stable_runs(world)
    message = world.deployment["status"]["rollout"]["message"]
    assert all(words in message for words in ("spec.replicas", "spec.rollout.maxSurge", "abort", "promote"))
    world.advance(86400)
    world.settle()
    assert only_stable_runs(world)
    scale(world, 2)
    assert (phase(world), states(world)) == ("Analyzing", {1: "Stable", 2: "Candidate"})


def test_the_trial_goes_on_with_a_surge() -> None:
    world = on_trial(2)
    scale(world, 1)
    world.edit(lambda spec: spec.update(rollout={"maxSurge": 1}))
    world.settle()
    assert (phase(world), sorted(replicas(world).values())) == ("Analyzing", [1, 1])


def test_a_human_can_promote_or_abort_at_one_replica() -> None:
    for operation, end in ((names.ANNOTATION_PROMOTE, "Completed"), (names.ANNOTATION_ABORT, "RolledBack")):
        world = on_trial(2)
        scale(world, 1)
        annotate(world, operation, candidate(world))
        world.settle()
        assert (phase(world), world.serving()) == (end, 1)


def test_scaling_on_to_zero_and_back_to_one_changes_nothing_of_it() -> None:
    world = on_trial(2)
    scale(world, 1)
    world.edit(lambda spec: spec.update(replicas=0))
    world.settle()
    assert world.deployment["status"]["rollout"]["reason"] == "ScaledToZero"
    world.edit(lambda spec: spec.update(replicas=1))
    world.settle()
    assert world.deployment["status"]["rollout"]["reason"] == "ScaledToOne"
    assert only_stable_runs(world)


def test_a_trial_that_began_at_one_replica_goes_on() -> None:
    world = on_trial(1)
    world.advance(600)
    world.settle()
    assert phase(world) == "Analyzing"


def test_with_a_surge_a_trial_goes_on_at_one_replica() -> None:
    world = on_trial(3, maxSurge=1)
    scale(world, 1)
    assert phase(world) == "Analyzing"
