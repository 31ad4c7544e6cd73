"""The names that are ours are those that the operator renders, and a controller decides between ours, adoptable and taken."""

from __future__ import annotations

from typing import Any

import pytest

from dflash_controller.api import names
from dflash_controller.engines.resolve import OperatorDefaults
from dflash_controller.planning.revisions.revision import RevisionState, revision_hash
from dflash_controller.planning.revisions.roles import read_stored
from dflash_controller.planning.state.child_ownership import foreign, is_adoptable, is_generated, is_ours
from tests.support.planning_world import KEY, World


def spec(**more: Any) -> dict[str, Any]:
    return {"target": {"model": "Qwen/Qwen3.5-9B"}, **more}


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("storage", [{"hostPath": {"path": "/models"}}, {"persistentVolumeClaim": {"claimName": "models"}}])
def test_every_object_that_is_written_has_a_name_that_is_ours(nodes: int, storage: dict[str, Any]) -> None:
    parallelism = {"parallelism": {"tensor": 16, "nodes": 2}} if nodes == 2 else {}
    models = spec(target={"model": "Qwen/Qwen3.5-9B", "revision": "f" * 40}, drafter={"revision": "c" * 40})
    world = World({**models, "storage": storage, **parallelism}, defaults=OperatorDefaults(host_path_roots=("/models",)))
    world.kinds = frozenset({"LeaderWorkerSet", "PodMonitor"})
    world.settle()
    world.edit(lambda spec: spec.update(drafter={"revision": "a" * 40}))
    seen = set()
    for _ in range(5):
        world.reconcile()
        for (kind, _), child in world.children.items():
            if "inputs" in child.get("data", {"inputs": 1}):
                seen.add(kind)
                assert is_generated(child, KEY.name), child["metadata"]["name"]
                assert is_ours(child, world.deployment)
    assert seen >= {"ControllerRevision", "Service", "NetworkPolicy", "PodDisruptionBudget", "PodMonitor", "ServiceAccount", "Job"}
    assert not is_generated(child, "cha")
    assert not is_generated(child, "chat-r")


def test_every_hash_is_recognised() -> None:
    world = World(spec())
    world.settle()
    record = read_stored(world.snapshot().revisions).records[0]
    for number in range(300):
        made = revision_hash({**record.inputs, "restartId": str(number)}, record.speculation, ())
        item = {"kind": "Deployment", "metadata": {"name": f"chat-{made}"}}
        assert is_generated(item, "chat") is None, made
        assert is_generated(item | {"kind": "ControllerRevision"}, "chat") is False


def test_a_deployment_whose_name_begins_with_ours_owns_nothing_of_ours() -> None:
    labels = names.child_labels("chat")
    for kind, name in (("Service", "chat-raaaaaaa"), ("Job", "chat-b-raaaaaaa-fetch"), ("ServiceAccount", "chat"), ("Secret", "chat-x")):
        assert not is_generated({"kind": kind, "metadata": {"name": name, "labels": labels}}, "chat")


def controlled_by(**reference: Any) -> list[dict[str, Any]]:
    return [{"apiVersion": names.API_VERSION, "kind": names.KIND, "name": "chat", "uid": "uid", "controller": True, **reference}]


@pytest.mark.parametrize(
    ("owners", "ours", "adoptable"),
    [
        (controlled_by(), True, False),
        ([], False, True),
        (controlled_by(uid="earlier"), False, True),
        (controlled_by(uid="earlier", name="other"), False, False),
        (controlled_by(uid="earlier", kind="Application"), False, False),
    ],
)
@pytest.mark.parametrize("name", ["chat", "gateway"])
def test_a_name_that_is_ours_is_owned_adopted_or_taken_and_any_other_is_left(name: str, owners: Any, ours: bool, adoptable: bool) -> None:
    deployment = {"metadata": {"name": "chat", "uid": "uid"}}
    child = {"kind": "Service", "metadata": {"name": name, "labels": names.child_labels("chat"), "ownerReferences": owners}}
    expected = (ours, adoptable) if name == "chat" else (False, False)
    assert (is_ours(child, deployment), is_adoptable(child, deployment)) == expected
    assert bool(foreign((child,), deployment)) == (not any(expected))


def test_of_two_stable_revisions_with_one_number_the_older_counts() -> None:
    world = World(spec())
    world.settle()
    [record] = world.of_kind("ControllerRevision")
    older, newer = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
    for first, second in ((older, newer), (newer, older)):
        pair = [
            {**record, "metadata": {**record["metadata"], "name": name, "creationTimestamp": at}}
            for name, at in (("chat-raaaaaaa", first), ("chat-rbbbbbbb", second))
        ]
        stable = read_stored(pair).stable
        assert stable is not None
        assert (stable.state, stable.source["metadata"]["creationTimestamp"]) == (RevisionState.STABLE, older)
