"""What a release of the operator renders differently: it restarts nothing, rides along with nothing unseen, and is named."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from dflash_controller.api.speculation import Fixed
from dflash_controller.engines.protocol import Launch, LaunchRequest
from dflash_controller.engines.sglang.launch import SGLang
from dflash_controller.engines.vllm.launch import VLLM
from dflash_controller.model.change import Part
from dflash_controller.planning.revisions.diff import changed
from dflash_controller.planning.revisions.revision import Revision, read
from tests.support.planning_world import FAILED, PASSED, UNDECIDED, World
from tests.unit.planning.test_planner import COMMIT, set_drafter, settled, states
from tests.unit.planning.test_rollouts import candidate, phase
from tests.unit.planning.test_tuning import Policy, block, tuned


@pytest.fixture
def policy() -> Iterator[Policy]:
    policy = Policy()
    with patch("dflash_controller.planning.tuning.decide", policy.decide):
        yield policy


@contextmanager
def newer_release(*flags: str, **env: str) -> Iterator[None]:
    """An operator whose command lines have more flags and variables, whatever the engine."""
    with patch.object(SGLang, "launch", _with(SGLang.launch, flags, env)), patch.object(VLLM, "launch", _with(VLLM.launch, flags, env)):
        yield


def _with(launch: Any, flags: tuple[str, ...], env: dict[str, str]) -> Any:
    def more(engine: Any, request: LaunchRequest) -> Launch:
        found: Launch = launch(engine, request)
        workers = (*found.worker_args, *flags) if found.worker_args else ()
        return dataclasses.replace(found, args=(*found.args, *flags), worker_args=workers, env={**found.env, **env})

    return more


def label(world: World, value: str) -> None:
    world.edit(lambda spec: spec.update(podTemplate={"metadata": {"labels": {"team": value}}}))


def args(world: World, name: str) -> list[str]:
    [container] = world.children["ControllerRevision", name]["data"]["workload"]["spec"]["template"]["spec"]["containers"]
    return list(container["args"])


def noticed(world: World) -> str | None:
    found = [notice["message"] for notice in world.deployment["status"]["notices"] if notice["reason"] == "RenderedDifferently"]
    return found[0] if found else None


def record(world: World, name: str) -> Revision:
    found = read(world.children["ControllerRevision", name])
    assert found is not None
    return found


def compared(world: World) -> frozenset[Part]:
    return changed(record(world, world.deployment["status"]["stableRevision"]), record(world, candidate(world)))


def pinned(**spec: Any) -> World:
    return settled(**{"replicas": 3, "drafter": {"revision": COMMIT}, **spec})


def test_a_release_that_renders_another_flag_restarts_nothing() -> None:
    world = pinned()
    with newer_release("--foo"):
        assert world.reconcile() == 0
        assert states(world) == {1: "Stable"}


def test_a_flag_of_a_newer_release_is_compared_and_named_when_a_label_is_edited() -> None:
    world = pinned()
    world.judgement = UNDECIDED
    with newer_release("--foo", BAR="1"):
        label(world, "search")
        world.settle()
        assert phase(world) == "Analyzing"
        assert world.asked > 0
        assert compared(world) == {Part.ENGINE}
        stable, tried = world.deployment["status"]["stableRevision"], candidate(world)
        assert noticed(world) == (
            f"{tried} also changes --foo, env BAR: another release of the operator rendered {stable}. The analysis compares this too"
        )
        world.judgement = PASSED
        world.settle()
    assert (phase(world), world.deployment["status"]["stableRevision"]) == ("Completed", tried)
    assert record(world, tried).history[-1]["reason"] == "AnalysisPassed"
    assert noticed(world) is None


def test_a_label_alone_is_not_compared_under_one_release() -> None:
    world = pinned()
    world.judgement = UNDECIDED
    label(world, "search")
    world.settle()
    assert (phase(world), world.asked) == ("Completed", 0)


def test_a_flag_that_a_newer_release_no_longer_renders_is_compared_too() -> None:
    with newer_release("--foo"):
        world = pinned()
    world.judgement = UNDECIDED
    label(world, "search")
    world.settle()
    assert (phase(world), compared(world)) == ("Analyzing", {Part.ENGINE})
    assert "--foo" in str(noticed(world))


def test_a_change_of_the_drafter_under_a_newer_release_names_only_what_came_with_the_release() -> None:
    world = pinned()
    world.judgement = UNDECIDED
    with newer_release("--foo"):
        world.edit(set_drafter("d" * 40))
        world.settle()
        assert compared(world) == {Part.DRAFTER, Part.ENGINE}
        assert str(noticed(world)).startswith(f"{candidate(world)} also changes --foo: ")


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_a_change_of_the_drafter_under_one_release_is_a_change_of_the_drafter(engine: str) -> None:
    world = pinned(engine={"name": engine})
    world.judgement = UNDECIDED
    world.edit(set_drafter("d" * 40))
    world.settle()
    assert (compared(world), noticed(world)) == ({Part.DRAFTER}, None)


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_the_tuner_carries_no_flag_of_a_newer_release(policy: Policy, engine: str) -> None:
    world = tuned(engine={"name": engine}, drafter={"revision": COMMIT})
    stable = world.deployment["status"]["stableRevision"]
    world.judgement, policy.wants = UNDECIDED, Fixed(8)
    with newer_release("--foo", BAR="1"):
        world.settle()
        tried = candidate(world)
        assert "--foo" not in args(world, tried)
        assert len(set(args(world, tried)) - set(args(world, stable))) in (1, 2), "the block, and what is sized by it"
        assert (compared(world), noticed(world)) == ({Part.BLOCK_SIZE}, None)
        world.judgement = PASSED
        world.settle()
        assert block(world) == "8"
        # A user's change of anything else is rendered anew, and compared.
        world.judgement = UNDECIDED
        label(world, "search")
        world.settle()
        assert "--foo" in args(world, candidate(world))
        assert compared(world) == {Part.ENGINE}


def test_the_block_size_alone_carries_no_flag_of_a_newer_release() -> None:
    world = pinned(blockSize=16, tuning={"mode": "Off"})
    world.judgement = UNDECIDED
    with newer_release("--foo"):
        world.edit(lambda spec: spec.update(blockSize=8))
        world.settle()
        assert "--foo" not in args(world, candidate(world))
        assert compared(world) == {Part.BLOCK_SIZE}


def test_beside_a_failure_the_tuner_takes_nothing_from_the_spec_that_failed(policy: Policy) -> None:
    world = tuned()
    world.judgement = FAILED
    world.edit(lambda spec: spec.update(drafter={"revision": COMMIT}, podTemplate={"metadata": {"labels": {"team": "search"}}}))
    world.settle()
    assert phase(world) == "RolledBack"
    world.judgement, policy.wants = UNDECIDED, Fixed(8)
    world.settle()
    template = record(world, candidate(world)).workload["spec"]["template"]
    assert "team" not in template["metadata"]["labels"]
    assert not [token for token in args(world, candidate(world)) if COMMIT in token]


@pytest.mark.parametrize(
    ("edit", "parts"),
    [
        ({"podTemplate": {"resources": {"limits": {"memory": "64Gi"}}}}, {Part.ENGINE}),
        ({"engine": {"env": [{"name": "NCCL_DEBUG", "value": "WARN"}]}}, {Part.ENGINE}),
        ({"engine": {"extraArgs": ["--mem-fraction-static=0.7"]}}, {Part.ENGINE}),
        ({"storage": {"persistentVolumeClaim": {"claimName": "models"}}}, set()),
        ({"service": {"port": 9000}}, set()),
        ({"scheduling": {"priorityClassName": "high"}}, set()),
    ],
)
def test_what_a_user_changes_under_one_release_is_judged_by_what_it_changes(edit: dict[str, Any], parts: set[Part]) -> None:
    world = pinned()
    stable = world.deployment["status"]["stableRevision"]
    world.edit(lambda spec: spec.update(edit))
    world.settle()
    assert changed(record(world, stable), record(world, world.deployment["status"]["stableRevision"])) == parts
    assert noticed(world) is None


def test_a_quantity_that_is_spelled_otherwise_is_no_change() -> None:
    world = pinned(podTemplate={"resources": {"limits": {"cpu": "0.5"}}})
    world.judgement = UNDECIDED
    world.edit(lambda spec: spec.update(podTemplate={"resources": {"limits": {"cpu": "500m"}}, "metadata": {"labels": {"team": "a"}}}))
    world.settle()
    assert (phase(world), world.asked) == ("Completed", 0)


def test_a_revision_that_this_release_cannot_render_is_compared() -> None:
    """What came with which release is unknown, so nothing is named."""
    world = pinned()
    world.judgement = UNDECIDED
    with newer_release("--foo"):
        label(world, "search")
        world.settle()
        with patch.object(SGLang, "launch", side_effect=ValueError("no release of ours")):
            assert compared(world) == {Part.ENGINE}
            world.reconcile()
            assert noticed(world) is None


def test_a_record_made_again_from_a_live_workload_differs_in_nothing() -> None:
    """The API server adds defaults to what it stores."""
    variable = {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    world = pinned(engine={"env": [variable, {"name": "EMPTY", "value": ""}]}, podTemplate={"resources": {"limits": {"cpu": "0.5"}}})
    [container] = world.of_kind("Deployment")[0]["spec"]["template"]["spec"]["containers"]
    for item in container["env"]:
        if item["name"] == "NODE":
            item["valueFrom"]["fieldRef"]["apiVersion"] = "v1"
        elif item["name"] == "EMPTY":
            item.pop("value", None)
    container["resources"]["limits"]["cpu"] = "500m"
    del world.children["ControllerRevision", world.deployment["status"]["stableRevision"]]
    world.settle()
    world.judgement = UNDECIDED
    world.edit(lambda spec: spec.update(scheduling={"priorityClassName": "high"}))
    world.settle()
    assert (phase(world), world.asked) == ("Completed", 0)
