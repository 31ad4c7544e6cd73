"""SGLang's series, and how its counters become those that all engines share. Names as in every release that runs DFlash."""

from __future__ import annotations

import math
from collections.abc import Mapping

from dflash_controller.model.counters import CounterSnapshot
from dflash_controller.model.decode_window import DecodeWindow, EndedRequests, PooledAcceptance, crowded, queued
from dflash_controller.model.measurement import NO_SERIES, Measurement, Value
from dflash_controller.model.metric_schema import NO_TRAFFIC, EngineLoad, MetricSchema, Sums
from dflash_controller.model.series import PROCESS, CounterWindow, LabelledMetric, Scope, Scrape, Series, Since

_TOTALS = (("priority", ""),)
"""With priority scheduling SGLang's scheduler exports each series per priority and once in total, with an empty priority."""
_SAME_WORK = ("tp_rank", "pp_rank", "moe_ep_rank", "pid")
_GROUP = Scope("data-parallel group", copies=_SAME_WORK, groups=("dp_rank",))
"""A scheduler exports it. Every rank of tensor, context, expert and pipeline parallelism has a scheduler that handles all requests of its
data-parallel group, so each counts all of them. Which of them export: with ``--enable-metrics-for-all-schedulers`` all; without it the
first of each group, but decode passes, queueing and stages of requests are counted by all even then (0.5.17 to 0.5.23:
``batch_result_processor``, ``req_time_stats``). ``tp_rank`` counts through all groups under DP attention, so it says nothing without
``dp_rank``, which is there with data parallelism only. ``pid`` is on gauges that name no mode for several processes."""
_ENGINE = Scope("engine", copies=(*_SAME_WORK, "dp_rank"))
"""The same for all ranks: passes, which all groups make together, and settings. Of shares (use of the cache) the largest counts."""
_STREAMING = (("is_streaming", "true"),)
"""For other requests SGLang's time to first token is the whole latency. Releases before 0.5.17 have no such label: absent."""
_AT_ONCE = r"0[.]01"
"""Bound of a bucket in seconds. A request that comes while nothing runs enters within it: on the recorded page of 0.5.17, without a queue,
96 % of the requests did."""
_BARE_SHARE = 0.02
"""Of the passes: one without graph takes up to twice the time."""


def _load(sums: Sums, speculation_on: bool) -> EngineLoad:
    """SGLang credits verify steps, generated tokens and latencies when a request ends, decode tokens and passes as they happen.

    Acceptance is generated tokens ÷ verify steps of the requests that ended: both are credited together, so the quotient has no lag. The
    first token of a request comes from prefill (a bias of + 1 token per request) and its last step is cut (a bias against it): measured
    within 1 % together.
    """
    acceptance = sums.ratio("generated", "verify_steps")
    return EngineLoad(
        acceptance_length=acceptance,
        block_size=_block(sums),
        concurrency=_concurrency(sums, acceptance if speculation_on else Value(1.0)),
        step_time_s=_step_time(sums, speculation_on),
        state_slots=_state_slots(sums),
        holds=sums.holds(),
    )


def _state_slots(sums: Sums) -> Measurement:
    """Free, cached and used slots of the state cache: its size. SGLang exports them as 0 for a target without state."""
    sizes = []
    for window in sums.windows:
        parts = [window.levels.get(LabelledMetric(quantity)) for quantity in ("state_free", "state_cached", "state_used")]
        if None not in parts:
            sizes.append(sum(part or 0.0 for part in parts))
    size = min((size for size in sizes if size > 0), default=0.0)
    return Value(size, 0.0, sums.age_s) if size else NO_SERIES


def _block(sums: Sums) -> Measurement:
    """SGLang exports the block (0.5.13 and later) and never changes it while it runs, so here a frozen gauge is right."""
    block = sums.level("block")
    return NO_SERIES if block is None else Value(block, 0.0, sums.age_s)


def _concurrency(sums: Sums, acceptance: Measurement) -> Measurement:
    """Mean decode batch: tokens per pass ÷ tokens per request and step."""
    per_pass = sums.ratio("tokens", "passes")
    if not isinstance(per_pass, Value):
        return per_pass
    if per_pass.value <= 0:
        return NO_TRAFFIC
    if not isinstance(acceptance, Value):
        return acceptance
    return Value(per_pass.value / acceptance.value, per_pass.samples, sums.age_s) if acceptance.value > 0 else NO_TRAFFIC


def _step_time(sums: Sums, speculation_on: bool) -> Measurement:
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


def _counter_snapshot(page: Scrape, at_s: float, speculation_on: bool) -> CounterSnapshot:
    """SGLang credits verify steps, tokens and latencies when a request ends; queueing and prefill when it enters; passes as they happen.

    Steps and committed tokens are those of ended requests, so their quotient has no lag; committed tokens are the generated ones, as for
    the metrics in status (the token that prefill makes and the cut last step nearly cancel). Decode time is latency less queueing and
    prefill: it falls where many requests enter and few end, so only differences over many requests mean something. Without speculation a
    step is a token after the first.

    Absent is never zero, but counters appear with their first increment: a missing one is zero as long as nothing else shows that it should
    have counted already. Then it was dropped on the way (relabelled, or another release) and is None.

    Errors are 5xx answers of the API: ``num_aborted_requests`` counts the clients that broke off. They are added to the requests, among
    which SGLang counts only some of them. Time per token is that of streaming requests (0.5.22 and later): of others SGLang sees the first
    50 tokens at once. The older inter-token latency is no substitute: it weighs by tokens and depends on how often clients stream.
    """
    ended = _ended(page)
    generated, requests, e2e = ended["generated"], ended["requests"], ended["e2e_seconds"]
    decoded = None if generated is None or requests is None else max(0.0, generated - requests)
    begun = decoded is None or decoded > 0
    steps, committed = decoded, decoded
    if speculation_on:
        steps, committed = _count(page, "verify_steps", None if begun else 0.0), generated
    queue = _count(page, "queue_seconds", None if begun else 0.0)
    prefill = _count(page, "prefill_seconds", None if begun else 0.0)
    failed = None if _count(page, "answers") is None else _count(page, "error_answers", 0.0)
    return CounterSnapshot(
        at_s=at_s,
        steps=steps,
        committed=committed,
        decode_seconds=None if e2e is None or queue is None or prefill is None else e2e - queue - prefill,
        passes=_count(page, "passes", None if begun else 0.0),
        requests=None if requests is None else requests + (failed or 0.0),
        failed=failed,
        prompt_tokens=ended["prompt"],
        cached_tokens=None if ended["prompt"] is None else _count(page, "cached", 0.0),
        generated_tokens=generated,
        time_to_first_token=page.histograms.get("ttft"),
        time_per_token=page.histograms.get("time_per_token"),
        latency=page.histograms.get("latency"),
    )


def _ended(page: Scrape) -> Mapping[str, float | None]:
    """What every ended request counts: all missing before the first one (zero), or none."""
    found = {quantity: _count(page, quantity) for quantity in ("generated", "requests", "prompt", "e2e_seconds")}
    return dict.fromkeys(found, 0.0) if all(value is None for value in found.values()) else found


def _count(page: Scrape, quantity: str, missing: float | None = None) -> float | None:
    return page.counters.get(LabelledMetric(quantity), missing)


def _decode_window(window: CounterWindow, speculation_on: bool, acceptance: PooledAcceptance) -> DecodeWindow | None:
    """Passes and decoded tokens are counted in every pass; verify steps, tokens and latencies of requests when those end.

    Counters appear with their first increment, so a missing one stood still. Decode passes do not prefill: those that do are others, whose
    time is in the window's and in the other requests' latency alike.

    Under a lasting queue every slot that a request leaves is taken by the next one, so that steps tell the time of the whole life in the
    batch, a request's own prefill included, as the window's seconds ÷ passes do.
    """
    moved = {
        name: window.deltas.get(LabelledMetric(name), 0.0)
        for name in (
            *("passes", "tokens", "generated", "verify_steps", "requests", "e2e_seconds", "queue_seconds", "prefill_seconds"),
            *("prefilled", "entered", "bare_passes", "prompt", "prefill_passes"),
        )
    }
    block = round(window.levels.get(LabelledMetric("block"), 0.0)) if speculation_on else 1
    if block < 1:
        return None
    ended, generated = moved["verify_steps"], moved["generated"]
    length: float | None = 1.0
    if speculation_on:
        length = acceptance(generated, ended)
    else:
        ended = max(0.0, generated - moved["requests"])
    # Queueing and prefill are credited when a request enters, and more may enter than end, or fewer.
    share = moved["requests"] / moved["entered"] if moved["entered"] > 0 else 0.0
    in_batch_s = max(0.0, moved["e2e_seconds"] - share * moved["queue_seconds"])
    decoded_s = max(0.0, in_batch_s - share * moved["prefill_seconds"])
    lasting = queued(window)
    lived = not lasting and (decoded_s > 0 or not moved["requests"])
    requests = EndedRequests(moved["requests"], moved["prompt"], generated, decoded_s if lived else None)
    passes, tokens = moved["passes"], moved["tokens"]
    committed = min(generated, block * ended) if speculation_on else ended
    if passes <= 0 or tokens <= 0:
        return DecodeWindow(block, 0.0, 0.0, 0.0, (decoded_s, ended), 0.0, ended, committed, max(0.0, tokens), (), 0.0, "", requests)
    if length is None:
        return None
    batch = max(1.0, tokens / (length * passes))
    lives_s = in_batch_s if lasting else moved["e2e_seconds"]
    return DecodeWindow(
        block=block,
        batch=batch,
        passes=passes,
        request_steps=tokens / length,
        told=(in_batch_s if lasting else decoded_s, ended),
        life_s=lives_s / moved["requests"] if moved["requests"] > 0 else 0.0,
        steps=ended,
        committed=committed,
        tokens=tokens,
        survival=(),
        prefilled=moved["prefilled"],
        excluded=crowded(window, window.levels.get(LabelledMetric("retracted"), 0.0) > 0)
        or ("NoGraph" if moved["bare_passes"] > _BARE_SHARE * passes else ""),
        ended=requests,
        prefill_s=_prefill_s(moved, 1.0 if lasting else 1 - 1 / batch),
        queued=lasting,
        at_once=window.deltas.get(LabelledMetric("at_once"), math.inf),
    )


def _prefill_s(moved: Mapping[str, float], share: float) -> float | None:
    """Passes that prefill are passes of their own. Each counts its time once for every request in it, so requests in excess of passes do
    not add; a prompt that takes several passes counts its time once. ``share``: the part of it that lengthens steps. Where step times leave
    out a request's own prefill, each of ``batch`` requests that prefill in turn waits for all but one; where they do not, for all."""
    if moved["entered"] <= 0 or moved["prefill_passes"] <= 0:
        return None if moved["prefilled"] > 0 else 0.0
    return moved["prefill_seconds"] / moved["entered"] * min(moved["entered"], moved["prefill_passes"]) * share


METRIC_SCHEMA = MetricSchema(
    engine="sglang",
    prefix="sglang:",
    presence="sglang:max_total_num_tokens",
    load=_load,
    counter_snapshot=_counter_snapshot,
    decode_window=_decode_window,
    series=(
        Series("generated", "sglang:generation_tokens_total", PROCESS, since=Since.END),
        Series("verify_steps", "sglang:spec_verify_calls_total", PROCESS, since=Since.END, drafts=True),
        Series("tokens", "sglang:realtime_tokens_total", _GROUP, match=(("mode", "decode"), *_TOTALS), since=Since.ENTRY),
        Series("passes", "sglang:cuda_graph_passes_total", _ENGINE, match=(("mode", "decode.*"), *_TOTALS), since=Since.ENTRY),
        Series("block", "sglang:spec_num_draft_tokens", _ENGINE, gauge=True, since=Since.ENTRY, drafts=True),
        Series("e2e_seconds", "sglang:e2e_request_latency_seconds_sum", PROCESS, since=Since.END),
        Series("queue_seconds", "sglang:queue_time_seconds_sum", _GROUP, match=_TOTALS, since=Since.ENTRY),
        Series(
            "prefill_seconds",
            "sglang:per_stage_req_latency_seconds_sum",
            _GROUP,
            match=(("stage", "prefill_forward"), *_TOTALS),
            since=Since.ENTRY,
        ),
        Series("requests", "sglang:num_requests_total", PROCESS, since=Since.END),
        Series("state_free", "sglang:mamba_available_tokens", _GROUP, match=_TOTALS, gauge=True),
        Series("state_cached", "sglang:mamba_evictable_tokens", _GROUP, match=_TOTALS, gauge=True),
        Series("state_used", "sglang:mamba_used_tokens", _GROUP, match=_TOTALS, gauge=True),
        Series("running", "sglang:num_running_reqs", _GROUP, match=_TOTALS, gauge=True),
        # The cache of keys and values alone: sglang:token_usage is the larger of this and the use of the state, whose slots stay taken for
        # prefixes while hardly a request runs (``pool_stats_observer.get_max_pool_usage``).
        Series("cache_used", "sglang:full_token_usage", _ENGINE, match=_TOTALS, gauge=True),
    ),
    evidence=(
        Series("answers", "sglang:http_responses_total", PROCESS),
        Series("error_answers", "sglang:http_responses_total", PROCESS, match=(("endpoint", "/v1/.*|/generate"), ("status_code", "5.."))),
        Series("prompt", "sglang:prompt_tokens_total", PROCESS, since=Since.END),
        Series("cached", "sglang:cached_tokens_total", PROCESS),
    ),
    histograms=(
        Series("ttft", "sglang:time_to_first_token_seconds_bucket", PROCESS, match=_STREAMING),
        Series("time_per_token", "sglang:request_time_per_output_token_seconds_bucket", PROCESS, match=_STREAMING),
        Series("latency", "sglang:e2e_request_latency_seconds_bucket", PROCESS, since=Since.END),
    ),
    passes="passes",
    load_sample_shared=(
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
    ),
    load_sample_more=(
        Series("prefilled", "sglang:realtime_tokens_total", _GROUP, match=(("mode", "prefill_compute"), *_TOTALS), since=Since.ENTRY),
        Series(
            "entered",
            "sglang:per_stage_req_latency_seconds_count",
            _GROUP,
            match=(("stage", "prefill_forward"), *_TOTALS),
            since=Since.ENTRY,
        ),
        Series("at_once", "sglang:queue_time_seconds_bucket", _GROUP, match=(("le", _AT_ONCE), *_TOTALS)),
        Series("prefill_passes", "sglang:cuda_graph_passes_total", _ENGINE, match=(("mode", "prefill.*"), *_TOTALS), since=Since.ENTRY),
        Series("bare_passes", "sglang:cuda_graph_passes_total", _ENGINE, match=(("mode", "decode_none"), *_TOTALS), since=Since.ENTRY),
        Series("retracted", "sglang:num_retracted_reqs", _GROUP, match=_TOTALS, gauge=True, over="max"),
        Series("cache_use", "sglang:full_token_usage", _ENGINE, match=_TOTALS, gauge=True, over="max", since=Since.ENTRY),
        Series("waiting", "sglang:num_queue_reqs", _GROUP, match=_TOTALS, gauge=True, over="min", by="dp_rank", since=Since.ENTRY),
    ),
)
"""``realtime_tokens`` also counts what a request's last step drafted past its end, about nine tokens per request in 0.5.17.

Passes are counted by how they ran: ``decode_cuda_graph``, and ``decode_none`` without a graph. Retractions are a level, set at SGLang's
reports like use of the cache and the queue.
"""
