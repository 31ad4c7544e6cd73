"""What SGLang streams as the answer to a prompt of the probe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_controller.engines.probe_reading import ProbeFailure, bounded, count


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
        self.tokens = count(meta["completion_tokens"])
        text = str(event["text"])
        # Events carry the whole text so far, but only what is new with --incremental-streaming-output.
        self.text = bounded(text if text.startswith(self.text) else self.text + text)
        reason = meta.get("finish_reason")
        if reason is not None:
            if reason["type"] not in ("stop", "length"):
                raise ProbeFailure("the engine broke the answer off")
            self.finished = True
        if (steps := meta.get("spec_verify_ct")) is not None:
            self.steps = count(steps)
