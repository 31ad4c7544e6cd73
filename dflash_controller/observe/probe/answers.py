"""What engines stream as the answer to one greedy prompt, read event by event.

Both engines are asked for plain greedy decoding: no penalty, no sampling defaults of the model. The end-of-sequence token is not ignored:
what a model writes past its end is unlike any user's traffic, and so is its acceptance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

MAX_TEXT = 2**20
"""Characters; 4,096 tokens are some 20,000."""


class ProbeFailure(Exception):
    """No usable answer. The message is one line and names neither address nor pod, which would change it with every pod."""


class Reading(Protocol):
    """An answer so far."""

    path: str
    tokens: int
    finished: bool

    def body(self, model: str, prompt: str, max_tokens: int) -> Mapping[str, Any]:
        """The request."""

    def take(self, event: Mapping[str, Any]) -> None:
        """One event of the stream. Raises ProbeFailure where the engine says that it failed, KeyError, TypeError, AttributeError or
        ValueError where the event is not what this engine sends."""

    @property
    def text(self) -> str: ...

    @property
    def steps(self) -> int | None:
        """Verify steps of the answer, which give all its tokens but the first; None where the engine does not tell."""


class SglangReading:
    """SGLang's own ``/generate``: its last event tells the verify steps of the request exactly (``meta_info.spec_verify_ct``, the same
    name in every release since 0.5.13; absent where speculation is off). The OpenAI API tells them since 0.5.19 only."""

    path = "/generate"

    def __init__(self) -> None:
        self.tokens = 0
        self.finished = False
        self.text = ""
        self.steps: int | None = None

    def body(self, model: str, prompt: str, max_tokens: int) -> Mapping[str, Any]:
        return {"text": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": max_tokens}, "stream": True}

    def take(self, event: Mapping[str, Any]) -> None:
        if "error" in event:
            raise ProbeFailure("the engine reported an error")
        meta = event["meta_info"]
        self.tokens = _count(meta["completion_tokens"])
        text = str(event["text"])
        # Events carry the whole text so far, but only what is new with --incremental-streaming-output.
        self.text = _bounded(text if text.startswith(self.text) else self.text + text)
        reason = meta.get("finish_reason")
        if reason is not None:
            if reason["type"] not in ("stop", "length"):
                raise ProbeFailure("the engine broke the answer off")
            self.finished = True
        if (steps := meta.get("spec_verify_ct")) is not None:
            self.steps = _count(steps)


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
            self._count_steps(_count(usage["completion_tokens"]))
        if (metrics := event.get("metrics")) is not None and (spec := metrics.get("speculative_decoding")) is not None:
            self._with_drafts = _count(spec["num_spec_steps"])
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


READINGS: Mapping[str, type[SglangReading] | type[VllmReading]] = {"sglang": SglangReading, "vllm": VllmReading}


def _count(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value < 2**31:
        raise ValueError("a count is not a number")
    return value


def _bounded(text: str) -> str:
    if len(text) > MAX_TEXT:
        raise ValueError("the text is too long")
    return text
