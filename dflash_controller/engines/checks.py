"""What no engine release can do, and no engine parser refuses."""

from __future__ import annotations

from collections.abc import Iterator

from dflash_controller.api.problem import Problem
from dflash_controller.api.speculation import Fixed, Off, Schedule
from dflash_controller.engines.protocol import LaunchRequest


def shape_problems(request: LaunchRequest) -> Iterator[Problem]:
    """Sizes of the replica."""
    if request.nodes < 1 or request.tensor_parallel < 1 or request.tensor_parallel % request.nodes:
        yield Problem(
            "spec.parallelism.tensor",
            f"{request.tensor_parallel} GPUs cannot be spread evenly over {request.nodes} nodes",
            "Make tensor a multiple of nodes.",
        )
    if request.max_concurrency < 1:
        yield Problem("spec.engine.maxConcurrency", f"{request.max_concurrency} requests at once serve nobody", "Use 1 or more.")


def speculation_problems(request: LaunchRequest) -> Iterator[Problem]:
    """Block sizes and schedules against the block the drafter was trained with.

    SGLang warns only, vLLM accepts silently; acceptance then collapses behind the trained block.
    """
    trained = request.trained_block_size
    match request.speculation:
        case Off():
            return
        case Fixed(block):
            if not 2 <= block <= trained:
                message = f"block size {block} is outside 2 to {trained}, the block that {request.drafter.model} was trained with"
                yield Problem("spec.blockSize", message, f"Choose 2 to {trained}, or turn speculation off.")
        case Schedule(ranges):
            yield from _schedule_problems(ranges, trained)


def _schedule_problems(ranges: tuple[tuple[int, int, int], ...], trained: int) -> Iterator[Problem]:
    field = "spec.tuning.actuator"
    expected = 1
    for low, high, drafts in ranges:
        if low != expected or high < low:
            message = f"schedule range [{low}, {high}] does not continue at {expected}"
            yield Problem(field, message, "Give ascending ranges without gaps or overlaps, the first one from 1.")
            return
        if not 0 <= drafts < trained:
            message = f"{drafts} drafts in range [{low}, {high}] are outside 0 to {trained - 1}, the trained block less one"
            yield Problem(field, message, f"Draft at most {trained - 1} tokens.")
            return
        expected = high + 1
    if not any(drafts > 0 for _, _, drafts in ranges):
        yield Problem(field, "the schedule never drafts", "Turn speculation off instead.")
