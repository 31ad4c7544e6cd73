"""Step times that are learned from simulated engines with more requests than they serve at once, and what the tuner predicts with them."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest

from dflash_controller.engines import ENGINES
from dflash_controller.model.load_sample import LoadSample
from dflash_controller.model.series import Scrape, between
from dflash_controller.observe.load.samples import Follower
from dflash_controller.observe.sources.scrape.exposition import read_page
from dflash_controller.tuner.inputs import DecisionInputs
from dflash_controller.tuner.learner import Learner
from dflash_controller.tuner.policy import judge
from dflash_controller.tuner.priors import Priors
from dflash_controller.tuner.step_times import NOISE_SIGMA, Limits, StepTimes
from testbed.simulator.batching import Request
from testbed.simulator.engine import SimulatedEngine
from testbed.simulator.settings import EngineSettings
from testbed.simulator.table import seed_table
from tests.support.releases import default_release
from tests.support.tuner_inputs import NOW_S, tuner_inputs

WORKLOAD, BLOCK, SLOTS, ANSWER = "gsm8k", 16, 29, 400
SPAN_S = 30.0
"""Between two looks."""
ENGINE_NAMES = sorted(ENGINES)


class Pod:
    """A simulated engine with 29 slots that is looked at every 30 s."""

    def __init__(self, engine: str, prefill_pass_s: float = 0.0) -> None:
        target = "Qwen/Qwen3.5-9B"
        settings = EngineSettings(engine, default_release(engine), target, "m", 1, block_size=BLOCK, max_concurrency=SLOTS)
        self._schema = ENGINES[engine].metric_schema
        self._engine = SimulatedEngine(settings, seed_table().match(target), now=0.0, seed=7)
        self._engine.batch.prefill_pass_s = prefill_pass_s
        self._follower = Follower(engine, True)
        self._clients: list[Request] = []
        self._page: Scrape | None = None
        self.at_s = 0.0
        self._look()

    def step_s(self, concurrency: float = SLOTS) -> float:
        return self._engine.batch.table.step_time_s(WORKLOAD, BLOCK, round(concurrency))

    @property
    def waiting(self) -> int:
        return len(self._engine.batch.waiting)

    def send(self, at_s: float) -> Request:
        request = Request(WORKLOAD, 64, ANSWER)
        self._engine.submit(request, at_s)
        return request

    def arrivals(self, times: Iterable[float], spans: int) -> list[LoadSample]:
        """Sends a request at each of these times, which ascend, for as many spans."""
        pending, made = list(times), []
        for _ in range(spans):
            until_s = self.at_s + SPAN_S
            while pending and pending[0] < until_s:
                self.send(pending.pop(0))
            self._engine.advance(until_s)
            made += self._look(until_s)
        return made

    def clients(self, count: int, spans: int) -> list[LoadSample]:
        """Lets ``count`` clients each send their next request when they have their answer."""
        self._clients = self._clients[:count]
        self._clients += [self.send(self.at_s) for _ in range(count - len(self._clients))]
        batch, made = self._engine.batch, []
        for _ in range(spans):
            until_s = self.at_s + SPAN_S
            while batch.next_event_s is not None and batch.next_event_s <= until_s:
                now_s = batch.step()
                self._clients = [self.send(now_s) if request.done else request for request in self._clients]
            made += self._look(until_s)
        return made

    def _look(self, at_s: float = 0.0) -> list[LoadSample]:
        before, self._page = self._page, read_page(self._engine.page(at_s) or "", self._schema)
        assert self._page is not None
        self.at_s = at_s
        if before is None:
            return []
        made = self._follower.take(between(before, self._page, SPAN_S, series=self._schema.load_samples), NOW_S + at_s)
        return [made] if made is not None else []


def taught(samples: Iterable[LoadSample]) -> list[LoadSample]:
    return [sample for sample in samples if not sample.excluded]


@pytest.mark.parametrize("engine", ENGINE_NAMES)
@pytest.mark.parametrize("clients", [32, 200])
def test_more_clients_than_slots_teach_the_step_time_of_all_slots(engine: str, clients: int) -> None:
    pod = Pod(engine)
    points = taught(pod.clients(clients, 8))
    assert len(points) >= 6
    assert all(point.queued for point in points)
    for point in points:
        assert point.concurrency == pytest.approx(SLOTS, rel=0.03)
        assert point.decode_step_s == pytest.approx(pod.step_s(), rel=0.02)


@pytest.mark.parametrize(("engine", "prefill_pass_s"), [("sglang", 0.03), ("sglang", 0.08), ("vllm", 0.08)])
def test_slow_prefill_under_a_queue_does_not_get_into_the_curve(engine: str, prefill_pass_s: float) -> None:
    pod = Pod(engine, prefill_pass_s)
    points = taught(pod.clients(32, 8))
    assert len(points) >= 4
    for point in points:
        assert point.step_s > 1.3 * pod.step_s()
        assert point.decode_step_s == pytest.approx(pod.step_s(), rel=0.07)


@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_a_queue_that_grows_all_the_time_teaches_the_step_time(engine: str) -> None:
    """More than twice the 18 requests per second that the engine can serve."""
    pod = Pod(engine)
    points = taught(pod.arrivals((i / 40 for i in range(40 * 240)), 8))
    assert pod.waiting > 4000
    assert len(points) >= 6
    assert all(point.decode_step_s == pytest.approx(pod.step_s(), rel=0.02) for point in points)


@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_a_queue_of_thousands_that_shrinks_teaches_the_step_time(engine: str) -> None:
    pod = Pod(engine)
    points = taught(pod.arrivals([0.0] * 6000, 8))
    assert pod.waiting > 0
    assert len(points) >= 6
    assert all(point.decode_step_s == pytest.approx(pod.step_s(), rel=0.02) for point in points)


@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_bursts_that_every_look_meets_do_not_teach_idle_time(engine: str) -> None:
    """150 requests come a second before each look. They are served within 9 s, and then nothing runs for 20 s: with it a step would last
    three times as long."""
    pod = Pod(engine)
    made = pod.arrivals((30.0 * burst - 1 for burst in range(1, 9) for _ in range(150)), 9)
    assert sum(sample.queued for sample in made) >= 6
    assert all(point.decode_step_s == pytest.approx(pod.step_s(point.concurrency), rel=0.15) for point in taught(made))


@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_the_tuner_predicts_the_block_in_use_at_saturation_within_its_stated_error(engine: str) -> None:
    pod, learner = Pod(engine), Learner()
    for clients in (1, 8, 32):
        for sample in pod.clients(clients, 12):
            learner.take([sample], sample.at_s)
    now_s = NOW_S + pod.at_s
    learned, prior = learner.learned(now_s), Priors.load().prior()
    assert learned.waiting > 0.8 * learned.load_samples > 0, "it knows that requests wait"
    own = StepTimes(learned.points, prior.steps, Limits()).at(BLOCK, learned.loads[-1].concurrency)
    assert own.log_sigma == pytest.approx(NOISE_SIGMA, rel=0.05), "it was measured at this load"
    assert abs(math.log(own.value / pod.step_s())) < own.log_sigma
    said = judge(DecisionInputs(tuner_inputs(now_s=now_s, replicas=1, serving=1, measured=1), learned, prior, Limits())).numbers
    length = learned.acceptance[0].length
    measured = SLOTS * length / pod.step_s()
    assert float(said[f"tokensPerSecond{BLOCK}"]) == pytest.approx(measured, rel=0.04)
