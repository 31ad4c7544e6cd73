"""Which load samples of an engine process are left out because it compiles kernels: told by its own counter of passes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from dflash_controller.engines import ENGINES
from dflash_controller.model.load_sample import LoadSample
from dflash_controller.model.series import CounterWindow, LabelledMetric, Span
from dflash_controller.model.snapshot import Key
from dflash_controller.observe.load.samples import Follower
from dflash_controller.observe.load.store import LoadSampleStore
from dflash_controller.observe.pipeline.source import Target

WARM_UP_S = 60.0
STEP_S = 0.03
KEY = Key("ns", "demo")


class Process:
    """An engine process, and the windows of 30 s that its counters make."""

    def __init__(self, engine: str = "vllm", passes: float = 0.0) -> None:
        self.engine = engine
        self.passes = passes

    def serve(self, clients: float = 8.0, *, busy: float = 1.0, step_s: float = STEP_S) -> CounterWindow:
        """30 s with that many clients, for that part of the time."""
        passes = 30.0 * busy / step_s
        self.passes += passes
        steps = clients * passes
        counts = {
            "vllm": {"steps": passes, "request_steps": steps, "drafts": steps, "draft_tokens": 15 * steps, "accepted": 5 * steps}
            | {"tokens": 6 * steps, "step_seconds": steps * step_s},
            "sglang": {"passes": passes, "tokens": 6 * steps, "generated": 6 * steps, "verify_steps": steps}
            | {"e2e_seconds": steps * step_s, "requests": steps / 50, "entered": steps / 50},
        }[self.engine]
        return self._window(counts)

    def idle(self) -> CounterWindow:
        return self._window(dict.fromkeys(("steps", "request_steps", "step_seconds", "passes", "tokens"), 0.0))

    def _window(self, counts: dict[str, float]) -> CounterWindow:
        name = ENGINES[self.engine].metric_schema.passes
        levels = {"block": 16.0, "cache_use": 0.4, "waiting": 0.0}
        deltas, shown = ({LabelledMetric(one): value for one, value in part.items()} for part in (counts, levels))
        return CounterWindow(30.0, deltas, shown, totals={LabelledMetric(name): self.passes})


def follower(engine: str = "vllm", warm_up_s: float = WARM_UP_S) -> Follower:
    return Follower(engine, True, warm_up_s)


def why(following: Follower, windows: Iterable[CounterWindow]) -> list[str]:
    """Why each is excluded; "-" where there was no load."""
    told = [following.take(window, following.last_s + 30.0) for window in windows]
    return [one.excluded if one.concurrency else "-" for one in told if one is not None]


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_the_first_minute_under_load_teaches_no_step_time_and_its_acceptance_and_load_count(engine: str) -> None:
    process, following = Process(engine), follower(engine)
    told = [following.take(process.serve(), 30.0 * turn) for turn in range(1, 5)]
    samples = [one for one in told if isinstance(one, LoadSample)]
    assert [one.excluded for one in samples] == ["WarmUp", "WarmUp", "", ""]
    assert samples[0].committed / samples[0].steps == pytest.approx(6.0)
    assert samples[0].concurrency == pytest.approx(8.0)


def test_an_hour_without_load_warms_no_engine() -> None:
    process, following = Process(), follower()
    assert why(following, [process.idle() for _ in range(120)]) == ["-"] * 120
    assert why(following, [process.serve() for _ in range(3)]) == ["WarmUp", "WarmUp", ""]


def test_time_under_load_counts_and_not_the_time_between() -> None:
    process, following = Process(), follower()
    assert why(following, [process.serve(busy=0.25) for _ in range(8)]) == ["WarmUp"] * 8
    assert why(following, [process.serve(busy=0.25)]) != ["WarmUp"]


def test_a_new_process_in_the_same_pod_begins_again() -> None:
    following, process = follower(), Process()
    assert why(following, [process.serve() for _ in range(4)]) == ["WarmUp", "WarmUp", "", ""]
    process = Process()
    assert why(following, [process.serve() for _ in range(3)]) == ["WarmUp", "WarmUp", ""]


def test_an_engine_that_is_warm_when_the_operator_starts_is_not_left_out() -> None:
    process = Process(passes=1e6)
    assert why(follower(), [process.serve() for _ in range(3)]) == ["Unsteady", "", ""], "nothing is known of the load before the first"


def test_an_engine_that_is_in_its_warm_up_when_the_operator_starts_is_left_out_for_the_rest() -> None:
    process = Process(passes=1000)
    assert why(follower(), [process.serve() for _ in range(3)]) == ["WarmUp", "", ""]


def test_a_gap_in_the_metrics_does_not_begin_again_and_what_was_served_in_it_counts() -> None:
    process, following = Process(), follower()
    assert why(following, [process.serve()]) == ["WarmUp"]
    process.serve()
    process.serve()
    assert why(following, [process.serve()]) == [""]


def test_a_load_higher_than_any_before_is_left_out_once() -> None:
    process, following = Process(), follower()
    assert why(following, [process.serve(8) for _ in range(3)])[-1] == ""
    higher = why(following, [process.serve(32) for _ in range(3)])
    assert higher == ["WarmUp", "", ""]
    assert "WarmUp" not in why(following, [process.serve(clients) for clients in (8, 8, 1, 1, 20, 20, 32, 32)]), "those sizes have run"


def test_a_mean_load_about_a_power_of_two_is_one_level() -> None:
    process, following = Process(), follower()
    why(following, [process.serve(7.8) for _ in range(3)])
    assert why(following, [process.serve(clients) for clients in (8.2, 7.9, 8.1)]) == ["", "", ""]


def test_a_pass_that_stands_still_is_no_time_under_load() -> None:
    """Passes of 15 s that compile for two minutes are followed by a minute of load that is left out all the same."""
    process, following = Process(), follower()
    assert why(following, [process.serve(step_s=15.0) for _ in range(4)]) == ["WarmUp"] * 4
    assert why(following, [process.serve() for _ in range(3)]) == ["WarmUp", "WarmUp", ""]


def test_warm_up_is_named_before_a_queue_that_compiling_causes() -> None:
    process, following = Process(), follower()
    queued = process.serve()
    queued = replace(queued, levels={**queued.levels, LabelledMetric("waiting"): 3.0})
    assert why(following, [queued]) == ["WarmUp"]


def test_without_a_warm_up_nothing_is_left_out() -> None:
    process = Process()
    assert why(follower(warm_up_s=0.0), [process.serve() for _ in range(2)]) == ["Unsteady", ""]


def test_of_several_replicas_only_the_fresh_one_is_left_out() -> None:
    store = LoadSampleStore(WARM_UP_S)
    names = ("warm", "fresh")
    pods = [Target("ns", one, one, "127.0.0.1", 8000, "demo", "r1", "vllm", True, tuned=True) for one in names]
    processes = {"warm": Process(passes=1e6), "fresh": Process()}
    for end_s in (60.0, 90.0, 120.0):
        store.take(pods, {one: (Span(end_s, processes[one].serve(4 if one == "warm" else 8)),) for one in names}, lambda _: "r1")
    told = store.drain(KEY, "r1")
    assert [one.excluded for one in told if one.concurrency < 5] == ["Unsteady", "", ""]
    assert [one.excluded for one in told if one.concurrency > 5] == ["WarmUp", "WarmUp", ""]


def test_a_candidate_on_trial_is_left_out_by_the_same_rule() -> None:
    store = LoadSampleStore(WARM_UP_S)
    tried = Target("ns", "c", "c", "127.0.0.1", 8000, "demo", "r2", "vllm", True, tuned=True, candidate=True)
    process = Process()
    for end_s in (60.0, 90.0, 120.0):
        store.take([tried], {"c": (Span(end_s, process.serve()),)}, lambda _: "r1")
    assert [one.excluded for one in store.drain(KEY, "r2")] == ["WarmUp", "WarmUp", ""]
