"""What becomes of ``spec.blockSize`` beside a tuner: a value is acted upon once, and its memory outlives revisions and annotations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest

from dflash_controller.api import names
from dflash_controller.api.speculation import Fixed
from dflash_controller.planning.revisions.trial_state import Trial
from tests.support.planning_world import FAILED, PASSED, UNDECIDED, World
from tests.unit.planning.test_planner import COMMIT, set_drafter, settled, states
from tests.unit.planning.test_rollouts import annotate, candidate, phase, replicas
from tests.unit.planning.test_tuning import Policy, block, history, try_in_vain, tuned


@pytest.fixture
def policy() -> Iterator[Policy]:
    policy = Policy()
    with patch("dflash_controller.planning.tuning.decide", policy.decide):
        yield policy


def write_block(world: World, value: int | None) -> None:
    world.edit(lambda spec: spec.pop("blockSize", None) if value is None else spec.update(blockSize=value))
    world.settle()


def stable(world: World) -> str:
    return str(world.deployment["status"]["stableRevision"])


def asked_block(world: World, name: str) -> int | None:
    return Trial.from_json(world.children["ControllerRevision", name]["metadata"]["annotations"][names.ANNOTATION_TRIAL]).asked_block


def tuned_down(policy: Policy, **spec: Any) -> World:
    """Auto went from the written block 16 to 8."""
    world = tuned(**{"blockSize": 16, **spec})
    policy.wants = Fixed(8)
    world.settle()
    assert block(world) == "8"
    return world


def reasons(world: World) -> list[str]:
    return [entry["reason"] for item in world.of_kind("ControllerRevision") for entry in history(world, item["metadata"]["name"])]


def test_a_user_who_agrees_with_the_tuner_binds_it_to_nothing(policy: Policy) -> None:
    world = tuned_down(policy)
    write_block(world, 8)
    assert asked_block(world, stable(world)) == 8
    policy.wants = Fixed(16)
    world.settle()
    assert block(world) == "16"
    for _ in range(20):
        world.advance(1800)
        world.settle()
        assert block(world) == "16"
    assert [entry["outcome"] for entry in history(world, stable(world))].count("Stable") == 2, "as the first, and once more"


def test_the_tuner_may_leave_a_block_in_the_moment_in_which_a_user_agrees_with_it(policy: Policy) -> None:
    world = tuned()
    policy.wants = Fixed(8)
    write_block(world, 16)
    assert (block(world), asked_block(world, stable(world))) == ("8", 16)


def test_alternating_advice_never_reverts_to_a_written_block_that_was_acted_upon(policy: Policy) -> None:
    world = tuned_down(policy)
    write_block(world, 8)
    reverted = reasons(world).count("SpecChanged")
    promoted = 0
    for turn in range(120):
        policy.wants = Fixed(16 if turn // 20 % 2 == 0 else 8)
        before = stable(world)
        world.advance(60)
        world.reconcile()
        world.controllers()
        promoted += stable(world) != before
    assert reasons(world).count("SpecChanged") == reverted
    assert promoted == 6


def test_agreeing_writes_one_annotation_and_restarts_nothing(policy: Policy) -> None:
    world = tuned_down(policy)
    pods = set(world.pods)
    world.edit(lambda spec: spec.update(blockSize=8))
    assert world.reconcile() == 1
    assert world.reconcile() == 0
    assert (set(world.pods), world.condition("Ready"), world.condition("Reconciling")) == (pods, "True", "False")


@pytest.mark.parametrize("mode", ["Advise", "Auto"])
def test_a_written_value_that_does_not_run_is_what_the_user_gets(policy: Policy, mode: str) -> None:
    world = tuned_down(policy)
    policy.wants = None
    world.edit(lambda spec: spec.update(tuning={"mode": mode}))
    write_block(world, 4)
    assert (block(world), asked_block(world, stable(world))) == ("4", 4)
    write_block(world, 16)
    assert (block(world), asked_block(world, stable(world))) == ("16", 16)
    assert [entry["origin"] for entry in history(world, stable(world))][-2:] == ["User", "User"]


def test_the_value_that_was_agreed_upon_counts_again_when_it_is_written_anew(policy: Policy) -> None:
    """16, then 8 (which runs), then 16: the last one is new and does not run."""
    world = tuned_down(policy)
    policy.wants = None
    write_block(world, 8)
    write_block(world, 16)
    assert block(world) == "16"


@pytest.mark.parametrize("mode", ["Advise", "Auto"])
def test_a_value_that_was_removed_counts_again_when_it_is_written_anew(policy: Policy, mode: str) -> None:
    world = tuned_down(policy)
    policy.wants = None
    world.edit(lambda spec: spec.update(tuning={"mode": mode}))
    write_block(world, None)
    assert (block(world), asked_block(world, stable(world))) == ("8", 0)
    write_block(world, 16)
    assert block(world) == "16"


def test_what_the_tuner_chose_stays_through_every_change_of_mode_and_in_off_the_written_block_is_law(policy: Policy) -> None:
    world = tuned_down(policy)
    policy.wants = None
    for mode in ("Advise", "Auto", "Advise"):
        world.edit(lambda spec, mode=mode: spec.update(tuning={"mode": mode}))
        world.settle()
        assert block(world) == "8"
    world.edit(lambda spec: spec.update(tuning={"mode": "Off"}))
    world.settle()
    assert block(world) == "16"
    write_block(world, 8)
    world.edit(lambda spec: spec.update(tuning={"mode": "Auto"}))
    world.settle()
    assert block(world) == "8"


def test_agreement_in_mid_trial_of_the_tuner_ends_neither_the_trial_nor_what_follows(policy: Policy) -> None:
    world = tuned(blockSize=8)
    policy.wants, world.judgement = Fixed(16), UNDECIDED
    world.settle()
    tried = candidate(world)
    write_block(world, None)
    write_block(world, 8)
    assert (candidate(world), phase(world)) == (tried, "Analyzing")
    world.judgement = PASSED
    world.settle()
    assert (stable(world), block(world), asked_block(world, tried)) == (tried, "16", 8)
    world.settle()
    assert block(world) == "16"


def test_a_changed_drafter_keeps_the_tuned_block_and_its_memory(policy: Policy) -> None:
    world = tuned_down(policy)
    policy.wants = None
    world.edit(set_drafter(COMMIT))
    world.settle()
    assert (block(world), asked_block(world, stable(world))) == ("8", 16)
    world.edit(lambda spec: spec.pop("drafter"))
    world.settle()
    assert block(world) == "8"


@pytest.mark.parametrize("damage", [None, "", "{", "[]", "null"])
@pytest.mark.parametrize("mode", ["Advise", "Auto"])
def test_a_lost_memory_restarts_nothing(policy: Policy, damage: str | None, mode: str) -> None:
    """Written 8 and acted upon, 16 runs; the revision was made when 16 was written."""
    world = tuned_down(policy)
    write_block(world, 8)
    policy.wants = Fixed(16)
    world.settle()
    policy.wants = None
    world.edit(lambda spec: spec.update(tuning={"mode": mode}))
    world.settle()
    pods = set(world.pods)
    annotations = world.children["ControllerRevision", stable(world)]["metadata"]["annotations"]
    if damage is None:
        del annotations[names.ANNOTATION_TRIAL]
    else:
        annotations[names.ANNOTATION_TRIAL] = damage
    world.settle()
    assert (set(world.pods), block(world), asked_block(world, stable(world))) == (pods, "16", 8)
    # From then on a new value counts again.
    write_block(world, 4)
    assert block(world) == "4"


def test_a_record_that_is_made_again_from_its_workload_restarts_nothing(policy: Policy) -> None:
    world = tuned_down(policy)
    write_block(world, 8)
    policy.wants = Fixed(16)
    world.settle()
    policy.wants, pods = None, set(world.pods)
    del world.children["ControllerRevision", stable(world)]
    world.settle()
    assert (set(world.pods), block(world)) == (pods, "16")


def test_a_memory_lost_in_mid_trial_is_made_good_before_the_promotion(policy: Policy) -> None:
    world = tuned_down(policy)
    write_block(world, 8)
    policy.wants, world.judgement = Fixed(16), UNDECIDED
    world.settle()
    world.children["ControllerRevision", candidate(world)]["metadata"]["annotations"][names.ANNOTATION_TRIAL] = "{"
    world.settle()
    world.judgement = PASSED
    world.settle()
    assert (block(world), asked_block(world, stable(world))) == ("16", 8)


def test_a_revision_of_an_older_operator_acted_upon_the_value_that_it_was_made_with(policy: Policy) -> None:
    """Older operators wrote the annotation, but not this field."""
    world = tuned_down(policy)
    for item in world.of_kind("ControllerRevision"):
        trial = json.loads(item["metadata"]["annotations"][names.ANNOTATION_TRIAL])
        trial.pop("askedBlock")
        item["metadata"]["annotations"][names.ANNOTATION_TRIAL] = json.dumps(trial)
    policy.wants = None
    assert world.reconcile() == 0
    assert block(world) == "8"
    write_block(world, 4)
    assert block(world) == "4"


def test_a_pin_leaves_the_memory_of_the_pinned_revision_alone(policy: Policy) -> None:
    world = settled(replicas=2, blockSize=16, tuning={"mode": "Advise"})
    first = stable(world)
    write_block(world, 8)
    annotate(world, names.ANNOTATION_PIN, first)
    world.settle()
    assert (stable(world), world.reason("Ready")) == (first, "Pinned")
    annotate(world, names.ANNOTATION_PIN, None)
    world.settle()
    assert block(world) == "8"


def test_a_block_that_the_tuner_tried_in_vain_is_the_users_change_from_the_first_status_on(policy: Policy) -> None:
    world = tuned(blockSize=16)
    try_in_vain(world, policy)
    world.edit(lambda spec: spec.update(blockSize=8))
    world.reconcile()
    assert world.deployment["status"]["observedGeneration"] == world.deployment["metadata"]["generation"]
    assert (world.condition("Ready"), world.condition("Reconciling")) == ("False", "True")


@pytest.mark.parametrize("mode", ["Off", "Advise", "Auto"])
def test_a_block_that_the_tuner_tried_in_vain_gets_a_trial_of_its_own_when_the_user_asks(policy: Policy, mode: str) -> None:
    world = tuned()
    try_in_vain(world, policy)
    assert states(world) == {1: "Stable", 2: "Failed"}
    world.edit(lambda spec: spec.update(tuning={"mode": mode}))
    world.judgement = UNDECIDED
    write_block(world, 8)
    assert (phase(world), world.condition("Stalled"), world.condition("Reconciling")) == ("Analyzing", "False", "True")
    assert history(world, candidate(world))[-1] == {
        "at": history(world, candidate(world))[-1]["at"],
        "origin": "User",
        "outcome": "Candidate",
        "reason": "SpecChanged",
    }
    world.judgement = PASSED
    world.settle()
    assert (block(world), world.condition("Ready")) == ("8", "True")


@pytest.mark.parametrize("mode", ["Off", "Advise", "Auto"])
def test_a_block_that_fails_for_the_user_too_is_the_users_failure(policy: Policy, mode: str) -> None:
    world = tuned()
    try_in_vain(world, policy)
    world.edit(lambda spec: spec.update(tuning={"mode": mode}))
    world.judgement = FAILED
    write_block(world, 8)
    assert (phase(world), world.reason("Stalled"), world.condition("Stalled")) == ("RolledBack", "RolledBack", "True")
    tries = [entry["outcome"] for entry in history(world, world.deployment["status"]["rollout"]["revision"])].count("Candidate")
    world.judgement = PASSED
    world.advance(86400)
    world.settle()
    assert [entry["outcome"] for entry in history(world, world.deployment["status"]["rollout"]["revision"])].count("Candidate") == tries
    assert (block(world), sum(replicas(world).values())) == ("16", 3)


@pytest.mark.parametrize("between", [16, None])
@pytest.mark.parametrize("mode", ["Off", "Advise", "Auto"])
def test_a_block_that_failed_for_the_user_is_tried_again_after_another_was_asked_for(
    policy: Policy, mode: str, between: int | None
) -> None:
    world = tuned(blockSize=16, tuning={"mode": mode})
    world.judgement = FAILED
    write_block(world, 8)
    failed = world.deployment["status"]["rollout"]["revision"]
    assert (phase(world), block(world)) == ("RolledBack", "16")
    write_block(world, between)
    assert (world.condition("Stalled"), world.condition("Ready"), block(world)) == ("False", "True", "16")
    assert states(world) == {1: "Stable", 2: "Superseded"}
    world.judgement = PASSED
    write_block(world, 8)
    assert (stable(world), block(world), world.condition("Ready")) == (failed, "8", "True")


def test_a_block_that_the_user_still_asks_for_stays_failed_through_restarts_of_the_operator(policy: Policy) -> None:
    world = tuned(blockSize=16)
    world.judgement = FAILED
    write_block(world, 8)
    world.judgement = PASSED
    for _ in range(3):
        world.advance(3600)
        world.settle()
    assert (phase(world), block(world), states(world)) == ("RolledBack", "16", {1: "Stable", 2: "Failed"})
