"""What vLLM streams as the answer to a prompt of the probe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_controller.engines.probe_reading import MAX_TEXT, ProbeFailure, count


class VllmReading:
    """vLLM's ``/v1/completions``, with the usage so far in every event.

    Where the engine runs with ``--per-request-spec-decode-metrics`` (0.29 and later) its last event counts the verify steps that had
    drafts. Otherwise steps are counted by events: vLLM sends one for each step that gave tokens, the first of them for the prefill, which
    gives one token. It joins events that its web server is too slow to send one by one, and joins several steps by design with
    ``--stream-interval`` above 1: the count is then too low and the acceptance length too high. Counters of ``/metrics`` would not be
    better: they count the users' requests too.
    """

    path = "/v1/completions"

    def __init__(self) -> None:
        self.tokens = 0
        self.finished = False
        self._pieces: list[str] = []
        self._length = 0
        self._events = 0
        self._with_drafts = 0

    def body(self, model: str, prompt: str, max_tokens: int) -> Mapping[str, Any]:
        # Sampling parameters that are left out would come from the model's generation_config.json.
        return {
            "model": model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }

    def take(self, event: Mapping[str, Any]) -> None:
        if "error" in event:
            raise ProbeFailure("the engine reported an error")
        if (usage := event.get("usage")) is not None:
            self._count_steps(count(usage["completion_tokens"]))
        if (metrics := event.get("metrics")) is not None and (spec := metrics.get("speculative_decoding")) is not None:
            self._with_drafts = count(spec["num_spec_steps"])
        for choice in event["choices"]:
            piece = str(choice["text"])
            self._length += len(piece)
            self._pieces.append(piece)
            reason = choice.get("finish_reason")
            if reason is not None:
                if reason not in ("stop", "length"):
                    raise ProbeFailure("the engine broke the answer off")
                self.finished = True
        if self._length > MAX_TEXT:
            raise ValueError("the text is too long")

    def _count_steps(self, tokens: int) -> None:
        if tokens > self.tokens:
            # A first event of several tokens is the prefill's joined with the first step's.
            self._events += 1 if self.tokens or tokens == 1 else 2
            self.tokens = tokens

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    @property
    def steps(self) -> int | None:
        return max(self._events - 1, self._with_drafts, 0)
