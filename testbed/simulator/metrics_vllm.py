"""vLLM's metrics: which series exist, and when each is credited.

Everything exists at zero from the start. Drafts, accepted tokens (also by position), iteration tokens and inter-token latency are credited
every step: one latency observation per step and request, whatever the number of tokens. Request histograms are credited at the end.
Accepted tokens are counted before the length limit cuts them, so they exceed the generated tokens near the end of each request.
"""

from __future__ import annotations

from collections.abc import Mapping

from testbed.simulator.batching import Batch, Pass, Request
from testbed.simulator.cache_blocks import DENSE
from testbed.simulator.page import Cell, Page, recorded
from testbed.simulator.settings import EngineSettings

RECORDED = "vllm-0.26.0"
OMITTED = frozenset({"python_info"})
OMITTED_PREFIXES = ("python_gc_", "process_")
"""Metric prefixes left out. They describe the Python process: useless to an operator, and here they would be the simulator's."""

_SPEC = "vllm:spec_decode_num_"
_BY_POSITION = f"{_SPEC}accepted_tokens_per_pos_total"
_WITH_VALUES = ("vllm:engine_sleep_state",)
_CACHE = "vllm:cache_config_info"
_LONGEST_TOKENS = 262144
"""Context of the hybrid targets, for which vLLM says how many such requests its cache holds."""


class VllmMetrics:
    """Observer of a Batch and of the HTTP server."""

    def __init__(self, settings: EngineSettings, created_s: float) -> None:
        schema = dict(recorded(RECORDED))
        block = settings.block_size
        self._settings = settings
        self._cache = settings.cache or DENSE
        if block == 1:
            schema = {name: metric for name, metric in schema.items() if not name.startswith(_SPEC)}
        self.page = page = Page(schema, {"model_name": settings.served_model_name, "engine": "0"}, {}, created_s)
        for name in schema:
            if name.startswith("vllm:") and not name.endswith("_created") and name not in (_BY_POSITION, _CACHE):
                page.copy(name, values=name.startswith(_WITH_VALUES))
        page.cell(_CACHE, **self._cache_labels(schema[_CACHE].children[0][0])).value = 1.0
        page.distribution("http_request_duration_highr_seconds")
        self._prompt = page.cell("vllm:prompt_tokens_total")
        self._prompt_computed = page.cell("vllm:prompt_tokens_by_source_total", source="local_compute")
        self._generation = page.cell("vllm:generation_tokens_total")
        self._iteration = page.distribution("vllm:iteration_tokens_total")
        self._itl = page.distribution("vllm:inter_token_latency_seconds")
        self._ttft = page.distribution("vllm:time_to_first_token_seconds")
        self._positions: list[Cell] = []
        if block > 1:
            self._drafts = page.cell(f"{_SPEC}drafts_total")
            self._draft_tokens = page.cell(f"{_SPEC}draft_tokens_total")
            self._accepted = page.cell(f"{_SPEC}accepted_tokens_total")
            self._positions = [page.cell(_BY_POSITION, position=str(position)) for position in range(block - 1)]
            self._tally = [0] * block

    def _cache_labels(self, as_recorded: Mapping[str, str]) -> dict[str, str]:
        """Returns what vLLM says of its cache: the recorded labels of a dense target, with those that differ for a hybrid one."""
        cache, labels = self._cache, {name: text for name, text in as_recorded.items() if name != "engine"}
        labels["gpu_memory_utilization"] = f"{self._settings.memory_share:g}"
        if cache is DENSE:
            return labels
        longest = cache.count / cache.held(_LONGEST_TOKENS)
        return labels | {
            "block_size": str(cache.tokens),
            "num_gpu_blocks": str(cache.count),
            "kv_cache_max_concurrency": repr(longest),
            "kv_cache_size_tokens": str(int(longest * _LONGEST_TOKENS)),
            "mamba_block_size": str(_LONGEST_TOKENS),
            "mamba_ssm_cache_dtype": "float32",
        }

    def admitted(self, request: Request) -> None:
        """Does nothing: queue time is part of the request histograms at the end."""

    def stepped(self, done: Pass, batch: Batch) -> None:
        fresh = [request for request in done.prefilling if not request.preemptions]
        prompt = sum(request.prompt_tokens for request in fresh)
        committed = len(done.prefilling) + sum(done.kept)
        # A request that was preempted has had its first token, and its prompt is counted: what it waited is time between two tokens.
        for request in (*done.decoding, *(request for request in done.prefilling if request.preemptions)):
            self._itl.observe(done.end_s - request.last_token_s)
        for request in fresh:
            self._ttft.observe(done.end_s - request.arrived_s)
        self._prompt.inc(prompt)
        self._prompt_computed.inc(prompt)
        self._generation.inc(committed)
        self._iteration.observe(prompt + committed)
        drafts = done.block - 1
        if drafts and done.decoding:
            self._drafts.inc(len(done.draws))
            self._draft_tokens.inc(drafts * len(done.draws))
            self._accepted.inc(sum(done.draws) - len(done.draws))
            for draw in done.draws:
                self._tally[draw - 1] += 1

    def finished(self, request: Request) -> None:
        self._ended(request, "length")

    def preempted(self, request: Request) -> None:
        self.page.cell("vllm:num_preemptions_total").inc()

    def aborted(self, request: Request) -> None:
        self._ended(request, "abort")

    def _ended(self, request: Request, reason: str) -> None:
        page = self.page
        page.cell("vllm:request_success_total", finished_reason=reason).inc()
        if request.finished_s is None or request.admitted_s is None or request.first_token_s is None:
            return
        decode = request.finished_s - request.first_token_s
        page.distribution("vllm:request_prompt_tokens").observe(request.prompt_tokens)
        page.distribution("vllm:request_prefill_kv_computed_tokens").observe(request.prompt_tokens)
        page.distribution("vllm:request_generation_tokens").observe(request.generated)
        page.distribution("vllm:request_max_num_generation_tokens").observe(request.generated)
        page.distribution("vllm:request_params_n").observe(1)
        page.distribution("vllm:request_params_max_tokens").observe(request.max_tokens)
        page.distribution("vllm:e2e_request_latency_seconds").observe(request.finished_s - request.arrived_s)
        page.distribution("vllm:request_queue_time_seconds").observe(request.admitted_s - request.arrived_s)
        page.distribution("vllm:request_prefill_time_seconds").observe(request.first_token_s - request.admitted_s)
        page.distribution("vllm:request_decode_time_seconds").observe(decode)
        page.distribution("vllm:request_inference_time_seconds").observe(request.finished_s - request.admitted_s)
        page.distribution("vllm:request_time_per_output_token_seconds").observe(decode / max(1, request.generated - 1))

    def http_started(self, endpoint: str, method: str) -> None:
        """Does nothing: vLLM counts a request when it has been answered."""

    def http_finished(self, endpoint: str, method: str, status: int, seconds: float, sizes: tuple[int, int]) -> None:
        """Counts an answered request. ``sizes`` are the bytes of the request and answer bodies. vLLM counts only the API, not health and
        metrics."""
        if not endpoint.startswith("/v1/"):
            return
        page = self.page
        page.cell("http_requests_total", handler=endpoint, method=method, status=f"{status // 100}xx").inc()
        page.distribution("http_request_size_bytes", handler=endpoint).observe(sizes[0])
        page.distribution("http_response_size_bytes", handler=endpoint).observe(sizes[1])
        page.distribution("http_request_duration_highr_seconds").observe(seconds)
        page.distribution("http_request_duration_seconds", handler=endpoint, method=method).observe(seconds)

    def refresh(self, batch: Batch, now: float) -> None:
        """Updates what is not credited step by step, before a page is rendered."""
        page = self.page
        running, waiting = len(batch.in_service), len(batch.waiting)
        page.cell("vllm:num_requests_running").value = running
        page.cell("vllm:num_requests_waiting").value = waiting
        page.cell("vllm:num_requests_waiting_by_reason", reason="capacity").value = waiting
        page.cell("vllm:kv_cache_usage_perc").value = batch.blocks_held / self._cache.usable
        survivors = 0
        for position in range(len(self._positions) - 1, -1, -1):
            survivors += self._tally[position + 1]
            self._positions[position].value = survivors
