"""SGLang's state cache: the slots that a hybrid target has where no flag gives their number.

SGLang divides the memory beside weights and work space between states and keys and values by ``--mamba-full-memory-ratio``, whatever
concurrency is asked for. A request takes several slots, and one state per token while a step is verified; each of the two pools has one
request's part more. Source: ``_handle_max_mamba_cache`` and ``_calculate_mamba_ratio``.

Measured with Qwen3.5-9B at block size 16 on an H100, SGLang 0.5.17: 83 slots at 5 a request, so that 16 of 32 requests ran, and all 32 with
a ratio of 14.
"""

from __future__ import annotations

from dataclasses import dataclass

from dflash_controller.catalog import Pair

DEFAULT_RATIO = 0.9
DEFAULT_SHARE = 0.8
"""Of the memory, for weights, states, keys and values, where ``--mem-fraction-static`` is not given."""
_WORK_SPACE_BYTES = 8.1e9
"""What the measured engine took beside these: 39.5 GB were left."""


@dataclass(frozen=True, slots=True)
class Division:
    """How a command line divides an accelerator's memory."""

    accelerator_bytes: float
    share: float = DEFAULT_SHARE
    ratio: float = DEFAULT_RATIO
    """Memory of states to that of keys and values."""
    ranks: int = 1
    half_state: bool = False
    """States of 16 bits (``--mamba-ssm-dtype``)."""


def own_slots(pair: Pair, block_size: int, slots_per_request: int, division: Division) -> int:
    """Returns the slots of a hybrid target; 0 where its sizes are not known. Raises ValueError where the weights leave no memory."""
    sizes = pair.cache
    if sizes is None:
        return 0
    state = ((sizes.recurrent / 2 if division.half_state else sizes.recurrent) + sizes.convolution) / division.ranks
    drafting = block_size > 1
    weights = (pair.target_bytes + (pair.drafter_bytes if drafting else 0)) / division.ranks
    left = division.share * division.accelerator_bytes - weights - _WORK_SPACE_BYTES
    if left <= 0:
        raise ValueError("Not enough memory. Please try to increase --mem-fraction-static.")
    verified = block_size if drafting else 0
    states = left * division.ratio / (1 + division.ratio) / state - (1 + verified)
    slots = int(states * slots_per_request / (slots_per_request + verified))
    return max(slots_per_request, slots)
