"""What is stored of a trial, and what becomes of text that is damaged."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_controller.api.conditions import Reason
from dflash_controller.planning.revisions.trial_state import Trial, TrialFailure

TIMES = st.none() | st.datetimes(datetime(2020, 1, 1), datetime(2100, 1, 1)).map(lambda time: time.replace(microsecond=0, tzinfo=UTC))
TRIALS = st.builds(
    Trial,
    served_at=TIMES,
    restarts=st.integers(0, 9),
    seen=st.lists(st.uuids().map(str), max_size=16).map(tuple),
    cannot_start_since=TIMES,
    loading_since=TIMES,
    stable_down_since=TIMES,
    interrupted=st.booleans(),
    interrupted_at_one=st.booleans(),
    without_surge=st.booleans(),
    asked_block=st.none() | st.integers(0, 64),
    fetched=st.sampled_from([(), ("chat-r1-fetch",)]),
    finding=st.none() | st.just(TrialFailure(Reason.IMAGE_UNAVAILABLE, "not found")),
    disregards=st.sampled_from([(), ("abort",), ("abort", "promote")]),
)


@given(TRIALS)
def test_a_trial_is_read_as_it_was_written(trial: Trial) -> None:
    assert Trial.from_json(trial.to_json()) == trial


def test_only_what_differs_from_a_new_trial_is_written() -> None:
    assert Trial().to_json() == "{}"
    assert json.loads(Trial(asked_block=0).to_json()) == {"askedBlock": 0}


@pytest.mark.parametrize(
    "text", [None, "", "{", "[]", "null", '{"servedAt":"soon"}', '{"seen":3}', '{"loadingSince":7}', '{"askedBlock":"x"}']
)
def test_damaged_text_gives_a_new_trial(text: str | None) -> None:
    assert Trial.from_json(text) == Trial()


def test_fields_of_other_releases_do_no_harm() -> None:
    assert Trial.from_json('{"alone":true,"restarts":2}') == Trial(restarts=2)
