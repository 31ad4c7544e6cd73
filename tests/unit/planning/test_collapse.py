"""A drafter in force that collapses: told in every mode, and in Auto replaced by what worked, or by none."""

from __future__ import annotations

from typing import Any

import pytest

from dflash_controller.model.load_sample import LoadSample
from dflash_controller.planning.state.inputs import Knowledge
from dflash_controller.tuner.learned import Learned
from tests.support.planning_world import FAILED, PASSED, UNDECIDED, World
from tests.unit.planning.test_planner import COMMIT, set_drafter, settled, states
from tests.unit.planning.test_rollouts import phase, replicas

GOOD, BAD = 6.0, 1.01


def serve(world: World, length: float, block: int = 16) -> None:
    """Five minutes of steady traffic on the active revision."""
    world.advance(300)
    now_s = world.now.timestamp()
    recent = tuple(
        LoadSample(now_s - 30 * age, 30.0, block, 8.0, 0.01, 20_000.0, 20_000.0 * length, 20_000.0 * length) for age in range(10, -1, -1)
    )
    world.tuning = Knowledge(learned=Learned(), recent=recent, measured=3)
    world.reconcile()


def served(mode: str = "Auto", **spec: Any) -> World:
    world = settled(**{"replicas": 3, "tuning": {"mode": mode}, **spec})
    serve(world, GOOD)
    world.settle()
    assert world.condition("SpeculationHealthy") == "True"
    return world


def block(world: World) -> str:
    return str(world.deployment["status"]["speculation"]["label"])


def quiet(world: World) -> None:
    """Nothing was measured yet of what is active now."""
    world.tuning = Knowledge(learned=Learned(), measured=3)


def collapse(world: World) -> None:
    serve(world, BAD)
    quiet_after_begin(world)


def quiet_after_begin(world: World) -> None:
    """Load samples are those of the active revision, so they go with it."""
    for _ in range(40):
        stable = world.deployment["status"]["stableRevision"]
        written = world.reconcile()
        if world.deployment["status"]["stableRevision"] != stable:
            quiet(world)
        if not world.controllers() and not written:
            return


@pytest.mark.parametrize("mode", ["Off", "Advise"])
def test_it_is_told_in_every_mode_and_acted_upon_in_auto_alone(mode: str) -> None:
    world = served(mode)
    collapse(world)
    assert (world.condition("SpeculationHealthy"), world.reason("SpeculationHealthy")) == ("False", "DrafterCollapsed")
    assert (block(world), len(world.of_kind("ControllerRevision"))) == ("16", 1)
    assert world.condition("Ready") == "True"


def test_without_a_revision_that_worked_speculation_goes_off() -> None:
    world = served()
    world.judgement = UNDECIDED
    collapse(world)
    assert (block(world), phase(world)) == ("off", "Completed")
    assert states(world) == {1: "Failed", 2: "Stable"}
    assert (world.condition("SpeculationHealthy"), world.reason("SpeculationHealthy")) == ("False", "SpeculationOff")
    assert sum(replicas(world).values()) == 3


def test_it_does_not_oscillate() -> None:
    world = served()
    collapse(world)
    for _ in range(10):
        serve(world, 1.0, block=1)
        quiet_after_begin(world)
    assert (block(world), len(world.of_kind("ControllerRevision"))) == ("off", 2)


def test_the_last_drafter_that_worked_comes_back_and_the_spec_is_told_as_failed() -> None:
    world = served()
    first = world.deployment["status"]["stableRevision"]
    world.edit(set_drafter(COMMIT))
    world.settle()
    serve(world, GOOD)
    collapse(world)
    assert world.deployment["status"]["stableRevision"] == first
    assert states(world)[2] == "Failed"
    assert (world.condition("Ready"), world.condition("Stalled")) == ("False", "True")
    assert phase(world) == "RolledBack"
    serve(world, GOOD)
    world.settle()
    assert world.condition("SpeculationHealthy") == "True"
    assert world.deployment["status"]["stableRevision"] == first


def test_a_drafter_that_is_mended_drafts_again() -> None:
    world = served()
    collapse(world)
    world.judgement = PASSED
    world.edit(set_drafter(COMMIT))
    world.settle()
    assert block(world) == "16"
    assert world.condition("Ready") == "True"


def test_a_single_replica_is_not_taken_down_unasked() -> None:
    world = served(replicas=1)
    collapse(world)
    assert (block(world), world.condition("SpeculationHealthy")) == ("16", "False")


def test_an_operator_that_ends_between_two_writes_finishes_what_it_began() -> None:
    """At every step of every plan on the way: the end is the same."""
    for dies_after in range(6):
        world = served()
        world.judgement = UNDECIDED
        serve(world, BAD)
        for _ in range(12):
            stable = world.deployment["status"]["stableRevision"]
            world.reconcile(stop_after=dies_after)
            world.reconcile()
            if world.deployment["status"]["stableRevision"] != stable:
                quiet(world)
            world.controllers()
        quiet(world)
        world.settle()
        assert (block(world), states(world)) == ("off", {1: "Failed", 2: "Stable"}), dies_after


def test_a_collapse_is_acted_upon_while_the_users_drafter_is_rolled_back() -> None:
    world = served()
    world.judgement = FAILED
    world.edit(set_drafter(COMMIT))
    world.settle()
    assert phase(world) == "RolledBack"
    failed = world.deployment["status"]["rollout"]["revision"]
    world.judgement = UNDECIDED
    collapse(world)
    assert block(world) == "off"
    assert states(world) == {1: "Failed", 2: "Failed", 3: "Stable"}
    assert (world.condition("Stalled"), world.condition("Reconciling"), phase(world)) == ("True", "False", "RolledBack")
    assert world.deployment["status"]["rollout"]["revision"] == failed
    assert sum(replicas(world).values()) == 3
