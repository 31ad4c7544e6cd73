"""A drafter that accepts nothing is named within two minutes of traffic, and left once, for good."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_controller.api.conditions import MAX_MESSAGE, ConditionType, Reason, set_condition
from dflash_controller.api.inputs import revision_inputs
from dflash_controller.api.parse import parse_spec
from dflash_controller.api.speculation import Fixed, Off, Schedule, Speculation
from dflash_controller.api.types import Spec
from dflash_controller.catalog.catalog import Catalog
from dflash_controller.engines.protocol import ModelRef
from dflash_controller.engines.resolve import OperatorDefaults, resolve
from dflash_controller.engines.resolved import Resolved
from dflash_controller.model.load_sample import LoadSample
from dflash_controller.planning.revisions.drafter_health import (
    ACT_STEPS,
    LOOK_BACK_S,
    RECOVERY_S,
    TELL_STEPS,
    WINDOW_S,
    DrafterHealth,
    Fallback,
    collapsed,
    judge,
    limits,
    may_draft,
    remedy,
    switched_off,
    to_be_failed,
)
from dflash_controller.planning.revisions.revision import Origin, Revision, RevisionState, history_entry
from dflash_controller.planning.revisions.trial_state import Trial

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)
START = 1_000_000.0
CATALOG = Catalog.load()
GOOD, BAD, OTHER = "a" * 40, "b" * 40, "c" * 40
Entry = tuple[RevisionState, str]
SERVED: tuple[Entry, ...] = ((RevisionState.CANDIDATE, "SpecChanged"), (RevisionState.STABLE, "AnalysisPassed"))
LEFT: tuple[Entry, ...] = (*SERVED, (RevisionState.STABLE, "DrafterCollapsed"), (RevisionState.FAILED, "DrafterCollapsed"))


def spec(drafter: str | None = GOOD, **more: Any) -> Spec:
    given = {"target": {"model": "Qwen/Qwen3.5-9B", "revision": OTHER}, **more}
    if drafter is not None:
        given["drafter"] = {"revision": drafter}
    parsed = parse_spec({"metadata": {"name": "chat", "namespace": "models"}, "spec": given})
    assert isinstance(parsed, Spec)
    return parsed


def record(
    number: int,
    drafter: str | None = GOOD,
    speculation: Speculation | None = None,
    state: RevisionState = RevisionState.RETIRED,
    history: Sequence[Entry] = SERVED,
    **more: Any,
) -> Revision:
    written = spec(drafter, **more)
    resolved = resolve(written, "chat", "models", CATALOG, OperatorDefaults())
    assert isinstance(resolved, Resolved)
    return Revision(
        hash=f"r{number}",
        number=number,
        state=state,
        inputs=revision_inputs(written),
        block_size_as_written=None,
        speculation=speculation or Fixed(16),
        resolved=resolved,
        workload={},
        history=tuple(history_entry(NOW, Origin.USER, outcome, reason) for outcome, reason in history),
        trial=Trial(),
        probe=None,
        learned=None,
        source={"metadata": {"name": f"chat-r{number}"}},
    )


STABLE = record(9, BAD, state=RevisionState.STABLE)


def load_sample(at_s: float, length: float, steps: float = 3_000, block: int = 16, seconds: float = 30) -> LoadSample:
    return LoadSample(START + at_s, seconds, block, 4.0 if steps else 0.0, 0.01 if steps else 0.0, steps, length * steps, length * steps)


def at(at_s: float) -> datetime:
    return datetime.fromtimestamp(START + at_s, UTC)


class Watch:
    """A deployment whose condition is written at every look, as the planner does."""

    def __init__(self, stable: Revision = STABLE) -> None:
        self.stable = stable
        self.measured = stable.name
        """The revision that the load samples are of."""
        self.load_samples: list[LoadSample] = []
        self.status: dict[str, Any] = {"stableRevision": stable.name, "conditions": []}
        self.writes = 0

    def look(self, at_s: float, asked_block: int | None = None, records: Sequence[Revision] = ()) -> DrafterHealth:
        found = judge(self.load_samples, self.measured, START + at_s, self.stable, records, self.status, asked_block)
        before = self.status["conditions"]
        after = set_condition(before, ConditionType.SPECULATION_HEALTHY, found.value, found.reason, found.message, 1, at(at_s))
        self.writes += after is not before
        self.status["conditions"] = after
        return found

    def serve(self, since_s: float, until_s: float, length: float, every_s: float = 30, **more: Any) -> DrafterHealth:
        """Load samples of one pod, and a look at the end of each."""
        at_s, found = since_s + every_s, None
        while at_s <= until_s:
            self.load_samples.append(load_sample(at_s, length, seconds=every_s, **more))
            found = self.look(at_s)
            at_s += every_s
        assert found is not None
        return found


def test_limits_are_those_of_the_fast_path_and_reachable_at_short_blocks() -> None:
    assert [round(limit, 2) for limit in limits(16)] == [1.3, 1.6]
    assert [round(limit, 2) for limit in limits(4)] == [1.3, 1.57]
    assert [round(limit, 3) for limit in limits(2)] == [1.231, 1.375]
    lows, highs = zip(*(limits(block) for block in range(2, 33)), strict=True)
    assert list(lows) == sorted(lows)
    assert list(highs) == sorted(highs)
    assert all(low < high < block for block, (low, high) in enumerate(zip(lows, highs, strict=True), 2))


def test_a_working_drafter_is_healthy() -> None:
    found = Watch().serve(0, 300, 6.4)
    assert (found.value, found.reason, found.confirmed) == (True, Reason.ACCEPTING, False)


@pytest.mark.parametrize("every_s", [15.0, 30.0, 60.0])
@pytest.mark.parametrize("into", [0.0, 0.03, 0.06, 0.5, 0.97])
def test_a_collapse_is_named_within_two_minutes(every_s: float, into: float) -> None:
    """Wherever in a load sample it happens, and however long the load samples are."""
    watch = Watch()
    watch.serve(0, 600, 6.4, every_s)
    healthy = dict(watch.status)
    mixed = into * 6.4 + (1 - into) * 1.0
    watch.load_samples.append(load_sample(600 + every_s, mixed, seconds=every_s))
    assert watch.look(600 + every_s).value in (True, False)
    happened = 600 + into * every_s
    watch.serve(600 + every_s, 600 + 4 * every_s, 1.0, every_s)
    named = next(
        at_s
        for at_s in range(600, 781)
        if judge(
            [one for one in watch.load_samples if one.at_s <= START + at_s], STABLE.name, START + at_s, STABLE, (), healthy, None
        ).value
        is False
    )
    assert named - happened <= 120


def test_seventeen_steps_a_second_are_enough_to_tell_in_two_minutes() -> None:
    watch = Watch()
    assert watch.serve(0, 120, 1.02, steps=17 * 30).value is False


def test_too_few_steps_say_nothing() -> None:
    watch = Watch()
    found = watch.serve(0, 30, 1.0, steps=TELL_STEPS - 1)
    assert (found.value, found.reason) == (None, Reason.NO_TRAFFIC)
    watch.load_samples.append(load_sample(31, 1.0, steps=1))
    assert watch.look(31).value is False


def test_thin_traffic_counts_for_a_quarter_of_an_hour_and_no_longer() -> None:
    half = TELL_STEPS / 2
    watch = Watch()
    watch.load_samples = [load_sample(0, 1.0, half), load_sample(LOOK_BACK_S - 1, 1.0, half)]
    assert watch.look(LOOK_BACK_S - 1).value is False
    watch = Watch()
    watch.load_samples = [load_sample(0, 1.0, half), load_sample(LOOK_BACK_S, 1.0, half)]
    assert watch.look(LOOK_BACK_S).value is None


def test_old_stretches_do_not_hide_a_collapse() -> None:
    watch = Watch()
    watch.load_samples = [load_sample(0, 6.4, 1e6), load_sample(WINDOW_S, 1.0, TELL_STEPS)]
    assert watch.look(WINDOW_S).value is False


def test_pods_count_together_by_their_steps() -> None:
    watch = Watch()
    watch.load_samples = [load_sample(30, 6.0, 5_000), load_sample(30, 1.0, 5_000)]
    assert watch.look(30).value is True
    watch.load_samples = [load_sample(30, 6.0, 100), load_sample(30, 1.0, 9_900)]
    assert watch.look(30).value is False


def test_nothing_seen_is_unknown_and_not_healthy() -> None:
    found = Watch().look(0)
    assert (found.value, found.reason) == (None, Reason.NO_TRAFFIC)


@pytest.mark.parametrize(("length", "value"), [(6.4, True), (1.0, False)])
def test_without_traffic_what_was_said_stands(length: float, value: bool) -> None:
    watch = Watch()
    said = watch.serve(0, 120, length)
    writes = watch.writes
    watch.load_samples = [load_sample(4_000, 1.0, steps=0)]
    found = watch.look(4_000)
    assert (found.value, found.reason, found.message) == (value, said.reason, said.message)
    assert watch.writes == writes
    assert found.confirmed is False  # nobody restarts an idle engine


def test_what_was_said_of_another_revision_does_not_count() -> None:
    watch = Watch()
    watch.serve(0, 120, 1.0)
    watch.stable = record(10)
    assert watch.look(120).value is None, "neither its stretches nor its condition"
    watch.status["stableRevision"] = watch.stable.name
    watch.status["conditions"] = set_condition([], ConditionType.SPECULATION_HEALTHY, False, Reason.DRAFTER_COLLAPSED, "chat-r9: x", 1, NOW)
    watch.load_samples = []
    assert watch.look(120).value is None, "a condition left over from before names the other revision"


def test_between_the_limits_nothing_changes() -> None:
    watch = Watch()
    assert watch.serve(0, 120, 1.45).value is True
    assert watch.serve(120, 240, 1.29).value is False
    assert watch.serve(240, 990, 1.45).value is False
    assert watch.serve(990, 1_980, 1.59).value is False
    assert watch.serve(1_980, 2_970, 1.61).value is True
    assert watch.serve(2_970, 3_960, 1.31).value is True


def test_what_went_before_a_collapse_does_not_take_it_back() -> None:
    watch = Watch()
    watch.serve(0, 1_200, 6.4, steps=100_000)
    assert watch.serve(1_200, 1_320, 1.0).value is False
    for until_s in range(1_350, 3_000, 30):
        assert watch.serve(until_s - 30, until_s, 1.0).value is False


def test_a_drafter_that_drafts_again_is_believed_after_a_quarter_of_an_hour() -> None:
    watch = Watch()
    named = 30
    watch.serve(0, 120, 1.0)
    back = [step for step in range(150, 1_500, 30) if watch.serve(step - 30, step, 6.4).value is True]
    assert back[0] == named + RECOVERY_S


@pytest.mark.parametrize("damaged", ["", "yesterday", None])
def test_a_collapse_of_unknown_age_can_be_taken_back(damaged: str | None) -> None:
    watch = Watch()
    watch.serve(0, 60, 1.0)
    watch.status["conditions"] = [{**watch.status["conditions"][0], "lastTransitionTime": damaged}]
    watch.load_samples = []
    assert watch.serve(60, 90, 6.4).value is True


@pytest.mark.parametrize(("around", "scatter"), [(1.2, 0.05), (1.3, 0.1), (1.4, 0.1), (1.45, 0.1), (1.5, 0.05), (1.6, 0.05)])
def test_traffic_around_a_limit_never_flaps(around: float, scatter: float) -> None:
    """A day of load samples: one change at most, and one write for it beside the first."""
    watch, chance = Watch(), random.Random(around)
    watch.serve(0, 60, 6.4)
    values = []
    for step in range(2_880):
        watch.load_samples = [*watch.load_samples[-32:], load_sample(90 + 30 * step, around * chance.lognormvariate(0, scatter))]
        values.append(watch.look(90 + 30 * step).value)
    assert sum(one is not other for one, other in pairwise(values)) <= 1
    assert watch.writes <= 2


def test_traffic_that_swings_from_end_to_end_takes_a_collapse_back_late() -> None:
    watch, turned, before = Watch(), list[tuple[int, bool | None]](), None
    for step in range(1, 1_000):
        watch.load_samples = watch.load_samples[-32:]
        found = watch.serve(30 * step - 30, 30 * step, 6.4 if step // 4 % 2 else 1.0).value
        if found is not before:
            turned.append((30 * step, found))
        before = found
    stood = [until_s - since_s for (since_s, value), (until_s, _) in pairwise(turned) if value is False]
    assert stood
    assert min(stood) >= RECOVERY_S


def test_a_hard_workload_is_no_collapse() -> None:
    """1.9 tokens per step at block 16, answers of 300 tokens that scatter by 20 %, one every 15 s for two days: never named."""
    watch, chance = Watch(), random.Random(7)
    for step in range(11_520):
        length = max(1.0, 1.9 * chance.lognormvariate(-0.02, 0.2))
        watch.load_samples = [*watch.load_samples[-20:], load_sample(15.0 * step, length, steps=300 / length, seconds=15)]
        found = watch.look(15.0 * step)
        assert found.value is not False
    assert found.value is True


@given(st.lists(st.tuples(st.floats(1.0, 16.0), st.integers(0, 20_000)), min_size=1, max_size=30))
def test_the_condition_changes_only_on_evidence_beyond_the_other_limit(seen: list[tuple[float, int]]) -> None:
    watch, before = Watch(), None
    for step, (length, steps) in enumerate(seen):
        watch.load_samples = [load_sample(1_000 * step, length, steps)]
        found = watch.look(1_000 * step)
        if found.value is False and before is not False:
            assert length < 1.3
            assert steps >= TELL_STEPS
        if found.value is True and before is False:
            assert length > 1.59
        if before is not None:
            assert found.value is not None
        before = found.value


def test_the_words_of_a_collapse_stay_and_cause_no_write() -> None:
    watch, chance = Watch(), random.Random(1)
    words = watch.serve(0, 30, 1.02).message
    for step in range(200):
        watch.load_samples.append(load_sample(60 + 30 * step, 1.0 + 0.25 * chance.random(), steps=2_000 + 9_000 * chance.random()))
        assert watch.look(60 + 30 * step).message == words
    assert watch.writes == 1


def test_words_that_the_api_server_holds_cut_stay_too() -> None:
    long = record(9, state=RevisionState.STABLE)
    flags = tuple(f"--quantization-{step}={'x' * 40}" for step in range(30))
    watch = Watch(replace(long, resolved=replace(long.resolved, extra_args=flags)))
    assert len(watch.serve(0, 30, 1.0).message) > MAX_MESSAGE
    watch.serve(30, 300, 1.0)
    assert watch.writes == 1


def test_the_message_has_the_figures_and_the_causes() -> None:
    words = Watch(record(9, None, state=RevisionState.STABLE)).serve(0, 30, 1.0234, steps=5_432).message
    assert words.startswith("chat-r9: 1.02 tokens per verify step over 5400 steps at block size 16; below 1.30 the drafter has collapsed")
    for cause in (
        "z-lab/Qwen3.5-9B-DFlash@main (not pinned to a commit)",
        "another target than Qwen/Qwen3.5-9B@",
        "quantised",
        "block size 16",
    ):
        assert cause in words
    assert len(words) <= MAX_MESSAGE


def test_a_pinned_drafter_has_not_moved_and_the_message_says_so() -> None:
    words = Watch().serve(0, 30, 1.0).message
    assert f"z-lab/Qwen3.5-9B-DFlash@{BAD[:12]} (pinned" in words
    assert "not pinned" not in words


@pytest.mark.parametrize("flag", ["--load-format=dummy", "--quantization=fp8", "--speculative-draft-model-quantization=fp8"])
def test_a_flag_that_explains_it_comes_first(flag: str) -> None:
    suspect = replace(STABLE, resolved=replace(STABLE.resolved, extra_args=("--log-level=info", flag)))
    causes = Watch(suspect).serve(0, 30, 1.0).message.partition("Likely causes: ")[2]
    assert causes.startswith(f"{flag}, ")


def test_under_a_schedule_the_limits_follow_the_block_in_use() -> None:
    watch = Watch(replace(STABLE, speculation=Schedule(((1, 8, 15), (9, 64, 1)))))
    watch.load_samples = [load_sample(30, 1.25, block=2)]
    assert watch.look(30).value is True
    watch.load_samples = [load_sample(30, 1.25, block=16)]
    assert watch.look(30).value is False


def test_steps_that_draft_nothing_do_not_count() -> None:
    watch = Watch(replace(STABLE, speculation=Schedule(((1, 8, 15), (9, 64, 0)))))
    watch.load_samples = [load_sample(30, 1.0, steps=1e6, block=1), load_sample(30, 6.4, steps=TELL_STEPS)]
    assert watch.look(30).value is True
    watch.load_samples = [load_sample(500, 1.0, steps=1e6, block=1)]
    assert watch.look(500).value is True
    watch.status["conditions"] = []
    assert watch.look(500).value is None


@pytest.mark.parametrize(("steps", "confirmed"), [(ACT_STEPS, True), (ACT_STEPS - 1, False)])
def test_acting_takes_more_than_telling(steps: float, confirmed: bool) -> None:
    watch = Watch()
    watch.load_samples = [load_sample(30, 1.0, steps)]
    found = watch.look(30)
    assert (found.value, found.confirmed) == (False, confirmed)


def test_a_collapse_that_is_passing_is_not_acted_upon() -> None:
    watch = Watch()
    watch.serve(0, 60, 1.0)
    found = watch.serve(60, 180, 1.4)
    assert (found.value, found.confirmed) == (False, False)


def test_the_first_bad_minute_is_told_and_not_acted_upon() -> None:
    watch = Watch()
    watch.load_samples = [load_sample(0, 6.4, ACT_STEPS), load_sample(60, 1.0, TELL_STEPS)]
    found = watch.look(60)
    assert (found.value, found.confirmed) == (False, False)


def test_a_better_minute_after_bad_ones_stops_the_hand() -> None:
    watch = Watch()
    watch.load_samples = [load_sample(0, 1.0, ACT_STEPS)]
    assert watch.look(0).confirmed is True
    watch.load_samples.append(load_sample(60, 1.45, TELL_STEPS))
    found = watch.look(60)
    assert (found.value, found.confirmed) == (False, False)


def off(number: int = 10, reason: str = "SpecChanged", **more: Any) -> Revision:
    history = ((RevisionState.CANDIDATE, reason), (RevisionState.STABLE, "AnalysisPassed"))
    return record(number, BAD, Off(), **{"state": RevisionState.STABLE, "history": history, **more})


@pytest.mark.parametrize("reason", ["SpecChanged", "Tuned", "Pinned"])
def test_speculation_off_by_choice_is_healthy(reason: str) -> None:
    found = Watch(off(reason=reason)).serve(0, 120, 1.0, block=1)
    assert (found.value, found.reason) == (True, Reason.SPECULATION_OFF)


def test_speculation_off_because_of_a_collapse_stays_a_complaint() -> None:
    watch = Watch(off(reason="DrafterCollapsed"))
    left = record(9, BAD, state=RevisionState.FAILED, history=LEFT)
    found = watch.look(0, records=[left])
    assert (found.value, found.reason) == (False, Reason.SPECULATION_OFF)
    assert "chat-r9" in found.message
    assert watch.look(0, asked_block=1, records=[left]).value is True, "agreed with"
    assert "an earlier revision" in watch.look(0).message, "its record was pruned"


def test_switched_off_is_told_by_who_asked_last() -> None:
    assert switched_off(off(reason="DrafterCollapsed"))
    assert not switched_off(off())
    assert not switched_off(record(3, history=((RevisionState.CANDIDATE, "DrafterCollapsed"), (RevisionState.STABLE, "AnalysisPassed"))))
    twice = (
        (RevisionState.CANDIDATE, "DrafterCollapsed"),
        (RevisionState.STABLE, "x"),
        (RevisionState.RETIRED, "Replaced"),
        (RevisionState.CANDIDATE, "SpecChanged"),
    )
    assert not switched_off(off(history=twice))


# What to do about it.


def test_back_to_the_last_healthy_revision() -> None:
    older, last = record(3, OTHER), record(5, GOOD)
    assert remedy([older, last, STABLE], STABLE, "Auto") == Fallback(Fixed(16), last)


@pytest.mark.parametrize("mode", ["Advise", "Off"])
def test_only_auto_acts(mode: str) -> None:
    assert remedy([record(5), STABLE], STABLE, mode) is None


def test_without_a_healthy_revision_speculation_goes_off() -> None:
    assert remedy([STABLE], STABLE, "Auto") == Fallback(Off())


def test_where_nothing_is_rolled_back_speculation_goes_off() -> None:
    assert remedy([record(5), STABLE], STABLE, "Auto", may_go_back=False) == Fallback(Off())


def test_speculation_that_is_off_already_cannot_be_switched_off() -> None:
    assert remedy([record(5), off()], off(), "Auto") is None


@pytest.mark.parametrize(
    "other",
    [
        record(5, state=RevisionState.FAILED, history=((RevisionState.CANDIDATE, "SpecChanged"), (RevisionState.FAILED, "AnalysisFailed"))),
        record(
            5, state=RevisionState.SUPERSEDED, history=((RevisionState.CANDIDATE, "SpecChanged"), (RevisionState.SUPERSEDED, "SpecChanged"))
        ),
        record(
            5,
            state=RevisionState.SUPERSEDED,
            history=(*SERVED, (RevisionState.FAILED, "AnalysisFailed"), (RevisionState.SUPERSEDED, "SpecChanged")),
        ),
        record(5, state=RevisionState.FAILED, history=()),
        record(5, state=RevisionState.CANDIDATE, history=(*SERVED, (RevisionState.CANDIDATE, "SpecChanged"))),
        record(5, state=RevisionState.FAILED, history=LEFT),
        record(5, state=RevisionState.SUPERSEDED, history=(*LEFT, (RevisionState.SUPERSEDED, "SpecChanged"))),
        record(5, state=RevisionState.RETIRED, history=(*LEFT, *SERVED)),
        record(5, target={"model": "Qwen/Qwen3.5-9B", "revision": GOOD}),
        record(5, BAD),
        record(5, BAD, Fixed(8)),
        record(5, BAD, restartId="again"),
        record(5, GOOD, Off()),
    ],
    ids=[
        "failed its trial",
        "never in force",
        "given up later",
        "failed, its history lost",
        "on trial again",
        "collapsed itself",
        "collapsed itself, forgotten by the spec",
        "collapsed itself, promoted again by hand",
        "another target",
        "the same drafter",
        "the same drafter at another block size",
        "the same drafter, restarted",
        "drafts nothing",
    ],
)
def test_what_is_not_gone_back_to(other: Revision) -> None:
    assert remedy([other, STABLE], STABLE, "Auto") == Fallback(Off())


def test_a_branch_whose_weights_were_replaced_is_not_gone_back_to() -> None:
    stable = record(9, None, state=RevisionState.STABLE, restartId="2")
    assert remedy([record(5, None, restartId="1"), stable], stable, "Auto") == Fallback(Off())


def test_an_engine_that_broke_a_drafter_is_gone_back_from() -> None:
    before = record(5, BAD, engine={"name": "sglang", "version": "0.5.22"})
    assert remedy([before, STABLE], STABLE, "Auto") == Fallback(Fixed(16), before)


def test_a_revision_superseded_after_it_had_served_is_healthy() -> None:
    again = (
        *SERVED,
        (RevisionState.RETIRED, "Replaced"),
        (RevisionState.CANDIDATE, "SpecChanged"),
        (RevisionState.SUPERSEDED, "SpecChanged"),
    )
    back = record(5, state=RevisionState.SUPERSEDED, history=again)
    assert remedy([back, STABLE], STABLE, "Auto") == Fallback(Fixed(16), back)


def test_a_record_without_history_counts_by_its_state() -> None:
    assert remedy([record(5, history=())], STABLE, "Auto") == Fallback(Fixed(16), record(5, history=()))
    assert remedy([record(5, history=(), state=RevisionState.SUPERSEDED)], STABLE, "Auto") == Fallback(Off())


def test_the_sibling_of_an_earlier_collapse_is_not_gone_back_to() -> None:
    """Block 8 of a drafter that collapsed at 16 some revisions ago."""
    left, sibling = record(4, GOOD, state=RevisionState.FAILED, history=LEFT), record(3, GOOD, Fixed(8))
    assert remedy([sibling, left, STABLE], STABLE, "Auto") == Fallback(Off())


def test_switching_off_that_was_given_up_is_not_tried_again() -> None:
    failed = off(
        state=RevisionState.FAILED, history=((RevisionState.CANDIDATE, "DrafterCollapsed"), (RevisionState.FAILED, "EngineFailing"))
    )
    assert remedy([failed, STABLE], STABLE, "Auto") is None
    assert remedy([replace(failed, inputs={}), STABLE], STABLE, "Auto") == Fallback(Off())


def left(one: Revision) -> Revision:
    """As the planner writes it when what replaces it is promoted."""
    entries = [history_entry(NOW, Origin.TUNER, outcome, "DrafterCollapsed") for outcome in (RevisionState.STABLE, RevisionState.FAILED)]
    return replace(one, state=RevisionState.FAILED, history=(*one.history, *entries))


@given(st.lists(st.tuples(st.sampled_from([GOOD, BAD, OTHER, None]), st.sampled_from([4, 8, 16])), min_size=1, max_size=10))
def test_whatever_collapses_it_never_goes_round(made: list[tuple[str | None, int]]) -> None:
    """Every revision that is gone back to collapses as well: none is tried twice, and the row ends with speculation off."""
    records = {number: record(number, drafter, Fixed(block)) for number, (drafter, block) in enumerate(made, 1)}
    stable, visited = records[len(made)], []
    for _ in range(len(made) + 1):
        visited.append(stable.hash)
        found = remedy(list(records.values()), stable, "Auto")
        assert found is not None
        records[stable.number] = left(stable)
        if found.record is None:
            break
        stable = found.record
    assert found == Fallback(Off())
    assert len(visited) == len(set(visited)) <= len({drafter for drafter, _ in made})


def test_a_collapse_is_remembered_however_the_revision_ends() -> None:
    one = left(record(5))
    assert collapsed(one)
    assert collapsed(
        replace(one, state=RevisionState.SUPERSEDED, history=(*one.history, history_entry(NOW, Origin.USER, RevisionState.SUPERSEDED, "x")))
    )
    bystander = (
        *SERVED,
        (RevisionState.SUPERSEDED, "DrafterCollapsed"),
        (RevisionState.CANDIDATE, "DrafterCollapsed"),
        (RevisionState.STABLE, "AnalysisPassed"),
    )
    assert not collapsed(record(5, history=bystander)), "what was set aside for a collapse, or replaced one, has not collapsed"


def test_a_switch_that_was_cut_short_is_finished() -> None:
    marked = (*SERVED, (RevisionState.STABLE, "DrafterCollapsed"))
    old, new = record(9, BAD, state=RevisionState.STABLE, history=marked), record(10, state=RevisionState.STABLE)
    retired = record(8, BAD, Fixed(8), history=(*marked, (RevisionState.RETIRED, "Replaced")))
    assert to_be_failed([old, new, retired, record(3)], new) == [old, retired]
    assert to_be_failed([old, record(3)], old) == [], "marked, and nothing replaces it yet"
    again = record(9, BAD, history=(*LEFT, *SERVED, (RevisionState.RETIRED, "Replaced")))
    assert to_be_failed([again, left(old), new], new) == [], "asked for again since; failed already"


def test_the_tuner_leaves_a_collapsed_drafter_alone_at_every_block_size() -> None:
    gone = left(record(9, BAD))
    assert may_draft(STABLE, [record(5)])
    assert not may_draft(off(reason="DrafterCollapsed"), [])
    assert not may_draft(record(10, BAD, Fixed(8)), [gone])
    assert may_draft(record(10, GOOD), [gone])
    assert may_draft(record(10, BAD, restartId="again"), [gone]), "the user asks for another try"
    assert may_draft(off(reason="Tuned"), [])


def test_models_without_a_revision_are_named_by_their_branch() -> None:
    stable = replace(STABLE, resolved=replace(STABLE.resolved, drafter=ModelRef("x/y"), target=ModelRef("x/z", "v1")))
    words = Watch(stable).serve(0, 30, 1.0).message
    assert "x/y@main (not pinned" in words
    assert "x/z@v1 (not pinned to a commit: it may have moved)" in words


@pytest.mark.parametrize("status", [{}, {"stableRevision": STABLE.name}, {"stableRevision": STABLE.name, "conditions": None}])
def test_a_status_without_conditions_says_nothing(status: dict[str, Any]) -> None:
    assert judge([], STABLE.name, START, STABLE, (), status, None).value is None
