"""Branches become commits once, when a revision is made; what moves afterwards is reported; what contradicts config.json never starts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dflash_controller.model.hub import HubAnswer, HubKnowledge, ModelFacts, ModelQuestion
from dflash_controller.model.measurement import Absent, Error
from dflash_controller.planning.state.plan import Plan
from tests.support.planning_world import FAILED, World

TARGET, DRAFTER = "Qwen/Qwen3.5-9B", "z-lab/Qwen3.5-9B-DFlash"
T1, T2, D1, D2 = "1" * 40, "2" * 40, "d" * 40, "e" * 40
CLAIM: dict[str, Any] = {"persistentVolumeClaim": {"claimName": "models"}}
GONE = Error("https://hub cannot be reached")
GATED = Absent("https://hub shows it to nobody without a token (HTTP 401)")
TARGET_CONFIG = {"num_hidden_layers": 32, "hidden_size": 4096, "vocab_size": 248320}
DRAFTER_CONFIG: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "hidden_size": 4096,
    "vocab_size": 248320,
    "block_size": 16,
    "dflash_config": {"target_layer_ids": [1, 15, 29]},
}


class HubWorld(World):
    """A world with a hub that answers between two reconciles, unless it is slow."""

    def __init__(self, spec: dict[str, Any], **answers: HubAnswer) -> None:
        super().__init__({"target": {"model": TARGET}, **spec})
        self.target: HubAnswer = answers.get("target", ModelFacts(T1))
        self.drafter: HubAnswer = answers.get("drafter", ModelFacts(D1))
        self.slow = False
        self.hub = HubKnowledge("https://hub")
        self.hub_asked: set[ModelQuestion] = set()
        self.rounds = 0.0

    def carry_out(self, plan: Plan, *, stop_after: int | None = None) -> int:
        written = super().carry_out(plan, stop_after=stop_after)
        wanted = {*plan.models.watched, *plan.models.pending}
        self.hub_asked |= wanted
        if self.slow or self.hub.endpoint is None:
            return written
        self.rounds += 1
        answers = {question: self._answer(question) for question in wanted}
        news = answers != self.hub.shown or plan.models.intent != self.hub.intent
        latest = {question: (self.rounds, answer) for question, answer in answers.items()}
        self.hub = HubKnowledge("https://hub", answers, latest, plan.models.intent, self.rounds)
        return written + news

    def _answer(self, question: ModelQuestion) -> HubAnswer:
        answer = {TARGET: self.target, DRAFTER: self.drafter}.get(question.model, GONE)
        return ModelFacts(question.ref, config=answer.config) if question.pinned and isinstance(answer, ModelFacts) else answer

    def argv(self) -> list[str]:
        """Of the newest workload."""
        found = max(self.of_kind("Deployment"), key=lambda item: int(item["metadata"]["resourceVersion"]))
        return list(found["spec"]["template"]["spec"]["containers"][0]["args"])

    def init_containers(self) -> list[dict[str, Any]]:
        """Of the newest workload."""
        found = max(self.of_kind("Deployment"), key=lambda item: int(item["metadata"]["resourceVersion"]))
        return list(found["spec"]["template"]["spec"].get("initContainers", ()))

    def notice(self, reason: str) -> str:
        return next((item["message"] for item in self.deployment["status"].get("notices", ()) if item["reason"] == reason), "")

    def message(self, type: str) -> str:
        return str(next(item["message"] for item in self.deployment["status"]["conditions"] if item["type"] == type))

    def events(self, plan: Plan) -> list[str]:
        return [step.reason for step in plan.steps if hasattr(step, "reason")]


def settled(spec: dict[str, Any] | None = None, **answers: HubAnswer) -> HubWorld:
    world = HubWorld(spec or {}, **answers)
    world.settle()
    return world


def refs(world: HubWorld) -> list[tuple[str | None, str | None]]:
    """Stored revisions of target and drafter, oldest first."""
    records = sorted(world.of_kind("ControllerRevision"), key=lambda item: int(item["revision"]))
    return [tuple(item["data"]["resolved"][part]["revision"] for part in ("target", "drafter")) for item in records]  # type: ignore[misc]


@pytest.mark.parametrize("storage", [{}, {"storage": CLAIM}])
def test_a_branch_becomes_a_commit_in_the_revision_and_in_the_argv(storage: dict[str, Any]) -> None:
    world = settled({"replicas": 2, **storage})
    assert refs(world) == [(T1, D1)]
    assert T1 in " ".join(world.argv())
    assert D1 in " ".join(world.argv())
    assert world.deployment["status"]["drafterRevision"] == D1
    assert not world.notice("RevisionNotPinned")
    assert world.condition("Ready") == "True"


def test_a_branch_with_storage_is_fetched_at_its_commit_and_another_edit_keeps_that() -> None:
    world = HubWorld({"replicas": 2, "storage": CLAIM})
    world.defaults = replace(world.defaults, fetch_image="images.example.com/dflash-operator:1")
    world.settle()
    fetched = [f"--model={TARGET}@{T1}", f"--model={DRAFTER}@{D1}"]
    assert [container["args"][:2] for container in world.init_containers()] == [fetched]
    assert "/models/target" in " ".join(world.argv())
    assert T1 not in " ".join(world.argv())
    world.target = ModelFacts(T2)
    world.edit(lambda spec: spec.update(engine={"env": [{"name": "A", "value": "b"}]}))
    world.settle()
    assert [container["args"][:2] for container in world.init_containers()] == [fetched]


def test_nothing_is_made_while_the_hub_is_being_asked_and_the_status_says_so() -> None:
    world = HubWorld({"storage": CLAIM})
    world.slow = True
    world.settle()
    assert not world.of_kind("ControllerRevision")
    assert (world.condition("Ready"), world.reason("Ready")) == ("False", "ResolvingRevisions")
    assert (world.condition("Reconciling"), world.condition("Stalled")) == ("True", "False")
    assert world.message("Ready") == (f"https://hub is asked for the commit and the config.json of {TARGET} at main and {DRAFTER} at main")
    world.slow = False
    world.settle()
    assert refs(world) == [(T1, D1)]


def test_what_runs_is_untouched_while_the_hub_is_asked_about_a_change() -> None:
    world = settled({"replicas": 2})
    rollout = world.deployment["status"]["rollout"]
    world.slow = True
    world.edit(lambda spec: spec.update(restartId="again"))
    world.settle()
    assert world.serving() == 2
    assert world.deployment["status"]["rollout"] == rollout, "no rollout has begun"
    assert world.reason("Ready") == "ResolvingRevisions"
    world.edit(lambda spec: spec.update(replicas=3))
    world.settle()
    assert world.serving() == 3


def test_a_branch_that_moves_starts_nothing_and_is_reported_with_both_commits() -> None:
    world = settled()
    world.drafter, world.target = ModelFacts(D2), ModelFacts(T2)
    world.settle()
    assert refs(world) == [(T1, D1)]
    assert world.notice("NewerDrafterAvailable") == (
        f"main of {DRAFTER} is {D2} now, and {D1} runs. Nothing changes by itself: change spec.restartId to adopt it, or set "
        "spec.drafter.revision to the commit you want"
    )
    assert T2 in world.notice("NewerTargetAvailable")
    world.edit(lambda spec: spec.update(replicas=3))
    world.settle()
    assert refs(world) == [(T1, D1)]


def test_restart_id_adopts_what_the_branch_names_now_and_the_gates_judge_it() -> None:
    world = settled()
    world.drafter = ModelFacts(D2)
    world.settle()
    world.edit(lambda spec: spec.update(restartId="again"))
    world.settle()
    assert refs(world) == [(T1, D1), (T1, D2)]
    assert world.question is not None, "another drafter is compared"
    assert D2 in " ".join(world.argv())
    assert not world.notice("NewerDrafterAvailable")


def test_restart_id_without_a_move_compares_nothing() -> None:
    world = settled()
    world.edit(lambda spec: spec.update(restartId="again"))
    world.settle()
    assert refs(world) == [(T1, D1), (T1, D1)]
    assert world.question is None


def test_another_edit_keeps_the_commits() -> None:
    world = settled()
    world.drafter, world.target = ModelFacts(D2), ModelFacts(T2)
    world.edit(lambda spec: spec.update(engine={"maxConcurrency": 16}))
    world.settle()
    assert refs(world) == [(T1, D1), (T1, D1)]


def test_going_back_to_a_stored_intent_keeps_the_commits_it_had() -> None:
    world = settled()
    world.edit(lambda spec: spec.update(drafter={"revision": D2}))
    world.settle()
    world.drafter = ModelFacts("9" * 40)
    world.edit(lambda spec: spec.pop("drafter"))
    world.settle()
    assert world.deployment["status"]["drafterRevision"] == D1
    assert "9" * 40 in world.notice("NewerDrafterAvailable")


def test_another_branch_is_resolved_though_restart_id_stays() -> None:
    world = settled()
    world.edit(lambda spec: spec.update(drafter={"revision": "v2"}))
    world.drafter = ModelFacts(D2)
    world.settle()
    assert refs(world) == [(T1, D1), (T1, D2)]
    assert ModelQuestion(DRAFTER, "v2") in world.hub_asked


def test_a_change_of_the_tuner_resolves_nothing() -> None:
    world = settled({"tuning": {"mode": "Off"}})
    world.drafter = ModelFacts(D2)
    world.edit(lambda spec: spec.update(blockSize=8))
    world.settle()
    assert refs(world) == [(T1, D1), (T1, D1)]


def test_a_pinned_deployment_watches_no_branch() -> None:
    world = settled({"target": {"model": TARGET, "revision": T1}, "drafter": {"revision": D1}})
    world.hub_asked.clear()
    world.reconcile()
    assert not world.hub_asked


@pytest.mark.parametrize("answer", [GONE, GATED])
def test_with_storage_no_revision_is_made_without_a_commit_and_the_message_names_field_and_remedy(answer: HubAnswer) -> None:
    world = settled({"storage": CLAIM}, drafter=answer)
    assert not world.of_kind("ControllerRevision")
    assert (world.condition("Stalled"), world.reason("Stalled")) == ("True", "RevisionNotResolved")
    assert world.message("Stalled").startswith(
        f"spec.drafter.revision: main of {DRAFTER} is not resolved to a commit, because https://hub "
    )
    assert "set spec.drafter.revision to a 40-digit commit" in world.message("Stalled")
    world.drafter = ModelFacts(D1)
    world.settle()
    assert refs(world) == [(T1, D1)], "it goes on by itself once the hub answers"


def test_with_storage_a_pinned_deployment_needs_no_hub() -> None:
    spec = {"storage": CLAIM, "target": {"model": TARGET, "revision": T1}, "drafter": {"revision": D1}}
    assert refs(settled(spec, target=GONE, drafter=GONE)) == [(T1, D1)]


@pytest.mark.parametrize("answer", [GONE, GATED])
def test_without_storage_a_branch_stays_a_branch_if_the_hub_does_not_resolve_it(answer: HubAnswer) -> None:
    world = HubWorld({}, target=answer, drafter=answer)
    world.reconcile()
    plan = world.plan()
    assert "RevisionNotResolved" in world.events(plan)
    world.settle()
    assert refs(world) == [(None, None)]
    assert world.condition("Ready") == "True"
    assert "spec.target.revision and spec.drafter.revision" in world.notice("RevisionNotPinned")


def test_without_a_hub_branches_stay_where_engines_fetch_and_are_refused_where_we_do() -> None:
    world = HubWorld({})
    world.hub = HubKnowledge()
    world.settle()
    assert refs(world) == [(None, None)]
    world.edit(lambda spec: spec.update(storage=CLAIM))
    world.settle()
    assert refs(world) == [(None, None)]
    assert world.serving() == 1
    assert "huggingFace.endpoint, or DFLASH_HUGGING_FACE_ENDPOINT, is off" in world.message("Stalled")


def test_a_hub_that_is_gone_touches_nothing_that_runs_and_is_reported() -> None:
    world = settled({"replicas": 2, "storage": CLAIM})
    pods = set(world.pods)
    world.drafter = world.target = GONE
    world.settle()
    assert set(world.pods) == pods
    assert world.condition("Ready") == "True"
    assert world.notice("HubUnavailable") == (
        f"Whether main of {TARGET} has moved is not known, because https://hub cannot be reached. {T1} runs and is not touched. Set "
        "spec.target.revision to a commit, and the hub is not asked"
    )


def test_a_restart_while_the_hub_is_gone_keeps_the_commits_and_says_so() -> None:
    world = settled({"storage": CLAIM})
    world.drafter = GONE
    world.edit(lambda spec: spec.update(restartId="again"))
    world.reconcile()
    plan = world.plan()
    told = [step.message for step in plan.steps if getattr(step, "reason", "") == "RevisionNotResolved"]
    assert told == [
        f"spec.drafter.revision: main of {DRAFTER} is not resolved to a commit, because https://hub cannot be reached. {D1} stays; change "
        "spec.restartId again once the hub answers, or set spec.drafter.revision to a commit"
    ]
    world.settle()
    assert refs(world)[-1] == (T1, D1)


def test_a_restart_of_the_operator_keeps_what_was_reported_until_the_hub_answers() -> None:
    world = settled()
    world.drafter = ModelFacts(D2)
    world.settle()
    status = dict(world.deployment["status"])
    world.slow, world.hub = True, HubKnowledge("https://hub")
    world.reconcile()
    assert world.deployment["status"] == status
    world.slow, world.drafter = False, ModelFacts(D1)
    world.settle()
    assert not world.notice("NewerDrafterAvailable")


def test_a_commit_that_was_tried_and_failed_is_not_offered_again() -> None:
    world = settled()
    world.drafter = ModelFacts(D2)
    world.edit(lambda spec: spec.update(restartId="again"))
    world.judgement = FAILED
    world.settle()
    assert world.reason("Stalled") == "RolledBack"
    assert world.deployment["status"]["drafterRevision"] == D1
    assert not world.notice("NewerDrafterAvailable")


def test_an_upgrade_of_the_operator_resolves_nothing_that_is_stored() -> None:
    world = HubWorld({"storage": CLAIM, "target": {"model": TARGET, "revision": T1}, "drafter": {"revision": D1}})
    world.settle()
    # An older operator stored the branch.
    for item in (*world.of_kind("ControllerRevision"),):
        item["data"]["inputs"] = {**item["data"]["inputs"], "target": {"model": TARGET}}
        item["data"]["inputs"].pop("drafter")
        item["data"]["resolved"]["drafter"]["revision"] = item["data"]["resolved"]["target"]["revision"] = None
    world.edit(lambda spec: spec.update(target={"model": TARGET}))
    world.edit(lambda spec: spec.pop("drafter"))
    pods = set(world.pods)
    world.settle()
    assert refs(world) == [(None, None)]
    assert set(world.pods) == pods
    assert world.condition("Ready") == "True"


def test_a_claim_that_holds_the_weights_already_is_not_asked_about() -> None:
    world = settled({"storage": {"persistentVolumeClaim": {"claimName": "models", "readOnly": True}}})
    assert refs(world) == [(None, None)]
    assert not world.hub_asked


@pytest.mark.parametrize(
    ("variable", "resolved"),
    [
        ({"name": "HF_ENDPOINT", "value": "https://other"}, False),
        ({"name": "HF_ENDPOINT", "value": "https://hub/"}, True),
        ({"name": "HF_HUB_OFFLINE", "value": "1"}, False),
        ({"name": "HF_HUB_OFFLINE", "value": "0"}, True),
    ],
)
def test_an_engine_with_a_hub_of_its_own_or_none_is_not_pinned_by_the_operators(variable: dict[str, str], resolved: bool) -> None:
    world = settled({"engine": {"env": [variable]}})
    assert refs(world) == [(T1, D1) if resolved else (None, None)]
    assert bool(world.hub_asked) is resolved


def test_a_drafter_of_another_target_is_refused_before_an_engine_starts() -> None:
    config = {**DRAFTER_CONFIG, "dflash_config": {"target_layer_ids": [1, 33]}}
    world = settled(target=ModelFacts(T1, config=TARGET_CONFIG), drafter=ModelFacts(D1, config=config))
    assert not world.pods
    assert not world.of_kind("ControllerRevision")
    assert (world.condition("Stalled"), world.reason("Stalled")) == ("True", "DrafterMismatch")
    assert world.message("Stalled").startswith(f"spec.drafter.model: {DRAFTER} reads layer 33 of its target")
    world.drafter = ModelFacts(D1, config=DRAFTER_CONFIG)
    world.settle()
    assert refs(world) == [(T1, D1)]


def test_a_wrong_drafter_is_refused_while_the_stable_one_serves() -> None:
    world = settled({"replicas": 2}, target=ModelFacts(T1, config=TARGET_CONFIG), drafter=ModelFacts(D1, config=DRAFTER_CONFIG))
    pods = set(world.pods)
    world.drafter = ModelFacts(D2, config={**DRAFTER_CONFIG, "vocab_size": 151936})
    world.edit(lambda spec: spec.update(restartId="again"))
    world.settle()
    assert set(world.pods) == pods
    assert world.reason("Stalled") == "DrafterMismatch"
    assert world.condition("Available") == "True"


def test_another_trained_block_size_than_the_spec_says_is_refused() -> None:
    world = settled({"drafter": {"trainedBlockSize": 10}}, drafter=ModelFacts(D1, config=DRAFTER_CONFIG))
    assert world.reason("Stalled") == "InvalidSpec"
    assert "spec.drafter.trainedBlockSize" in world.message("Stalled")
    assert not world.pods


def test_an_architecture_that_the_release_does_not_load_is_refused() -> None:
    config = {**DRAFTER_CONFIG, "architectures": ["DFlash2DraftModel"]}
    world = settled({"engine": {"version": "0.5.17"}}, drafter=ModelFacts(D1, config=config))
    assert world.reason("Stalled") == "EngineUnsupported"
    assert world.message("Stalled").startswith("spec.engine.version: SGLang 0.5.17 does not know DFlash2DraftModel")


def test_pinned_models_are_checked_too() -> None:
    spec = {"target": {"model": TARGET, "revision": T1}, "drafter": {"revision": D1, "trainedBlockSize": 10}}
    assert settled(spec, drafter=ModelFacts(D1, config=DRAFTER_CONFIG)).reason("Stalled") == "InvalidSpec"


def test_nothing_is_refused_where_config_json_could_not_be_read() -> None:
    assert settled({"drafter": {"trainedBlockSize": 10}}, drafter=ModelFacts(D1)).condition("Ready") == "True"
    assert settled({"drafter": {"trainedBlockSize": 10}}, drafter=GONE).condition("Ready") == "True"


def test_a_drafter_that_the_catalog_does_not_know_is_filled_in_from_its_own_repository() -> None:
    spec = {"target": {"model": TARGET}, "drafter": {"model": "me/my-drafter"}}
    world = HubWorld(spec)
    world._answer = lambda question: ModelFacts(D1, {"model.safetensors": 5}, {**DRAFTER_CONFIG, "block_size": 12})  # type: ignore[method-assign]
    world.settle()
    [stored] = world.of_kind("ControllerRevision")
    assert stored["data"]["resolved"]["trained_block_size"] == 12
    world = HubWorld(spec)
    world.settle()
    assert world.reason("Stalled") == "InvalidSpec"
    assert "spec.drafter.trainedBlockSize" in world.message("Stalled")


def test_weights_that_nobody_else_knows_are_as_large_as_the_hub_says() -> None:
    spec = {"target": {"model": "me/my-target"}, "drafter": {"model": "me/my-drafter", "trainedBlockSize": 16}}
    world = HubWorld(spec)
    world._answer = lambda question: ModelFacts(D1, {"a.safetensors": 7, "b.safetensors": 4, "model.bin": 11})  # type: ignore[method-assign]
    world.settle()
    [stored] = world.of_kind("ControllerRevision")
    assert (stored["data"]["resolved"]["weight_bytes"], stored["data"]["resolved"]["weights_known"]) == (22, True)


def test_a_pin_is_obeyed_while_the_hub_is_asked() -> None:
    world = settled({"replicas": 2})
    world.edit(lambda spec: spec.update(blockSize=8, tuning={"mode": "Off"}))
    world.settle()
    old = next(item["metadata"]["name"] for item in world.of_kind("ControllerRevision") if item["revision"] == 1)
    world.slow = True
    world.edit(lambda spec: spec.update(restartId="again"))
    world.deployment["metadata"]["annotations"] = {"serving.dflash.io/pin": old}
    world.settle()
    assert world.deployment["status"]["stableRevision"] == old
    assert world.deployment["status"]["rollout"]["revision"] == old
    assert world.reason("Ready") == "Pinned"


def test_a_suspended_deployment_still_reports_a_branch_that_moved() -> None:
    world = settled()
    world.edit(lambda spec: spec.update(suspend=True))
    world.drafter = ModelFacts(D2)
    world.settle()
    assert D2 in world.notice("NewerDrafterAvailable")
    assert refs(world) == [(T1, D1)]
