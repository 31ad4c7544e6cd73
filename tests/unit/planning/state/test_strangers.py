"""Objects that only carry our label change no plan, and no plan changes them: two worlds are compared, one of them full of strangers."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from dflash_controller.api import names
from dflash_controller.engines.resolve import OperatorDefaults
from dflash_controller.model.snapshot import Snapshot
from dflash_controller.planning.state.plan import Plan
from tests.support.planning_world import FAILED, KEY, PASSED, World

ROUNDS = 70
ROUND_S = 60.0
ANOTHER_HASH = "rzzzzzzz"
LABELS = names.child_labels(KEY.name)


class Crowded(World):
    """A world in which users have put our label on objects of their own."""

    def __init__(self, spec: dict[str, Any], **more: Any) -> None:
        super().__init__(spec, **more)
        self.strangers: dict[tuple[str, str], dict[str, Any]] = {}
        self.stranger_pods: dict[str, dict[str, Any]] = {}
        self.at_first: dict[tuple[str, str], str] = {}

    def snapshot(self) -> Snapshot:
        children, pods = self.children, self.pods
        self.children, self.pods = {**children, **self.strangers}, {**pods, **self.stranger_pods}
        try:
            return super().snapshot()
        finally:
            self.children, self.pods = children, pods

    def crowd(self) -> None:
        """Adds whatever a user could make from what there is now."""
        for (kind, name), child in self.children.items():
            revision = name if kind in ("ControllerRevision", "Deployment", "LeaderWorkerSet") else None
            for owned in (True, False):
                self._copy_of(child, f"{name}-debug{'-owned' if owned else ''}", owned=owned)
                if revision:
                    # The name could be ours, with the label as it was or as the name would have it.
                    self._copy_of(child, f"{KEY.name}-{ANOTHER_HASH[:7]}{'a' if owned else 'b'}", owned=owned)
                    relabelled = {names.LABEL_REVISION: f"{ANOTHER_HASH[:7]}c"}
                    self._copy_of(child, f"{KEY.name}-{ANOTHER_HASH[:7]}c", owned=owned, labels=relabelled)
        for kind, name in (("Deployment", "gateway"), ("Service", "gateway"), ("PodDisruptionBudget", "gateway"), ("Job", "report-1")):
            spec = {"replicas": 3, "template": {"metadata": {"labels": LABELS}, "spec": {"containers": []}}}
            self._add({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "labels": dict(LABELS)}, "spec": spec})
        self._add({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot", "labels": dict(LABELS)}})
        for (kind, name), child in list(self.children.items()):
            if kind == "ControllerRevision" and "inputs" in child["data"]:
                # Of another DFlashDeployment, with its label changed to ours.
                self._copy_of(child, name.replace(KEY.name, "other", 1), owned=False)
        for name, pod in self.pods.items():
            lookalikes = [f"{KEY.name}-{ANOTHER_HASH[:7]}{letter}" for letter in "abc"]
            for workload in (None, f"{pod['workload']}-debug", "gateway", "report-1", *lookalikes):
                self.stranger_pods[f"{name}-of-{workload}"] = pod | {"workload": workload, "ready": True, "terminating": False}
            self.stranger_pods[f"{name}-crashes"] = pod | {"workload": None, "ready": False, "broken": True}
            self.stranger_pods[f"{name}-leaves"] = pod | {"workload": None, "terminating": True}

    def untouched(self) -> bool:
        return self.at_first == {key: json.dumps(item, sort_keys=True) for key, item in self.strangers.items()}

    def _copy_of(self, child: Mapping[str, Any], name: str, *, owned: bool, labels: Mapping[str, str] | None = None) -> None:
        made = copy.deepcopy(dict(child))
        made["metadata"]["name"] = name
        made["metadata"]["labels"] |= labels or {}
        if not owned:
            made["metadata"].pop("ownerReferences", None)
        self._add(made)

    def _add(self, item: dict[str, Any]) -> None:
        key = (item["kind"], item["metadata"]["name"])
        if key not in self.strangers:
            item["metadata"] |= {
                "namespace": KEY.namespace,
                "uid": f"theirs-{len(self.strangers)}",
                "resourceVersion": "1",
                "generation": 1,
            }
            self.strangers[key] = item
            self.at_first[key] = json.dumps(item, sort_keys=True)


def set_spec(**changes: Any) -> Callable[[World], None]:
    return lambda world: world.edit(lambda spec: spec.update(**changes))


def orphan(world: World) -> None:
    for child in world.children.values():
        if "inputs" in child.get("data", {"inputs": 1}):
            child["metadata"].pop("ownerReferences", None)


def restore(world: World) -> None:
    """From a backup: the same objects, of which the DFlashDeployment has a new UID."""
    world.deployment["metadata"]["uid"] = "restored"


def fail(world: World) -> None:
    world.judgement = FAILED
    set_spec(drafter={"revision": "b" * 40})(world)


def recover(world: World) -> None:
    world.judgement = PASSED
    set_spec(drafter={"revision": "a" * 40})(world)


def upgrade(world: World) -> None:
    """An operator that knows newer releases, and reads records that name no hash."""
    world.defaults = replace(world.defaults, images={engine: f"{image}-new" for engine, image in world.defaults.images.items()})


def lose_workload(world: World) -> None:
    kind, name = next(key for key in world.children if key[0] in ("Deployment", "LeaderWorkerSet"))
    del world.children[kind, name]


STORY: Mapping[int, Callable[[World], None]] = {
    5: set_spec(replicas=4),
    9: set_spec(drafter={"revision": "a" * 40}),
    20: set_spec(replicas=2),
    23: fail,
    31: recover,
    35: orphan,
    38: restore,
    41: upgrade,
    44: lose_workload,
    48: set_spec(restartId="again"),
    55: set_spec(replicas=3),
}
CROWDED_AT = (0, 3, 12, 26, 40, 50)


def lived(world: World) -> list[Plan]:
    """Returns the plans of an hour."""
    plans = []
    for number in range(ROUNDS):
        if number in STORY:
            STORY[number](world)
        if number in CROWDED_AT and isinstance(world, Crowded):
            world.crowd()
        for _ in range(3):
            plan = world.plan()
            plans.append(plan)
            world.carry_out(plan)
        world.controllers()
        world.advance(ROUND_S)
    return plans


def without_notice(plan: Plan) -> Plan:
    if plan.status is None:
        return plan
    notices = [item for item in plan.status.get("notices") or () if item["reason"] != "ForeignObject"]
    return replace(plan, status={**plan.status, "notices": notices or None})


@pytest.mark.parametrize("nodes", [1, 2])
def test_strangers_change_no_plan_and_no_plan_changes_them(nodes: int) -> None:
    spec = {"target": {"model": "Qwen/Qwen3.5-9B"}, "replicas": 2, "rollout": {"historyLimit": 1}}
    if nodes == 2:
        spec["parallelism"] = {"tensor": 16, "nodes": 2}
    alone, crowded = World(copy.deepcopy(spec)), Crowded(copy.deepcopy(spec))
    alone.kinds = crowded.kinds = frozenset({"LeaderWorkerSet"})
    expected, found = lived(alone), lived(crowded)
    assert alone.deployment["status"]["serving"] == "3/3"
    assert len(alone.of_kind("ControllerRevision")) > 1
    assert len(crowded.strangers) > 30
    assert len(crowded.stranger_pods) > 30
    for number, (plan, with_strangers) in enumerate(zip(expected, found, strict=True)):
        assert without_notice(with_strangers) == plan, f"plan {number}"
    assert crowded.untouched()
    assert (crowded.pods, crowded.children) == (alone.pods, alone.children)


def test_one_notice_names_three_strangers_and_the_remedy() -> None:
    world = Crowded({"target": {"model": "Qwen/Qwen3.5-9B"}})
    world.settle()
    world.crowd()
    world.settle()
    [notice] = [item for item in world.deployment["status"]["notices"] if item["reason"] == "ForeignObject"]
    assert "ControllerRevision chat-r" in notice["message"]
    assert " more. Take the label serving.dflash.io/deployment=chat away" in notice["message"]
    assert notice["message"].count(", ") == 4
    assert world.reconcile() == 0


@pytest.mark.parametrize("nodes", [1, 2])
def test_an_upgrade_disowns_nothing_that_names_no_hash(nodes: int) -> None:
    spec: dict[str, Any] = {"target": {"model": "Qwen/Qwen3.5-9B"}, "replicas": 2}
    if nodes == 2:
        spec["parallelism"] = {"tensor": 16, "nodes": 2}
    world = World(spec, defaults=OperatorDefaults())
    world.kinds = frozenset({"LeaderWorkerSet"})
    world.settle()
    for child in world.children.values():
        child.get("data", {}).pop("hash", None)
        annotations = child["metadata"].get("annotations") or {}
        if names.ANNOTATION_RECORD in annotations:
            record = json.loads(annotations[names.ANNOTATION_RECORD])
            del record["hash"]
            annotations[names.ANNOTATION_RECORD] = json.dumps(record, sort_keys=True, separators=(",", ":"))
    pods = set(world.pods)
    assert world.reconcile() == 0
    world.edit(lambda spec: spec.update(replicas=3))
    world.settle()
    assert (world.deployment["status"]["serving"], pods <= set(world.pods)) == ("3/3", True)
    assert "ForeignObject" not in str(world.deployment["status"].get("notices"))
