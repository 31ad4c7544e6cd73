"""How each metric of ``api.gates`` is evaluated, and for which changes it is meaningful.

Metrics are compared only if the change does not alter them by its nature: acceptance length falls with the block size, and another target
is a different model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from dflash_controller.analysis.blocks import Traffic
from dflash_controller.analysis.guardrails import Histograms, errors_guard, quantile_guard, restarts_guard
from dflash_controller.analysis.primary import PrimaryResult, primary
from dflash_controller.analysis.verdict import AnalysisRequest, MetricVerdict
from dflash_controller.api.gates import ACCEPTANCE, ERRORS, LATENCY, RESTARTS, SPEED, TTFT, Gate
from dflash_controller.model.change import Change, Part
from dflash_controller.model.counters import CounterSnapshot, Evidence, Histogram


@dataclass(frozen=True, slots=True)
class Measured:
    """The inputs on which every metric of one candidate is evaluated."""

    question: AnalysisRequest
    evidence: Evidence
    traffic: Traffic
    """Empty while the metrics source fails."""
    differs: str | None
    """How the requests of the two sides differ; None if they do not."""
    now_s: float


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric, and when it is meaningful."""

    changes: frozenset[Part]
    """Parts that may differ between the two sides. Any other change alters the metric by its nature."""
    needs_drafts: bool = field(default=False, kw_only=True)
    """The metric is meaningless if a side drafts nothing."""

    def applies_to(self, change: Change) -> bool:
        """Decides whether the metric can tell a worse candidate from a better one after this change."""
        return change.parts <= self.changes and (change.drafts or not self.needs_drafts)


@dataclass(frozen=True, slots=True)
class PrimaryMetric(Metric):
    """A metric that can promote or fail a candidate. It is also shown without a gate."""

    evaluate: Callable[[Measured], PrimaryResult | None]
    """Returns None if there is nothing to show."""


@dataclass(frozen=True, slots=True)
class Guardrail(Metric):
    """A metric that can only fail a candidate."""

    evaluate: Callable[[Gate, Measured], MetricVerdict]
    from_cluster: bool = field(default=False, kw_only=True)
    """The metric is known from the API server, so it counts even while the metrics source fails."""


def _primary(metric: str, measured: Measured) -> PrimaryResult | None:
    return primary(metric, measured.question, measured.traffic, measured.differs)


def _quantile(metric: str, part: Histograms, gate: Gate, measured: Measured) -> MetricVerdict:
    return quantile_guard(metric, part, gate, measured.traffic, measured.differs, concurrent=measured.question.concurrent)


def _errors(gate: Gate, measured: Measured) -> MetricVerdict:
    return errors_guard(gate, measured.traffic, concurrent=measured.question.concurrent)


def _restarts(gate: Gate, measured: Measured) -> MetricVerdict:
    return restarts_guard(gate, measured.evidence, measured.question.warm_up_s, measured.now_s)


def _ttft(reading: CounterSnapshot) -> Histogram | None:
    return reading.time_to_first_token


def _per_token(reading: CounterSnapshot) -> Histogram | None:
    return reading.time_per_token


_ANY = frozenset(Part)
_SAME_TARGET = _ANY - {Part.TARGET}

PRIMARY_METRICS: Mapping[str, PrimaryMetric] = {
    ACCEPTANCE: PrimaryMetric(_SAME_TARGET - {Part.BLOCK_SIZE}, partial(_primary, ACCEPTANCE), needs_drafts=True),
    SPEED: PrimaryMetric(_SAME_TARGET, partial(_primary, SPEED)),
}
GUARDRAILS: Mapping[str, Guardrail] = {
    TTFT: Guardrail(_SAME_TARGET, partial(_quantile, TTFT, _ttft)),
    LATENCY: Guardrail(_SAME_TARGET, partial(_quantile, LATENCY, _per_token)),
    ERRORS: Guardrail(_ANY, _errors),
    RESTARTS: Guardrail(_ANY, _restarts, from_cluster=True),
}


_METRICS: Mapping[str, Metric] = {**PRIMARY_METRICS, **GUARDRAILS}


def applicable(change: Change) -> frozenset[str]:
    """Returns the names of the metrics that are meaningful for a change, whether or not a user has disabled them."""
    return frozenset(name for name, metric in _METRICS.items() if metric.applies_to(change))
