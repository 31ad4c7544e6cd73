"""Requests served at once: what was asked, what fits, and what the engines say."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from dflash_controller.api.conditions import Reason
from dflash_controller.api.defaults import speculation_of
from dflash_controller.engines import ENGINES
from dflash_controller.engines.resolved import Resolved
from dflash_controller.model.load_sample import LoadSample
from dflash_controller.planning.revisions.capacity import by_block, effective, limited
from dflash_controller.planning.revisions.revision import Revision
from dflash_controller.planning.revisions.roles import read_stored
from dflash_controller.planning.state.inputs import Knowledge
from dflash_controller.planning.state.plan import Event
from dflash_controller.tuner.decision import TunerDecision, TunerInputs
from dflash_controller.tuner.learned import Learned
from dflash_controller.tuner.priors import Prior
from testbed.simulator.launch import Process, settings_of
from tests.support.planning_world import World

H100 = "NVIDIA-H100-80GB-HBM3"


def settled(engine: str = "sglang", **fields: Any) -> World:
    world = World(
        {
            "target": {"model": "Qwen/Qwen3.5-9B", "revision": "4" * 40},
            "drafter": {"revision": "d" * 40},
            "engine": {"name": engine, "maxConcurrency": 32, **fields},
            "accelerator": {"product": H100},
            "replicas": 2,
            "tuning": {"mode": "Advise"},
        }
    )
    world.settle()
    return world


def stable(world: World) -> Revision:
    found = read_stored(world.snapshot().revisions).stable
    assert found is not None
    return found


def notices(world: World) -> dict[str, str]:
    return {notice["reason"]: notice["message"] for notice in world.deployment["status"].get("notices") or ()}


def test_an_engine_that_serves_fewer_than_asked_is_named_with_what_helps_and_an_event() -> None:
    world = settled()
    assert "effectiveMaxConcurrency" not in world.deployment["status"], "the engines have said nothing yet"
    world.metric_values = {"requestCapacity": 16.0}
    plan = world.plan()
    [event] = [step for step in plan.steps if isinstance(step, Event)]
    assert (event.type, event.reason) == ("Warning", "ConcurrencyLimited")
    world.settle()
    assert world.deployment["status"]["effectiveMaxConcurrency"] == 16
    message = notices(world)["ConcurrencyLimited"]
    assert "serves 16 requests at once, not the 32 of spec.engine.maxConcurrency" in message
    assert "--mamba-ssm-dtype=bfloat16" in message
    assert not [step for step in world.plan().steps if isinstance(step, Event)], "it is told once"


def test_an_engine_that_serves_all_is_no_news() -> None:
    world = settled()
    world.metric_values = {"requestCapacity": 41.3}
    world.settle()
    assert world.deployment["status"]["effectiveMaxConcurrency"] == 32
    assert not {"ConcurrencyLimited", "ConcurrencyDoesNotFit"} & notices(world).keys()


def test_what_cannot_fit_is_said_with_figures_before_the_engine_has_said_anything() -> None:
    world = settled(maxConcurrency=64)
    message = notices(world)["ConcurrencyDoesNotFit"]
    assert "64 requests of 1024 tokens at block 16 need about" in message
    fitting = re.search(r"GB are left: about (\d+) fit", message)
    assert fitting is not None
    assert 30 <= int(fitting[1]) <= 36
    world.metric_values = {"requestCapacity": 33.0}
    world.settle()
    assert notices(world).keys() & {"ConcurrencyLimited", "ConcurrencyDoesNotFit"} == {"ConcurrencyLimited"}


def test_what_a_trial_will_hold_is_said_of_the_candidate() -> None:
    world = settled()
    world.metric_values = {"requestCapacity": 32.0}
    world.settle()

    def more(spec: dict[str, Any]) -> None:
        spec["engine"]["maxConcurrency"] = 64

    world.edit(more)
    world.reconcile()
    world.reconcile()
    assert "64 requests" in notices(world)["ConcurrencyDoesNotFit"]


def test_a_capacity_by_the_cache_that_is_a_little_less_is_not_reported() -> None:
    record = stable(settled("vllm"))
    assert effective(record, {"requestCapacity": 31.0}) == 32
    assert effective(record, {"requestCapacity": 24.9}) == 24
    assert effective(record, {}) is None


def sample(context: float) -> LoadSample:
    return LoadSample(0.0, 30.0, 16, 8.0, 0.02, 100, 500, 500, requests=10, context=context)


def test_vllms_requests_hold_half_as_much_at_half_the_block() -> None:
    # Measured: 43 requests of 464 tokens at block 16 and 105 at block 8, of which a fifth comes from memory kept for graphs at 16.
    held = dict(by_block(stable(settled("vllm")), {"requestCapacity": 43.0}, (8, 16), [sample(464)]))
    assert held[16] == 43.0
    assert held[8] == pytest.approx(84, abs=3)
    longer = dict(by_block(stable(settled("vllm")), {"requestCapacity": 43.0}, (8, 16), [sample(20_000)]))
    assert longer[8] < 70, "keys and values are the same at every block"


@pytest.mark.parametrize(("measured_at", "inferred_at"), [(16, 8), (8, 16)])
def test_what_another_block_would_hold_is_what_a_simulated_engine_of_it_holds(measured_at: int, inferred_at: int) -> None:
    """Both engines run the operator's own command line, with a state and keys of 464 tokens for each request."""
    record = replace(stable(settled("vllm", version="0.26.0")), speculation=speculation_of(measured_at))
    fits: dict[int, float] = {}
    for block in (measured_at, inferred_at):
        launch = ENGINES["vllm"].launch(record.resolved.launch_request(speculation_of(block)))
        process = Process((*launch.command, *launch.args), dict(launch.env), "vllm/vllm-openai:v0.26.0", product=H100)
        cache = settings_of(process).cache
        assert cache is not None
        fits[block] = cache.usable / cache.held(464)
    found = dict(by_block(record, {"requestCapacity": fits[measured_at]}, (8, 16), [sample(464)]))
    assert found[inferred_at] == pytest.approx(fits[inferred_at], rel=0.06)


def test_sglangs_own_division_gives_more_slots_at_a_smaller_block() -> None:
    # Measured: 16 requests at block 16 by SGLang's own division of the memory.
    record = stable(settled(extraArgs=["--mamba-full-memory-ratio=0.9"]))
    assert dict(by_block(record, {"requestCapacity": 16.0}, (8, 16), [sample(464)]))[8] == pytest.approx(25.8, abs=0.5)


def test_slots_that_were_rendered_for_the_concurrency_limit_no_other_block() -> None:
    record = stable(settled())
    assert dict(by_block(record, {"requestCapacity": 32.0}, (8, 16), []))[8] >= 32
    assert by_block(record, {}, (8, 16), []) == ()


def test_the_tuner_plans_with_what_the_engines_serve() -> None:
    world = settled(extraArgs=["--mamba-full-memory-ratio=0.9"])
    world.metric_values = {"requestCapacity": 16.0}
    world.tuning = Knowledge(learned=Learned(), measured=2)
    asked: list[TunerInputs] = []

    def decide(inputs: TunerInputs, learned: Learned, *, prior: Prior | None = None) -> TunerDecision:
        asked.append(inputs)
        return TunerDecision("Advising", Reason.TUNED, "")

    with patch("dflash_controller.planning.tuning.decide", decide):
        world.plan()
    assert asked[0].max_concurrency == 16
    assert dict(asked[0].capacity)[16] == 16.0


def test_a_limit_that_the_user_wrote_is_named_first() -> None:
    world = settled(extraArgs=["--mamba-full-memory-ratio=0.9"])
    world.metric_values = {"requestCapacity": 16.0}
    world.settle()
    assert "Remove --mamba-full-memory-ratio from spec.engine.extraArgs, or lower" in notices(world)["ConcurrencyLimited"]


def test_a_revision_without_known_sizes_is_told_the_flag() -> None:
    """A revision that an older operator resolved has no sizes of the cache, and its engines divide memory by themselves."""
    record = stable(settled())
    stored = record.resolved.to_json()
    for name in ("cache", "weights_known"):
        del stored[name]
    old = replace(record, resolved=Resolved.from_json(stored))
    assert "--max-mamba-cache-size" not in str(ENGINES["sglang"].launch(old.resolved.launch_request(old.speculation)).args)
    message = limited(old, {"requestCapacity": 16.0})
    assert message is not None
    assert "Write --max-mamba-cache-size=160 in spec.engine.extraArgs" in message
    assert Resolved.from_json(record.resolved.to_json()) == record.resolved
