"""What the planner decides, over the life of a deployment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_controller.api import names
from dflash_controller.api.conditions import Reason
from dflash_controller.api.defaults import effective_rollout
from dflash_controller.api.parse import parse_spec
from dflash_controller.api.types import Spec
from dflash_controller.engines.resolve import OperatorDefaults
from dflash_controller.model.metrics_health import MetricsHealth
from dflash_controller.planning.revisions.revision import RevisionState, read
from dflash_controller.planning.state.plan import Apply, Create, Delete, Event
from tests.support.planning_world import KEY, World
from tests.support.releases import contract_releases, default_release

COMMIT = "a" * 40


def spec(**more: Any) -> dict[str, Any]:
    return {"target": {"model": "Qwen/Qwen3.5-9B"}, **more}


def settled(**more: Any) -> World:
    world = World(spec(**more))
    world.settle()
    return world


def states(world: World) -> dict[int, str]:
    return {item["revision"]: item["metadata"]["annotations"][names.ANNOTATION_STATE] for item in world.of_kind("ControllerRevision")}


def set_drafter(revision: str) -> Any:
    def change(spec: dict[str, Any]) -> None:
        spec["drafter"] = {"revision": revision}

    return change


def test_a_new_deployment_comes_to_serve() -> None:
    world = settled(replicas=2)
    assert world.serving() == 2
    assert states(world) == {1: "Stable"}
    assert world.deployment["status"]["stableRevision"].startswith("chat-r")
    assert {kind: world.condition(kind) for kind in ("Available", "Ready", "Reconciling", "Stalled")} == {
        "Available": "True",
        "Ready": "True",
        "Reconciling": "False",
        "Stalled": "False",
    }
    assert sorted(kind for kind, _ in world.children) == [
        "ControllerRevision",
        "Deployment",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "Service",
        "ServiceAccount",
    ]


def test_ready_waits_for_the_first_pod_although_one_replica_may_be_unavailable() -> None:
    world = World(spec(replicas=1))
    world.reconcile()
    world.controllers(start=False)
    world.reconcile()
    assert (world.condition("Available"), world.condition("Ready"), world.reason("Ready")) == ("False", "False", "Starting")


def test_nothing_is_written_when_nothing_changed() -> None:
    world = settled(replicas=3)
    before = world.deployment["status"]
    assert world.reconcile() == 0
    assert world.deployment["status"] == before


def test_a_new_drafter_replaces_the_old_one_within_the_budget() -> None:
    world = settled(replicas=4)
    world.edit(set_drafter(COMMIT))
    for _ in range(60):
        world.reconcile()
        world.controllers()
        assert world.serving() >= 3
        assert len(world.pods) <= 4
    assert states(world) == {1: "Retired", 2: "Stable"}
    assert {pod["revision"] for pod in world.pods.values()} == {world.deployment["status"]["stableRevision"].removeprefix("chat-")}
    assert world.deployment["status"]["rollout"]["phase"] == "Completed"


def test_ready_turns_false_in_the_write_that_raises_the_observed_generation() -> None:
    world = settled()
    world.edit(set_drafter(COMMIT))
    world.reconcile()
    assert (world.deployment["status"]["observedGeneration"], world.condition("Ready")) == (2, "False")


@pytest.mark.parametrize(
    "change",
    [
        lambda spec: spec.update(replicas=3),
        lambda spec: spec.update(service={"type": "NodePort", "annotations": {"a": "b"}}),
        lambda spec: spec.update(tuning={"mode": "Auto", "minGainPercent": 9}),
        lambda spec: spec["engine"]["env"].reverse(),
        lambda spec: spec["scheduling"]["tolerations"].reverse(),
        lambda spec: spec["engine"]["extraArgs"].reverse(),
        lambda spec: spec["podTemplate"]["resources"]["requests"].update(memory="1024Mi"),
    ],
    ids=["replicas", "service", "tuning", "env order", "tolerations order", "flags order", "quantity spelling"],
)
def test_what_does_not_define_the_engine_makes_no_revision(change: Any) -> None:
    world = settled(
        engine={"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}], "extraArgs": ["--log-level=info", "--random-seed=1"]},
        scheduling={"tolerations": [{"key": "a", "operator": "Exists"}, {"key": "b", "operator": "Exists"}]},
        podTemplate={"resources": {"requests": {"memory": "1Gi"}}},
    )
    template = world.of_kind("Deployment")[0]["spec"]["template"]
    world.edit(change)
    world.settle()
    assert states(world) == {1: "Stable"}
    assert world.of_kind("Deployment")[0]["spec"]["template"] == template


def test_going_back_uses_the_old_revision_again_with_a_higher_number() -> None:
    world = settled()
    first = world.deployment["status"]["stableRevision"]
    world.edit(set_drafter(COMMIT))
    world.settle()
    world.edit(lambda spec: spec.pop("drafter"))
    world.settle()
    assert world.deployment["status"]["stableRevision"] == first
    assert states(world) == {2: "Retired", 3: "Stable"}


def test_five_rapid_edits_leave_one_candidate_and_take_one_replica() -> None:
    world = settled(replicas=4)
    for number in range(5):
        world.edit(set_drafter(f"{number}" * 40))
        world.reconcile()
        world.controllers(start=False)
        assert world.serving() >= 3
        assert len(world.pods) <= 4
    assert list(states(world).values()).count("Candidate") == 1
    world.settle()
    assert states(world)[6] == "Stable"
    assert world.serving() == 4


def test_a_broken_candidate_takes_no_second_replica_and_the_edit_back_restores_everything() -> None:
    world = settled(replicas=3)
    first = world.deployment["status"]["stableRevision"]
    world.edit(set_drafter(COMMIT))
    for _ in range(20):
        world.reconcile()
        world.controllers()
        for pod in world.pods.values():
            pod["broken"] = f"chat-{pod['revision']}" != first
            pod["ready"] = pod["ready"] and not pod["broken"]
    assert world.serving() == 2
    assert (world.condition("Available"), world.condition("Ready"), world.condition("RolloutHealthy")) == ("True", "False", "False")
    world.edit(lambda spec: spec.pop("drafter"))
    world.settle()
    assert world.deployment["status"]["stableRevision"] == first
    assert (world.serving(), world.condition("Ready")) == (3, "True")


def test_a_stable_revision_that_is_wholly_broken_can_be_left() -> None:
    world = settled(replicas=3)
    for pod in world.pods.values():
        pod.update(broken=True, ready=False)
    world.edit(set_drafter(COMMIT))
    world.settle()
    world.advance(181)
    world.settle()
    assert world.serving() == 3


def test_the_outage_of_a_single_replica_is_told_before_it_happens() -> None:
    world = settled(replicas=1)
    world.edit(set_drafter(COMMIT))
    told = []
    while world.serving():
        plan = world.plan()
        told += [step.reason for step in plan.steps if isinstance(step, Event)]
        world.reconcile()
        if world.serving():
            world.controllers()
    assert "OutageAhead" in told


def test_a_surge_replica_avoids_the_outage() -> None:
    world = settled(replicas=1, rollout={"maxSurge": 1, "maxUnavailable": 0})
    world.edit(set_drafter(COMMIT))
    for _ in range(30):
        world.reconcile()
        world.controllers()
        assert world.serving() >= 1
    assert states(world) == {1: "Retired", 2: "Stable"}


def test_an_operator_with_newer_defaults_restarts_nothing_and_says_so() -> None:
    world = World(spec(replicas=2), defaults=OperatorDefaults(versions={name: contract_releases(name)[-2] for name in ("sglang", "vllm")}))
    world.settle()
    world.defaults = OperatorDefaults()
    assert world.reconcile() == 0
    assert [notice["reason"] for notice in world.deployment["status"]["notices"]] == ["RevisionNotPinned", "NewerDefaultsAvailable"]
    # A change for another reason keeps the release in force; restartId adopts the new one.
    world.edit(set_drafter(COMMIT))
    world.settle()
    assert world.deployment["status"]["engine"] == f"sglang {contract_releases('sglang')[-2]}"
    world.edit(lambda spec: spec.update(restartId="adopt"))
    world.settle()
    assert world.deployment["status"]["engine"] == f"sglang {default_release('sglang')}"


def blocks(world: World) -> str:
    return str(world.deployment["status"]["speculation"]["label"])


def test_the_written_block_size_is_law_with_tuning_off() -> None:
    world = settled(blockSize=8, tuning={"mode": "Off"})
    assert blocks(world) == "8"
    world.edit(lambda spec: spec.update(blockSize=16))
    world.settle()
    assert blocks(world) == "16"


@pytest.mark.parametrize("mode", ["Advise", "Auto"])
def test_with_tuning_the_block_in_force_stays_until_the_written_one_changes(mode: str) -> None:
    world = settled(blockSize=8, tuning={"mode": "Off"})
    world.edit(lambda spec: spec.update(tuning={"mode": mode}))
    world.settle()
    world.edit(lambda spec: spec.pop("blockSize"))
    world.settle()
    assert (blocks(world), states(world)) == ("8", {1: "Stable"})
    world.edit(lambda spec: spec.update(blockSize=16))
    world.settle()
    assert blocks(world) == "16"


def test_a_drafter_trained_at_less_lowers_the_block() -> None:
    world = settled(blockSize=16)
    world.edit(lambda spec: spec.update(drafter={"model": "me/short", "trainedBlockSize": 8}, blockSize=8))
    world.settle()
    assert blocks(world) == "8"


def test_suspend_stops_every_write_but_the_status() -> None:
    world = settled(replicas=2)
    world.edit(lambda spec: spec.update(suspend=True, replicas=5, drafter={"revision": COMMIT}))
    del world.children["Service", "chat"]
    assert world.reconcile() == 0
    assert (world.reason("Reconciling"), world.serving()) == ("Suspended", 2)
    world.edit(lambda spec: spec.update(suspend=False))
    world.settle()
    assert world.serving() == 5
    assert ("Service", "chat") in world.children


@pytest.mark.parametrize("more", [{}, {"blockSize": 32}], ids=["alone", "with an invalid spec"])
def test_suspend_is_announced_once(more: dict[str, Any]) -> None:
    world = settled()
    world.edit(lambda spec: spec.update(suspend=True, **more))
    announced = []
    for _ in range(3):
        announced.append([step.reason for step in world.plan().steps])
        world.reconcile()
        world.advance(3600)
    assert announced == [["InvalidSpec" if more else "Suspended"], [], []]


@pytest.mark.parametrize(
    ("broken", "reason", "words"),
    [
        (
            {"target": {"model": "Qwen/Qwen3.5-9B"}, "drafter": {"model": "z-lab/Qwen3.5-27B-DFlash"}},
            "DrafterMismatch",
            "Qwen3.5-9B-DFlash",
        ),
        ({"target": {"model": "who/knows"}}, "PairUnknown", "spec.drafter.model"),
        ({"target": {"model": "Qwen/Qwen3.5-9B"}, "blockSize": 32}, "InvalidSpec", "spec.blockSize"),
        (
            {"target": {"model": "Qwen/Qwen3.5-9B"}, "engine": {"version": "0.4.0"}},
            "EngineUnsupported",
            "spec.engine.version",
        ),
        ({"target": {"model": "Qwen/Qwen3.5-9B"}, "engine": {"extraArgs": ["--max-running=3"]}}, "InvalidSpec", "--max-running-requests"),
        ({"target": {"model": "Qwen/Qwen3.5-9B"}, "parallelism": {"tensor": 16, "nodes": 2}}, "LeaderWorkerSetMissing", "spec.parallelism"),
    ],
)
def test_a_spec_that_cannot_run_stalls_and_what_runs_keeps_running(broken: dict[str, Any], reason: str, words: str) -> None:
    world = settled(replicas=2)
    world.deployment["spec"] = broken | {"replicas": 2}
    world.deployment["metadata"]["generation"] += 1
    assert world.reconcile() == 0
    assert (world.condition("Stalled"), world.reason("Stalled"), world.condition("Ready")) == ("True", reason, "False")
    assert words in next(item["message"] for item in world.deployment["status"]["conditions"] if item["type"] == "Stalled")
    assert world.serving() == 2


def test_an_orphan_is_adopted_first_and_a_stranger_is_never_touched() -> None:
    world = settled()
    for item in world.children.values():
        item["metadata"].pop("ownerReferences")
    steps = world.plan().steps
    kinds = [step.ref.kind for step in steps[: len(world.children)]]
    assert kinds[0] == "ControllerRevision"
    assert len(kinds) == len(world.children)
    world.settle()
    assert all(item["metadata"]["ownerReferences"][0]["uid"] == world.deployment["metadata"]["uid"] for item in world.children.values())

    world.children["Service", "chat"]["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "Other", "name": "x", "uid": "x", "controller": True}
    ]
    assert world.reconcile() == 0
    assert world.reason("Stalled") == "NameTaken"


def test_a_lost_record_comes_back_from_its_workload_and_restarts_nothing() -> None:
    world = settled(replicas=2)
    revision, pods = world.deployment["status"]["stableRevision"], set(world.pods)
    del world.children["ControllerRevision", revision]
    del world.deployment["status"]
    world.settle()
    assert (world.deployment["status"]["stableRevision"], set(world.pods)) == (revision, pods)
    assert states(world) == {1: "Stable"}


def test_a_revision_of_a_newer_operator_stops_everything_but_the_status() -> None:
    world = settled(replicas=2)
    world.of_kind("ControllerRevision")[0]["data"]["format"] = 99
    world.edit(set_drafter(COMMIT))
    assert world.reconcile() == 0
    assert (world.reason("Stalled"), world.serving()) == ("RevisionUnreadable", 2)


def test_the_phase_tells_the_first_start_too() -> None:
    world = World(spec())
    world.reconcile()
    assert world.deployment["status"]["rollout"]["phase"] == "Progressing"
    world.settle()
    assert world.deployment["status"]["rollout"]["phase"] == "Completed"


def test_a_lost_workload_comes_back_from_its_record() -> None:
    world = settled(replicas=2)
    revision = world.deployment["status"]["stableRevision"]
    template = world.children.pop(("Deployment", revision))["spec"]["template"]
    world.settle()
    assert world.children["Deployment", revision]["spec"]["template"] == template


def test_history_is_pruned_of_what_nobody_runs() -> None:
    world = settled(rollout={"historyLimit": 2})
    for number in range(5):
        world.edit(set_drafter(f"{number}" * 40))
        world.settle()
    assert states(world) == {4: "Retired", 5: "Retired", 6: "Stable"}


def test_a_foreign_template_change_is_told_and_not_fought() -> None:
    world = settled()
    workload = world.of_kind("Deployment")[0]
    workload["spec"]["template"]["metadata"]["annotations"]["kubectl.kubernetes.io/restartedAt"] = "now"
    world.reconcile()
    notices = {notice["reason"]: notice["message"] for notice in world.deployment["status"]["notices"]}
    assert "restartedAt" in notices["ForeignTemplateChange"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda pod: pod["metadata"]["labels"].update(team="x"), "labels team"),
        (lambda pod: pod["spec"]["containers"].append({"name": "proxy"}), "container proxy"),
        (lambda pod: pod["spec"].update(initContainers=[{"name": "wait"}]), "init container wait"),
        (lambda pod: pod["spec"].setdefault("volumes", []).append({"name": "extra"}), "volume extra"),
        (lambda pod: pod["spec"]["containers"][0].setdefault("env", []).append({"name": "FOO"}), "variable FOO of container engine"),
        (
            lambda pod: pod["spec"]["containers"][0].setdefault("volumeMounts", []).append({"name": "extra", "mountPath": "/x"}),
            "mount /x of container engine",
        ),
    ],
)
def test_every_addition_to_a_template_is_told(change: Callable[[dict[str, Any]], object], told: str) -> None:
    world = settled()
    assert "ForeignTemplateChange" not in {notice["reason"] for notice in world.deployment["status"]["notices"]}
    workload = world.of_kind("Deployment")[0]
    change(workload["spec"]["template"])
    world.reconcile()
    notices = {notice["reason"]: notice["message"] for notice in world.deployment["status"]["notices"]}
    assert notices["ForeignTemplateChange"].endswith(f"left alone: {workload['metadata']['name']} {told}")


def test_odd_characters_stay_out_of_names_and_labels() -> None:
    world = settled(drafter={"model": "me/Ünicode-模型", "trainedBlockSize": 16})
    for kind, name in world.children:
        assert name.isascii(), (kind, name)
    labels = world.of_kind("Deployment")[0]["spec"]["template"]["metadata"]["labels"]
    assert all(value.isascii() for value in labels.values())


edits = st.one_of(
    st.integers(0, 5).map(lambda count: ("replicas", count)),
    st.sampled_from(["a" * 40, "b" * 40, "c" * 40]).map(lambda commit: ("drafter", commit)),
    st.sampled_from([8, 16]).map(lambda block: ("block", block)),
    st.tuples(st.integers(0, 2), st.integers(0, 2)).map(lambda limits: ("budget", limits)),
)
moves = st.one_of(
    edits,
    st.integers(0, 12).map(lambda steps: ("killed", steps)),
    st.just(("reconcile", None)),
    st.booleans().map(lambda start: ("controllers", start)),
    st.just(("crash", None)),
    st.just(("fix", None)),
    st.just(("lose status", None)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(moves, max_size=20))
def test_whatever_happens_the_budget_holds_and_the_end_is_the_spec(history: list[tuple[str, Any]]) -> None:
    world = settled(replicas=3, tuning={"mode": "Off"})
    for move, value in history:
        before = _promised(world)
        _play(world, move, value)
        if move in ("killed", "reconcile"):
            parsed = parse_spec(world.deployment)
            assert isinstance(parsed, Spec)
            limits = effective_rollout(parsed)
            floor = world.deployment["spec"]["replicas"] - limits.max_unavailable
            assert _promised(world) >= min(before, floor)
    for pod in world.pods.values():
        pod["broken"] = False
    world.settle(120)
    assert world.serving() == world.deployment["spec"].get("replicas", 1)
    # What was scaled away before it had proved itself waits for replicas.
    interrupted = world.serving() == 0 and "candidateRevision" in world.deployment["status"]
    assert (world.condition("Ready"), world.reason("Ready") == "ScaledToZero") == (str(not interrupted), world.serving() == 0)
    records = [record for item in world.of_kind("ControllerRevision") if (record := read(item))]
    assert [record.state for record in records].count(RevisionState.STABLE) == 1
    assert len(world.of_kind("Deployment")) == (2 if interrupted else 1)


def _promised(world: World) -> int:
    """Serving replicas once the controllers have done what they were told."""
    wanted = {item["spec"]["template"]["metadata"]["labels"][names.LABEL_REVISION]: item for item in world.of_kind("Deployment")}
    ready = [pod["revision"] for pod in world.pods.values() if pod["ready"] and not pod["terminating"]]
    return sum(min(ready.count(revision), item["spec"]["replicas"]) for revision, item in wanted.items())


def _play(world: World, move: str, value: Any) -> None:
    match move:
        case "replicas":
            world.edit(lambda spec: spec.update(replicas=value))
        case "drafter":
            world.edit(set_drafter(value))
        case "block":
            world.edit(lambda spec: spec.update(blockSize=value))
        case "budget":
            surge, unavailable = value
            world.edit(lambda spec: spec.update(rollout={"maxSurge": surge, "maxUnavailable": unavailable or (0 if surge else 1)}))
        case "killed":
            world.reconcile(stop_after=value)
        case "reconcile":
            world.reconcile()
        case "controllers":
            world.controllers(start=value)
        case "crash" if world.pods:
            world.pods[sorted(world.pods)[0]].update(broken=True, ready=False)
        case "fix":
            for pod in world.pods.values():
                pod["broken"] = False
        case "lose status":
            world.deployment.pop("status", None)


def test_the_key_of_the_world_is_the_deployment() -> None:
    assert str(KEY) == "models/chat"


def test_capacity_is_taken_away_only_by_steps_marked_so() -> None:
    world = settled(replicas=3)
    world.edit(lambda spec: spec.update(replicas=1))
    plan = world.plan()
    assert plan.irreversible
    shrinking = [step for step in plan.steps if isinstance(step, Apply) and step.irreversible]
    assert [step.manifest["spec"]["replicas"] for step in shrinking] == [1]
    assert all(step.fenced and step.fence for step in shrinking)
    assert not [step for step in plan.steps if isinstance(step, Create | Delete)]


def test_pods_that_became_ready_after_the_last_measurement_are_not_called_missing() -> None:
    world = settled(replicas=2)
    world.metrics = MetricsHealth(False, Reason.NO_PODS, "No engine pod is Ready")
    world.reconcile()
    assert (world.condition("MetricsAvailable"), world.reason("MetricsAvailable")) == ("Unknown", "NotMeasured")
    world.edit(lambda spec: spec.update(replicas=0))
    world.settle()
    assert (world.condition("MetricsAvailable"), world.reason("MetricsAvailable")) == ("False", "NoPods")


def test_a_field_that_another_manager_keeps_changing_is_a_notice_as_long_as_it_lasts() -> None:
    world = settled()
    world.field_conflicts = ("Deployment chat-r1: field manager flux keeps changing spec.replicas", "Service chat: ...")
    world.settle()
    (notice,) = [item for item in world.deployment["status"]["notices"] if item["reason"] == "FieldFight"]
    assert notice["message"] == "Deployment chat-r1: field manager flux keeps changing spec.replicas; the same for 1 more"
    world.field_conflicts = ()
    world.settle()
    assert "FieldFight" not in str(world.deployment["status"].get("notices"))


def test_an_engine_that_clients_can_administer_is_said_until_it_is_replaced() -> None:
    def said() -> str:
        found = {notice["reason"]: notice["message"] for notice in world.deployment["status"]["notices"]}
        return found.get("AdminEndpointsOpen", "")

    world = settled(replicas=1)
    assert not said()
    world.edit(lambda spec: spec.update(engine={"env": [{"name": "DFLASH_ADMIN_KEY", "value": ""}]}))
    world.settle()
    assert "no --admin-api-key" in said()
    world.edit(lambda spec: spec.pop("engine"))
    world.settle()
    assert not said()
