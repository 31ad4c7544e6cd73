"""SGLang's metrics: which series exist, and when each is credited.

* Every pass: ``cuda_graph_passes_total`` and ``realtime_tokens_total``. The latter includes tokens that a length limit cuts, and the step
  that the overlap scheduler runs for a request that is already finished.
* At forward entry: ``queue_time_seconds``. At the end of its prefill: ``per_stage_req_latency_seconds``.
* At the end of a request: everything counted by request, including ``generation_tokens_total`` and ``spec_verify_calls_total``.
* Gauges are updated only at reports: at each prefill, and every ``--decode-log-interval`` decode passes. The idle flush, at most every 30
  s, clears the load gauges but leaves the speculation gauges frozen.
* Counters and histograms do not exist before their first use.
* The time to first token of a request that does not stream is its whole latency.
* Every tensor rank has a scheduler. Decode passes, queueing and stages of requests are counted by all of them, everything else of the
  scheduler by the first one only, unless ``--enable-metrics-for-all-schedulers`` is set.
"""

from __future__ import annotations

from dataclasses import replace

from testbed.simulator.batching import Batch, Pass, Request
from testbed.simulator.page import Page, Schema, recorded
from testbed.simulator.settings import EngineSettings, version

RECORDED = "sglang-0.5.17"
OMITTED = frozenset({"sglang:process_cpu_seconds_total"})
OMITTED_PREFIXES: tuple[str, ...] = ()
"""Metric prefixes left out: CPU time would be the simulator's."""

_IDLE_FLUSH_S = 30.0
_NEW_IN_0_5_17 = (
    "sglang:startup_time_seconds",
    "sglang:startup_cuda_graph_time_seconds",
    "sglang:graph_memory_usage_gb",
    "sglang:weight_memory_usage_gb",
)
_TPOT = "sglang:request_time_per_output_token_seconds"
_ZERO_AT_START = (
    "sglang:num_running_reqs",
    "sglang:gen_throughput",
    "sglang:decode_sum_seq_lens",
    "sglang:spec_",
    "sglang:is_cuda_graph",
    "sglang:http_",
)
_WARM_UP_TOKENS = 1
_OF_EVERY_RANK = {
    "sglang:cuda_graph_passes_total": 'mode="decode_',
    "sglang:queue_time_seconds": "",
    "sglang:per_stage_req_latency_seconds": "",
}
"""By metric: text of the lines that every tensor rank exports without being asked to."""


def schema_of(release: str) -> Schema:
    """Returns the metrics of a release: the recorded 0.5.17, without its additions for older releases, with the additions of later ones.

    The buckets of the histogram that 0.5.22 added were not recorded; those of the inter-token latency replace them.
    """
    schema = dict(recorded(RECORDED))
    if version(release) < (0, 5, 17):
        schema = {name: metric for name, metric in schema.items() if name not in _NEW_IN_0_5_17}
        schema = {
            name: replace(metric, labels=tuple(label for label in metric.labels if label != "is_streaming"))
            for name, metric in schema.items()
        }
    if version(release) >= (0, 5, 22):
        like = schema["sglang:inter_token_latency_seconds"]
        words = "Histogram of time per output token per request in seconds."
        schema[_TPOT] = replace(like, name=_TPOT, help=words, labels=(*like.labels, "is_streaming"), children=())
    return schema


class SglangMetrics:
    """Observer of a Batch and of the HTTP server."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._schema = schema_of(settings.release)
        ranks = {"tp_rank": "0", "pp_rank": "0", "moe_ep_rank": "0", "pid": "1"}
        constant = {"model_name": settings.served_model_name, "engine_type": "unified", **ranks}
        self.page = page = Page(self._schema, constant, settings.extra_metric_labels, 0.0)
        for name, metric in self._schema.items():
            if "tp_rank" in metric.labels and (settings.metrics_of_all_schedulers or name in _OF_EVERY_RANK):
                only = "" if settings.metrics_of_all_schedulers else _OF_EVERY_RANK[name]
                page.repeat(name, "tp_rank", settings.tensor_parallel, only)
            if metric.kind == "gauge" and not name.startswith("sglang:http_"):
                page.copy(name, values=not name.startswith(_ZERO_AT_START))
        page.cell("sglang:spec_num_draft_tokens").value = settings.block_size if settings.block_size > 1 else 0
        page.cell("sglang:spec_num_steps").value = 1 if settings.block_size > 1 else 0
        self._kv_tokens = page.cell("sglang:max_total_num_tokens").value
        self._passes = 0
        self._report_state(0)
        self._window_start_s = 0.0
        self._window_tokens = 0
        self._window_verifies = 0
        self._last_event_s = 0.0
        self._warm_up()

    def _warm_up(self) -> None:
        """Counts the request that the server sends itself before it is ready; only the scheduler counts it."""
        page = self.page
        page.cell("sglang:cuda_graph_passes_total", mode="prefill_none").inc()
        page.cell("sglang:realtime_tokens_total", mode="prefill_compute").inc(_WARM_UP_TOKENS)
        page.distribution("sglang:queue_time_seconds").observe(0.0)
        for stage in ("request_process", "prefill_forward"):
            page.distribution("sglang:per_stage_req_latency_seconds", stage=stage).observe(0.0)

    def admitted(self, request: Request) -> None:
        assert request.admitted_s is not None
        self.page.distribution("sglang:queue_time_seconds").observe(request.admitted_s - request.arrived_s)

    def stepped(self, done: Pass, batch: Batch) -> None:
        self._last_event_s = done.end_s
        if done.prefilling:
            self._prefilled(done, batch)
        if done.decoding:
            self._decoded(done, batch)

    def _prefilled(self, done: Pass, batch: Batch) -> None:
        page = self.page
        page.cell("sglang:cuda_graph_passes_total", mode="prefill_cuda_graph").inc()
        page.cell("sglang:realtime_tokens_total", mode="prefill_compute").inc(sum(request.prompt_tokens for request in done.prefilling))
        for request in done.prefilling:
            page.distribution("sglang:per_stage_req_latency_seconds", stage="request_process").observe(0.0)
            page.distribution("sglang:per_stage_req_latency_seconds", stage="prefill_forward").observe(done.end_s - done.start_s)
            if request.streaming:
                self._observe_ttft(request, done.end_s)
        self._report_load(len(batch.running) - len(done.prefilling), batch)

    def _decoded(self, done: Pass, batch: Batch) -> None:
        page = self.page
        drawn = sum(done.draws)
        page.cell("sglang:cuda_graph_passes_total", mode="decode_cuda_graph").inc()
        page.cell("sglang:realtime_tokens_total", mode="decode").inc(drawn)
        streams = [(request, kept) for request, kept in zip(done.decoding, done.kept, strict=True) if request.streaming]
        if streams:
            latency = page.distribution("sglang:inter_token_latency_seconds")
            for request, kept in streams:
                latency.observe((done.end_s - request.last_token_s) / kept, kept)
        self._passes += 1
        self._window_tokens += drawn
        self._window_verifies += len(done.draws)
        if self._passes % self._settings.decode_log_interval == 0:
            self._report_decode(done, batch)

    def _report_decode(self, done: Pass, batch: Batch) -> None:
        page = self.page
        self._report_load(len(done.decoding), batch)
        page.cell("sglang:gen_throughput").value = self._window_tokens / max(1e-9, done.end_s - self._window_start_s)
        page.cell("sglang:decode_sum_seq_lens").value = batch.tokens_held
        page.cell("sglang:is_cuda_graph").value = 1.0
        block = self._settings.block_size
        if block > 1:
            accepted = self._window_tokens - self._window_verifies
            page.cell("sglang:spec_accept_length").value = self._window_tokens / self._window_verifies
            page.cell("sglang:spec_accept_rate").value = accepted / (self._window_verifies * (block - 1))
        self._window_start_s, self._window_tokens, self._window_verifies = done.end_s, 0, 0

    def _report_load(self, running: int, batch: Batch) -> None:
        page = self.page
        held = min(self._kv_tokens, batch.tokens_held)
        page.cell("sglang:num_running_reqs").value = running
        page.cell("sglang:num_queue_reqs").value = len(batch.waiting)
        self._report_state(running)
        for name in ("sglang:num_used_tokens", "sglang:kv_used_tokens"):
            page.cell(name).value = held
        page.cell("sglang:kv_available_tokens").value = self._kv_tokens - held
        page.cell("sglang:full_token_usage").value = held / self._kv_tokens
        page.cell("sglang:token_usage").value = max(held / self._kv_tokens, page.cell("sglang:mamba_usage").value)

    def _report_state(self, running: int) -> None:
        """Slots: a decoding request holds one and those that track it; 29 held 116 on an H200. Without state all gauges stay at 0."""
        slots, page = self._settings.state_slots, self.page
        used = min(slots, 4 * running)
        page.cell("sglang:mamba_used_tokens").value = used
        page.cell("sglang:mamba_available_tokens").value = slots - used
        page.cell("sglang:mamba_usage").value = used / slots if slots else 0.0

    def finished(self, request: Request) -> None:
        assert request.finished_s is not None
        page = self.page
        latency = request.finished_s - request.arrived_s
        self._by_stream("sglang:prompt_tokens_total", request, request.prompt_tokens)
        self._by_stream("sglang:generation_tokens_total", request, request.generated)
        self._by_stream("sglang:num_requests_total", request, 1)
        if self._settings.block_size > 1 and request.verify_steps:
            page.cell("sglang:spec_verify_calls_total").inc(request.verify_steps)
            page.cell("sglang:realtime_tokens_total", mode="decode").inc(request.generated / request.verify_steps)
        page.distribution("sglang:e2e_request_latency_seconds", **self._stream(request)).observe(latency)
        if not request.streaming:
            self._observe_ttft(request, request.finished_s)
        page.distribution("sglang:prompt_tokens_histogram").observe(request.prompt_tokens)
        page.distribution("sglang:uncached_prompt_tokens_histogram").observe(request.prompt_tokens)
        page.distribution("sglang:generation_tokens_histogram").observe(request.generated)
        if _TPOT in self._schema and request.first_token_s is not None:
            per_token = (request.finished_s - request.first_token_s) / max(1, request.generated - 1)
            page.distribution(_TPOT, **self._stream(request)).observe(per_token)

    def preempted(self, request: Request) -> None:
        """Does nothing: SGLang's own limits keep it from taking more requests than it holds."""

    def aborted(self, request: Request) -> None:
        """Counts nothing: an aborted request is in no series of the recorded page."""

    def http_started(self, endpoint: str, method: str) -> None:
        self.page.cell("sglang:http_requests_total", endpoint=endpoint, method=method).inc()
        self.page.cell("sglang:http_requests_active", endpoint=endpoint, method=method).inc()

    def http_finished(self, endpoint: str, method: str, status: int, seconds: float, sizes: tuple[int, int]) -> None:
        """Counts answers as SGLang does, without their duration or sizes."""
        self.page.cell("sglang:http_requests_active", endpoint=endpoint, method=method).inc(-1)
        self.page.cell("sglang:http_responses_total", endpoint=endpoint, method=method, status_code=str(status)).inc()

    def refresh(self, batch: Batch, now: float) -> None:
        """Runs the idle flush."""
        if batch.idle and now - self._last_event_s >= _IDLE_FLUSH_S:
            self._report_load(0, batch)
            self.page.cell("sglang:gen_throughput").value = 0.0

    def _observe_ttft(self, request: Request, at: float) -> None:
        self.page.distribution("sglang:time_to_first_token_seconds", **self._stream(request)).observe(at - request.arrived_s)

    def _by_stream(self, name: str, request: Request, amount: float) -> None:
        self.page.cell(name, **self._stream(request)).inc(amount)

    def _stream(self, request: Request) -> dict[str, str]:
        if version(self._settings.release) < (0, 5, 17):
            return {}
        return {"is_streaming": str(request.streaming).lower()}
