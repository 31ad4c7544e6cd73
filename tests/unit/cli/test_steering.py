"""What the verbs of ``rollout`` say and patch: the fields that docs/how-to/change-a-drafter.md names, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from dflash_controller.api.parse import parse_spec
from dflash_controller.api.speculation import Fixed
from dflash_controller.api.types import Spec
from dflash_controller.catalog import Catalog
from dflash_controller.cli import steering
from dflash_controller.cli.failures import NEGATIVE, Failure
from dflash_controller.cli.steering import Situation
from dflash_controller.planning.revisions.revision import RevisionState
from dflash_controller.planning.revisions.roles import read_stored
from dflash_controller.planning.revisions.trial_state import Trial
from tests.support.stored_revisions import NOW, stored

OLD, NEW = "a" * 40, "b" * 40
ANNOTATION = "serving.dflash.io/"


def spec_of(revision: str, **more: Any) -> dict[str, Any]:
    return {"target": {"model": "Qwen/Qwen3.5-9B"}, "drafter": {"revision": revision}, "replicas": 2, **more}


def situation(spec: dict[str, Any], *revisions: dict[str, Any], phase: str = "", **annotations: str) -> Situation:
    parsed = parse_spec({"spec": spec})
    assert isinstance(parsed, Spec)
    metadata = {"name": "qwen", "annotations": {f"{ANNOTATION}{key}": value for key, value in annotations.items()}}
    return Situation({"metadata": metadata, "spec": spec, "status": {"rollout": {"phase": phase}}}, parsed, read_stored(revisions))


RETIRED = stored("raaaaaaa", 1, RevisionState.RETIRED, spec_of(OLD))
STABLE = stored("rbbbbbbb", 2, RevisionState.STABLE, spec_of(NEW))
CANDIDATE = stored("rccccccc", 3, RevisionState.CANDIDATE, spec_of("c" * 40))


def test_the_catalog_knows_the_pair_of_these_tests() -> None:
    assert Catalog.load().find("Qwen/Qwen3.5-9B")


def test_promote_and_abort_name_the_candidate() -> None:
    now = situation(spec_of("c" * 40), STABLE, CANDIDATE, phase="Held")
    promoted = steering.promote(now)
    assert promoted.patch == {"metadata": {"annotations": {f"{ANNOTATION}promote": "qwen-rccccccc"}}}
    assert promoted.asks
    assert promoted.first is None
    assert "qwen-rccccccc becomes the active revision" in promoted.says[0]
    assert steering.abort(now).patch == {"metadata": {"annotations": {f"{ANNOTATION}abort": "qwen-rccccccc"}}}


def test_abort_after_the_promotion_names_the_revision_that_replaces_the_others() -> None:
    now = situation(spec_of(NEW), RETIRED, STABLE, phase="Progressing")
    assert steering.abort(now).patch["metadata"]["annotations"] == {f"{ANNOTATION}abort": "qwen-rbbbbbbb"}


def test_an_annotation_of_an_earlier_trial_is_taken_away_first() -> None:
    disregarded = stored("rccccccc", 3, RevisionState.CANDIDATE, spec_of("c" * 40), Trial(disregards=("promote",)))
    found = steering.promote(situation(spec_of("c" * 40), STABLE, disregarded, promote="qwen-rccccccc"))
    assert found.first == {"metadata": {"annotations": {f"{ANNOTATION}promote": None}}}
    with pytest.raises(Failure, match="asked for already"):
        steering.promote(situation(spec_of("c" * 40), STABLE, CANDIDATE, promote="qwen-rccccccc"))


def test_undo_sets_back_what_makes_a_revision_and_leaves_the_rest() -> None:
    spec = spec_of(NEW, replicas=5, tuning={"mode": "Auto"}, service={"annotations": {"a": "b"}}, engine={"maxConcurrency": 8})
    found = steering.undo(situation(spec, RETIRED, stored("rddddddd", 2, RevisionState.STABLE, spec)), None)
    assert found.patch == {"spec": {"drafter": {"revision": OLD}, "engine": None}}


@pytest.mark.parametrize("to", ["rbbbbbbb", None])
def test_undo_to_what_serves_ends_the_rollout(to: str | None) -> None:
    found = steering.undo(situation(spec_of("c" * 40), RETIRED, STABLE, CANDIDATE), to)
    assert found.patch == {"spec": {"drafter": {"revision": NEW}}}
    assert "a rollout that is under way ends" in found.says[0]


@pytest.mark.parametrize("to", ["raaaaaaa", None])
def test_undo_of_a_block_size_of_the_tuner_names_the_way(to: str | None) -> None:
    before = stored("raaaaaaa", 1, RevisionState.RETIRED, spec_of(NEW))
    after = stored("rbbbbbbb", 2, RevisionState.STABLE, spec_of(NEW))
    after["data"]["speculation"] = Fixed(8).to_json()
    with pytest.raises(Failure) as failed:
        steering.undo(situation(spec_of(NEW), before, after), to)
    said = str(failed.value)
    assert "asks for qwen-raaaaaaa already: the tuner changed the block size from 16 to 8" in said
    assert "kubectl dflash rollout pin qwen qwen-raaaaaaa" in said
    assert "set spec.tuning.mode to Advise and spec.blockSize to 16" in said
    assert failed.value.status == NEGATIVE


def test_pin_restart_pause() -> None:
    now = situation(spec_of(NEW), RETIRED, STABLE)
    assert steering.pin_to(now, "raaaaaaa").patch == {"metadata": {"annotations": {f"{ANNOTATION}pin": "qwen-raaaaaaa"}}}
    assert steering.unpin(situation(spec_of(NEW), STABLE, pin="qwen-rbbbbbbb")).patch == {
        "metadata": {"annotations": {f"{ANNOTATION}pin": None}}
    }
    assert steering.restart(now, NOW).patch == {"spec": {"restartId": "2026-11-29T12:00:00Z"}}
    assert steering.pause(now).patch == {"spec": {"rollout": {"paused": True}}}
    assert not steering.pause(now).asks
    paused = situation(spec_of(NEW, rollout={"paused": True}), STABLE)
    assert steering.resume(paused).patch == {"spec": {"rollout": {"paused": False}}}


@pytest.mark.parametrize(
    ("verb", "message"),
    [
        (steering.promote, "no candidate to promote"),
        (steering.abort, "nothing to abort"),
        (steering.resume, "is not paused"),
        (steering.unpin, "is not pinned"),
        (lambda now: steering.undo(now, None), "no earlier revision"),
        (lambda now: steering.undo(now, "rbbbbbbb"), "asks for qwen-rbbbbbbb already"),
        (lambda now: steering.pin_to(now, "rzzzzzzz"), "has no revision rzzzzzzz"),
    ],
)
def test_what_cannot_be_done_is_said(verb: Any, message: str) -> None:
    with pytest.raises(Failure, match=message):
        verb(situation(spec_of(NEW), STABLE, phase="Completed"))


def test_an_outage_is_announced() -> None:
    single = situation(spec_of(NEW, replicas=1), stored("rbbbbbbb", 2, RevisionState.STABLE, spec_of(NEW)))
    assert any("Serving stops" in sentence for sentence in steering.restart(single, NOW).says)
    surge = situation(spec_of(NEW, replicas=1, rollout={"maxSurge": 1}), STABLE)
    assert not any("Serving stops" in sentence for sentence in steering.restart(surge, NOW).says)


def test_history_is_in_the_order_of_time() -> None:
    assert [entry["revision"] for entry in steering.history(read_stored([STABLE, RETIRED]))] == ["qwen-raaaaaaa", "qwen-rbbbbbbb"]
