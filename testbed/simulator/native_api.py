"""SGLang's own ``/generate``: reads requests and builds answers. Pure.

A stream repeats the whole answer so far in every event. With speculation the last event has its metrics in ``meta_info``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from testbed.simulator.batching import Request
from testbed.simulator.openai_api import Ask, BadRequest
from testbed.simulator.settings import EngineSettings, version
from testbed.simulator.text import prompt_tokens, token_ids

DEFAULT_TOKENS = 128
"""SGLang's default for max_new_tokens."""


def parse(body: Any) -> Ask:
    """Reads a request body with one prompt. Raises BadRequest. Sampling parameters are ignored: the simulator decodes greedily."""
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    prompt, ids, sampling = body.get("text"), body.get("input_ids"), body.get("sampling_params") or {}
    if prompt is None and isinstance(ids, list) and ids and all(isinstance(token, int) for token in ids):
        prompt = " ".join(map(str, ids))
    if not isinstance(prompt, str):
        raise BadRequest("either text, as one string, or input_ids, as one list, must be given")
    limit = sampling.get("max_new_tokens", DEFAULT_TOKENS) if isinstance(sampling, dict) else None
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise BadRequest(f"max_new_tokens must be at least 1, got {limit!r}")
    return Ask(
        chat=False,
        model=None,
        prompt=prompt,
        prompt_tokens=prompt_tokens(prompt),
        max_tokens=limit,
        limited=True,
        stream=bool(body.get("stream")),
        include_usage=False,
        continuous_usage=False,
        workload=None,
    )


def output(ask: Ask, ident: str, settings: EngineSettings, sim: Request, tokens: Sequence[str], *, last: bool) -> dict[str, Any]:
    """Returns the answer so far. ``last``: it is complete, or was interrupted."""
    meta: dict[str, Any] = {
        "id": ident,
        "finish_reason": None,
        "prompt_tokens": ask.prompt_tokens,
        "weight_version": "default",
        "total_retractions": 0,
        "completion_tokens": len(tokens),
        "cached_tokens": 0,
    }
    if last:
        meta["finish_reason"] = {"type": "abort", "message": "Aborted"} if sim.aborted else {"type": "length", "length": ask.max_tokens}
        meta["e2e_latency"] = (sim.finished_s or sim.last_token_s) - sim.arrived_s
        if settings.block_size > 1:
            meta |= _speculation(settings, sim, len(tokens))
    return {"text": "".join(tokens), "output_ids": token_ids(tokens), "meta_info": meta}


def _speculation(settings: EngineSettings, sim: Request, tokens: int) -> dict[str, Any]:
    """Returns the metrics of speculation. 0.5.20 began to count the accepted drafts themselves; 0.5.21 dropped the older names."""
    release = version(settings.release)
    draws = sim.draws or []
    steps, proposed = len(draws), len(draws) * (settings.block_size - 1)
    correct = sum(draws) - steps if release >= (0, 5, 20) else max(0, tokens - steps)
    counted = Counter(draw - 1 for draw in draws)
    histogram = [counted[accepted] for accepted in range(max(counted, default=-1) + 1)]
    metric_values: dict[str, Any] = {
        "spec_accept_rate": correct / proposed if proposed else 0.0,
        "spec_accept_length": tokens / steps if steps else 0,
        "spec_num_correct_drafts": correct,
        "spec_num_proposed_drafts": proposed,
        "spec_verify_ct": steps,
        "spec_correct_drafts_histogram": histogram,
    }
    if release < (0, 5, 21):
        metric_values |= {"spec_accepted_drafts": correct, "spec_proposed_drafts": proposed, "spec_accept_histogram": histogram}
    return metric_values
