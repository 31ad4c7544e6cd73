"""A probe run kept in an annotation."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_controller.analysis.probe_json import LIMIT_BYTES, from_json, to_json
from dflash_controller.model.counters import Answer, ProbeRun

ANSWER = Answer(256, 36.0, 0.2345, "0123456789ab", True)


def kept(*answers: Answer | None, prompts: str = "v1-64x256") -> ProbeRun:
    return ProbeRun("r24bnv7i", prompts, answers, 1_790_000_000.0)


answers = st.builds(
    Answer,
    tokens=st.integers(1, 4096),
    steps=st.none() | st.integers(0, 4096).map(float),
    seconds=st.integers(0, 10**6).map(lambda number: round(number / 1e4, 4)),
    text=st.text("0123456789abcdef", min_size=12, max_size=12),
    repeats=st.none() | st.booleans(),
)


@given(st.lists(st.none() | answers, max_size=64))
def test_a_run_reads_back_as_it_was(found: list[Answer | None]) -> None:
    assert from_json(to_json(kept(*found))) == kept(*found)


def test_steps_that_are_no_whole_number_survive() -> None:
    assert from_json(to_json(kept(replace(ANSWER, steps=36.5)))).answers[0] == replace(ANSWER, steps=36.5)


def test_the_default_run_takes_less_than_3_kib() -> None:
    assert len(to_json(kept(*[ANSWER] * 64))) < 3 * 1024


def test_of_the_longest_run_the_first_answers_are_kept_and_it_still_pairs() -> None:
    run = kept(*[replace(ANSWER, tokens=4096, steps=4096.0, seconds=60.1234 + i) for i in range(1024)], prompts="v1-1024x4096")
    text = to_json(run)
    assert LIMIT_BYTES - 60 < len(text) <= LIMIT_BYTES
    read = from_json(text)
    assert (read.prompts, len(read.answers)) == ("v1-1024x4096", 1024)
    number = read.answers.index(None)
    assert number > 350
    assert read.answers[:number] == run.answers[:number]
    assert set(read.answers[number:]) == {None}


def test_a_run_without_answers_keeps_their_number() -> None:
    assert from_json(to_json(kept(None, None, None))).answers == (None, None, None)


GOOD = json.loads(to_json(kept(ANSWER)))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "7",
        "{}",
        "[" * 100_000,
        json.dumps({**GOOD, "count": 0}),
        json.dumps({**GOOD, "count": 10**9}),
        json.dumps({**GOOD, "count": "1"}),
        json.dumps({**GOOD, "answers": [[1, 2]]}),
        json.dumps({**GOOD, "answers": [[1, 2, -3, "x", None]]}),
        json.dumps({**GOOD, "answers": [[float("nan"), 2, 3, "x", None]]}),
        json.dumps({**GOOD, "answers": [["many", 2, 3, "x", None]]}),
        json.dumps({**GOOD, "answers": 5}),
        json.dumps({**GOOD, "at": None}),
    ],
)
def test_what_is_no_run_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a probe run"):
        from_json(text)
