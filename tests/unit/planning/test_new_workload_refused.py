"""A workload that the API server refuses to create takes no replica from another revision."""

from __future__ import annotations

from typing import Any

import pytest

from dflash_controller.api import names
from tests.support.planning_world import PASSED, UNDECIDED, Refusal, World
from tests.unit.planning.test_planner import set_drafter
from tests.unit.planning.test_rollouts import annotate, replicas

NEW = "b" * 40


class Quota(World):
    """No more Deployments than there are."""

    full = False

    def _may_write(self, kind: str, name: str) -> tuple[str, str]:
        if self.full and kind == "Deployment" and (kind, name) not in self.children:
            raise Refusal(403, f'deployments.apps "{name}" is forbidden: exceeded quota: objects')
        return super()._may_write(kind, name)


def full(count: int, **rollout: Any) -> Quota:
    world = Quota(
        {
            "target": {"model": "Qwen/Qwen3.5-9B", "revision": "f" * 40},
            "drafter": {"revision": "a" * 40},
            "replicas": count,
            "tuning": {"mode": "Off"},
            "rollout": {"maxSurge": 0, "maxUnavailable": 1, **rollout},
        }
    )
    world.settle()
    world.full = True
    return world


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_candidate_whose_workload_is_refused_takes_no_replica(count: int) -> None:
    world = full(count)
    world.edit(set_drafter(NEW))
    for _ in range(30):
        world.reconcile()
        world.controllers()
        world.advance(60)
        assert world.serving() == count
    assert (world.condition("Stalled"), world.reason("Stalled")) == ("True", "QuotaExceeded")
    world.full, world.judgement = False, PASSED
    world.settle()
    assert (world.condition("Ready"), world.serving(), len(replicas(world))) == ("True", count, 1)


def test_replicas_edited_meanwhile_count_at_once() -> None:
    world = full(3)
    world.edit(set_drafter(NEW))
    world.settle()
    for count in (5, 2):
        world.edit(lambda spec, count=count: spec.update(replicas=count))
        world.settle()
        assert world.serving() == count


@pytest.mark.parametrize("count", [1, 2])
def test_a_pin_whose_workload_is_refused_takes_no_replica(count: int) -> None:
    world = full(count)
    world.full, world.judgement = False, PASSED
    first = world.deployment["status"]["stableRevision"]
    world.edit(set_drafter(NEW))
    world.settle()
    assert world.deployment["status"]["stableRevision"] != first
    assert ("Deployment", first) not in world.children
    world.full = True
    annotate(world, names.ANNOTATION_PIN, first)
    world.settle()
    assert world.serving() == count
    world.full = False
    world.settle()
    assert replicas(world) == {first: count}


def test_a_new_workload_is_empty_until_the_other_gives_up_a_replica() -> None:
    world = full(2)
    world.full = False
    world.edit(set_drafter(NEW))
    world.judgement = UNDECIDED
    seen = [(2,)]
    for _ in range(12):
        world.reconcile()
        if (now := tuple(replicas(world).values())) != seen[-1]:
            seen.append(now)
        world.controllers()
    assert seen == [(2,), (2, 0), (1, 0), (1, 1)]
