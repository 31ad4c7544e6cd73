"""Jobs that fetch a candidate's weights: when they are made, left alone, and tried again."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import patch

import pytest

from dflash_controller.api import names
from dflash_controller.api.conditions import Reason
from dflash_controller.cluster.pods import project
from dflash_controller.engines.resolve import OperatorDefaults
from dflash_controller.model.fetch_report import EXIT_CODES, FetchReason, FetchReport
from dflash_controller.planning.revisions.revision import RevisionState
from dflash_controller.planning.revisions.roles import read_stored
from dflash_controller.planning.rollout.preparation import kept_models
from dflash_controller.planning.state.plan import Apply, Delete
from dflash_controller.planning.state.prefetch_progress import REASONS
from dflash_controller.render import prefetch
from tests.support.planning_world import UNDECIDED, World
from tests.unit.planning.test_planner import COMMIT, set_drafter, settled, spec

CLAIM: dict[str, Any] = {"persistentVolumeClaim": {"claimName": "models"}}
MODELS: dict[str, Any] = {"target": {"model": "Qwen/Qwen3.5-9B", "revision": "f" * 40}, "drafter": {"revision": "c" * 40}}
"""Weights are fetched at commits only."""
NIGHT = {"window": {"schedule": "0 22 * * *", "duration": "2h", "timeZone": "Europe/Berlin"}}


def fetching(**spec: Any) -> World:
    """A deployment with a new drafter whose weights are being fetched."""
    world = settled(replicas=3, storage=CLAIM, **MODELS, **spec)
    world.judgement = UNDECIDED
    world.edit(set_drafter(COMMIT))
    world.settle()
    assert len(world.of_kind("Job")) == 1
    return world


def job(world: World) -> dict[str, Any]:
    [found] = world.of_kind("Job")
    return found


def fail(world: World) -> None:
    at = world.now.strftime("%Y-%m-%dT%H:%M:%SZ")
    condition = {"type": "Failed", "status": "True", "message": "backoff limit reached", "lastTransitionTime": at}
    job(world)["status"] = {"conditions": [condition]}
    world._touch(job(world))


def complete(world: World) -> None:
    job(world)["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    world._touch(job(world))


def rollout(world: World) -> tuple[str, str, str]:
    shown = world.deployment["status"]["rollout"]
    return shown["phase"], shown["reason"], shown["message"]


def test_a_job_that_exists_is_never_applied_again_whatever_another_release_renders() -> None:
    world = fetching()
    with patch.object(prefetch, "RESOURCES", {"limits": {"memory": "9Gi"}}):
        assert not [step for step in world.plan().steps if isinstance(step, Apply) and step.manifest["kind"] == "Job"]
        assert world.reconcile() == 0
        assert rollout(world)[:2] == ("Preparing", "Prefetching")
        job(world)["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        assert world.reconcile() == 0, "it is created when the name is free"


def test_a_failed_job_is_replaced_after_a_pause_that_grows_with_every_failure() -> None:
    world = fetching()
    begun = world.now
    pauses = []
    for took_s in (60, 60, 60, 60, 60, 60, 60, 60):
        world.advance(took_s)
        fail(world)
        failed_at, uid = world.now, job(world)["metadata"]["uid"]
        assert world.reconcile() == 0
        phase, reason, message = rollout(world)
        assert (phase, reason, world.condition("Stalled")) == ("Held", "PrefetchFailed", "True")
        words = message.split("The next attempt is at ")[1]
        due = datetime.strptime(words[:20], "%Y-%m-%d %H:%M UTC").replace(tzinfo=world.now.tzinfo)
        while job(world)["metadata"]["uid"] == uid:
            world.advance(60)
            world.settle()
        assert due <= world.now <= due + timedelta(minutes=1, seconds=59)
        assert rollout(world)[:2] == ("Preparing", "Prefetching")
        assert world.condition("Stalled") == "False"
        pauses.append(round((world.now - failed_at).total_seconds() / 60))
    assert pauses == [10, 12, 25, 51, 103, 120, 120, 120]
    assert world.now - begun > timedelta(hours=8)
    complete(world)
    world.settle()
    assert rollout(world)[0] == "Analyzing"


def test_the_message_of_a_failed_job_says_what_failed_when_it_is_tried_again_and_how_to_go_on_by_hand() -> None:
    world = fetching()
    fail(world)
    world.settle()
    name, candidate = job(world)["metadata"]["name"], world.deployment["status"]["candidateRevision"]
    assert rollout(world)[2] == (
        f"Job {name} failed: backoff limit reached. The next attempt is at 2026-01-01 00:10 UTC, or as soon as the Job is deleted. Decide "
        f"with kubectl annotate: serving.dflash.io/promote={candidate}, or serving.dflash.io/abort={candidate}"
    )
    world.deployment["metadata"]["annotations"] = {"serving.dflash.io/promote": candidate}
    world.settle()
    assert world.deployment["status"]["stableRevision"] == candidate
    assert not world.of_kind("Job")


def test_a_failed_job_without_a_time_waits_for_a_human() -> None:
    world = fetching()
    job(world)["status"] = {"conditions": [{"type": "Failed", "status": "True", "message": "no idea"}]}
    world.advance(10 * 3600)
    assert not [step for step in world.plan().steps if isinstance(step, Delete)]
    world.settle()
    assert "failed: no idea. Delete the Job" in rollout(world)[2]


def test_weights_are_fetched_before_the_window_opens_and_no_replica_is_taken() -> None:
    world = fetching(rollout=NIGHT)
    phase, reason, message = rollout(world)
    assert (phase, reason) == ("Preparing", "OutsideWindow")
    assert message.endswith(f"it opens 2026-01-01 21:00 UTC. Job {job(world)['metadata']['name']} fetches the weights")
    complete(world)
    world.settle()
    assert rollout(world)[2].endswith("it opens 2026-01-01 21:00 UTC")
    assert len({pod["revision"] for pod in world.pods.values()}) == 1
    world.advance(21 * 3600)
    world.settle()
    assert rollout(world)[0] == "Analyzing"


def test_the_probes_reference_is_not_taken_before_the_window_opens() -> None:
    world = settled(replicas=1, rollout=NIGHT)
    world.judgement = UNDECIDED
    world.edit(set_drafter(COMMIT))
    world.settle()
    assert (rollout(world)[1], world.plan().probe) == ("OutsideWindow", None)
    world.answering = False
    world.advance(21 * 3600)
    world.reconcile()
    assert rollout(world)[1] == "TakingReference"


def test_a_failure_to_fetch_is_shown_before_the_window_opens() -> None:
    world = fetching(rollout=NIGHT)
    fail(world)
    world.settle()
    assert rollout(world)[:2] == ("Held", "PrefetchFailed")


def test_pods_and_jobs_mount_no_more_of_a_node_than_the_allowed_directory() -> None:
    spec = {**MODELS, "storage": {"hostPath": {"path": "/mnt/models/chat"}}}
    world = World(spec, defaults=OperatorDefaults(host_path_roots=("/mnt/models",)))
    world.settle()
    world.edit(set_drafter(COMMIT))
    world.reconcile()
    world.reconcile()
    templates = [item["spec"]["template"]["spec"] for item in (*world.of_kind("Deployment"), *world.of_kind("Job"))]
    assert len(templates) == 2
    for template in templates:
        [volume] = [item for item in template["volumes"] if item["name"] == "storage"]
        assert volume["hostPath"]["path"] == "/mnt/models"
        [mount] = [item for item in template["containers"][0]["volumeMounts"] if item["name"] == "storage"]
        assert mount["subPath"] == "chat"


def test_a_job_that_has_succeeded_and_was_collected_is_not_made_again() -> None:
    world = fetching(rollout=NIGHT)
    name = job(world)["metadata"]["name"]
    complete(world)
    world.settle()
    del world.children["Job", name]
    world.settle()
    assert not world.of_kind("Job")
    assert rollout(world)[2].endswith("it opens 2026-01-01 21:00 UTC")
    world.advance(21 * 3600)
    world.settle()
    assert rollout(world)[0] == "Analyzing"


def test_a_job_that_was_deleted_before_it_ended_is_made_again() -> None:
    world = fetching()
    first = job(world)["metadata"]
    del world.children["Job", first["name"]]
    world.settle()
    assert job(world)["metadata"]["uid"] != first["uid"]


def test_a_suspended_job_is_told_and_holds_the_rollout_without_stalling_it() -> None:
    world = fetching()
    job(world)["status"] = {"conditions": [{"type": "Suspended", "status": "True", "message": "Job suspended"}]}
    world._touch(job(world))
    world.settle()
    assert rollout(world)[:2] == ("Held", "Prefetching")
    assert rollout(world)[2].endswith("is suspended (see kubectl describe job " + job(world)["metadata"]["name"] + "): Job suspended")
    assert world.condition("Stalled") == "False"
    complete(world)
    world.settle()
    assert rollout(world)[0] == "Analyzing"


FETCHED = OperatorDefaults(fetch_image="images.example.com/dflash-operator:1")
TARGET = {"model": "Qwen/Qwen3.5-9B", "revision": "d" * 40}


def fetched_world(*commits: str) -> World:
    """A deployment whose init containers fetch its weights, which has had drafters at these commits, and waits for a Job for the last."""
    first, *later = commits
    world = World(spec(replicas=3, storage=CLAIM, target=TARGET, drafter={"revision": first}), defaults=FETCHED)
    world.settle()
    for commit in later:
        world.judgement = UNDECIDED if commit == later[-1] else world.judgement
        world.edit(set_drafter(commit))
        world.settle()
        if commit != later[-1]:
            complete(world)
            world.settle()
    return world


def arguments(world: World) -> list[str]:
    [container] = job(world)["spec"]["template"]["spec"]["containers"]
    assert container["image"] == FETCHED.fetch_image
    args = container["args"]
    assert isinstance(args, list)
    return args


def test_a_job_keeps_the_models_of_every_stored_revision_and_deletes_no_other_ones() -> None:
    world = fetched_world("a" * 40, "b" * 40)
    kept = {argument.removeprefix("--keep=") for argument in arguments(world) if argument.startswith("--keep=")}
    drafter = "z-lab/Qwen3.5-9B-DFlash"
    assert kept == {f"{TARGET['model']}@{TARGET['revision']}", f"{drafter}@{'a' * 40}", f"{drafter}@{'b' * 40}"}
    assert "--prune" in arguments(world)


def test_nothing_is_deleted_while_a_revision_cannot_be_read() -> None:
    world = fetched_world("a" * 40, "b" * 40)
    [old, *_] = world.of_kind("ControllerRevision")
    damaged = {**old, "metadata": {**old["metadata"], "name": "chat-rabcdefg"}, "data": {}}
    state = world.snapshot()
    stored = read_stored([*state.revisions, damaged])
    assert stored.unreadable
    [candidate] = [record for record in stored.records if record.state is RevisionState.CANDIDATE]
    assert kept_models(stored, candidate) is None
    assert kept_models(read_stored(state.revisions), candidate) is not None


@pytest.mark.parametrize(("reason", "expected"), list(REASONS.items()))
def test_the_reason_of_a_failed_job_is_that_of_the_program(reason: FetchReason, expected: Reason) -> None:
    world = fetched_world("a" * 40, "b" * 40)
    fail(world)
    metadata, snapshot = job(world)["metadata"], world.snapshot()
    report = FetchReport(reason, "words of the program").to_json()
    ended = {"exitCode": EXIT_CODES[reason], "reason": "Error", "message": report, "finishedAt": "2026-01-01T00:00:00Z"}
    pod = {
        "metadata": {
            "name": f"{metadata['name']}-x7k2p",
            "uid": "u",
            "resourceVersion": "1",
            "labels": metadata["labels"] | {names.LABEL_ROLE: names.ROLE_PREFETCH},
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": metadata["name"], "uid": "j", "controller": True}],
        },
        "status": {"phase": "Failed", "containerStatuses": [{"name": "fetch", "restartCount": 0, "state": {"terminated": ended}}]},
    }
    with patch.object(world, "snapshot", lambda: replace(snapshot, pods=(*snapshot.pods, project(pod)))):
        world.reconcile()
    phase, shown, message = rollout(world)
    assert (phase, shown) == ("Held", expected)
    assert f"Job {metadata['name']} failed: fetch: words of the program" in message


def told_of_newer_defaults(world: World) -> str:
    """What a deployment is told when its operator knows an image that fetches. Nothing else happens then."""
    before = dict(world.children), set(world.pods)
    world.defaults = FETCHED
    world.settle()
    assert (dict(world.children), set(world.pods)) == before
    [notice] = [notice for notice in world.deployment["status"]["notices"] if notice["reason"] == "NewerDefaultsAvailable"]
    return str(notice["message"])


def test_an_operator_that_knows_an_image_for_it_restarts_nothing_and_says_how_to_adopt_it() -> None:
    world = World(spec(replicas=3, storage=CLAIM, target=TARGET, drafter={"revision": "a" * 40}))
    world.settle()
    assert "spec.restartId" in told_of_newer_defaults(world)
    world.edit(lambda written: written.update(restartId="1"))
    world.settle()
    assert arguments(world), "a Job brings the weights to the other place first"
    complete(world)
    world.settle()
    [newest] = [item for item in world.of_kind("Deployment") if item["spec"]["template"]["spec"].get("initContainers")]
    assert newest["spec"]["replicas"] == 3, "nothing that could be judged has changed"
    assert not [notice for notice in world.deployment["status"].get("notices", ()) if notice["reason"] == "NewerDefaultsAvailable"]


def written_by_engines(world: World) -> list[str]:
    """What part of the storage the engines of each workload may write."""
    containers = [item["spec"]["template"]["spec"]["containers"][0] for item in world.of_kind("Deployment")]
    mounts = [mount for container in containers for mount in container["volumeMounts"] if mount["name"] == "storage"]
    return sorted(mount.get("subPath", "all") for mount in mounts if not mount.get("readOnly"))


def test_engines_that_write_to_the_whole_storage_run_on_and_a_restart_confines_them() -> None:
    world = fetched_world("a" * 40)
    [stored] = world.of_kind("ControllerRevision")
    assert written_by_engines(world) == [f"engine-cache/{stored['metadata']['namespace']}"]

    world = World(spec(replicas=3, storage=CLAIM, target=TARGET, drafter={"revision": "a" * 40}))
    world.defaults = replace(FETCHED, fetch_makes_cache=False)
    world.settle()
    assert "whole storage" in told_of_newer_defaults(world)
    world.edit(set_drafter("b" * 40))
    world.settle()
    complete(world)
    world.settle()
    assert set(written_by_engines(world)) == {"all"}, "the image of an edit is the old one, which makes no directory"
    world.edit(lambda written: written.update(restartId="1"))
    world.settle()
    assert written_by_engines(world)[-1].startswith("engine-cache/")
    assert not [notice for notice in world.deployment["status"].get("notices", ()) if notice["reason"] == "NewerDefaultsAvailable"]
