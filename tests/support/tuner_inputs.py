"""What a test asks the tuner, of two measured replicas that run block 16 in mode Auto; and what it recommends at each concurrency."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dflash_controller.api.defaults import TuningPolicy
from dflash_controller.api.speculation import Fixed
from dflash_controller.tuner.acceptance import Acceptance
from dflash_controller.tuner.decision import TunerInputs
from dflash_controller.tuner.recommend import ObservedLoad, recommend
from dflash_controller.tuner.step_times import StepTimes

NOW_S = 1_800_000_000.0
AUTO = TuningPolicy("Auto", (8, 16), "Restart", 5.0, 300, 1800, 4, False)


def tuner_inputs(**more: Any) -> TunerInputs:
    """The deployment above, with fields replaced or added."""
    values: dict[str, Any] = {
        "now_s": NOW_S,
        "policy": AUTO,
        "speculation": Fixed(16),
        "trained_block": 16,
        "mixture": False,
        "replicas": 2,
        "serving": 2,
        "measured": 2,
        "surge": False,
        "restart_s": 60.0,
    }
    return TunerInputs(**{**values, **more})


def best_blocks(
    candidate_blocks: Iterable[int], up_to: int, acceptance: Acceptance, steps: StepTimes, *, trained_block: int | None = None
) -> tuple[int, ...]:
    """The block recommended at concurrency 1, 2, … ``up_to`` where the smallest one runs; of equals the smaller. Some block is legal."""
    candidate_blocks = [
        candidate_block
        for candidate_block in candidate_blocks
        if candidate_block >= 1 and (trained_block is None or candidate_block <= trained_block)
    ]
    loads = (ObservedLoad(float(concurrency)) for concurrency in range(1, up_to + 1))
    return tuple(
        recommend(min(candidate_blocks), candidate_blocks, [load], acceptance, steps, trained_block=trained_block).block for load in loads
    )
