"""vLLM's cache: how many blocks it has, and how many a request holds.

vLLM divides the memory that is left beside weights and work space into blocks of one size. A request holds blocks for its tokens and, of a
hybrid target, for a state per token that a step verifies: the target's own and one per draft. The block is as large as a state and its
convolution, which a longer draft makes larger, so that hybrids have fewer blocks at a larger block size and hold more of them.

Measured with Qwen3.5-9B on an H100, vLLM 0.26.0 and 92 % of the memory: 2,912 blocks of 592 tokens at block size 16, of which 31 requests
of 464 tokens held 71.35 % (67 each), and 3,675 blocks of 560 tokens at 8, of which 29 held 27.63 % (35 each). Both follow exactly from
four groups of recurrent layers and three of attention layers. One block of each cache is never used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dflash_controller.catalog.catalog import CacheSizes, Pair

DEFAULT_UTILIZATION = 0.92
"""``--gpu-memory-utilization`` where it is not given."""
_STATE_GROUPS, _ATTENTION_GROUPS = 4, 3
"""Layers that share a block size form groups; other hybrids are taken to be divided like the measured one."""
_RECURRENT_PER_ATTENTION = 3
"""Recurrent layers for each attention layer (Qwen3.5 and Qwen3-Next)."""
_KERNEL_POSITIONS = 3
"""Positions that a convolution over four tokens keeps; each draft adds one."""
_MULTIPLE = 16
"""A block holds a multiple of this many tokens."""
_WORK_SPACE_BYTES = 7.06e9
"""CUDA context, activations of a full prefill step and what else the measured engine took beside weights, graphs and blocks."""
_GRAPHS_TAKEN_BYTES = 0.95e9
"""What CUDA graphs take (0.88 GiB)."""
_GRAPHS_ESTIMATED_BYTES: Mapping[bool, float] = {True: 8.65e9, False: 0.45e9}
"""What vLLM sets aside for graphs before 0.33, by whether it captures steps of 512 tokens (8.06 GiB) or half of that."""
_LARGE_CAPTURE = 512
DENSE_BLOCKS, DENSE_TOKENS = 21430, 16
"""Blocks of a dense target, as on the recorded page (342,880 tokens)."""


@dataclass(frozen=True, slots=True)
class CacheBlocks:
    """The cache of one engine."""

    count: int
    """Blocks, the one included that is never used."""
    tokens: int
    """Tokens in a block."""
    state: int = 0
    """Blocks that a request holds for its states, whatever its length."""
    groups: int = 1
    """Blocks that each ``tokens`` tokens of a request take."""

    @property
    def usable(self) -> int:
        return self.count - 1

    def held(self, tokens: int) -> int:
        """Returns the blocks that a request of this many tokens holds, prompt, answer and drafts."""
        return self.state + self.groups * -(-tokens // self.tokens)


DENSE = CacheBlocks(DENSE_BLOCKS, DENSE_TOKENS)


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of an engine's accelerators and how its command line divides it."""

    accelerator_bytes: float
    share: float
    """``--gpu-memory-utilization``."""
    ranks: int = 1
    graph_bytes: float = 0.0
    """What is set aside for CUDA graphs."""

    def left_bytes(self, weight_bytes: float) -> float:
        """Returns the bytes of each accelerator that are left for blocks; not positive where the weights do not fit."""
        return self.share * self.accelerator_bytes - weight_bytes / self.ranks - _WORK_SPACE_BYTES - self.graph_bytes


def graph_bytes(captured_tokens: int, *, measured: bool, estimated: bool) -> float:
    """Returns what vLLM sets aside for CUDA graphs of a hybrid target.

    ``measured`` (since 0.33): what they take. Before, it is an estimate by the largest step that is captured, and nothing if it is not
    ``estimated`` (VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS is 0).
    """
    if measured:
        return _GRAPHS_TAKEN_BYTES
    return _GRAPHS_ESTIMATED_BYTES[captured_tokens >= _LARGE_CAPTURE] if estimated else 0.0


def hybrid_cache(pair: Pair, block_size: int, memory: Memory, *, half_state: bool = False, prefixes: bool = False) -> CacheBlocks:
    """Returns the cache of a hybrid target. Raises ValueError where not a single request fits: vLLM does not start then.

    ``half_state``: states of 16 bits (``--mamba-ssm-cache-dtype``); ``prefixes``: one state more for cached prefixes.
    """
    sizes = pair.cache
    if sizes is None:
        raise ValueError(f"the sizes of {pair.target} are not known")
    tokens = block_tokens(sizes, block_size, half_state=half_state)
    bytes_each = _RECURRENT_PER_ATTENTION * sizes.kv * tokens / _STATE_GROUPS / memory.ranks
    weights = pair.target_bytes + (pair.drafter_bytes if block_size > 1 else 0)
    count = int(memory.left_bytes(weights) // bytes_each)
    cache = CacheBlocks(count, tokens, _STATE_GROUPS * (block_size + prefixes), _ATTENTION_GROUPS)
    if cache.usable < cache.held(tokens):
        raise ValueError("No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.")
    return cache


def block_tokens(sizes: CacheSizes, block_size: int, *, half_state: bool = False) -> int:
    """Returns the tokens of a block: as many as take the bytes of a state with its convolution over kernel and drafts."""
    recurrent = sizes.recurrent / 2 if half_state else sizes.recurrent
    state = recurrent + sizes.convolution * (_KERNEL_POSITIONS + block_size - 1) / _KERNEL_POSITIONS
    tokens = -(-state // (_RECURRENT_PER_ATTENTION * sizes.kv))
    return int(-(-tokens // _MULTIPLE) * _MULTIPLE)
