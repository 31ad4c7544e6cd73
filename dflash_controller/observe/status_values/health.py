"""Whether a deployment's metrics arrive: the verdict behind condition MetricsAvailable. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dflash_controller.api.conditions import Reason
from dflash_controller.model.measurement import STALE, Error
from dflash_controller.model.metrics_health import MetricsHealth
from dflash_controller.observe.pipeline.source import Round, Source, Target

FAILURE_THRESHOLD = 3
"""Rounds in a row that must fail before the verdict turns."""


NO_READY_PODS = MetricsHealth(False, Reason.NO_PODS, "No engine pod is Ready, so there is nothing to measure.")


def verdict(source: Source, targets: Sequence[Target], round_: Round) -> MetricsHealth:
    """One round's verdict for the pods of one deployment. One pod that answers is enough."""
    if round_.refusal is not None:
        return MetricsHealth(False, round_.refusal.reason, round_.refusal.message)
    if any(target.uid in round_.answered for target in targets):
        return MetricsHealth(True, Reason.MEASURED, f"{source.where} answers.")
    for target in targets:
        source_failure = round_.failures.get(target.uid)
        if isinstance(source_failure, Error):
            return MetricsHealth(False, source.failed_reason, f"{source.where} failed: {source_failure.message}.")
    if any(round_.failures.get(target.uid) == STALE for target in targets):
        message = f"The newest samples of the engines in {source.where} are too old: are the pods still scraped?"
        return MetricsHealth(False, Reason.METRICS_STALE, message)
    message = f"{source.where} has no metrics of the engines: are they switched on, and are the pods scraped?"
    return MetricsHealth(False, Reason.METRICS_MISSING, message)


def source_failure(source: Source, targets: Sequence[Target], round_: Round) -> str | None:
    """Why a round got nothing of these pods at all; None where one answered, or where there was nothing to get."""
    if round_.refusal is not None:
        return round_.refusal.message
    if any(target.uid in round_.answered for target in targets):
        return None
    failures = (round_.failures.get(target.uid) for target in sorted(targets, key=lambda target: target.uid))
    first = next((failure for failure in failures if isinstance(failure, Error)), None)
    return None if first is None else f"{source.where} failed: {first.message}."


class FailureThreshold:
    """Turns to bad only after several bad rounds, to good at once; the message of a lasting state stays as first told."""

    def __init__(self) -> None:
        self.verdict: MetricsHealth | None = None
        self._bad = 0

    def take(self, new: MetricsHealth) -> bool:
        """Whether the verdict changed."""
        self._bad = 0 if new.available else self._bad + 1
        if not new.available and self._bad < FAILURE_THRESHOLD:
            return False
        if self.verdict is not None and (self.verdict.available, self.verdict.reason) == (new.available, new.reason):
            return False
        self.verdict = new
        return True
