"""Step times while requests queue: a queue is no reason to leave a load sample out, and does not bias it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from dflash_controller.engines import ENGINES
from dflash_controller.model.load_sample import LoadSample
from dflash_controller.model.series import CounterWindow, LabelledMetric, Span
from dflash_controller.model.snapshot import Key
from dflash_controller.observe.load.samples import Follower
from dflash_controller.observe.load.store import LoadSampleStore
from dflash_controller.observe.pipeline.source import Target

PASSES, BATCH, LENGTH, STEP_S, PREFILL_S = 1000, 29, 5.0, 0.024, 0.06
SECONDS, LIFE_S = 30.0, 1.5
REQUESTS = BATCH * SECONDS / LIFE_S
"""A replica with 29 slots, all taken. In 30 s it makes 1,000 passes of 24 ms, and 100 of 60 ms that prefill. 580 requests end."""
NO_QUEUE = {"waiting": 0.0, "block": 16.0, "cache_use": 0.4}
QUEUE = {**NO_QUEUE, "waiting": 3.0}


def sglang(
    wait_s: float, grown_s: float = 0.0, levels: Mapping[str, float] = QUEUE, at_once: float | None = 0.0, **changes: float
) -> CounterWindow:
    """Requests that entered had waited ``wait_s`` on average, and those that ended ``grown_s`` less."""
    prefill_s = 100 * PREFILL_S
    counts = {
        "generated": PASSES * BATCH * LENGTH,
        "verify_steps": PASSES * BATCH,
        "tokens": PASSES * BATCH * LENGTH,
        "passes": PASSES,
        "requests": REQUESTS,
        "entered": REQUESTS,
        "e2e_seconds": REQUESTS * (wait_s - grown_s + LIFE_S),
        "queue_seconds": REQUESTS * wait_s,
        "prefill_seconds": REQUESTS * PREFILL_S,
        "prefill_passes": prefill_s / PREFILL_S,
        "prefilled": REQUESTS * 64,
        "prompt": REQUESTS * 64,
        **({} if at_once is None else {"at_once": at_once}),
        **changes,
    }
    return CounterWindow(SECONDS, {LabelledMetric(k): v for k, v in counts.items()}, {LabelledMetric(k): v for k, v in levels.items()})


def vllm(levels: Mapping[str, float] = QUEUE, **changes: float) -> CounterWindow:
    steps = PASSES * BATCH
    counts = {
        "drafts": steps,
        "draft_tokens": 15 * steps,
        "accepted": (LENGTH - 1) * steps,
        "tokens": LENGTH * steps,
        "step_seconds": steps * STEP_S,
        "request_steps": steps,
        "steps": PASSES,
        "requests": REQUESTS,
        "ended_prompt": REQUESTS * 64,
        "ended_generated": LENGTH * steps,
        "lived_seconds": steps * STEP_S,
        "entered": REQUESTS,
        **changes,
    }
    return CounterWindow(24.0, {LabelledMetric(k): v for k, v in counts.items()}, {LabelledMetric(k): v for k, v in levels.items()})


def told(engine: str, *windows: CounterWindow) -> list[LoadSample]:
    follower = Follower(engine, True)
    made = [follower.take(one, 30.0 * (turn + 1)) for turn, one in enumerate(windows)]
    return [one for one in made if one is not None]


def of(engine: str) -> CounterWindow:
    return sglang(2.0) if engine == "sglang" else vllm()


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_a_lasting_queue_teaches_the_step_time_and_is_told_apart(engine: str) -> None:
    made = told(engine, of(engine), of(engine))[-1]
    assert (made.excluded, made.queued, made.waited) == ("", True, True)
    assert made.concurrency == pytest.approx(BATCH)
    assert made.decode_step_s == pytest.approx(STEP_S, rel=0.001)


@pytest.mark.parametrize("levels", [NO_QUEUE, {k: v for k, v in QUEUE.items() if k != "waiting"}])
def test_without_a_lasting_queue_requests_do_not_count_as_waiting(levels: Mapping[str, float]) -> None:
    for made in (told("sglang", sglang(0.0, levels=levels), sglang(0.0, levels=levels))[-1], told("vllm", vllm(levels), vllm(levels))[-1]):
        assert (made.excluded, made.queued, made.waited) == ("", False, False)


@pytest.mark.parametrize("engine", sorted(ENGINES))
@pytest.mark.parametrize(("levels", "reason"), [({"cache_use": 0.95}, "CacheFull"), ({"retracted": 1.0}, "Preemption")])
def test_a_queue_for_memory_teaches_nothing(engine: str, levels: Mapping[str, float], reason: str) -> None:
    full = (
        sglang(2.0, levels={**QUEUE, **levels}) if engine == "sglang" else vllm({**QUEUE, **levels}, preemptions=float(len(reason) == 10))
    )
    made = told(engine, of(engine), full)[-1]
    assert (made.excluded, made.waited) == (reason, True)


@pytest.mark.parametrize("growth", [0.25, 0.6, -0.5])
def test_sglangs_queue_that_grows_or_shrinks_does_not_bias_the_step_time(growth: float) -> None:
    """Queue time is credited at entry and latency at the end: requests that ended waited less by the growth × their life."""
    windows = [sglang(10.0 + SECONDS * growth * turn, growth * LIFE_S) for turn in range(1, 4)]
    made = told("sglang", *windows)[-1]
    assert (made.excluded, made.decode_step_s) == ("", pytest.approx(STEP_S, rel=0.001))
    deltas = {cell.quantity: value for cell, value in windows[-1].deltas.items()}
    of_ended = (deltas["e2e_seconds"] - deltas["queue_seconds"]) / deltas["verify_steps"]
    assert of_ended == pytest.approx((1 - growth) * SECONDS / PASSES), "what the requests that ended tell is off by the growth"


def test_the_requests_of_one_burst_that_take_minutes_to_serve_teach_the_step_time() -> None:
    """Each of them waited as much longer as it entered later, so latency less queueing is nothing."""
    made = told("sglang", *(sglang(SECONDS * turn, LIFE_S) for turn in range(1, 4)))[-1]
    assert (made.excluded, made.decode_step_s) == ("", pytest.approx(STEP_S, rel=0.001))


@pytest.mark.parametrize("at_once", [40.0, None])
def test_a_short_queue_is_confirmed_by_the_requests_that_ended(at_once: float | None) -> None:
    """Many enter after a moment only; or the buckets are not there (dropped on the way, or native histograms)."""
    made = told("sglang", *[sglang(0.1, at_once=at_once)] * 3)[-1]
    assert (made.excluded, made.decode_step_s) == ("", pytest.approx(STEP_S, rel=0.001))


@pytest.mark.parametrize("at_once", [1.0, None])
def test_a_queue_that_was_gone_between_two_looks_does_not_make_idle_time_step_time(at_once: float | None) -> None:
    """Bursts that the looks happen to meet each time: half of the time nothing ran."""
    burst = replace(sglang(2.0, at_once=at_once), seconds=2 * SECONDS)
    made = told("sglang", burst, burst, burst)[-1]
    assert (made.excluded, made.queued) == ("Unsteady", True)


def test_a_stall_under_a_queue_does_not_count_as_step_time() -> None:
    made = told("sglang", sglang(2.0), sglang(2.0), replace(sglang(2.0), seconds=1.5 * SECONDS))[-1]
    assert made.excluded == "Unsteady"


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_a_batch_that_grows_under_a_queue_is_not_steady(engine: str) -> None:
    few = {"tokens": PASSES * 5 * LENGTH} if engine == "sglang" else {"request_steps": PASSES * 5, "drafts": PASSES * 5}
    before = sglang(2.0, **few) if engine == "sglang" else vllm(**few, step_seconds=PASSES * 5 * STEP_S, draft_tokens=15 * PASSES * 5)
    assert told(engine, before, of(engine))[-1].excluded == "Unsteady"


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_a_pod_that_hangs_with_a_queue_teaches_nothing(engine: str) -> None:
    stands = CounterWindow(SECONDS, dict.fromkeys(of(engine).deltas, 0.0), of(engine).levels)
    made = told(engine, of(engine), stands)[-1]
    assert (made.concurrency, made.step_s, made.served) == (0, 0, False)


def test_a_queue_of_some_data_parallel_groups_and_not_of_others_teaches_nothing() -> None:
    """Their batches are unequal, and a step lasts as long as that of the largest."""

    def queues(*waiting: float) -> CounterWindow:
        levels = {LabelledMetric("waiting", str(group)): n for group, n in enumerate(waiting)}
        window = sglang(2.0, levels={k: v for k, v in QUEUE.items() if k != "waiting"})
        return replace(window, levels={**window.levels, **levels})

    assert [told("sglang", queues(3, 4), queues(*now))[-1].excluded for now in ((3, 4), (3, 0), (0, 5), (0, 0))] == [
        "",
        "Queue",
        "Queue",
        "",
    ]


def test_littles_law_holds_for_vllm_under_a_queue_and_is_not_asked_for_sglang() -> None:
    """vLLM's decode time begins with the first token; what SGLang's requests lived is not known while the queue grows."""
    wrong = vllm(request_steps=PASSES * BATCH * 0.6, step_seconds=PASSES * BATCH * 0.6 * STEP_S, drafts=PASSES * BATCH * 0.6)
    assert told("vllm", *[wrong] * 8)[-1].inconsistent
    assert not any(one.inconsistent for one in told("sglang", *(sglang(SECONDS * turn, LIFE_S) for turn in range(1, 9))))
    assert not any(one.inconsistent for one in told("sglang", *[sglang(2.0, -2.0)] * 8))


def test_of_several_replicas_each_teaches_its_own_load() -> None:
    """One has a queue, and the other has slots left."""
    store, pods = LoadSampleStore(0.0), [Target("ns", n, n, "127.0.0.1", 8000, "demo", "r1", "sglang", True, 0.0, tuned=True) for n in "ab"]
    free = sglang(0.0, levels=NO_QUEUE, at_once=REQUESTS, tokens=PASSES * 20 * LENGTH)
    ends_s = (60.0, 90.0)
    store.take(pods, {"a": [Span(at, sglang(2.0)) for at in ends_s], "b": [Span(at, free) for at in ends_s]}, lambda _: "r1")
    last = [one for one in store.drain(Key("ns", "demo"), "r1") if one.at_s == ends_s[-1]]
    assert {(round(one.concurrency), one.queued, one.excluded) for one in last} == {(BATCH, True, ""), (20, False, "")}
