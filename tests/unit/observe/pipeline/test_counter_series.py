"""Which readings are kept, for how long, and where a new life begins."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dflash_controller.model.counters import CounterSnapshot, Histogram
from dflash_controller.model.snapshot import Key
from dflash_controller.observe.pipeline.counter_series import CounterSeriesStore
from dflash_controller.observe.pipeline.source import Target

KEY = Key("ns", "demo")


def pod(uid: str = "u", revision: str = "new", *, on_trial: bool = True, ready_at_s: float = 0.0) -> Target:
    return Target("ns", f"pod-{uid}", uid, "127.0.0.1", 8000, "demo", revision, "vllm", True, ready_at_s, on_trial)


def at(now: float, requests: float = 0.0, **fields: object) -> CounterSnapshot:
    return replace(CounterSnapshot(now, requests=requests, steps=10 * requests), **fields)  # type: ignore[arg-type]


def times(traces: CounterSeriesStore, revision: str = "new") -> list[list[float]]:
    return [[one.at_s for one in trace.readings] for trace in traces.of(KEY, revision)]


def fed(traces: CounterSeriesStore, target: Target, *readings: CounterSnapshot) -> CounterSeriesStore:
    for one in readings:
        traces.take(one.at_s, [target], {target.uid: (one,)})
    return traces


def test_under_trial_everything_is_kept_up_to_the_depth() -> None:
    traces = fed(CounterSeriesStore(300, 9000), pod(), *(at(30.0 * i, i) for i in range(400)))
    (kept,) = times(traces)
    assert (kept[0], kept[-1]) == (399 * 30 - 9000, 399 * 30)
    assert len(kept) == 301


def test_otherwise_the_last_window_is_kept_and_is_there_when_a_trial_begins() -> None:
    traces = fed(CounterSeriesStore(300, 9000), pod(on_trial=False), *(at(30.0 * i, i) for i in range(400)))
    assert times(traces) == [[399 * 30 - 30 * i for i in range(10, -1, -1)]]
    fed(traces, pod(), *(at(30.0 * i, i) for i in range(400, 410)))
    assert len(times(traces)[0]) == 21


def test_pods_that_are_gone_stay_while_their_deployment_is_under_trial_and_no_longer() -> None:
    traces = fed(CounterSeriesStore(300, 9000), pod("old", "old"), at(0, 1), at(30, 2))
    for now in (60, 600, 3000):
        traces.take(now, [], {})
        assert times(traces, "old") == [[0, 30]], "between the old pod and the new one there is none"
    fed(traces, pod("new"), at(3030, 1), at(3060, 2))
    assert times(traces, "old") == [[0, 30]]
    fed(traces, pod("late", "old"), at(3080, 1))
    assert times(traces, "old") == [[3080], [0, 30]]
    traces.take(3090, [pod("new", on_trial=False)], {"new": (at(3090, 3),)})
    assert times(traces, "old") == []
    assert times(traces) == [[3030, 3060, 3090]]


def test_a_deployment_that_never_comes_back_is_forgotten() -> None:
    traces = fed(CounterSeriesStore(300, 9000), pod(), at(0, 1))
    traces.take(8999, [], {})
    assert times(traces) == [[0]]
    traces.take(9001, [], {})
    assert times(traces) == []


def test_another_deployments_pods_are_not_mixed_in() -> None:
    traces = CounterSeriesStore()
    other = replace(pod("b"), deployment="other", on_trial=False)
    traces.take(0, [pod("a"), other], {"a": (at(0, 1),), "b": (at(0, 5),)})
    assert [trace.pod for trace in traces.of(KEY, "new")] == ["a"]
    assert [trace.pod for trace in traces.of(Key("ns", "other"), "new")] == ["b"]


EMPTY, SEEN = Histogram((1.0, float("inf")), (0.0, 0.0)), Histogram((1.0, float("inf")), (3.0, 4.0))


FULL = {"latency": SEEN, "accepted_at": (5.0, 2.0)}


@pytest.mark.parametrize(
    "after",
    [
        at(60, 1, **FULL),
        at(60, 5, **{**FULL, "steps": None}),
        at(60, 5, **{**FULL, "latency": None}),
        at(60, 5, **{**FULL, "latency": EMPTY}),
        at(60, 5, **{**FULL, "latency": Histogram((2.0, float("inf")), (3.0, 4.0))}),
        at(60, 5, **{**FULL, "accepted_at": (4.0, 2.0)}),
        at(60, 5, **{**FULL, "accepted_at": (5.0,)}),
    ],
    ids=["fell", "vanished", "histogram vanished", "histogram fell", "other buckets", "a position fell", "a position vanished"],
)
def test_counters_that_fell_or_vanished_begin_a_new_trace(after: CounterSnapshot) -> None:
    traces = fed(CounterSeriesStore(), pod(), at(0, 3, **FULL), at(30, 4, **FULL), after, replace(after, at_s=90, generated_tokens=9.0))
    assert times(traces) == [[0, 30], [60, 90]]


def test_a_decode_time_that_falls_is_no_restart() -> None:
    """SGLang's is latency less what was credited before: it falls when many requests enter."""
    traces = fed(CounterSeriesStore(), pod(), at(0, 3, decode_seconds=9.0), at(30, 4, decode_seconds=8.5))
    assert times(traces) == [[0, 30]]


def test_a_new_time_of_readiness_begins_a_new_trace_even_where_no_counter_fell() -> None:
    traces = fed(CounterSeriesStore(), pod(ready_at_s=5), at(30, 1))
    fed(traces, pod(ready_at_s=50), at(60, 7), at(90, 8))
    assert [(trace.ready_at_s, len(trace.readings)) for trace in traces.of(KEY, "new")] == [(5, 1), (50, 2)]


def test_of_readings_in_which_nothing_happened_the_first_and_the_last_are_kept() -> None:
    traces = fed(CounterSeriesStore(), pod(), at(0, 1), *(at(30.0 * i, 2) for i in range(1, 50)), at(1500, 3), at(1530, 3))
    assert times(traces) == [[0, 30, 1470, 1500, 1530]]


def test_the_same_sample_told_twice_is_one_reading() -> None:
    traces = fed(CounterSeriesStore(), pod(), at(0, 1), at(30, 2))
    traces.take(45, [pod()], {"u": (at(30, 2),)})
    assert times(traces) == [[0, 30]]


def test_a_past_that_arrives_late_is_put_in_front() -> None:
    traces = fed(CounterSeriesStore(), pod(ready_at_s=5), at(300, 30), at(330, 33))
    past = tuple(at(30.0 * i, 40 + i if i < 4 else i * 3) for i in range(1, 12))
    traces.take(360, [pod(ready_at_s=5)], {"u": (*past, at(360, 36))})
    assert times(traces) == [[30, 60, 90], [120 + 30 * i for i in range(9)]]
    assert [one.requests for one in traces.of(KEY, "new")[1].readings][-3:] == [30, 33, 36]


def test_a_histogram_that_appeared_with_its_first_observation_was_empty_before() -> None:
    traces = fed(CounterSeriesStore(), pod(), at(0, 1), at(30, 2, time_to_first_token=SEEN), at(60, 3, time_to_first_token=SEEN))
    (trace,) = traces.of(KEY, "new")
    assert [one.time_to_first_token for one in trace.readings] == [EMPTY, SEEN, SEEN]
    assert all(one.latency is None for one in trace.readings), "what never appeared stays absent"


def test_equal_histograms_are_kept_once() -> None:
    traces = fed(CounterSeriesStore(), pod(), at(0, 1, latency=SEEN), at(30, 2, latency=Histogram(SEEN.bounds, (3.0, 4.0))))
    (trace,) = traces.of(KEY, "new")
    assert trace.readings[0].latency is trace.readings[1].latency
