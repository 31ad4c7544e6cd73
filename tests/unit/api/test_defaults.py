"""What holds where the user left a field out, and that what the user wrote wins."""

from __future__ import annotations

from typing import Any

import pytest

from dflash_controller.api import defaults
from dflash_controller.api.parse import parse_spec
from dflash_controller.api.speculation import Fixed, Off
from dflash_controller.api.types import Spec


def spec(**fields: Any) -> Spec:
    parsed = parse_spec({"spec": {"target": {"model": "Qwen/Qwen3.5-9B"}, **fields}})
    assert isinstance(parsed, Spec), parsed
    return parsed


def test_defaults_are_those_of_the_descriptions() -> None:
    least = spec()
    assert (defaults.engine_name(least), defaults.replicas(least), defaults.max_concurrency(least)) == ("sglang", 1, 32)
    assert (defaults.tensor_parallel(least), defaults.tensor_parallel(least, 8), defaults.nodes(least)) == (1, 8, 1)
    tuning = defaults.effective_tuning(least, 16)
    assert tuning == defaults.TuningPolicy("Advise", (8, 16), "Auto", 5.0, 300, 1800, 4, False)
    rollout = defaults.effective_rollout(least)
    assert (rollout.max_surge, rollout.max_unavailable, rollout.on_inconclusive, rollout.deadline_s) == (0, 1, "Hold", 7200)
    assert (rollout.automatic_rollback, rollout.paused, rollout.window, rollout.history_limit) == (True, False, None, 10)
    assert (rollout.probe.enabled, rollout.probe.prompts) == (True, 64)
    assert rollout.analysis == defaults.GATES


def test_what_is_written_wins_even_when_it_is_zero_or_false() -> None:
    written = spec(
        replicas=0,
        tuning={"minGainPercent": 0, "minDwell": "0s", "maxChangesPerDay": 0},
        rollout={
            "automaticRollback": False,
            "probe": {"enabled": False, "maxMismatchPercent": 0},
            "analysis": {"errors": {"limit": 0, "enabled": False}},
        },
    )
    assert defaults.replicas(written) == 0
    tuning = defaults.effective_tuning(written, 16)
    assert (tuning.min_gain_percent, tuning.min_dwell_s, tuning.max_changes_per_day) == (0, 0, 0)
    rollout = defaults.effective_rollout(written)
    assert (rollout.automatic_rollback, rollout.probe.enabled, rollout.probe.max_mismatch_percent) == (False, False, 0)
    assert (rollout.analysis["errors"].limit, rollout.analysis["errors"].enabled) == (0, False)
    assert rollout.analysis["errors"].window_s == defaults.GATES["errors"].window_s


def test_every_metric_of_the_analysis_can_be_set() -> None:
    limits = {name: {"limit": i + 0.5} for i, name in enumerate(defaults.GATES)}
    rollout = defaults.effective_rollout(spec(rollout={"analysis": limits}))
    assert {name: gate.limit for name, gate in rollout.analysis.items()} == {name: limit["limit"] for name, limit in limits.items()}


@pytest.mark.parametrize(
    ("surge", "unavailable", "replicas", "expected"),
    [
        ("25%", "25%", 10, (3, 2)),
        ("10%", "10%", 1, (1, 0)),
        (0, "10%", 1, (0, 1)),
        (2, 0, 4, (2, 0)),
        ("0%", 3, 4, (0, 3)),
        ("100%", "100%", 3, (3, 3)),
    ],
)
def test_budgets_round_as_in_apps(surge: int | str, unavailable: int | str, replicas: int, expected: tuple[int, int]) -> None:
    rollout = defaults.effective_rollout(spec(replicas=replicas, rollout={"maxSurge": surge, "maxUnavailable": unavailable}))
    assert (rollout.max_surge, rollout.max_unavailable) == expected


@pytest.mark.parametrize(("trained", "blocks"), [(16, (8, 16)), (10, (8,)), (8, (8,)), (4, (4,))])
def test_default_arms_stay_within_the_training(trained: int, blocks: tuple[int, ...]) -> None:
    assert defaults.effective_tuning(spec(), trained).block_sizes == blocks


def test_block_one_is_speculation_off() -> None:
    assert defaults.speculation_of(1) == Off()
    assert defaults.speculation_of(defaults.block_size(spec(), 10)) == Fixed(10)
    assert defaults.block_size(spec(blockSize=8), 16) == 8


def test_a_replica_over_nodes_has_an_accelerator_on_each() -> None:
    assert defaults.tensor_parallel(spec(parallelism={"tensor": 16, "nodes": 2}), 8) == 16
