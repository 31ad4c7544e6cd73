"""From counters to load samples: what is left out, what is mixed, what is missing; and how they are kept for the tuner."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from dflash_controller.engines import ENGINES
from dflash_controller.model.load_sample import LoadSample
from dflash_controller.model.series import CounterWindow, LabelledMetric, Scrape, Span, between
from dflash_controller.model.snapshot import Key
from dflash_controller.observe.load.samples import Follower
from dflash_controller.observe.load.store import LoadSampleStore
from dflash_controller.observe.pipeline.source import Target
from dflash_controller.observe.sources.scrape.exposition import read_page

Counts = Mapping[str, float]
VLLM: Counts = {
    "drafts": 8000,
    "draft_tokens": 120_000,
    "accepted": 40_000,
    "tokens": 48_000,
    "step_seconds": 240,
    "request_steps": 8000,
    "steps": 1000,
    "prompt": 5000,
    "preemptions": 0,
    "requests": 100,
    "ended_prompt": 5000,
    "ended_generated": 48_000,
    "lived_seconds": 240,
}
"""8 requests a step of 30 ms, 6 tokens each: 1,000 steps in 30 s."""
SGLANG: Counts = {
    "generated": 48_000,
    "verify_steps": 8000,
    "tokens": 48_000,
    "passes": 1000,
    "e2e_seconds": 250,
    "queue_seconds": 4,
    "prefill_seconds": 6,
    "requests": 100,
    "entered": 100,
    "prefilled": 5000,
    "prompt": 5000,
}
"""The same load; requests last 2.5 s."""
NORMAL = {"vllm": VLLM, "sglang": SGLANG}
KEY = Key("ns", "demo")


def window(engine: str, levels: Counts | None = None, /, *, seconds: float = 30.0, **changes: float) -> CounterWindow:
    counts = {**NORMAL[engine], **changes}
    shown = {"block": 16.0, "cache_use": 0.4, "waiting": 0.0, **(levels or {})}
    accepted = {LabelledMetric("accepted_at", str(i)): 8000 * 0.8 ** (i + 1) for i in range(15)} if engine == "vllm" else {}
    return CounterWindow(
        seconds,
        {LabelledMetric(name): value for name, value in counts.items()} | accepted,
        {LabelledMetric(n): v for n, v in shown.items()},
    )


def second(engine: str, now: CounterWindow, speculation_on: bool = True) -> LoadSample:
    """What is told of a window after a usual one."""
    follower = Follower(engine, speculation_on)
    assert follower.take(window(engine), 30.0) is not None
    made = follower.take(now, 60.0)
    assert made is not None
    return made


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_concurrency_step_time_and_acceptance(engine: str) -> None:
    made = second(engine, window(engine))
    assert (made.at_s, made.seconds, made.block, made.excluded) == (60.0, 30.0, 16, "")
    assert made.concurrency == pytest.approx(8)
    assert made.step_s == pytest.approx(0.03)
    assert (made.steps, made.committed, made.tokens) == (8000, 48_000, 48_000)
    assert (made.requests, made.context) == (100, 290), "50 of the prompt, and 480 of the answer in the end"


@pytest.mark.parametrize("engine", sorted(ENGINES))
@pytest.mark.parametrize(
    ("levels", "changes", "reason"),
    [
        ({"waiting": 3.0, "cache_use": 0.93}, {}, "CacheFull"),
        ({"cache_use": 0.93}, {}, "CacheFull"),
        ({"waiting": 3.0}, {"prompt": 26_000, "prefilled": 26_000}, "Prefill"),
        ({}, {"prompt": 26_000, "prefilled": 26_000}, "Prefill"),
        ({}, {"prompt": 24_000, "prefilled": 24_000}, ""),
    ],
)
def test_what_is_no_point_of_the_curve(engine: str, levels: Counts, changes: Counts, reason: str) -> None:
    made = second(engine, window(engine, levels, **changes))
    assert made.excluded == reason
    assert made.committed == 48_000, "its acceptance still counts"


def test_engines_have_their_own_reasons() -> None:
    assert second("vllm", window("vllm", preemptions=1)).excluded == "Preemption"
    assert second("vllm", window("vllm", prompt=26_000, cached=10_000)).excluded == "", "what the cache had was not computed"
    assert second("sglang", window("sglang", {"retracted": 1.0})).excluded == "Preemption"
    assert second("sglang", window("sglang", bare_passes=30)).excluded == "NoGraph"
    assert second("sglang", window("sglang", bare_passes=10)).excluded == ""


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_the_first_stretch_and_one_after_a_jump_are_not_known_to_be_steady(engine: str) -> None:
    follower = Follower(engine, True)
    jumped = {
        "drafts": 24_000,
        "request_steps": 24_000,
        "step_seconds": 720,
        "tokens": 144_000,
        "accepted": 120_000,
        "draft_tokens": 360_000,
    }
    if engine == "sglang":
        jumped = {"tokens": 144_000, "generated": 144_000, "verify_steps": 24_000, "e2e_seconds": 740}
    told = [
        follower.take(window(engine), 30.0),
        follower.take(window(engine, **jumped), 60.0),
        follower.take(window(engine, **jumped), 90.0),
    ]
    assert [one.excluded if one else None for one in told] == ["Unsteady", "Unsteady", ""]


def test_a_load_that_moved_within_the_stretch_shows_in_vllms_two_step_times() -> None:
    made = second("vllm", window("vllm", step_seconds=300))
    assert made.excluded == "Unsteady"
    assert made.step_s == pytest.approx(0.03)


def test_idle_time_is_not_step_time() -> None:
    for engine in ENGINES:
        assert second(engine, window(engine, seconds=90.0)).step_s == pytest.approx(0.03)


def test_an_idle_stretch_has_no_concurrency_and_is_told() -> None:
    for engine in ENGINES:
        made = second(engine, window(engine, **dict.fromkeys(NORMAL[engine], 0.0)))
        assert (made.concurrency, made.step_s, made.steps, made.tokens, made.excluded) == (0, 0, 0, 0, "")
        assert (made.requests, made.context) == (0, 0)
        assert not made.served


def test_a_schedule_is_told_by_the_block_in_use_and_mixtures_are_no_points() -> None:
    short = second("vllm", window("vllm", draft_tokens=7 * 8000))
    assert (short.block, short.excluded, short.survival) == (8, "Blocks", ()), (
        "drafts beyond the eighth were accepted: two blocks were used"
    )
    only = CounterWindow(
        30.0, {cell: n for cell, n in window("vllm", draft_tokens=7 * 8000).deltas.items() if not (cell.part and int(cell.part) > 6)}
    )
    made = second("vllm", only)
    assert (made.block, made.excluded, len(made.survival)) == (8, "", 7)
    assert second("vllm", window("vllm", draft_tokens=11.5 * 8000)).excluded == "Blocks"
    part = second("vllm", window("vllm", drafts=4000, draft_tokens=60_000, accepted=20_000))
    assert (part.excluded, part.steps, part.committed) == ("Blocks", 4000, 24_000), "half of the steps ran without drafts"
    off = second("vllm", window("vllm", drafts=0, draft_tokens=0, accepted=0, tokens=8000))
    assert (off.block, off.excluded, off.steps, off.committed) == (1, "Prefill", 8000, 8000)


def test_survival_is_by_position() -> None:
    assert second("vllm", window("vllm")).survival == pytest.approx([0.8 ** (i + 1) for i in range(15)])


@pytest.mark.parametrize(
    ("engine", "wrong", "why"),
    [
        ("sglang", {"tokens": 144_000}, "tokens that were verified are taken for decoded ones"),
        ("sglang", {"tokens": 32_000}, "a rank's tokens are missing"),
        ("vllm", {"lived_seconds": 50}, "most of the requests that end are not seen"),
        ("vllm", {"step_seconds": 160, "request_steps": 5300}, "an engine's steps are missing"),
    ],
)
def test_a_concurrency_that_littles_law_contradicts_is_doubted(engine: str, wrong: Counts, why: str) -> None:
    follower = Follower(engine, True)
    right = [follower.take(window(engine), 30.0 * turn) for turn in range(1, 6)]
    assert [one.inconsistent for one in right if one] == [False] * 5
    told = [follower.take(window(engine, **wrong), 30.0 * turn) for turn in range(6, 14)]
    assert all(one is not None and one.inconsistent for one in told[3:]), why
    follower.take(window(engine, {"cache_use": 0.95}, **wrong), 420.0)
    after = follower.take(window(engine, **wrong), 450.0)
    assert after is not None
    assert not after.inconsistent, "where requests waited in the middle of their decoding nothing is compared with it"


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_what_cannot_be_compared_is_not_doubted(engine: str) -> None:
    """Requests longer than what is kept, a series that is missing, no requests, and a third of them broken off."""
    lived = {"vllm": "lived_seconds", "sglang": "e2e_seconds"}[engine]
    without = window(engine)
    without = replace(without, deltas={cell: value for cell, value in without.deltas.items() if cell != LabelledMetric(lived)})
    third = {lived: NORMAL[engine][lived] * 0.7, "requests": 70, "entered": 70, "verify_steps": 5600, "generated": 33_600}
    for wrong in (window(engine, requests=2, entered=2), without, window(engine, requests=0), window(engine, **third)):
        follower = Follower(engine, True)
        told = [follower.take(wrong, 30.0 * turn) for turn in range(1, 5)]
        assert not any(one is not None and one.inconsistent for one in told)


def test_missing_counters_are_no_stretch() -> None:
    missing = window("vllm")
    assert (
        Follower("vllm", True).take(
            replace(missing, deltas={c: n for c, n in missing.deltas.items() if c != LabelledMetric("steps")}), 30.0
        )
        is None
    )
    assert Follower("sglang", True).take(window("sglang", generated=0, verify_steps=0), 30.0) is None, "no acceptance yet"
    assert Follower("sglang", True).take(window("sglang", {"block": 0.0}), 30.0) is None


def test_sglang_of_a_stretch_in_which_no_request_ended() -> None:
    """The acceptance is that of the requests before, and the engine was busy if its passes took as long as before."""
    none_ended = dict.fromkeys(("generated", "verify_steps", "requests", "entered", "e2e_seconds", "queue_seconds", "prefill_seconds"), 0.0)
    made = second("sglang", window("sglang", **none_ended))
    assert (made.steps, made.excluded) == (0, "")
    assert (made.concurrency, made.step_s) == pytest.approx((8, 0.03))
    assert second("sglang", window("sglang", seconds=45.0, **none_ended)).excluded == "Unsteady"


def test_requests_that_enter_and_do_not_end_take_nothing_from_those_that_end() -> None:
    """SGLang credits queueing and prefill at entry."""
    made = second("sglang", window("sglang", seconds=60.0, entered=300, queue_seconds=12, prefill_seconds=18))
    assert made.step_s == pytest.approx(0.03)


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_every_series_is_on_the_recorded_page_or_a_labelled_counter_of_one_that_is(engine: str) -> None:
    recorded = {"vllm": "vllm-0.26.0.txt", "sglang": "sglang-0.5.17.txt"}[engine]
    text = (Path(__file__).parents[4] / "testbed" / "data" / "metrics" / recorded).read_text()
    page = read_page(text, ENGINES[engine].metric_schema)
    assert page is not None
    there = {cell.quantity for cell in (*page.counters, *page.gauges)}
    assert {one.quantity for one in ENGINES[engine].metric_schema.load_samples} - there <= {"bare_passes"}
    assert all(f"\n{one.metric}{{" in text for one in ENGINES[engine].metric_schema.load_samples)
    made = Follower(engine, True).take(between(Scrape(), page, 100.0), 100.0)
    assert made is not None
    # What the whole recorded run had on average, told by the requests themselves.
    assert made.concurrency == pytest.approx({"vllm": 55174 / 2774, "sglang": 446109 * 67935 / 434108 / 5371}[engine])
    assert made.context == pytest.approx(64 + 300 / 2, rel=0.005), "64 prompt tokens, 300 of the answer; one warm-up request"


def target(name: str = "a", revision: str = "r1", ready_at_s: float = 0.0) -> Target:
    return Target("ns", name, name, "127.0.0.1", 8000, "demo", revision, "vllm", True, ready_at_s, tuned=True)


def spans(*ends_s: float) -> list[Span]:
    return [Span(end_s, window("vllm")) for end_s in ends_s]


def test_each_stretch_is_told_once_by_time_and_of_the_revision_in_force_only() -> None:
    store = LoadSampleStore(60.0)
    pods = [target("a"), target("b"), target("c", "r2")]
    store.take(pods, {"a": spans(60, 120), "b": spans(90), "c": spans(70)}, lambda _: "r1")
    assert [one.at_s for one in store.drain(KEY, "r1")] == [60, 90, 120]
    assert store.drain(KEY, "r1") == []
    store.take(pods, {"a": spans(150)}, lambda _: "r1")
    store.take(pods, {"c": spans(150)}, lambda _: "r2")
    assert [one.at_s for one in store.drain(KEY, "r2")] == [150]
    store.take(pods, {"c": spans(180)}, lambda _: "r2")
    assert store.drain(KEY, "r1") == []


def test_the_stretches_of_a_candidate_are_kept_beside_and_those_of_others_are_not() -> None:
    store = LoadSampleStore(60.0)
    pods = [target("a"), replace(target("b", "r2"), candidate=True), target("c", "r3")]
    store.take(pods, {"a": spans(60), "b": spans(70), "c": spans(80)}, lambda _: "r1")
    assert [one.at_s for one in store.drain(KEY, "r2")] == [70]
    assert [one.at_s for one in store.drain(KEY, "r1")] == [60], "what the other side has is not lost"
    assert store.drain(KEY, "r3") == []
    store.take(pods, {"b": spans(100)}, lambda _: "r1")
    store.take(pods[:1], {"a": spans(120)}, lambda _: "r1")
    assert store.drain(KEY, "r2") == [], "it is no candidate any more"


def test_the_first_seconds_of_a_pod_and_deployments_that_are_gone_are_left_out() -> None:
    store = LoadSampleStore(60.0)
    store.take([target(ready_at_s=25.0)], {"a": spans(60, 90)}, lambda _: "r1")
    store.forget(lambda _: False)
    assert [one.at_s for one in store.drain(KEY, "r1")] == [90]
    store.take([target()], {"a": spans(120)}, lambda _: "r1")
    store.forget(lambda key: key == KEY)
    assert store.drain(KEY, "r1") == []
    store.take([target()], {"a": spans(150)}, lambda _: None)
    assert store.drain(KEY, "r1") == []


def test_a_past_that_arrives_late_does_not_disturb_what_is_followed() -> None:
    store = LoadSampleStore(60.0)
    store.take([target()], {"a": spans(1000)}, lambda _: "r1")
    store.take([target()], {"a": spans(100, 160, 1060)}, lambda _: "r1")
    told = store.drain(KEY, "r1")
    assert [(one.at_s, one.excluded) for one in told] == [(100, "Unsteady"), (160, ""), (1000, "Unsteady"), (1060, "")]


def test_what_nobody_asks_for_does_not_pile_up() -> None:
    store = LoadSampleStore(60.0)
    store.take([target()], {"a": spans(*range(30, 90_030, 30))}, lambda _: "r1")
    told = store.drain(KEY, "r1")
    assert len(told) == 2000
    assert told[-1].at_s == 90_000


def gaps(cumulative: Mapping[str, float]) -> dict[LabelledMetric, float]:
    return {LabelledMetric("gaps", bound): value for bound, value in cumulative.items()}


def with_prefill(share_of_steps: float, prefill_s: float) -> CounterWindow:
    """vLLM: 1,000 steps of 8 requests, of which a share also prefilled; those that only decoded took 20 ms."""
    slow = 8000 * share_of_steps
    found = {"0.01": 0.0, "0.025": 8000 - slow, "0.05": 8000 - slow, "0.1": 8000 - slow, "0.15": 8000.0, "+Inf": 8000.0}
    seconds = (8000 - slow) * 0.02 + slow * prefill_s
    base = window("vllm", step_seconds=seconds, entered=1000 * -math.log1p(-share_of_steps), seconds=seconds / 8)
    return replace(base, deltas={**base.deltas, **gaps(found)})


def test_prefill_is_told_by_time_and_taken_out_of_the_decode_step() -> None:
    """A few tokens, a third of the steps, most of the time: the window stays, and its point is the decode step."""
    follower = Follower("vllm", True)
    assert follower.take(with_prefill(0.25, 0.12), 30.0) is not None
    made = follower.take(with_prefill(0.25, 0.12), 60.0)
    assert made is not None
    assert made.excluded == ""
    assert made.step_s == pytest.approx(0.045)
    assert made.prefill_share == pytest.approx(0.56, abs=0.05)
    assert made.decode_step_s == pytest.approx(0.02, rel=0.1)


def test_a_window_that_is_mostly_prefill_is_no_point() -> None:
    follower = Follower("vllm", True)
    assert follower.take(with_prefill(0.6, 0.13), 30.0) is not None
    made = follower.take(with_prefill(0.6, 0.13), 60.0)
    assert made is not None
    assert made.excluded == "Prefill"


def test_many_prompt_tokens_that_take_little_time_are_no_reason_to_leave_a_window_out() -> None:
    quick = window("sglang", prompt=26_000, prefilled=26_000, prefill_passes=50)
    made = second("sglang", quick)
    assert made.excluded == ""
    assert made.prefill_share == pytest.approx(7 / 8 * 50 * 0.06 / 30), (
        "50 passes of 60 ms in 30 s; a request waits for those of the other 7"
    )


def test_sglangs_prefill_of_few_tokens_counts_by_its_passes() -> None:
    slow = window("sglang", prefill_seconds=12, prefill_passes=40)
    made = second("sglang", slow)
    assert made.excluded == ""
    assert made.prefill_share == pytest.approx(7 / 8 * 40 * 0.12 / (made.step_s * 1000), abs=0.001)
    assert second("sglang", window("sglang", prefill_seconds=30, prefill_passes=100)).excluded == "Prefill"
