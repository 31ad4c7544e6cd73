"""Acceptance length from the counters of ``/metrics`` pages before and after."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True, slots=True)
class Totals:
    """Tokens that verify steps committed, and the number of steps, summed over pages."""

    committed: float = 0.0
    verifies: float = 0.0

    def __add__(self, other: Totals) -> Totals:
        return Totals(self.committed + other.committed, self.verifies + other.verifies)

    def since(self, before: Totals) -> float | None:
        """Returns the acceptance length between two moments; None if nothing was verified (or a counter restarted)."""
        verifies = self.verifies - before.verifies
        return (self.committed - before.committed) / verifies if verifies > 0 else None


def totals(page: str) -> Totals:
    """Returns the totals of a page. vLLM: 1 + accepted / drafts. SGLang: generated tokens / verify calls. A missing series counts as
    zero."""
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    drafts = sums.get("vllm:spec_decode_num_drafts_total", 0.0)
    if drafts:
        return Totals(drafts + sums.get("vllm:spec_decode_num_accepted_tokens_total", 0.0), drafts)
    verifies = sums.get("sglang:spec_verify_calls_total", 0.0)
    return Totals(sums.get("sglang:generation_tokens_total", 0.0), verifies) if verifies else Totals()


def total(pages: Iterable[str]) -> Totals:
    """Returns the sum over pages."""
    return sum((totals(page) for page in pages), Totals())
