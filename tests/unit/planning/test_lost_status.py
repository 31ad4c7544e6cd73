"""A status may be lost at any time: what is decided and shown then comes from the ControllerRevisions."""

from __future__ import annotations

import pytest

from dflash_controller.planning.revisions.roles import read_stored
from dflash_controller.planning.state.plan import Plan
from tests.support.planning_world import World
from tests.unit.planning.test_collapse import BAD, GOOD, serve, served
from tests.unit.planning.test_planner import COMMIT, set_drafter, settled, states


def stable_of(world: World) -> tuple[str, int]:
    """Name and number of the stable revision."""
    stable = read_stored(world.of_kind("ControllerRevision")).stable
    assert stable is not None
    return stable.name, stable.number


@pytest.mark.parametrize(("length", "healthy"), [(GOOD, "True"), (BAD, "False")])
def test_the_drafter_is_judged_at_once(length: float, healthy: str) -> None:
    world = served("Advise")
    del world.deployment["status"]
    serve(world, length)
    assert world.condition("SpeculationHealthy") == healthy


def test_metrics_of_the_stable_revision_are_shown_at_once() -> None:
    world = settled(replicas=2)
    world.metric_values = {"acceptanceLength": 5.2}
    del world.deployment["status"]
    world.reconcile()
    assert world.deployment["status"]["metrics"]["acceptanceLength"] == 5.2


def promotion(world: World) -> Plan:
    """Roll out another drafter as far as the plan that promotes it."""
    first, _ = stable_of(world)
    world.edit(set_drafter(COMMIT))
    for _ in range(40):
        plan = world.plan()
        assert plan.status is not None
        if plan.status["stableRevision"] != first:
            return plan
        world.carry_out(plan)
        world.controllers()
    raise AssertionError("nothing is promoted")


def test_metrics_of_the_revision_before_are_not_shown_for_the_one_that_is_promoted() -> None:
    """Neither in the plan that promotes it, nor after an operator that ended between the promotion and the status."""
    world = settled(replicas=2)
    world.metric_values = {"acceptanceLength": 5.2}
    world.reconcile()
    plan = promotion(world)
    assert plan.status is not None
    assert plan.status["metrics"] is None
    world.carry_out(plan, stop_after=len(plan.steps))
    world.metric_values = None
    world.reconcile()
    assert world.deployment["status"]["stableRevision"] == stable_of(world)[0]
    assert "metrics" not in world.deployment["status"]


def test_a_promotion_that_was_cut_short_leaves_one_stable_revision() -> None:
    world = settled(replicas=2)
    plan = promotion(world)
    world.carry_out(plan, stop_after=len(plan.steps))
    assert states(world) == {1: "Stable", 2: "Stable"}
    assert stable_of(world)[1] == 2
