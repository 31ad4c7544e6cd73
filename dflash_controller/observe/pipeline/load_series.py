"""What a load sample is told from, beyond what the metrics and a trial need. Names as on the pages of the engines' releases.

The queue is the smallest that was seen over the load sample: an engine may count as waiting what has only just arrived. Use of the cache is
the largest.
"""

from __future__ import annotations

from dflash_controller.observe.pipeline.series import Series

VLLM_SHARED = (
    "drafts",
    "draft_tokens",
    "accepted",
    "accepted_at",
    "tokens",
    "step_seconds",
    "request_steps",
    "steps",
    "prompt",
    "cached",
    "requests",
)
"""Quantities that the dialect reads anyway."""

VLLM_MORE = (
    Series("ended_prompt", "vllm:request_prompt_tokens_sum"),
    Series("ended_generated", "vllm:request_generation_tokens_sum"),
    Series("lived_seconds", "vllm:request_decode_time_seconds_sum"),
    Series("preemptions", "vllm:num_preemptions_total"),
    Series("cache_use", "vllm:kv_cache_usage_perc", gauge=True, over="max"),
    Series("waiting", "vllm:num_requests_waiting", gauge=True, over="min"),
)

SGLANG_SHARED = (
    "generated",
    "verify_steps",
    "tokens",
    "passes",
    "block",
    "e2e_seconds",
    "queue_seconds",
    "prefill_seconds",
    "requests",
    "prompt",
)

_TOTALS = (("priority", ""),)
_RANKS = ("tp_rank", "pp_rank", "dp_rank")

SGLANG_MORE = (
    Series("prefilled", "sglang:realtime_tokens_total", match=(("mode", "prefill_compute"), *_TOTALS)),
    Series("entered", "sglang:per_stage_req_latency_seconds_count", match=(("stage", "prefill_forward"), *_TOTALS)),
    Series("bare_passes", "sglang:cuda_graph_passes_total", match=(("mode", "decode_none"), *_TOTALS), ranks=_RANKS),
    Series("retracted", "sglang:num_retracted_reqs", match=_TOTALS, gauge=True, over="max"),
    Series("cache_use", "sglang:token_usage", match=_TOTALS, gauge=True, over="max"),
    Series("waiting", "sglang:num_queue_reqs", match=_TOTALS, gauge=True, over="min"),
)
"""SGLang counts passes by how they ran: ``decode_cuda_graph``, and ``decode_none`` without a graph. Retractions are a level, set at its
reports like the other two."""
