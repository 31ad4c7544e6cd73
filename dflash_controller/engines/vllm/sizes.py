"""Token budgets and CUDA graph sizes that hold full batches of blocks in vLLM."""

from __future__ import annotations

import math

from dflash_controller.engines.protocol import LaunchRequest

TOKENS = "--max-num-batched-tokens"


def capture_size(request: LaunchRequest) -> int:
    """Tokens up to which CUDA graphs are captured: every step of a full batch, as a multiple of the block and of 16.

    vLLM's default stops at 512 tokens; beyond it a step runs without graphs, 39 % slower at 32 requests of block 16 on an H100.
    """
    step = math.lcm(request.speculation.max_block_size, 16)
    return -(-request.speculation.max_block_size * request.max_concurrency // step) * step


def capture_sizes(request: LaunchRequest, budget: int | None) -> list[int]:
    """Returns the tokens of the CUDA graphs to capture: whole blocks of 1 to 8 requests, then of ever more, by an eighth at most.

    vLLM's own list goes by 8 and 16 tokens. Sizes between whole blocks serve no step that only decodes, and each size has its share in the
    memory that vLLM sets aside before it captures: the cost of the second largest graph times their number
    (``GPUModelRunner.profile_cudagraph_memory``), 8.06 GiB for graphs that took 0.88 on an H100. A batch between two sizes runs in the
    larger one. The steps are those of SGLang (``cuda_graph_hook.py``). ``budget`` is the user's own number of tokens per step: vLLM refuses
    a list that goes beyond it.
    """
    block, last = request.speculation.max_block_size, capture_size(request)
    sizes, batch = {last}, 1
    while batch <= request.max_concurrency:
        sizes.add(batch * block)
        batch += 1 if batch < 8 else 2 if batch < 32 else 4 if batch < 64 else 8 if batch < 256 else 16
    return sorted(size for size in sizes if budget is None or size <= budget) or [block]


def safe_token_budget(request: LaunchRequest) -> int:
    """Tokens per step that leave 8192 for prefill after each request's look-ahead slots, and hold a full batch of blocks.

    vLLM 0.20 to 0.31 take K slots per request out of the budget and fail at start when nothing is left; 0.33 caps the batch instead.
    """
    drafts = request.speculation.max_block_size - 1
    return max(8192 + drafts * request.max_concurrency, capture_size(request))
