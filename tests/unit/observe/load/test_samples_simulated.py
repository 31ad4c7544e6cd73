"""Load samples of engines whose step times are known because they are simulated: with both rules of crediting, at steady and moving
loads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from dflash_controller.api.conditions import Reason
from dflash_controller.api.speculation import Fixed
from dflash_controller.engines import ENGINES
from dflash_controller.engines.sglang.metrics import METRIC_SCHEMA as SGLANG
from dflash_controller.model.load_sample import LoadSample
from dflash_controller.model.measured_tables import Length, Speed
from dflash_controller.model.measurement import Value
from dflash_controller.observe.load.samples import Follower
from dflash_controller.observe.pipeline.metrics import revision_metrics
from dflash_controller.observe.sources.scrape.exposition import read_page
from dflash_controller.observe.sources.scrape.ring import Ring
from dflash_controller.tuner.learned import Learned
from dflash_controller.tuner.learner import Learner
from dflash_controller.tuner.policy import decide
from testbed.simulator.batching import Request
from testbed.simulator.engine import SimulatedEngine
from testbed.simulator.faults import Faults
from testbed.simulator.settings import EngineSettings
from testbed.simulator.table import ModelTable, Table, seed_table
from tests.support.releases import default_release
from tests.support.tuner_inputs import NOW_S, tuner_inputs

WORKLOAD = "humaneval"
STEP_S = 30.0
IDLE_S = 0.25
SLOWER = 4.0
"""Than the table, so that there are fewer steps to play."""

Clients = Callable[[float], int]


def engine(name: str, block: int = 16, table: ModelTable | None = None) -> SimulatedEngine:
    settings = EngineSettings(name, default_release(name), "Qwen/Qwen3.5-397B", "m", 64, block_size=block)
    made = SimulatedEngine(settings, table or seed_table().match(settings.target), now=0.0, seed=7)
    made.batch.step_time_factor = SLOWER
    return made


def loaded(
    simulated: SimulatedEngine,
    clients: Clients,
    end_s: float,
    tokens: int = 500,
    stream: bool = False,
    warm_up_s: float = 0.0,
    every_s: float = STEP_S,
) -> list[LoadSample | None]:
    """Load samples of ``every_s`` while ``clients(time)`` clients each send their next request once they have their answer."""
    follower, ring = Follower(simulated.settings.engine, simulated.settings.block_size > 1, warm_up_s), Ring(300.0)
    dialect = ENGINES[simulated.settings.engine].metric_schema
    flying: list[Request] = []
    made: list[LoadSample | None] = []
    now = scrape_s = 0.0
    while scrape_s <= end_s:
        flying = [request for request in flying if not request.done]
        while len(flying) < clients(now):
            flying.append(Request(WORKLOAD, 64, tokens, streaming=stream))
            simulated.submit(flying[-1], now)
        event_s = simulated.batch.next_event_s
        soon = now + IDLE_S if event_s is None else event_s
        while scrape_s <= min(soon, end_s):
            page = read_page(simulated.page(min(scrape_s, soon - 1e-9)) or "", dialect)
            assert page is not None
            ring.add(scrape_s, page)
            window = ring.step(0.8 * every_s, 3 * every_s, dialect.load_samples)
            if window is not None:
                made.append(follower.take(window, scrape_s))
            scrape_s += every_s
        now = soon if event_s is None else simulated.batch.step()
    return made


def step_s(table: ModelTable, block: int, concurrency: float) -> float:
    """On the chord between whole numbers of requests."""
    below = max(1, int(concurrency))
    low, high = (SLOWER * table.step_time_s(WORKLOAD, block, below + more) for more in (0, 1))
    return low + (high - low) * (concurrency - below)


def errors(simulated: SimulatedEngine, load_samples: Sequence[LoadSample | None]) -> list[float]:
    """Of the step times of those that claim to be fit."""
    table, block = simulated.batch.table, simulated.settings.block_size
    fit = [one for one in load_samples if one is not None and one.concurrency > 0 and not one.excluded]
    return [one.step_s / step_s(table, block, one.concurrency) - 1 for one in fit]


REQUESTS = {"short": 500, "longer than a stretch": 4000}


@pytest.mark.parametrize(("name", "stream"), [("vllm", False), ("sglang", False), ("sglang", True)])
@pytest.mark.parametrize(("block", "concurrency", "requests"), [(16, 1, "short"), (16, 8, "longer than a stretch"), (8, 32, "short")])
def test_a_steady_load_is_told_within_five_percent(name: str, stream: bool, block: int, concurrency: int, requests: str) -> None:
    simulated = engine(name, block)
    made = loaded(simulated, lambda _: concurrency, 120.0, REQUESTS[requests], stream)
    length = simulated.batch.table.acceptance(WORKLOAD, block).length(block)
    fit = [one for one in made if one is not None and not one.excluded]
    assert len(fit) >= 2
    assert not any(one.inconsistent for one in fit)
    for one in fit:
        assert one.block == block
        assert one.concurrency == pytest.approx(concurrency, rel=0.05)
        assert one.step_s == pytest.approx(step_s(simulated.batch.table, block, concurrency), rel=0.05)
        assert one.tokens == pytest.approx(concurrency * length / one.step_s * one.seconds, rel=0.08)
    ended = [one for one in made if one is not None and one.requests]
    assert ended or requests != "short"
    assert all(one.context == pytest.approx(64 + REQUESTS[requests] / 2, rel=0.01) for one in ended)
    assert sum(one.committed for one in fit) / sum(one.steps for one in fit) == pytest.approx(length, rel=0.03)
    for one in fit:
        assert len(one.survival) == (block - 1 if name == "vllm" else 0)
        assert name == "sglang" or 1 + sum(one.survival) == pytest.approx(one.committed / one.steps)


@pytest.mark.parametrize("name", sorted(ENGINES))
def test_without_speculation_the_block_is_one(name: str) -> None:
    simulated = engine(name, 1)
    made = loaded(simulated, lambda _: 8, 150.0)
    assert made
    for one in made[1:]:
        assert one is not None
        assert one.block == 1
        assert one.survival == ()
        assert one.committed == one.steps
        assert one.concurrency == pytest.approx(8, rel=0.05)
        assert one.step_s == pytest.approx(step_s(simulated.batch.table, 1, 8), rel=0.05)


LOADS: dict[str, Clients] = {
    "a ramp of 1 min": lambda at: 1 + int(31 * min(1.0, max(0.0, at - 75) / 60)),
    "a slow ramp": lambda at: 1 + int(31 * min(1.0, max(0.0, at - 60) / 150)),
    "a jump": lambda at: 1 if at < 80 else 32,
    "a drop": lambda at: 32 if at < 80 else 1,
    "a square wave": lambda at: 16 if at % 90 > 45 else 1,
    "bursts": lambda at: 16 if at % 37 < 10 else 0,
}


@pytest.mark.parametrize(("name", "requests"), [("vllm", "short"), ("sglang", "short"), ("sglang", "longer than a stretch")])
@pytest.mark.parametrize("load", sorted(LOADS))
def test_no_stretch_of_a_moving_load_claims_a_wrong_step_time(name: str, load: str, requests: str) -> None:
    simulated = engine(name)
    made = loaded(simulated, LOADS[load], 240.0, REQUESTS[requests])
    assert not any(one.inconsistent for one in made if one is not None), "what is in flight explains it"
    assert all(abs(error) <= 0.1 for error in errors(simulated, made))
    if load in ("a slow ramp", "a jump", "a drop"):
        assert len(errors(simulated, made)) >= 2, "what is steady of it is told"


CLIFF_MS = {1: 8.4, 8: 9.4, 16: 10.5, 20: 23.1, 32: 26.3}
"""Step times of block 16 as measured on one H100: beyond some load there are no graphs."""


@pytest.mark.parametrize("name", sorted(ENGINES))
@pytest.mark.parametrize("jump_s", [70.0, 80.0, 88.0])
def test_a_stretch_on_both_sides_of_a_cliff_is_no_point(name: str, jump_s: float) -> None:
    """There the mean step time lies far above the curve at the mean load."""
    speeds = [Speed("", "m", WORKLOAD, c, 16, 6400 * c / ms) for c, ms in CLIFF_MS.items()]
    simulated = engine(name, table=Table(speeds, [Length("", "m", WORKLOAD, 16, 6.4)]).model("m"))
    made = loaded(simulated, lambda at: 1 if at < jump_s else 32, 150.0)
    assert all(abs(error) <= 0.1 for error in errors(simulated, made))
    assert len(errors(simulated, made)) >= 2


def test_neither_way_of_telling_sglangs_step_time_is_right_alone() -> None:
    """Over 30 s: the time per pass holds idle time, and what is credited when requests end is of another load on a ramp."""
    idle = engine("sglang")
    made = loaded(idle, LOADS["bursts"], 300.0)
    right = step_s(idle.batch.table, 16, 16)
    passes = [one.seconds / (one.tokens / one.concurrency / (one.committed / one.steps)) for one in made if one is not None and one.steps]
    assert min(passes) > 1.5 * right
    assert len(errors(idle, made)) >= 5, "the requests themselves tell it"

    rising, ring, wrong = engine("sglang"), Ring(20.0), []
    flying: list[Request] = []
    now = 0.0
    while now < 240.0:
        flying = [request for request in flying if not request.done]
        while len(flying) < LOADS["a slow ramp"](now):
            flying.append(Request(WORKLOAD, 64, 4000))
            rising.submit(flying[-1], now)
        if not ring.pages or now - ring.pages[-1][0] >= STEP_S:
            page = read_page(rising.page(now) or "", SGLANG)
            assert page is not None
            ring.add(now, page)
            window = ring.window(now)
            told = revision_metrics(SGLANG, [window] if window else [], expected=1, speculation_on=True).step_time_s
            if isinstance(told, Value):
                wrong.append(told.value / step_s(rising.batch.table, 16, len(flying)) - 1)
        now = rising.batch.step()
    assert min(wrong) < -0.1


@pytest.mark.parametrize("name", sorted(ENGINES))
def test_an_engine_that_compiles_kernels_under_load_misleads_nobody(name: str) -> None:
    """Every shape is slow once, also those of loads that come later and grow gently; what remains is the table's."""

    def clients(now: float) -> int:
        return (1, 2, 3, 5)[min(3, int(now // 150))]

    def worst(warm_up_s: float) -> float:
        simulated = engine(name)
        simulated.set_faults(Faults(step_time=SLOWER, compile_s=4.0))
        made = loaded(simulated, clients, 600.0, warm_up_s=warm_up_s)
        fit = errors(simulated, made)
        assert len(fit) >= 6
        return max(fit)

    assert worst(0.0) > 0.1
    assert worst(60.0) < 0.06, "of a kernel that is compiled as a window ends, the next one sees a little"


def test_the_first_minute_of_an_engine_gives_no_advice() -> None:
    """As on an H200: one block size, 18 s each at 1, 8 and 32 clients, samples of 5 s, and the advice that followed was wrong."""

    def clients(now: float) -> int:
        return 1 if now < 18 else 8 if now < 36 else 32

    def learned(warm_up_s: float) -> Learned:
        simulated = engine("vllm", block=8)
        simulated.set_faults(Faults(step_time=SLOWER, compile_s=1.5))
        learner = Learner()
        made = loaded(simulated, clients, 54.0, warm_up_s=warm_up_s, every_s=5.0)
        learner.take([replace(one, at_s=NOW_S + one.at_s) for one in made if one is not None], NOW_S + 54.0)
        return learner.learned(NOW_S + 54.0)

    assert learned(0.0).points
    seen = learned(60.0)
    assert (seen.points, seen.warming) == ((), seen.load_samples)
    decision = decide(tuner_inputs(now_s=NOW_S + 54.0, speculation=Fixed(8)), seen)
    assert decision.reason is Reason.LEARNING
    assert "are of engines that have served too little load so far" in decision.message
