"""Where the active block size comes from, what is on trial, and the last decision: from histories, status and Events as they are stored."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from dflash_controller.api import names
from dflash_controller.api.parse import parse_spec
from dflash_controller.api.types import Spec
from dflash_controller.cli import background
from dflash_controller.cli.background import Background, Decided
from dflash_controller.cli.rendered import of_revision
from dflash_controller.planning.revisions.revision import Origin, RevisionState, TunerTrial, history_entry, read
from dflash_controller.planning.revisions.roles import read_stored
from dflash_controller.tuner.decision import Change
from tests.support.stored_revisions import NOW, stored
from tests.support.tuner_inputs import NOW_S, tuner_inputs

FIRST, OTHER = "a" * 40, "b" * 40
CANDIDATE, STABLE, RETIRED, FAILED = RevisionState.CANDIDATE, RevisionState.STABLE, RevisionState.RETIRED, RevisionState.FAILED
Entry = tuple[int, Origin, RevisionState, str]


def spec_of(block: int | None = None, drafter: str = FIRST, **more: Any) -> dict[str, Any]:
    written = {"blockSize": block} if block else {}
    return {"target": {"model": "Qwen/Qwen3.5-9B"}, "drafter": {"revision": drafter}, **written, **more}


def at(minute: int) -> str:
    return (NOW + timedelta(minutes=minute)).strftime("%Y-%m-%dT%H:%M:%SZ")


def revision(
    hash: str, number: int, state: RevisionState, spec: dict[str, Any], *entries: Entry, load: float = 32.0, exploratory: bool = False
) -> dict[str, Any]:
    """A ControllerRevision with a history. The spec gives its block size, as a revision of the tuner would have it."""
    made = stored(hash, number, state, spec)
    if entries and entries[0][1] is Origin.TUNER:
        made["data"].pop("blockSize", None)
    trial = TunerTrial(load, exploratory)
    history = [
        history_entry(NOW + timedelta(minutes=minute), origin, outcome, reason, trial if origin is Origin.TUNER else None)
        for minute, origin, outcome, reason in entries
    ]
    made["metadata"]["annotations"][names.ANNOTATION_HISTORY] = json.dumps(history)
    return made


def found(spec: dict[str, Any], *revisions: dict[str, Any], events: tuple[dict[str, Any], ...] = (), **status: Any) -> Background:
    parsed, records = parse_spec({"spec": spec}), read_stored(revisions)
    assert isinstance(parsed, Spec)
    assert records.stable is not None
    return background.background(parsed, records, records.stable, status, events)


SERVING = (0, Origin.USER, STABLE, "Serving")
BY_TUNER = ((10, Origin.TUNER, CANDIDATE, "Tuned"), (15, Origin.TUNER, STABLE, "Promoted"))


def test_a_block_size_of_the_spec() -> None:
    source = found(spec_of(8), revision("raaaaaaa", 1, STABLE, spec_of(8), SERVING)).source
    assert (source.source, source.text, source.since) == ("spec.blockSize", "spec.blockSize says so", at(0))


def test_a_block_size_that_the_spec_no_longer_has() -> None:
    made = revision("raaaaaaa", 1, STABLE, spec_of(8), SERVING)
    assert found(spec_of(), made).source.text == "spec.blockSize said so; spec.blockSize is not set any more, which changes nothing"
    assert found(spec_of(4), made).source.text == "spec.blockSize said so; spec.blockSize is 4 now, which is not active yet"


def test_the_block_size_that_the_drafter_was_trained_with() -> None:
    source = found(spec_of(), revision("raaaaaaa", 1, STABLE, spec_of(), SERVING)).source
    assert source.source == "trained size"
    assert source.text.startswith("z-lab/Qwen3.5-9B-DFlash was trained with it (")
    assert source.text.endswith("); spec.blockSize is not set")
    written = spec_of()
    written["drafter"]["trainedBlockSize"] = 16
    source = found(written, revision("raaaaaaa", 1, STABLE, written, SERVING)).source
    assert "(spec.drafter.trainedBlockSize)" in source.text


def test_a_block_size_of_the_tuner_has_its_time_and_its_reason() -> None:
    first = revision("raaaaaaa", 1, RETIRED, spec_of(16), SERVING)
    source = found(spec_of(16), first, revision("rbbbbbbb", 2, STABLE, spec_of(8), *BY_TUNER)).source
    assert (source.source, source.since, source.reason) == ("tuner", at(15), "Tuned")
    assert "expected it to be faster at 32.0 requests per replica" in source.text
    assert source.text.endswith("spec.blockSize is 16, where the tuner began; it counts again once it is changed")


def test_the_tuner_that_returned_to_the_trained_size_is_its_source() -> None:
    back = (SERVING, (30, Origin.TUNER, CANDIDATE, "Exploring"), (35, Origin.TUNER, STABLE, "Promoted"))
    first = revision("raaaaaaa", 3, STABLE, spec_of(), *back, exploratory=True)
    source = found(spec_of(), first, revision("rbbbbbbb", 2, RETIRED, spec_of(8), *BY_TUNER)).source
    assert (source.source, source.since, source.reason) == ("tuner", at(35), "Exploring")
    assert "because its gain was not known" in source.text


def test_render_names_the_tuner_too_where_it_returned_to_the_trained_size() -> None:
    asked = (SERVING, (30, Origin.TUNER, CANDIDATE, "Tuned"), (35, Origin.TUNER, STABLE, "Promoted"))
    spec = parse_spec({"spec": spec_of()})
    assert isinstance(spec, Spec)
    sources = []
    for history in ((SERVING,), asked):
        record = read(revision("raaaaaaa", 1, STABLE, spec_of(), *history))
        assert record is not None
        [container] = of_revision(record, spec, "qwen", "default").containers
        sources += [item.source for item in container.arguments if item.argument.startswith("--speculative-num-draft-tokens=")]
    assert sources == ["catalog", "tuner"]


def test_a_change_of_the_drafter_keeps_the_block_size_of_the_tuner() -> None:
    first = revision("raaaaaaa", 1, RETIRED, spec_of(), SERVING)
    tuned = revision("rbbbbbbb", 2, RETIRED, spec_of(8), *BY_TUNER)
    changed = (20, Origin.USER, CANDIDATE, "SpecChanged"), (25, Origin.USER, STABLE, "Promoted")
    newer = revision("rccccccc", 3, STABLE, spec_of(8, OTHER), *changed)
    del newer["data"]["blockSize"]
    source = found(spec_of(None, OTHER), first, tuned, newer).source
    assert (source.source, source.since) == ("tuner", at(15)), "and not the user, who changed something else"
    source = found(spec_of(None, OTHER), first, newer).source
    assert (source.source, source.since) == ("earlier revision", at(25)), "its revision is not kept any more"


def test_a_collapse_is_the_operators_fallback() -> None:
    first = revision("raaaaaaa", 1, FAILED, spec_of(), SERVING, (14, Origin.TUNER, STABLE, "DrafterCollapsed"))
    off = (10, Origin.TUNER, CANDIDATE, "DrafterCollapsed"), (14, Origin.TUNER, STABLE, "Promoted")
    source = found(spec_of(), first, revision("rbbbbbbb", 2, STABLE, spec_of(1), *off)).source
    assert (source.source, source.reason) == ("fallback", "DrafterCollapsed")


def test_a_pin_is_named() -> None:
    pinned = (10, Origin.USER, CANDIDATE, "Pinned"), (11, Origin.USER, STABLE, "Pinned")
    first = revision("raaaaaaa", 1, RETIRED, spec_of(), SERVING)
    source = found(spec_of(), first, revision("rbbbbbbb", 2, STABLE, spec_of(8), *pinned)).source
    assert (source.source, source.text) == ("pin", "the pin of qwen-rbbbbbbb brought it, a revision made at block size 8")


def test_a_revert_has_the_source_of_what_it_went_back_to() -> None:
    tuned = (*BY_TUNER, (30, Origin.ROLLBACK, STABLE, "Reverted"))
    source = found(spec_of(), revision("rbbbbbbb", 3, STABLE, spec_of(8), *tuned)).source
    assert (source.source, source.since) == ("tuner", at(15))


ON_TRIAL = revision("rbbbbbbb", 2, CANDIDATE, spec_of(8), BY_TUNER[0])
ROLLOUT = {"revision": "qwen-rbbbbbbb", "phase": "Analyzing", "message": "The candidate is compared"}
FROZEN = {"state": "Frozen", "reason": "Frozen", "message": "Tuning is paused: qwen-rbbbbbbb is on trial", "decidedAt": at(11)}


def event(reason: str, message: str, when: str) -> dict[str, Any]:
    return {"metadata": {}, "reason": reason, "message": message, "lastTimestamp": when}


def test_while_a_trial_runs_it_and_the_decision_that_began_it_are_said() -> None:
    first = revision("raaaaaaa", 1, STABLE, spec_of(), SERVING)
    decided = event("TunerTuned", "block 8 is expected to give 9.0 % more", at(10))
    events = (event("TunerGainTooSmall", "too small", at(5)), decided, event("TunerFrozen", "Tuning is paused", at(11)))
    seen = found(spec_of(), first, ON_TRIAL, events=events, rollout=ROLLOUT, tuning=FROZEN)
    assert seen.source.source == "trained size"
    assert seen.trial is not None
    assert (seen.trial.block, seen.trial.revision, seen.trial.origin, seen.trial.since) == ("8", "qwen-rbbbbbbb", "Tuner", at(10))
    assert seen.trial.text == ("the tuner expects it to be faster at 32.0 requests per replica; Analyzing: The candidate is compared")
    assert seen.last == Decided(at(10), "Tuned", "block 8 is expected to give 9.0 % more")


def test_without_events_the_history_has_the_last_decision() -> None:
    first = revision("raaaaaaa", 1, STABLE, spec_of(), SERVING)
    last = found(spec_of(), first, ON_TRIAL, tuning=FROZEN).last
    assert last == Decided(at(10), "Tuned", "Asked for block size 8 (qwen-rbbbbbbb) at 32.0 requests per replica")
    failed = revision("rbbbbbbb", 2, FAILED, spec_of(8), BY_TUNER[0], (18, Origin.ROLLBACK, FAILED, "NotFaster"))
    last = found(spec_of(), first, failed, tuning=FROZEN).last
    assert last is not None
    assert last.message.endswith(f"; it became Failed (NotFaster) at {at(18)}")


def test_the_decision_that_the_status_shows_counts_unless_it_waits_for_a_rollout() -> None:
    first = revision("raaaaaaa", 1, STABLE, spec_of(), SERVING)
    shown = {"state": "Tuning", "reason": "Tuned", "message": "block 16 is the fastest", "decidedAt": at(40)}
    assert found(spec_of(), first, tuning=shown).last == Decided(at(40), "Tuned", "block 16 is the fastest")
    assert found(spec_of(), first, tuning=FROZEN).last is None


def test_a_trial_of_the_user_says_what_the_spec_changes() -> None:
    first = revision("raaaaaaa", 1, STABLE, spec_of(16), SERVING)
    asked = revision("rbbbbbbb", 2, CANDIDATE, spec_of(8, OTHER), (10, Origin.USER, CANDIDATE, "SpecChanged"))
    trial = found(spec_of(8, OTHER), first, asked).trial
    assert trial is not None
    assert trial.text == f'the spec asks for it (spec.drafter.revision: "{FIRST}" -> "{OTHER}", block size 16 -> 8)'


@pytest.mark.parametrize(("kept", "known"), [(True, True), (False, False)])
def test_a_log_line_knows_the_source_only_where_the_tuner_chose(kept: bool, known: bool) -> None:
    change = Change(NOW_S - 7200, 16, kept, 12.0)
    seen = background.of_changes(tuner_inputs(changes=(change,)))
    assert (seen is not None) is known
    if seen is not None:
        assert seen.source.text == "the tuner changed to it 2.0 hours before this decision at 12.0 requests per replica"
