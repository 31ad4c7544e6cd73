"""The collector over a source that does as told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

import pytest

from dflash_controller.api.conditions import Reason
from dflash_controller.model.counters import CounterSnapshot
from dflash_controller.model.measurement import STALE, Absent, Error, Value
from dflash_controller.model.metrics_health import MetricsHealth
from dflash_controller.model.series import CounterWindow, LabelledMetric, Span
from dflash_controller.model.snapshot import Key
from dflash_controller.observe.collector import Collector
from dflash_controller.observe.pipeline.metrics import RevisionMetrics
from dflash_controller.observe.pipeline.source import Refusal, Round, Target
from dflash_controller.observe.status_values.display import DisplaySettings, StatusMetrics

DEMO, OTHER = Key("ns", "demo"), Key("ns", "other")
BUSY = CounterWindow(300, {LabelledMetric("accepted"): 54_000.0, LabelledMetric("drafts"): 10_000.0, LabelledMetric("tokens"): 64_000.0})
COLLAPSED = CounterWindow(300, {LabelledMetric("accepted"): 0.0, LabelledMetric("drafts"): 10_000.0, LabelledMetric("tokens"): 10_000.0})


def pod(name: str, deployment: str = "demo", revision: str = "r1") -> Target:
    return Target("ns", name, name, "127.0.0.1", 8000, deployment, revision, "vllm", True)


class Fleet:
    """A source, a store and a clock in one: what the collector sees and what it tells."""

    failed_reason, where = Reason.METRICS_UNREACHABLE, "The source"

    def __init__(self, targets: Sequence[Target], settings: DisplaySettings | None = None) -> None:
        self.pods: Sequence[Target] = targets
        self.answer: Callable[[Sequence[Target]], Round] = healthy
        self.now = 0.0
        self.shows = {DEMO: StatusMetrics("r1"), OTHER: StatusMetrics("r1")}
        self.told: list[set[Key]] = []
        self.closed = False
        self.collector = Collector(
            targets=self.targets,
            source=self,
            shown=self.shows.get,
            changed=self.changed,
            warm_up_s=60.0,
            settings=settings,
            clock=lambda: self.now,
            wall=lambda: self.now,
        )

    def targets(self) -> Iterable[Target]:
        return iter(self.pods)

    async def collect(self, targets: Sequence[Target]) -> Round:
        return self.answer(targets)

    async def close(self) -> None:
        self.closed = True

    def changed(self, keys: Collection[Key]) -> None:
        """As the operator: each key is reconciled, and status shows what display says."""
        self.told.append(set(keys))
        for key in keys:
            shown = self.shows[key]
            values = self.collector.display(key, shown.revision)
            if values is not None:
                self.shows[key] = replace(shown, values=values)

    async def rounds(self, count: int = 1) -> None:
        for _ in range(count):
            await self.collector.round()
            self.now += 30


def healthy(targets: Sequence[Target]) -> Round:
    return Round({target.uid: BUSY for target in targets}, {}, frozenset(target.uid for target in targets))


def failing(message: str) -> Callable[[Sequence[Target]], Round]:
    return lambda targets: Round(failures={target.uid: Error(message) for target in targets})


def silent(targets: Sequence[Target]) -> Round:
    return Round(failures={target.uid: Absent("NoSeries") for target in targets})


def waiting(targets: Sequence[Target]) -> Round:
    return Round(answered=frozenset(target.uid for target in targets))


async def test_before_the_first_round_nothing_is_said() -> None:
    fleet = Fleet([pod("a")])
    assert fleet.collector.health(DEMO) is None
    assert fleet.collector.metric_values(DEMO, "r1") == RevisionMetrics()
    assert fleet.collector.display(DEMO, "r1") is None


async def test_figures_are_per_revision_and_only_of_the_own_pods() -> None:
    fleet = Fleet([pod("a"), pod("b", revision="r2"), pod("c", deployment="other")])
    fleet.answer = lambda targets: Round({"a": BUSY, "b": COLLAPSED}, {"c": Error("no")}, frozenset("ab"))
    await fleet.rounds()
    assert fleet.collector.metric_values(DEMO, "r1").acceptance_length == Value(6.4, 10_000)
    assert fleet.collector.metric_values(DEMO, "r2").acceptance_length == Value(1.0, 10_000)
    assert fleet.collector.metric_values(OTHER, "r1").acceptance_length == Error("no")
    assert fleet.collector.metric_values(OTHER, "r9") == RevisionMetrics()


async def test_a_settled_fleet_is_told_once() -> None:
    fleet = Fleet([pod("a"), pod("b", deployment="other")])
    await fleet.rounds(40)
    assert fleet.told == [{DEMO, OTHER}]
    assert fleet.shows[DEMO].values == {"acceptance_length": 6.4, "tokens_per_second": 213.0}
    assert fleet.collector.health(DEMO) == MetricsHealth(True, Reason.MEASURED, "The source answers.")


async def test_only_the_deployment_that_moved_is_told() -> None:
    fleet = Fleet([pod("a"), pod("b", deployment="other")])
    await fleet.rounds(12)
    fleet.told.clear()
    fleet.answer = lambda targets: Round({"a": COLLAPSED, "b": BUSY}, {}, frozenset("ab"))
    await fleet.rounds(20)
    assert fleet.told
    assert set().union(*fleet.told) == {DEMO}
    assert fleet.shows[DEMO].values["acceptance_length"] == 1.0


async def test_after_a_restart_what_status_shows_stands() -> None:
    fleet = Fleet([pod("a")])
    before = {"acceptance_length": 6.1, "tokens_per_second": 220.0, "concurrency": 8.0, "block_size": 16.0}
    fleet.shows[DEMO] = StatusMetrics("r1", before)
    fleet.answer = waiting
    await fleet.rounds()
    fleet.answer = healthy
    await fleet.rounds(20)
    assert fleet.shows[DEMO].values == before
    assert fleet.collector.display(DEMO, "r1") is None
    assert fleet.told == [{DEMO}], "its health is known; figures are not worth a write"


async def test_a_source_that_fails_leaves_figures_shown_and_is_named_after_three_rounds() -> None:
    fleet = Fleet([pod("a")])
    await fleet.rounds(2)
    shown = fleet.shows[DEMO]
    for seen in range(1, 10):
        fleet.answer = failing(f"HTTP status 50{seen}")
        await fleet.rounds()
        health = fleet.collector.health(DEMO)
        assert health is not None
        assert health.available is (seen < 3)
    assert health == MetricsHealth(False, Reason.METRICS_UNREACHABLE, "The source failed: HTTP status 503."), (
        "the message stays as first told"
    )
    assert fleet.shows[DEMO] == shown
    assert len(fleet.told) == 2
    fleet.answer = healthy
    await fleet.rounds()
    health = fleet.collector.health(DEMO)
    assert health is not None
    assert health.available


async def test_one_lost_round_is_not_news() -> None:
    fleet = Fleet([pod("a")])
    await fleet.rounds(2)
    fleet.told.clear()
    for _ in range(10):
        fleet.answer = failing("reset")
        await fleet.rounds(2)
        fleet.answer = healthy
        await fleet.rounds()
    assert fleet.told == []


async def test_one_pod_that_answers_is_enough() -> None:
    fleet = Fleet([pod("a"), pod("b")])
    fleet.answer = lambda targets: Round({"a": BUSY}, {"b": Error("no")}, frozenset("a"))
    await fleet.rounds()
    metric_values, health = fleet.collector.metric_values(DEMO, "r1"), fleet.collector.health(DEMO)
    assert health is not None
    assert health.available
    assert metric_values.tokens_per_second == Value(pytest.approx(2 * 64_000 / 300), 64_000)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answer", "reason", "part"),
    [
        (silent, Reason.METRICS_MISSING, "no metrics of the engines"),
        (lambda _: Round(failures={"a": STALE}), Reason.METRICS_STALE, "still scraped"),
        (lambda _: Round(refusal=Refusal(Reason.PROMETHEUS_REQUIRED, "Too many.")), Reason.PROMETHEUS_REQUIRED, "Too many."),
        (failing("no answer within 2 s"), Reason.METRICS_UNREACHABLE, "no answer within 2 s"),
    ],
    ids=["silent", "stale", "refused", "failing"],
)
async def test_reasons(answer: Callable[[Sequence[Target]], Round], reason: Reason, part: str) -> None:
    fleet = Fleet([pod("a")])
    fleet.answer = answer
    await fleet.rounds(2)
    assert fleet.collector.health(DEMO) is None, "too early to say"
    await fleet.rounds()
    health = fleet.collector.health(DEMO)
    assert health is not None
    assert (health.available, health.reason) == (False, reason)
    assert part in health.message
    assert fleet.told == [{DEMO}]


async def test_without_ready_pods_there_is_nothing_to_measure() -> None:
    fleet = Fleet([])
    await fleet.rounds()
    health = fleet.collector.health(DEMO)
    assert health is not None
    assert (health.available, health.reason) == (False, Reason.NO_PODS)


async def test_pods_that_left_leave_no_figures() -> None:
    fleet = Fleet([pod("a")])
    await fleet.rounds()
    fleet.pods = []
    await fleet.rounds()
    assert fleet.collector.metric_values(DEMO, "r1") == RevisionMetrics()
    assert fleet.collector.display(DEMO, "r1") is None


async def test_a_deployment_that_is_gone_is_left_alone() -> None:
    fleet = Fleet([pod("a", deployment="gone")])
    await fleet.rounds(5)
    assert fleet.collector.display(Key("ns", "gone"), "r1") is None


async def test_another_revisions_values_are_not_shown() -> None:
    fleet = Fleet([pod("a"), pod("b", revision="r2")])
    await fleet.rounds()
    assert fleet.collector.display(DEMO, "r1") is not None
    assert fleet.collector.display(DEMO, "r2") is None


async def test_the_loop_survives_a_failing_round_and_closes_its_source(caplog: pytest.LogCaptureFixture) -> None:
    fleet = Fleet([pod("a")], DisplaySettings(interval_s=0.0))
    third = asyncio.Event()
    calls = 0

    def answer(targets: Sequence[Target]) -> Round:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RuntimeError("a slip")
        if calls == 3:
            third.set()
        return healthy(targets)

    fleet.answer = answer
    task = asyncio.create_task(fleet.collector.run())
    await asyncio.sleep(0)
    assert fleet.collector.evidence(DEMO, "r1", None)[2] == "A round of metrics failed in the operator itself, whose log says why."
    await asyncio.wait_for(third.wait(), 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert fleet.closed
    assert "a slip" in caplog.text
    assert fleet.collector.evidence(DEMO, "r1", None)[2] is None
    assert fleet.collector.metric_values(DEMO, "r1").acceptance_length == Value(6.4, 10_000)


def counting(fleet: Fleet, *uids: str) -> Callable[[Sequence[Target]], Round]:
    """Each of these pods answers, with counters that grow with time."""

    def answer(targets: Sequence[Target]) -> Round:
        read = {uid: (CounterSnapshot(fleet.now, requests=fleet.now),) for uid in uids}
        failed = {target.uid: Error("no answer within 2 s") for target in targets if target.uid not in uids}
        return Round({}, failed, frozenset(uids), read)

    return answer


async def test_evidence_is_told_by_revision_from_the_rounds_so_far() -> None:
    trial = [replace(pod("a"), on_trial=True), replace(pod("b", revision="r2"), on_trial=True, ready_at_s=15.0)]
    fleet = Fleet([*trial, pod("c", deployment="other")])
    assert fleet.collector.evidence(DEMO, "r2", "r1") == ((), (), None)
    fleet.answer = counting(fleet, "a", "b", "c")
    await fleet.rounds(3)
    candidate, stable, failure = fleet.collector.evidence(DEMO, "r2", "r1")
    assert [(trace.pod, trace.ready_at_s, [one.at_s for one in trace.readings]) for trace in candidate] == [("b", 15.0, [0, 30, 60])]
    assert [trace.pod for trace in stable] == ["a"]
    assert failure is None
    assert fleet.collector.evidence(DEMO, "r2", None) == (candidate, (), None)


async def test_the_old_pod_of_a_single_replica_is_the_before_of_its_successor() -> None:
    fleet = Fleet([pod("a")])
    fleet.answer = counting(fleet, "a")
    await fleet.rounds(20)
    fleet.pods = [replace(pod("a"), on_trial=True)]
    await fleet.rounds(1)
    fleet.pods = []
    await fleet.rounds(10)
    fleet.pods = [replace(pod("b", revision="r2"), on_trial=True)]
    fleet.answer = counting(fleet, "b")
    await fleet.rounds(30)
    candidate, stable, _ = fleet.collector.evidence(DEMO, "r2", "r1")
    assert [len(trace.readings) for trace in candidate] == [30]
    assert stable[0].readings[-1].at_s == 600
    assert 600 - stable[0].readings[0].at_s >= 300


@pytest.mark.parametrize("silent_pods", [("a",), ("b",), ("a", "b")])
async def test_trouble_is_told_while_a_revision_cannot_be_read_and_not_after(silent_pods: tuple[str, ...]) -> None:
    fleet = Fleet([pod("a"), pod("b", revision="r2"), pod("c", deployment="other")])
    fleet.answer = counting(fleet, *({"a", "b", "c"} - set(silent_pods)))
    await fleet.rounds()
    assert fleet.collector.evidence(DEMO, "r2", "r1")[2] == "The source failed: no answer within 2 s."
    assert fleet.collector.evidence(OTHER, "r1", None)[2] is None
    fleet.answer = counting(fleet, "a", "b", "c")
    await fleet.rounds()
    assert fleet.collector.evidence(DEMO, "r2", "r1")[2] is None


async def test_one_pod_of_a_revision_that_answers_is_enough_and_no_metrics_are_no_failure() -> None:
    fleet = Fleet([pod("a"), pod("b")])
    fleet.answer = counting(fleet, "b")
    await fleet.rounds()
    assert fleet.collector.evidence(DEMO, "r1", None)[2] is None
    fleet.answer = silent
    await fleet.rounds()
    assert fleet.collector.evidence(DEMO, "r1", None)[2] is None
    fleet.answer = lambda _: Round(refusal=Refusal(Reason.PROMETHEUS_REQUIRED, "Too many."))
    await fleet.rounds()
    assert fleet.collector.evidence(DEMO, "r1", None)[2] == "Too many."


SERVING = CounterWindow(
    30,
    {
        LabelledMetric("request_steps"): 8000.0,
        LabelledMetric("step_seconds"): 240.0,
        LabelledMetric("steps"): 1000.0,
        LabelledMetric("tokens"): 48_000.0,
    },
)


def spanning(fleet: Fleet, *uids: str) -> Callable[[Sequence[Target]], Round]:
    return lambda _: Round(answered=frozenset(uids), spans={uid: (Span(fleet.now, SERVING),) for uid in uids})


async def test_stretches_of_the_revision_in_force_are_kept_until_asked_for() -> None:
    fleet = Fleet([pod("a"), pod("b", revision="r2"), pod("c", deployment="other")])
    fleet.now = 100.0
    fleet.answer = spanning(fleet, "a", "b", "c")
    await fleet.rounds(3)
    assert [one.at_s for one in fleet.collector.load_samples(DEMO, "r1")] == [100, 130, 160]
    assert fleet.collector.load_samples(DEMO, "r1") == []
    assert len(fleet.collector.load_samples(OTHER, "r1")) == 3
    fleet.shows[DEMO] = StatusMetrics("r2")
    await fleet.rounds()
    assert [(one.at_s, one.concurrency) for one in fleet.collector.load_samples(DEMO, "r2")] == [(190, 8)]


async def test_stretches_of_an_engines_warm_up_say_so() -> None:
    fleet = Fleet([pod("a")])
    fleet.now = 100.0
    young = replace(SERVING, totals={LabelledMetric("steps"): 1000.0})
    fleet.answer = lambda _: Round(answered=frozenset("a"), spans={"a": (Span(fleet.now, young),)})
    await fleet.rounds()
    assert [one.excluded for one in fleet.collector.load_samples(DEMO, "r1")] == ["WarmUp"]


async def test_stretches_outlive_the_only_pod_and_not_the_deployment() -> None:
    fleet = Fleet([pod("a"), pod("c", deployment="other")])
    fleet.now = 100.0
    fleet.answer = spanning(fleet, "a", "c")
    await fleet.rounds()
    fleet.pods = []
    del fleet.shows[OTHER]
    fleet.answer = lambda _: Round()
    await fleet.rounds()
    assert len(fleet.collector.load_samples(DEMO, "r1")) == 1
    assert fleet.collector.load_samples(OTHER, "r1") == []


async def test_pods_that_answered_are_counted_by_revision() -> None:
    fleet = Fleet([pod("a"), pod("b"), pod("c", revision="r2")])
    assert fleet.collector.answered(DEMO, "r1") == 0
    fleet.answer = counting(fleet, "a", "c")
    await fleet.rounds()
    assert (fleet.collector.answered(DEMO, "r1"), fleet.collector.answered(DEMO, "r2")) == (1, 1)
    fleet.answer = failing("reset")
    await fleet.rounds()
    assert fleet.collector.answered(DEMO, "r1") == 0
