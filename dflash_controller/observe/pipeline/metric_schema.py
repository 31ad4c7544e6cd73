"""How each engine's counters become metrics. Pure.

Counters, not gauges: load gauges of SGLang are set at reports 40 decode iterations apart (with short requests they showed 20 of 32
requests) and its speculation gauges freeze while idle. Sums over pods come before quotients, so a busy pod weighs more than an idle one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from dflash_controller.observe.pipeline.load_series import SGLANG_MORE, SGLANG_SHARED, VLLM_MORE, VLLM_SHARED
from dflash_controller.observe.pipeline.metrics import RevisionMetrics
from dflash_controller.observe.pipeline.result import NO_SERIES, Absent, Measurement, Value
from dflash_controller.observe.pipeline.series import CounterWindow, LabelledMetric, Series

"""The engine does not export what the figure needs (a labelled counter appears with its first increment)."""
NO_TRAFFIC = Absent("NoTraffic")
"""The counters are there and stood still over the window."""
SPECULATION_OFF = Absent("SpeculationOff")

_TOTALS = (("priority", ""),)
"""With priority scheduling SGLang's scheduler exports each series per priority and once in total, with an empty priority."""
_RANKS = ("tp_rank", "pp_rank", "dp_rank")


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """The engine's part of the metrics: what its counters say about steps and requests."""

    acceptance_length: Measurement
    acceptance_by_position: tuple[float, ...]
    block_size: Measurement
    concurrency: Measurement
    step_time_s: Measurement


@dataclass(frozen=True, slots=True)
class MetricSchema:
    """The series of one engine. Names are those of every release that runs DFlash."""

    engine: str
    prefix: str
    """Every metric of the engine starts so."""
    presence: str
    """A metric that is there from the start to the end of the process."""
    series: tuple[Series, ...]
    """What the metrics need."""
    load: Callable[[Sums, bool], EngineLoad]
    evidence: tuple[Series, ...]
    """Further counters that a reading of a trial needs."""
    histograms: tuple[Series, ...]
    """Buckets that a reading needs."""
    load_sample_shared: tuple[str, ...]
    """Quantities of the above that a load sample is told from."""
    load_sample_more: tuple[Series, ...]
    """What else a load sample is told from."""

    @property
    def counters(self) -> tuple[Series, ...]:
        """Everything that is read of a page but its histograms."""
        return (*self.series, *self.evidence, *self.load_sample_more)

    @property
    def load_samples(self) -> tuple[Series, ...]:
        """Everything that a load sample is told from."""
        known = {one.quantity: one for one in (*self.series, *self.evidence)}
        return (*(known[quantity] for quantity in self.load_sample_shared), *self.load_sample_more)


class Sums:
    """Sums over the pods of one revision."""

    def __init__(self, windows: Sequence[CounterWindow]) -> None:
        self.windows = windows
        self.age_s = max((window.age_s for window in windows), default=0.0)

    def of(self, *quantities: str) -> tuple[float, ...] | None:
        """One sum per quantity, over the pods that export all of them; None where no pod does."""
        pods = [window for window in self.windows if all(LabelledMetric(quantity) in window.deltas for quantity in quantities)]
        if not pods:
            return None
        return tuple(sum(window.deltas[LabelledMetric(quantity)] for window in pods) for quantity in quantities)

    def parts(self, quantity: str) -> dict[str, float]:
        """Sum per part."""
        total: dict[str, float] = {}
        for window in self.windows:
            for cell, delta in window.deltas.items():
                if cell.quantity == quantity:
                    total[cell.part] = total.get(cell.part, 0.0) + delta
        return total

    def rate(self, quantity: str) -> float | None:
        """Per second and pod: each pod over its own span, then the mean over the pods that export it."""
        rates = [
            w.deltas[LabelledMetric(quantity)] / w.seconds for w in self.windows if LabelledMetric(quantity) in w.deltas and w.seconds > 0
        ]
        return sum(rates) / len(rates) if rates else None

    def level(self, quantity: str) -> float | None:
        """Largest level over the pods."""
        return max((w.levels[LabelledMetric(quantity)] for w in self.windows if LabelledMetric(quantity) in w.levels), default=None)

    def ratio(self, above: str, below: str, offset: float = 0.0) -> Measurement:
        """offset + Σ above ÷ Σ below, weighed by how often ``below`` was counted."""
        sums = self.of(above, below)
        if sums is None:
            return NO_SERIES
        if sums[1] <= 0:
            return NO_TRAFFIC
        return Value(offset + sums[0] / sums[1], sums[1], self.age_s)


def revision_metrics(dialect: MetricSchema, windows: Sequence[CounterWindow], *, expected: int, speculation_on: bool) -> RevisionMetrics:
    """The metrics of one revision from the windows of its scraped pods; ``expected`` counts all its Ready pods.

    Tokens per second are scaled from the scraped pods to all of them. Without any window every figure is absent.
    """
    sums = Sums(windows)
    load = dialect.load(sums, speculation_on)
    return RevisionMetrics(
        acceptance_length=load.acceptance_length if speculation_on else SPECULATION_OFF,
        acceptance_by_position=load.acceptance_by_position if speculation_on else (),
        block_size=load.block_size if speculation_on else SPECULATION_OFF,
        concurrency=load.concurrency,
        step_time_s=load.step_time_s,
        tokens_per_second=_tokens_per_second(sums, expected),
        ttft_s=sums.ratio("ttft_seconds", "ttft_requests"),
        requests=_requests(sums),
        window_s=max((window.seconds for window in windows), default=0.0),
        pods_scraped=len(windows),
        pods_expected=expected,
    )


def _tokens_per_second(sums: Sums, expected: int) -> Measurement:
    rate, tokens = sums.rate("tokens"), sums.of("tokens")
    if rate is None or tokens is None:
        return NO_SERIES
    return Value(rate * expected, tokens[0], sums.age_s)


def _requests(sums: Sums) -> Measurement:
    requests = sums.of("requests")
    return NO_SERIES if requests is None else Value(requests[0], requests[0], sums.age_s)


def _vllm_load(sums: Sums, speculation_on: bool) -> EngineLoad:
    """vLLM counts drafts and inter-token gaps per request and step, so everything is live.

    Acceptance 1 + accepted ÷ drafts. A step that a schedule runs with K = 0 counts no draft and does not enter. Positions are survival,
    accepted at the position ÷ drafts; under a schedule deep positions are understated, as drafts of every length are in the denominator.
    """
    drafts = sums.of("drafts")
    positions: tuple[float, ...] = ()
    accepted = sums.parts("accepted_at")
    if drafts is not None and drafts[0] > 0:
        positions = tuple(accepted[part] / drafts[0] for part in sorted(accepted, key=_position))
    return EngineLoad(
        acceptance_length=sums.ratio("accepted", "drafts", offset=1.0),
        acceptance_by_position=positions,
        block_size=_vllm_block(sums, len(accepted)),
        concurrency=_vllm_concurrency(sums),
        step_time_s=sums.ratio("step_seconds", "request_steps"),
    )


def _position(label: str) -> int:
    return int(label) if label.isdecimal() else len(label)


def _vllm_block(sums: Sums, positions: int) -> Measurement:
    """Draft tokens per draft + 1, the mean in use where a schedule mixes lengths; without traffic the number of positions + 1."""
    mean = sums.ratio("draft_tokens", "drafts", offset=1.0)
    if isinstance(mean, Value):
        return Value(float(round(mean.value)), mean.samples, mean.age_s)
    return Value(positions + 1.0, 0.0, sums.age_s) if positions else mean


def _vllm_concurrency(sums: Sums) -> Measurement:
    """The larger of two numbers that can only be too low.

    The rate of the inter-token sum is the mean number of decoding requests, diluted by idle time; request steps per engine step is the
    mean batch, diluted by steps that only prefill.
    """
    batch, over_time = sums.ratio("request_steps", "steps"), sums.rate("step_seconds")
    if not isinstance(batch, Value) or over_time is None:
        return batch
    if batch.value <= 0:
        return NO_TRAFFIC
    counted = sums.of("request_steps")
    return Value(max(batch.value, over_time), counted[0] if counted else 0.0, sums.age_s)


def _sglang_load(sums: Sums, speculation_on: bool) -> EngineLoad:
    """SGLang credits verify steps, generated tokens and latencies when a request ends, decode tokens and passes as they happen.

    Acceptance is generated tokens ÷ verify steps of the requests that ended: both are credited together, so the quotient has no lag. The
    first token of a request comes from prefill (a bias of + 1 token per request) and its last step is cut (a bias against it): measured
    within 1 % together.
    """
    acceptance = sums.ratio("generated", "verify_steps")
    return EngineLoad(
        acceptance_length=acceptance,
        acceptance_by_position=(),
        block_size=_sglang_block(sums),
        concurrency=_sglang_concurrency(sums, acceptance if speculation_on else Value(1.0)),
        step_time_s=_sglang_step_time(sums, speculation_on),
    )


def _sglang_block(sums: Sums) -> Measurement:
    """SGLang exports the block (0.5.13 and later) and never changes it while it runs, so here a frozen gauge is right."""
    block = sums.level("block")
    return NO_SERIES if block is None else Value(block, 0.0, sums.age_s)


def _sglang_concurrency(sums: Sums, acceptance: Measurement) -> Measurement:
    """Mean decode batch: tokens per pass ÷ tokens per request and step."""
    per_pass = sums.ratio("tokens", "passes")
    if not isinstance(per_pass, Value):
        return per_pass
    if per_pass.value <= 0:
        return NO_TRAFFIC
    if not isinstance(acceptance, Value):
        return acceptance
    return Value(per_pass.value / acceptance.value, per_pass.samples, sums.age_s) if acceptance.value > 0 else NO_TRAFFIC


def _sglang_step_time(sums: Sums, speculation_on: bool) -> Measurement:
    """(end to end − queue − prefill) ÷ steps of the requests that ended. Without speculation, steps are the tokens after the first.

    Queue and prefill are credited when a request enters: over a window in which far more enter than end the difference means nothing.
    """
    sums_ = sums.of(
        "e2e_seconds", "queue_seconds", "prefill_seconds", *(("verify_steps",) if speculation_on else ("generated", "requests"))
    )
    if sums_ is None:
        return NO_SERIES
    e2e, queue, prefill, *steps_of = sums_
    steps = steps_of[0] - sum(steps_of[1:])
    decode = e2e - queue - prefill
    return Value(decode / steps, steps, sums.age_s) if steps > 0 and decode > 0 else NO_TRAFFIC


VLLM = MetricSchema(
    engine="vllm",
    prefix="vllm:",
    presence="vllm:generation_tokens_total",
    load=_vllm_load,
    series=(
        Series("drafts", "vllm:spec_decode_num_drafts_total"),
        Series("draft_tokens", "vllm:spec_decode_num_draft_tokens_total"),
        Series("accepted", "vllm:spec_decode_num_accepted_tokens_total"),
        Series("accepted_at", "vllm:spec_decode_num_accepted_tokens_per_pos_total", by="position"),
        Series("tokens", "vllm:generation_tokens_total"),
        Series("step_seconds", "vllm:inter_token_latency_seconds_sum"),
        Series("request_steps", "vllm:inter_token_latency_seconds_count"),
        Series("steps", "vllm:iteration_tokens_total_count", ranks=("engine",)),
        Series("ttft_seconds", "vllm:time_to_first_token_seconds_sum"),
        Series("ttft_requests", "vllm:time_to_first_token_seconds_count"),
        Series("requests", "vllm:request_success_total"),
    ),
    evidence=(
        Series("errors", "vllm:request_success_total", match=(("finished_reason", "error"),)),
        Series("error_answers", "http_requests_total", match=(("handler", "/v1/.*"), ("status", "5.."))),
        Series("prompt", "vllm:prompt_tokens_total"),
        Series("cached", "vllm:prompt_tokens_cached_total"),
    ),
    histograms=(
        Series("ttft", "vllm:time_to_first_token_seconds_bucket"),
        Series("time_per_token", "vllm:request_time_per_output_token_seconds_bucket"),
        Series("latency", "vllm:e2e_request_latency_seconds_bucket"),
    ),
    load_sample_shared=VLLM_SHARED,
    load_sample_more=VLLM_MORE,
)
"""vLLM measures the time to first token inside the engine, so it holds for streaming and other requests alike."""

_STREAMING = (("is_streaming", "true"),)
"""For other requests SGLang's time to first token is the whole latency. Releases before 0.5.17 have no such label: absent."""

SGLANG = MetricSchema(
    engine="sglang",
    prefix="sglang:",
    presence="sglang:max_total_num_tokens",
    load=_sglang_load,
    series=(
        Series("generated", "sglang:generation_tokens_total"),
        Series("verify_steps", "sglang:spec_verify_calls_total"),
        Series("tokens", "sglang:realtime_tokens_total", match=(("mode", "decode"), *_TOTALS)),
        Series("passes", "sglang:cuda_graph_passes_total", match=(("mode", "decode.*"), *_TOTALS), ranks=_RANKS),
        Series("block", "sglang:spec_num_draft_tokens", gauge=True),
        Series("e2e_seconds", "sglang:e2e_request_latency_seconds_sum"),
        Series("queue_seconds", "sglang:queue_time_seconds_sum", match=_TOTALS),
        Series("prefill_seconds", "sglang:per_stage_req_latency_seconds_sum", match=(("stage", "prefill_forward"), *_TOTALS)),
        Series("ttft_seconds", "sglang:time_to_first_token_seconds_sum", match=_STREAMING),
        Series("ttft_requests", "sglang:time_to_first_token_seconds_count", match=_STREAMING),
        Series("requests", "sglang:num_requests_total"),
    ),
    evidence=(
        Series("answers", "sglang:http_responses_total"),
        Series("error_answers", "sglang:http_responses_total", match=(("endpoint", "/v1/.*|/generate"), ("status_code", "5.."))),
        Series("prompt", "sglang:prompt_tokens_total"),
        Series("cached", "sglang:cached_tokens_total"),
    ),
    histograms=(
        Series("ttft", "sglang:time_to_first_token_seconds_bucket", match=_STREAMING),
        Series("time_per_token", "sglang:request_time_per_output_token_seconds_bucket", match=_STREAMING),
        Series("latency", "sglang:e2e_request_latency_seconds_bucket"),
    ),
    load_sample_shared=SGLANG_SHARED,
    load_sample_more=SGLANG_MORE,
)
"""``realtime_tokens`` also counts what a request's last step drafted past its end, about nine tokens per request in 0.5.17."""

METRIC_SCHEMAS: Mapping[str, MetricSchema] = {dialect.engine: dialect for dialect in (VLLM, SGLANG)}


def needed_metrics(series: Iterable[Series]) -> frozenset[str]:
    """Names of the samples to keep; everything else on a page is skipped before it is parsed."""
    return frozenset(one.metric for one in series)
