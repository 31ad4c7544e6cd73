"""Whether a deployment's metrics arrive: the verdict behind condition MetricsAvailable. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dflash_controller.api.conditions import Reason
from dflash_controller.engines import ENGINES
from dflash_controller.model.measurement import STALE, Error
from dflash_controller.model.metric_schema import missing
from dflash_controller.model.metrics_health import MetricsHealth
from dflash_controller.observe.pipeline.source import Round, Source, Target

FAILURE_THRESHOLD = 3
"""Rounds in a row that must fail before the verdict turns."""


_NAMED = 12
"""A message names no more metrics than these."""
_NATIVE = (
    "Native histograms are in the place of some of them, and those are not read: set always_scrape_classic_histograms in the scrape "
    "configuration (in a PodMonitor scrapeClassicHistograms), or leave convert_classic_histograms_to_nhcb off."
)
NO_READY_PODS = MetricsHealth(False, Reason.NO_PODS, "No engine pod is Ready, so there is nothing to measure.")


def verdict(source: Source, targets: Sequence[Target], round_: Round) -> MetricsHealth:
    """One round's verdict for the pods of one deployment. One pod that answers is enough."""
    if round_.refusal is not None:
        return MetricsHealth(False, round_.refusal.reason, round_.refusal.message)
    if any(target.uid in round_.answered for target in targets):
        absent, native = incomplete(targets, round_)
        if not absent:
            return MetricsHealth(True, Reason.MEASURED, f"{source.where} answers.")
        message = f"{source.where} lacks metrics of the engines that decisions need: {_listed(absent)}."
        return MetricsHealth(False, Reason.METRICS_INCOMPLETE, f"{message} {_NATIVE}" if native else message)
    for target in targets:
        source_failure = round_.failures.get(target.uid)
        if isinstance(source_failure, Error):
            return MetricsHealth(False, source.failed_reason, f"{source.where} failed: {source_failure.message}.")
    if any(round_.failures.get(target.uid) == STALE for target in targets):
        message = f"The newest samples of the engines in {source.where} are too old: are the pods still scraped?"
        return MetricsHealth(False, Reason.METRICS_STALE, message)
    message = f"{source.where} has no metrics of the engines: are they switched on, and are the pods scraped?"
    return MetricsHealth(False, Reason.METRICS_MISSING, message)


def incomplete(targets: Sequence[Target], round_: Round) -> tuple[tuple[str, ...], bool]:
    """Metrics that decisions need and that no measured pod of some revision has, and whether native histograms are in the place of some.

    The load, the tuner's samples and the evidence of a trial are all looked at. Pods of one revision are alike, so a pod that has just
    started says nothing.
    """
    revisions: dict[tuple[str, str], list[Target]] = {}
    for target in targets:
        if target.uid in round_.answered and target.uid in round_.names:
            revisions.setdefault((target.engine, target.revision), []).append(target)
    absent: set[str] = set()
    present: set[str] = set()
    for (engine, _), pods in revisions.items():
        schema = ENGINES[engine].metric_schema
        absent.update(set.intersection(*(set(missing(schema, round_.names[pod.uid], pod.speculation_on)) for pod in pods)))
        present.update(*(round_.names[pod.uid] for pod in pods))
    return tuple(sorted(absent)), any(name.rpartition("_")[0] in present for name in absent)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


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
