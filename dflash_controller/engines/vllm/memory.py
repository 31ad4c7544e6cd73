"""How many requests vLLM holds in its cache, and what it sets aside beside the cache."""

from __future__ import annotations

from dflash_controller.api.speculation import Off
from dflash_controller.engines.flags import index, parsed
from dflash_controller.engines.memory import LEAST_CONTEXT, REMEDIES, SMALLER_BLOCK, fit, fraction, holding, left_for_requests
from dflash_controller.engines.protocol import Fit, LaunchRequest
from dflash_controller.engines.releases import version

MEMORY = "--gpu-memory-utilization"
_STATE_DTYPE = "--mamba-ssm-cache-dtype"
_KV_DTYPE = "--kv-cache-dtype"
_DEFAULT_FRACTION = 0.92
"""``CacheConfig.gpu_memory_utilization`` (0.26 to 0.33)."""
_OVERHEAD = 0.1
"""CUDA context, weights beyond those that a model's name counts, and activations of a full prefill step."""
_PADDING = 1.15
"""A state fills a page of the attention layers' size: 2.42 MB for 2.15 MB with Qwen3.5-9B (``page_size_padded``)."""
_GRAPHS_PROFILED_SINCE = "0.33.0"
_PROFILER = "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"


def graph_memory(request: LaunchRequest) -> dict[str, str]:
    """Returns the variable that keeps vLLM from setting memory aside for CUDA graphs of hybrid targets by a wrong estimate.

    Up to 0.32 hybrid targets run on the older runner, which takes every graph for as large as the second largest
    (``GPUModelRunner.profile_cudagraph_memory``): 8.06 GiB on an H100, where the graphs took 0.88. They fit in the 8 % of the memory that
    vLLM leaves free; where the user takes that too, the estimate stays.
    """
    asked = MEMORY in index(parsed(request.extra_args))
    if not request.hybrid_target or asked or version(request.release) >= version(_GRAPHS_PROFILED_SINCE):
        return {}
    return {_PROFILER: "0"}


def estimate(request: LaunchRequest) -> Fit | None:
    """Returns how many requests fit in the cache with a context of ``LEAST_CONTEXT`` tokens each; None where that is not known."""
    each = held_per_request(request, LEAST_CONTEXT)
    available = left_for_requests(request, fraction(_settings(request).get(MEMORY, ""), _DEFAULT_FRACTION), _OVERHEAD)
    if each is None or available is None:
        return None
    smaller = request.hybrid_target and request.speculation.max_block_size > 8
    return fit(request, available, 0.0, each, (*REMEDIES, SMALLER_BLOCK) if smaller else REMEDIES)


def held_per_request(request: LaunchRequest, context: float) -> float | None:
    """Returns the bytes that a request of ``context`` tokens holds: one state per token of a step, keys and values.

    ``MambaSpec.max_memory_usage_bytes``: a state, and one per draft; one more where prefixes are cached.
    """
    settings = _settings(request)
    drafts = not isinstance(request.speculation, Off)
    held = holding(request, settings.get(_STATE_DTYPE, ""), settings.get(_KV_DTYPE, ""), drafts=drafts)
    if held is None:
        return None
    states = request.speculation.max_block_size + ("--enable-prefix-caching" in settings)
    return held.state * states * _PADDING + held.token * context


def _settings(request: LaunchRequest) -> dict[str, str]:
    return index([*parsed(request.recommended_args), *parsed(request.extra_args)])
