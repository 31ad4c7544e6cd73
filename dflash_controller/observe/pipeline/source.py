"""What the collector asks of a source of metrics, be it direct scrapes or Prometheus."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dflash_controller.api.conditions import Reason
from dflash_controller.model.counters import CounterSnapshot
from dflash_controller.model.measurement import Absent, Error
from dflash_controller.model.series import CounterWindow, Span
from dflash_controller.model.snapshot import Key


@dataclass(frozen=True, slots=True)
class Target:
    """A Ready pod that serves /metrics (engines only: workers of a multi-node replica export nothing)."""

    namespace: str
    pod: str
    uid: str
    ip: str
    port: int
    deployment: str
    revision: str
    engine: str
    """``sglang`` or ``vllm``."""
    speculation_on: bool
    ready_at_s: float = 0.0
    """When the pod last became Ready, seconds since the epoch."""
    on_trial: bool = False
    """Its deployment has a candidate that is being judged: readings are kept (and asked of Prometheus)."""
    candidate: bool = False
    """It is that candidate's: the tuner learns from it too."""
    tuned: bool = False
    """Its deployment's tuning is not Off: short windows are told as spans."""
    slots_per_request: int = 0
    """Slots of state that the engine counts for each request; 0: none."""

    @property
    def key(self) -> Key:
        """The DFlashDeployment the pod belongs to."""
        return Key(self.namespace, self.deployment)


@dataclass(frozen=True, slots=True)
class Refusal:
    """The source does not serve this fleet, whatever the pods answer: the condition's reason and message."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Round:
    """What one round brought, by pod uid."""

    windows: Mapping[str, CounterWindow] = field(default_factory=dict)
    failures: Mapping[str, Absent | Error] = field(default_factory=dict)
    """Pods that gave nothing this time; a pod may still have a window from earlier rounds."""
    answered: frozenset[str] = frozenset()
    """Pods that gave something this time, be it the first page, which makes no window yet. Pods not asked are in none of these."""
    readings: Mapping[str, Sequence[CounterSnapshot]] = field(default_factory=dict)
    """The counters themselves, oldest first; of pods that are not on trial only where they cost nothing."""
    names: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Metrics that the pod has, among those that are read, and the histograms that they are parts of."""
    refusal: Refusal | None = None
    spans: Mapping[str, Sequence[Span]] = field(default_factory=dict)
    """Short windows of pods that are tuned, oldest first, which do not overlap and were not told before."""


class Source(Protocol):
    """Where windows come from. ``collect`` never raises for a pod or server that fails: that is a failure."""

    failed_reason: Reason
    """Condition reason while it does not answer."""
    where: str
    """Subject of the condition's messages."""

    async def collect(self, targets: Sequence[Target]) -> Round: ...

    async def close(self) -> None: ...


def choose(targets: Sequence[Target], watched: Container[str], limit: int) -> list[Target]:
    """At most ``limit`` pods per revision: those watched already, then by uid, which says nothing about load."""
    by_revision: defaultdict[tuple[str, str, str], list[Target]] = defaultdict(list)
    for target in targets:
        by_revision[target.namespace, target.deployment, target.revision].append(target)
    return [target for pods in by_revision.values() for target in sorted(pods, key=lambda pod: (pod.uid not in watched, pod.uid))[:limit]]
