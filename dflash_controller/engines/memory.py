"""How much of an accelerator's memory requests hold, and how many fit: an estimate before anything runs.

Checked against one H100 with Qwen3.5-9B: SGLang 0.5.17 left 39.0 to 39.7 GB for state, keys and values (estimated 38.3), vLLM 0.26.0
42.4 GB beside 8.7 GB that it set aside for graphs (estimated 49.4 without those). What the engine says once it runs goes before.
"""

from __future__ import annotations

from dataclasses import dataclass

from dflash_controller.engines.hardware import accelerator_bytes
from dflash_controller.engines.protocol import Fit, LaunchRequest

LEAST_CONTEXT = 1024
"""Tokens of a request, prompt and answer, that must fit for each request that is asked for."""
REMEDIES = ("lower spec.engine.maxConcurrency", "raise spec.parallelism.tensor")
"""What helps where requests do not fit, whatever holds the memory."""
SMALLER_BLOCK = "use a smaller spec.blockSize"
_DRAFTER_KV_HEADS = 8
_SMALL_DTYPES = ("bfloat16", "float16", "bf16", "fp16")


@dataclass(frozen=True, slots=True)
class Holding:
    """What requests hold on one accelerator, in bytes."""

    state: float
    """One slot of state."""
    token: float
    """Keys and values of one token, target and drafter."""


def holding(request: LaunchRequest, state_dtype: str, kv_dtype: str, *, drafts: bool) -> Holding | None:
    """Returns what one slot and one token take on one accelerator; None where the target's shape is not known.

    ``state_dtype`` and ``kv_dtype`` are the values of the engine's flags, empty where not given. Ranks divide the state; they divide keys
    and values by heads, and hold copies where there are more ranks than heads.
    """
    sizes, ranks = request.cache, request.tensor_parallel
    if sizes is None:
        return None
    recurrent = sizes.recurrent / 2 if state_dtype in _SMALL_DTYPES else sizes.recurrent
    token = sizes.kv / min(ranks, sizes.kv_heads) + (sizes.drafter_kv / min(ranks, _DRAFTER_KV_HEADS) if drafts else 0.0)
    return Holding((recurrent + sizes.convolution) / ranks, token / 2 if kv_dtype.startswith("fp8") else token)


def fraction(value: str, otherwise: float) -> float:
    """Returns a flag's value as a part of the memory; ``otherwise`` where it is absent or no such part (the engine refuses it)."""
    try:
        found = float(value)
    except ValueError:
        return otherwise
    return found if 0 < found <= 1 else otherwise


def left_for_requests(request: LaunchRequest, fraction: float, overhead: float) -> float | None:
    """Returns the bytes of one accelerator that are left for requests; None where its memory or the weights are not known.

    ``fraction`` is the part of the memory that the engine takes, ``overhead`` the part of the memory that its work space takes of that.
    """
    memory = accelerator_bytes(request.gpu_product)
    if memory is None or not request.weight_bytes:
        return None
    return max(0.0, memory * (fraction - overhead) - request.weight_bytes / request.tensor_parallel)


def fit(request: LaunchRequest, available: float, fixed: float, each: float, remedies: tuple[str, ...]) -> Fit:
    """Returns how many requests fit if they hold ``fixed`` bytes together and ``each`` bytes apiece."""
    asked = request.max_concurrency
    fitting = max(0, min(asked, int((available - fixed) // each)))
    return Fit(asked, fitting, int(fixed + asked * each), int(available), remedies)
