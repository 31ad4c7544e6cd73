"""vLLM's series, and how its counters become those that all engines share. Names as in every release that runs DFlash."""

from __future__ import annotations

from dflash_controller.model.counters import CounterSnapshot
from dflash_controller.model.decode_window import DecodeWindow, EndedRequests, PooledAcceptance, crowded, queued
from dflash_controller.model.measurement import NO_SERIES, Measurement, Value
from dflash_controller.model.metric_schema import NO_TRAFFIC, EngineLoad, MetricSchema, Sums
from dflash_controller.model.series import PROCESS, CounterWindow, LabelledMetric, Scope, Scrape, Series, Since
from dflash_controller.model.step_gaps import decode_step_s, prefill_steps

_GROUP = Scope("data-parallel group", groups=("engine",))
"""The engine core of each group exports it once, whatever its tensor and pipeline ranks; ``engine`` is the group's number
(``v1/metrics/loggers.py``, the same in 0.20 to 0.33)."""
_ENGINE = Scope("engine", copies=("engine",))
"""The same for all groups: steps, which they make together. Of shares (use of the cache) the largest counts."""
_FRACTION = 0.05
"""A mean block farther from a whole number is a mixture of several."""


def _load(sums: Sums, speculation_on: bool) -> EngineLoad:
    """vLLM counts drafts and inter-token gaps per request and step, so everything is live.

    Acceptance 1 + accepted ÷ drafts. A step that a schedule runs with K = 0 counts no draft and does not enter.
    """
    return EngineLoad(
        acceptance_length=sums.ratio("accepted", "drafts", offset=1.0),
        block_size=_block(sums, len(sums.parts("accepted_at"))),
        concurrency=_concurrency(sums),
        step_time_s=sums.ratio("step_seconds", "request_steps"),
        state_slots=NO_SERIES,
        holds=sums.holds(),
    )


def _block(sums: Sums, positions: int) -> Measurement:
    """Draft tokens per draft + 1, the mean in use where a schedule mixes lengths; without traffic the number of positions + 1."""
    mean = sums.ratio("draft_tokens", "drafts", offset=1.0)
    if isinstance(mean, Value):
        return Value(float(round(mean.value)), mean.samples, mean.age_s)
    return Value(positions + 1.0, 0.0, sums.age_s) if positions else mean


def _concurrency(sums: Sums) -> Measurement:
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


def _counter_snapshot(page: Scrape, at_s: float, speculation_on: bool) -> CounterSnapshot:
    """vLLM observes one inter-token latency per request and step, whatever the step commits: steps and decode time in one histogram.

    A step commits one token and the drafts accepted. That also holds for the steps a schedule runs without drafts, which vLLM's own
    counter of drafts leaves out. Accepted drafts are counted before a length limit cuts them; prompt, generated and cached tokens as they
    are computed; requests and latencies when a request ends (an aborted one too).

    Every series is exported from the start on, at zero, so one that is missing is None.

    Errors are requests that ended with reason ``error`` or got a 5xx answer. vLLM turns the former into the latter unless the answer
    streams, so the larger number counts, not the sum.
    """
    steps, accepted = _count(page, "request_steps"), _count(page, "accepted")
    committed = None
    if steps is not None and (accepted is not None or not speculation_on):
        committed = steps + (accepted or 0.0)
    ended, errors = _count(page, "requests"), _count(page, "errors")
    failed = None if errors is None else max(errors, _count(page, "error_answers") or 0.0)
    return CounterSnapshot(
        at_s=at_s,
        steps=steps,
        committed=committed,
        decode_seconds=_count(page, "step_seconds"),
        passes=_count(page, "steps"),
        requests=None if ended is None else ended + (failed or 0.0) - (errors or 0.0),
        failed=failed,
        prompt_tokens=_count(page, "prompt"),
        cached_tokens=_count(page, "cached"),
        generated_tokens=_count(page, "tokens"),
        accepted_at=_by_position(page),
        time_to_first_token=page.histograms.get("ttft"),
        time_per_token=page.histograms.get("time_per_token"),
        latency=page.histograms.get("latency"),
    )


def _by_position(page: Scrape) -> tuple[float, ...]:
    found = {int(cell.part): value for cell, value in page.counters.items() if cell.quantity == "accepted_at" and cell.part.isdecimal()}
    return tuple(found[position] for position in sorted(found))


def _count(page: Scrape, quantity: str) -> float | None:
    return page.counters.get(LabelledMetric(quantity))


def _decode_window(window: CounterWindow, speculation_on: bool, _: PooledAcceptance) -> DecodeWindow | None:
    """One inter-token latency is observed per request and step, so its count is the requests' steps and its sum the time they took.

    It begins with a request's first token, so it knows nothing of the queue before it (``v1/metrics/stats.py``, ``IterationStats``).
    """
    needed = [window.deltas.get(LabelledMetric(name)) for name in ("request_steps", "step_seconds", "steps", "tokens")]
    if any(value is None for value in needed):
        return None
    request_steps, seconds, passes, tokens = (value or 0.0 for value in needed)
    moved = {
        name: window.deltas.get(LabelledMetric(name), 0.0)
        for name in (
            *("drafts", "draft_tokens", "accepted", "prompt", "cached", "preemptions"),
            *("requests", "ended_prompt", "ended_generated", "entered"),
        )
    }
    drafts = moved["drafts"] if speculation_on else 0.0
    by_position = {
        int(cell.part): value for cell, value in window.deltas.items() if cell.quantity == "accepted_at" and cell.part.isdecimal()
    }
    mean = 1.0 + moved["draft_tokens"] / drafts if drafts > 0 else 1.0
    block = round(mean)
    one_block = drafts > 0 and abs(mean - block) <= _FRACTION and not any(by_position[i] > 0 for i in by_position if i >= block - 1)
    # A step that a schedule runs without drafts counts none.
    mixed = drafts > 0 and (not one_block or drafts < (1 - _FRACTION) * request_steps)
    ended = EndedRequests(
        moved["requests"], moved["ended_prompt"], moved["ended_generated"], window.deltas.get(LabelledMetric("lived_seconds"))
    )
    if request_steps <= 0 or passes <= 0:
        return DecodeWindow(max(1, block), 0.0, 0.0, 0.0, (0.0, 0.0), 0.0, 0.0, 0.0, max(0.0, tokens), (), 0.0, "", ended)
    return DecodeWindow(
        block=max(1, block),
        batch=max(1.0, request_steps / passes),
        passes=passes,
        request_steps=request_steps,
        told=(seconds, request_steps),
        life_s=0.0,
        steps=drafts or request_steps,
        committed=drafts + moved["accepted"] if drafts > 0 else request_steps,
        tokens=tokens,
        survival=tuple(min(1.0, by_position[i] / drafts) for i in sorted(by_position) if i < block - 1) if one_block else (),
        prefilled=max(0.0, moved["prompt"] - moved["cached"]),
        excluded=crowded(window, moved["preemptions"] > 0) or ("Blocks" if mixed else ""),
        ended=ended,
        prefill_s=_prefill_s(window, seconds, request_steps, passes, moved["entered"]),
        queued=queued(window),
    )


def _prefill_s(window: CounterWindow, seconds: float, request_steps: float, passes: float, entered: float) -> float | None:
    """What steps that prefill lasted beyond decoding; 0 where no request entered."""
    gaps = {float(cell.part): value for cell, value in window.deltas.items() if cell.quantity == "gaps"}
    if entered <= 0:
        return 0.0 if gaps else None
    decode_s = decode_step_s(seconds, gaps, prefill_steps(entered, passes))
    return None if decode_s is None else (seconds / request_steps - decode_s) * passes


METRIC_SCHEMA = MetricSchema(
    engine="vllm",
    prefix="vllm:",
    presence="vllm:generation_tokens_total",
    load=_load,
    counter_snapshot=_counter_snapshot,
    decode_window=_decode_window,
    series=(
        Series("drafts", "vllm:spec_decode_num_drafts_total", _GROUP, since=Since.START, drafts=True),
        Series("draft_tokens", "vllm:spec_decode_num_draft_tokens_total", _GROUP, since=Since.START, drafts=True),
        Series("accepted", "vllm:spec_decode_num_accepted_tokens_total", _GROUP, since=Since.START, drafts=True),
        Series("accepted_at", "vllm:spec_decode_num_accepted_tokens_per_pos_total", _GROUP, by="position", since=Since.START, drafts=True),
        Series("tokens", "vllm:generation_tokens_total", _GROUP, since=Since.START),
        Series("step_seconds", "vllm:inter_token_latency_seconds_sum", _GROUP, since=Since.START),
        Series("request_steps", "vllm:inter_token_latency_seconds_count", _GROUP, since=Since.START),
        Series("steps", "vllm:iteration_tokens_total_count", _ENGINE, since=Since.START),
        Series("requests", "vllm:request_success_total", _GROUP, since=Since.START),
        Series("running", "vllm:num_requests_running", _GROUP, gauge=True),
        Series("cache_used", "vllm:kv_cache_usage_perc", _ENGINE, gauge=True),
    ),
    evidence=(
        Series("errors", "vllm:request_success_total", _GROUP, match=(("finished_reason", "error"),), since=Since.START),
        Series("error_answers", "http_requests_total", PROCESS, match=(("handler", "/v1/.*"), ("status", "5.."))),
        Series("prompt", "vllm:prompt_tokens_total", _GROUP, since=Since.START),
        Series("cached", "vllm:prompt_tokens_cached_total", _GROUP),
    ),
    histograms=(
        Series("ttft", "vllm:time_to_first_token_seconds_bucket", _GROUP, since=Since.START),
        Series("time_per_token", "vllm:request_time_per_output_token_seconds_bucket", _GROUP, since=Since.START),
        Series("latency", "vllm:e2e_request_latency_seconds_bucket", _GROUP, since=Since.START),
    ),
    passes="steps",
    load_sample_shared=(
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
    ),
    load_sample_more=(
        Series("ended_prompt", "vllm:request_prompt_tokens_sum", _GROUP, since=Since.START),
        Series("ended_generated", "vllm:request_generation_tokens_sum", _GROUP, since=Since.START),
        Series("lived_seconds", "vllm:request_decode_time_seconds_sum", _GROUP, since=Since.START),
        Series("entered", "vllm:time_to_first_token_seconds_count", _GROUP, since=Since.START),
        Series("gaps", "vllm:inter_token_latency_seconds_bucket", _GROUP, by="le"),
        Series("preemptions", "vllm:num_preemptions_total", _GROUP, since=Since.START),
        Series("cache_use", "vllm:kv_cache_usage_perc", _ENGINE, gauge=True, over="max", since=Since.START),
        Series("waiting", "vllm:num_requests_waiting", _GROUP, gauge=True, over="min", since=Since.START),
    ),
)
"""vLLM measures the time to first token inside the engine, so it holds for streaming and other requests alike."""
