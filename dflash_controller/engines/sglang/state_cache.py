"""The state cache of SGLang's hybrid targets: slots for the concurrency that is asked for, and whether they fit.

SGLang divides memory between state and KV cache by ``--mamba-full-memory-ratio`` (0.9), whatever concurrency is asked for, and then serves
as many requests as the state holds: 16 instead of 32 with Qwen3.5-9B and block 16 on an H100, with one line in its log.
``--max-mamba-cache-size`` gives the number of slots instead, and the KV cache the rest. Source: ``srt/mem_cache/kv_cache_configurator.py``,
``_calculate_mamba_ratio``, ``resolve_max_num_reqs`` and ``_handle_max_mamba_cache`` (the same rules in 0.5.17, 0.5.19 and 0.5.23).
"""

from __future__ import annotations

from collections.abc import Mapping

from dflash_controller.api.speculation import Off
from dflash_controller.engines.flags import Flag, parsed
from dflash_controller.engines.memory import LEAST_CONTEXT, REMEDIES, SMALLER_BLOCK, Holding, fit, fraction, holding, left_for_requests
from dflash_controller.engines.protocol import Fit, LaunchRequest
from dflash_controller.engines.sglang.names import KV_DTYPE, NO_OVERLAP, STATE_DTYPE, STRATEGY

SLOTS = "--max-mamba-cache-size"
RATIO = "--mamba-full-memory-ratio"
NO_RADIX_CACHE = "--disable-radix-cache"
MEMORY = "--mem-fraction-static"
_REPLAY = "--enable-linear-replayssm-spec"
CHECKED = frozenset({SLOTS, RATIO, NO_RADIX_CACHE})
_BASE = 3
"""``MAMBA_CACHE_SIZE_MAX_RUNNING_REQUESTS_RATIO``."""
_DEFAULT_FRACTION = 0.8
"""SGLang computes it from the GPU, the prefill chunk and the ranks: 0.79 to 0.86 on an H100 or a B200."""
_OVERHEAD = 0.05
"""CUDA context, communication buffers, and weights beyond those that a model's name counts."""

_STATE_SHARE = 0.95
"""Largest part of the estimated memory that is given to state: a wrong estimate must leave room for keys and values."""


def slots_per_request(settings: Mapping[str, str]) -> int:
    """Returns the slots of state that SGLang counts for each request. ``settings`` are the merged flags besides the operator's own.

    Three for a running request and the prefixes kept of it, two more to track a decoding request with the overlap schedule
    (``extra_buffer``), one where a flag saves one.
    """
    if NO_RADIX_CACHE in settings:
        return 1
    strategy = settings.get(STRATEGY, "extra_buffer")
    if strategy == "no_buffer":
        return _BASE
    return _BASE + (1 if NO_OVERLAP in settings or strategy == "extra_buffer_lazy" else 2)


def slots(request: LaunchRequest, settings: Mapping[str, str]) -> list[Flag]:
    """Returns the flag that holds state for ``max_concurrency`` requests, or for as many as fit; nothing where that is not known.

    With more slots than fit SGLang would not start. By its own division of the memory it would serve about half of those that fit.
    """
    if not request.hybrid_target or settings.keys() & CHECKED:
        return []
    found = estimate(request, settings)
    return [Flag(SLOTS, str(slots_per_request(settings) * found.fitting))] if found is not None and found.fitting else []


def estimate(request: LaunchRequest, settings: Mapping[str, str]) -> Fit | None:
    """Returns how many requests fit in memory with a context of ``LEAST_CONTEXT`` tokens each; None where that is not known.

    Each of the two pools of state, slots and verified tokens, has one slot more than its requests. Keys and values take what is left.
    """
    held = _holding(request, settings)
    available = left_for_requests(request, fraction(settings.get(MEMORY, ""), _DEFAULT_FRACTION), _OVERHEAD)
    if held is None or available is None:
        return None
    states = slots_per_request(settings) + _verified(request, settings)
    fixed = held.state * (1 + _verified(request, settings))
    each = max(held.state * states + held.token * LEAST_CONTEXT, held.state * states / _STATE_SHARE)
    return fit(request, available, fixed, each, _remedies(request, settings))


def held_per_request(request: LaunchRequest, settings: Mapping[str, str], context: float) -> float | None:
    """Returns the bytes that a request of ``context`` tokens holds: its slots, one state per token that is verified, keys and values."""
    held = _holding(request, settings)
    return None if held is None else held.state * (slots_per_request(settings) + _verified(request, settings)) + held.token * context


def _holding(request: LaunchRequest, settings: Mapping[str, str]) -> Holding | None:
    drafts = not isinstance(request.speculation, Off)
    return holding(request, settings.get(STATE_DTYPE, ""), settings.get(KV_DTYPE, ""), drafts=drafts)


def _verified(request: LaunchRequest, settings: Mapping[str, str]) -> int:
    """Returns the states of a request while a step is verified (``speculative_num_draft_tokens``)."""
    return 0 if isinstance(request.speculation, Off) or _REPLAY in settings else request.speculation.max_block_size


def _remedies(request: LaunchRequest, settings: Mapping[str, str]) -> tuple[str, ...]:
    written = [f"remove {flag.name} from spec.engine.extraArgs" for flag in parsed(request.extra_args) if flag.name in (SLOTS, RATIO)]
    found = [*written, *REMEDIES]
    if request.hybrid_target:
        if not settings.get(STATE_DTYPE):
            found.append(f"halve the state with {STATE_DTYPE}=bfloat16 in spec.engine.extraArgs")
        if request.speculation.max_block_size > 8:
            found.append(SMALLER_BLOCK)
    return tuple(found)
