"""How replicas move while a rollout goes on: revert, pause and abort at any point of it do what a person means."""

from __future__ import annotations

from typing import Any

import pytest

from dflash_controller.api import names
from dflash_controller.planning.replicas.next_replicas import Budget, Pool
from dflash_controller.planning.rollout.movement import Movement, goals, movements
from tests.support.planning_world import FAILED, PASSED, UNDECIDED, World
from tests.unit.planning.test_planner import COMMIT, set_drafter, settled, states
from tests.unit.planning.test_rollouts import OTHER, annotate, candidate, phase, replicas


def half_way(count: int = 8, **more: Any) -> tuple[World, str, str]:
    """Returns a deployment in which the new revision replaces the old one and has two or more replicas, with both names."""
    world = settled(replicas=count, **more)
    old = str(world.deployment["status"]["stableRevision"])
    world.judgement = PASSED
    world.edit(set_drafter(COMMIT))
    for _ in range(200):
        world.reconcile()
        now = replicas(world)
        new = str(world.deployment["status"]["stableRevision"])
        if new != old and now[new] >= 2:
            world.judgement = UNDECIDED
            return world, old, new
        world.controllers()
    raise AssertionError("no replica was replaced")


def watched(world: World, rounds: int = 120) -> list[dict[str, int]]:
    """Returns the replicas after every reconcile until nothing changes."""
    seen = []
    for _ in range(rounds):
        written = world.reconcile()
        seen.append(replicas(world))
        if not world.controllers() and not written and not world.probes:
            return seen
    raise AssertionError("does not settle")


def test_going_back_in_the_middle_keeps_the_old_replicas_and_needs_no_trial() -> None:
    world, old, new = half_way()
    kept = {name for name, pod in world.pods.items() if f"chat-{pod['revision']}" == old and not pod["terminating"]}
    judged, most = world.asked, replicas(world)[new]
    world.edit(lambda spec: spec.pop("drafter"))
    seen = watched(world)
    assert all(now.get(new, 0) <= most for now in seen)
    assert replicas(world) == {old: 8}
    assert kept <= set(world.pods)
    assert world.asked == judged
    assert (phase(world), world.condition("Ready"), world.deployment["status"]["stableRevision"]) == ("Completed", "True", old)
    assert sorted(states(world).items())[-1][1] == "Stable"


def test_going_back_is_shown_as_a_rollback_while_it_lasts() -> None:
    world, old, _ = half_way()
    world.edit(lambda spec: spec.pop("drafter"))
    world.reconcile()
    world.reconcile()
    assert (phase(world), world.deployment["status"]["rollout"]["revision"]) == ("RollingBack", old)


def test_going_back_and_forth_in_the_middle_replaces_only_what_must_be() -> None:
    world, _, new = half_way()
    world.edit(lambda spec: spec.pop("drafter"))
    world.reconcile()
    world.reconcile()
    kept = {name for name, pod in world.pods.items() if f"chat-{pod['revision']}" == new and not pod["terminating"]}
    world.edit(set_drafter(COMMIT))
    world.settle()
    assert replicas(world) == {new: 8}
    assert kept <= set(world.pods)


def test_a_paused_rollout_stays_where_it_is_through_a_revert() -> None:
    world, old, new = half_way()
    world.controllers()
    before = replicas(world)
    world.edit(lambda spec: (spec.pop("drafter"), spec.update(rollout={"paused": True})))
    seen = watched(world)
    assert all(now[new] <= before[new] and now[old] >= before[old] for now in seen)
    assert phase(world) == "Paused"
    world.edit(lambda spec: spec.update(rollout={}))
    world.settle()
    assert replicas(world) == {old: 8}


def test_aborting_the_revision_that_replaces_the_others_brings_them_back() -> None:
    world, old, new = half_way()
    most = replicas(world)[new]
    annotate(world, names.ANNOTATION_ABORT, new)
    seen = watched(world)
    assert all(now.get(new, 0) <= most for now in seen)
    assert replicas(world) == {old: 8}
    assert (phase(world), world.reason("Stalled"), world.reason("Ready")) == ("RolledBack", "Aborted", "RolledBack")
    world.settle()
    assert replicas(world) == {old: 8}


def test_aborting_what_has_replaced_everything_does_nothing_and_says_so() -> None:
    world = settled(replicas=2)
    world.edit(set_drafter(COMMIT))
    world.settle()
    name = str(world.deployment["status"]["stableRevision"])
    annotate(world, names.ANNOTATION_ABORT, name)
    world.settle()
    assert replicas(world) == {name: 2}
    assert "AnnotationIgnored" in [item["reason"] for item in world.deployment["status"]["notices"]]


def test_a_pin_to_the_revision_being_replaced_keeps_its_replicas() -> None:
    world, old, new = half_way()
    most, judged = replicas(world)[new], world.asked
    annotate(world, names.ANNOTATION_PIN, old)
    seen = watched(world)
    assert all(now.get(new, 0) <= most for now in seen)
    assert (replicas(world), world.asked) == ({old: 8}, judged)


def test_while_a_candidate_is_on_trial_the_other_revisions_stay() -> None:
    world, old, new = half_way()
    world.edit(set_drafter(OTHER))
    for _ in range(8):
        world.reconcile()
        world.controllers()
    third = candidate(world)
    before = replicas(world)
    assert before[third] == 1
    assert before[old] > 0
    world.advance(3600)
    world.settle()
    assert replicas(world) == before
    world.edit(lambda spec: spec.update(replicas=10))
    world.settle()
    assert replicas(world) == {**before, new: before[new] + 2}


def test_a_trial_in_the_middle_that_fails_lets_the_replacement_go_on() -> None:
    world, _, new = half_way()
    world.judgement = FAILED
    world.edit(set_drafter(OTHER))
    world.settle()
    assert (replicas(world), phase(world)) == ({new: 8}, "RolledBack")


def test_scaling_down_to_one_in_mid_trial_keeps_the_stable_replica() -> None:
    world = settled(replicas=2)
    world.judgement = UNDECIDED
    world.edit(set_drafter(COMMIT))
    world.settle()
    stable = str(world.deployment["status"]["stableRevision"])
    world.edit(lambda spec: spec.update(replicas=1))
    for _ in range(20):
        world.reconcile()
        world.controllers()
        assert world.serving() >= 1
    assert {name: count for name, count in replicas(world).items() if count} == {stable: 1}
    assert world.deployment["status"]["candidateRevision"] != stable
    world.edit(lambda spec: spec.update(replicas=3))
    world.settle()
    assert replicas(world)[candidate(world)] == 1


@pytest.mark.parametrize(
    ("surge", "expected"), [(0, {"new": 1, "stable": 2, "old": 5}), (1, {"new": 1, "stable": 2, "old": 6})], ids=["no surge", "surge"]
)
def test_a_canary_takes_its_place_from_what_is_left_of_the_oldest(surge: int, expected: dict[str, int]) -> None:
    budget, pools = Budget(8, surge, 1), [Pool("old", 6, 6, 6, 0), Pool("stable", 2, 2, 2, 0)]
    moving = {"new": Movement.FILLING, "stable": Movement.FROZEN, "old": Movement.FROZEN}
    assert goals(budget, pools, moving, "stable", "new") == expected


def test_what_cannot_be_read_stays_and_what_is_in_force_is_scaled() -> None:
    pools = [Pool("unread", 2, 2, 2, 0), Pool("nobody", 1, 1, 1, 0)]
    moving = movements((), pools, "unread", canary=None, unread={"unread"}, frozen=True)
    assert moving == {"unread": Movement.FROZEN, "nobody": Movement.DRAINING}
    assert goals(Budget(4, 0, 1), pools, moving, "unread", None) == {"unread": 4}


def test_an_abort_that_was_set_long_ago_does_not_end_a_revert_and_one_set_anew_does() -> None:
    world, old, new = half_way()
    annotate(world, names.ANNOTATION_ABORT, old)
    world.edit(lambda spec: spec.pop("drafter"))
    for _ in range(2):
        world.reconcile()
    assert (states(world)[3], world.deployment["status"]["stableRevision"]) == ("Stable", old)
    annotate(world, names.ANNOTATION_ABORT, None)
    world.reconcile()
    annotate(world, names.ANNOTATION_ABORT, old)
    world.reconcile()
    assert world.children["ControllerRevision", old]["metadata"]["annotations"][names.ANNOTATION_STATE] == "Failed"
    assert world.deployment["status"]["stableRevision"] == new


def test_an_abort_brings_back_what_has_replicas_and_not_what_came_between() -> None:
    world, old, between = half_way()
    world.judgement = PASSED
    world.edit(set_drafter(OTHER))
    for _ in range(60):
        world.reconcile()
        if world.deployment["status"]["stableRevision"] not in (old, between):
            break
        world.controllers()
    new = str(world.deployment["status"]["stableRevision"])
    # The second one loses its replicas before the first.
    world.children["Deployment", between]["spec"]["replicas"] = 0
    world.pods = {name: pod for name, pod in world.pods.items() if pod["workload"] != between}
    annotate(world, names.ANNOTATION_ABORT, new)
    world.settle()
    assert (world.deployment["status"]["stableRevision"], replicas(world)) == (old, {old: 8})
