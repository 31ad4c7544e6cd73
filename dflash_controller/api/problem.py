"""One thing wrong with a spec, said so that its author can fix it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """``field`` is a JSON path under the object (``spec.drafter.model``); ``remedy`` is an imperative sentence."""

    field: str
    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}. {self.remedy}"
