"""From a page to a ``CounterSnapshot``: the counters of each engine in the terms all engines share. Pure.

Absent is never zero, but not every series that is missing is absent. vLLM exports everything from its start on (at zero), so what is
missing is None. SGLang's counters appear with their first increment, so a missing one is zero as long as nothing else shows that it should
have counted already; then it was dropped on the way (relabelled, or another release) and is None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dflash_controller.model.counters import CounterSnapshot
from dflash_controller.observe.pipeline.metric_schema import MetricSchema
from dflash_controller.observe.pipeline.series import LabelledMetric, Scrape


def counter_snapshot(dialect: MetricSchema, page: Scrape, at_s: float, *, speculation_on: bool) -> CounterSnapshot:
    """What the engine had counted when the page was made, ``at_s`` seconds since the epoch."""
    return _NORMAL[dialect.engine](page, at_s, speculation_on)


def _vllm(page: Scrape, at_s: float, speculation_on: bool) -> CounterSnapshot:
    """vLLM observes one inter-token latency per request and step, whatever the step commits: steps and decode time in one histogram.

    A step commits one token and the drafts accepted. That also holds for the steps a schedule runs without drafts, which vLLM's own
    counter of drafts leaves out. Accepted drafts are counted before a length limit cuts them; prompt, generated and cached tokens as they
    are computed; requests and latencies when a request ends (an aborted one too).

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


def _sglang(page: Scrape, at_s: float, speculation_on: bool) -> CounterSnapshot:
    """SGLang credits verify steps, tokens and latencies when a request ends; queueing and prefill when it enters; passes as they happen.

    Steps and committed tokens are those of ended requests, so their quotient has no lag; committed tokens are the generated ones, as for
    the metrics in status (the token that prefill makes and the cut last step nearly cancel). Decode time is latency less queueing and
    prefill: it falls where many requests enter and few end, so only differences over many requests mean something. Without speculation a
    step is a token after the first.

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


_NORMAL: Mapping[str, Callable[[Scrape, float, bool], CounterSnapshot]] = {"vllm": _vllm, "sglang": _sglang}
