"""Engine pods whose init container fetches the weights: what is told of them, and that nobody gives them up while bytes arrive."""

from __future__ import annotations

from typing import Any

import pytest

from dflash_controller.model.fetch_progress import FetchProgress
from dflash_controller.model.fetch_report import EXIT_CODES, FetchReason, FetchReport
from tests.support.planning_world import World
from tests.unit.planning.rollout.test_starting import begun, message, pods, revision, rollout, stored, turn
from tests.unit.planning.state.test_pod_troubles import START, container, on_node
from tests.unit.planning.test_planner import settled

RUNS = {"running": {"startedAt": START}}
DAY = 86400.0


def fetches(restarts: int = 0, after: FetchReason | None = None) -> dict[str, Any]:
    """A pod whose init container runs, for the first time or after a failure."""
    last = {}
    if after is not None:
        said = FetchReport(after, f"words of {after}").to_json()
        last = {"terminated": {"exitCode": EXIT_CODES[after], "reason": "Error", "finishedAt": START, "message": said}}
    init = container(RUNS, restarts, name="dflash-fetch", lastState=last)
    return on_node(container({"waiting": {"reason": "PodInitializing"}}), initContainerStatuses=[init])


def answers(world: World, rate: float = 1e8, done: int = 4 * 10**9) -> None:
    world.fetching = {name: FetchProgress("Fetching x", done, 16 * 10**9, rate, 120.0 if rate else None) for name in world.pods}


def test_the_status_says_how_far_the_init_container_is() -> None:
    world = begun()
    world.raw[revision(world)] = fetches()
    turn(world)
    [name] = [name for name, pod in world.pods.items() if pod in pods(world)]
    assert message(world).endswith(f"to serve. Pod {name} fetches the weights"), "without an answer it is not known how far"
    answers(world)
    turn(world)
    assert rollout(world) == ("Canary", "Starting")
    assert f"Pod {name} fetches the weights. It has 4.0 GB of 16.0 GB (25 %), 100.0 MB/s, 2 min 0 s left" in message(world)


def test_a_first_start_tells_the_slowest_of_its_pods() -> None:
    world = settled(replicas=2)
    for pod in world.pods.values():
        pod["ready"] = False
    world.deployment["status"] = {}
    world.raw[str(next(iter(world.pods.values()))["revision"])] = fetches()
    first, second = sorted(world.pods)
    world.fetching = {first: FetchProgress("x", 9, 10, 1.0, 1.0), second: FetchProgress("x", 2, 10, 1.0, 8.0)}
    world.reconcile()
    shown = {item["type"]: item for item in world.deployment["status"]["conditions"]}
    told = f"0 of 2 serving. Pods like {first} fetch the weights. The slowest has 2 B of 10 B (20 %), 1 B/s, 8 s left"
    assert (shown["Ready"]["reason"], shown["Reconciling"]["message"]) == ("Starting", told)


def test_a_candidate_is_not_given_up_while_bytes_arrive_and_has_its_whole_budget_afterwards() -> None:
    world = begun()
    world.raw[revision(world)] = fetches()
    for part in range(10):
        answers(world, done=(part + 1) * 10**9)
        turn(world, DAY)
        assert rollout(world) == ("Canary", "Starting")
    assert "loadingSince" not in stored(world)
    world.raw[revision(world)] = on_node(container(RUNS), phase="Running")
    turn(world, 1)
    assert "loadingSince" in stored(world)
    turn(world, 600)
    assert rollout(world) == ("Canary", "Starting")
    turn(world, DAY)
    assert rollout(world)[0] in ("RollingBack", "RolledBack")


@pytest.mark.parametrize("silent", [True, False], ids=["no answer", "nothing arrives"])
def test_a_candidate_at_which_nothing_arrives_is_given_up(silent: bool) -> None:
    world = begun()
    world.raw[revision(world)] = fetches()
    turn(world)
    if not silent:
        answers(world, rate=0.0)
    turn(world, DAY)
    assert rollout(world)[0] in ("RollingBack", "RolledBack")


@pytest.mark.parametrize("reason", [FetchReason.NO_SPACE, FetchReason.HUB_UNREACHABLE, FetchReason.HASH_MISMATCH])
def test_what_failed_before_is_over_once_bytes_arrive(reason: FetchReason) -> None:
    world = begun()
    world.raw[revision(world)] = fetches(7, reason)
    answers(world)
    turn(world)
    turn(world, DAY)
    assert rollout(world) == ("Canary", "Starting")
    assert "words of" not in message(world)
    world.raw[revision(world)] = on_node(container(RUNS), phase="Running", initContainerStatuses=[done(7)])
    world.fetching = {}
    turn(world, 60)
    assert rollout(world) == ("Canary", "Starting"), "exits before the weights were there do not count"


def done(restarts: int) -> dict[str, Any]:
    return container({"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": START}}, restarts, name="dflash-fetch")


def test_an_active_revision_that_downloads_beyond_its_deadline_does_not_stall() -> None:
    world = settled(replicas=2)
    hash_ = str(next(iter(world.pods.values()))["revision"])
    for pod in world.pods.values():
        pod["ready"] = False
    world.raw[hash_] = fetches()
    world.overdue = frozenset({hash_})
    answers(world)
    for _ in range(3):
        world.controllers(start=False)
        world.reconcile()
    assert world.condition("Stalled") == "False"
    world.fetching = {}
    world.reconcile()
    assert world.condition("Stalled") == "True"
