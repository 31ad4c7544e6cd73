"""Whether the engines of one deployment can be measured."""

from __future__ import annotations

from dataclasses import dataclass

from dflash_controller.api.conditions import Reason


@dataclass(frozen=True, slots=True)
class MetricsHealth:
    """``available`` None: not tried yet. Messages name no number or address that varies, so that a lasting state is one write."""

    available: bool | None
    reason: Reason
    message: str


NOT_MEASURED = MetricsHealth(None, Reason.NOT_MEASURED, "The first measurement is still to come")
