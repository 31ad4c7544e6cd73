"""The state of one DFlashDeployment at one moment: the input of every decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

Object = Mapping[str, Any]
"""A Kubernetes object as the API server returns it. Never modified in place."""


@dataclass(frozen=True, order=True, slots=True)
class Key:
    """Namespace and name of a DFlashDeployment."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Pod:
    """The fields of a pod that decisions read; the store drops the rest."""

    name: str
    uid: str
    resource_version: str
    revision: str
    role: str
    node: str | None
    """Node it was scheduled to."""
    ip: str | None
    phase: str
    ready: bool
    ready_since: datetime | None
    """When it last became Ready; None while it is not Ready."""
    terminating: bool
    restarts: int
    waiting_reason: str | None
    """Reason of the first waiting container, for instance CrashLoopBackOff."""
    message: str | None
    """The newest container message that explains a failure."""
    unschedulable: str | None
    """The scheduler's message while PodScheduled is False."""
    unschedulable_since: datetime | None
    """When the scheduler first found no node for it; None if it is scheduled or not yet processed."""
    created_at: datetime | None = None

    @property
    def serving(self) -> bool:
        """Whether it counts as available: Ready, not terminating, and an engine that answers requests."""
        return self.ready and not self.terminating and self.role == "engine"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One deployment with its children, found by label."""

    key: Key
    deployment: Object | None
    """The DFlashDeployment; None if it is gone."""
    revisions: tuple[Object, ...] = ()
    """apps/v1 ControllerRevisions."""
    workloads: tuple[Object, ...] = ()
    """apps/v1 Deployments and leaderworkerset.x-k8s.io/v1 LeaderWorkerSets, one per revision."""
    others: tuple[Object, ...] = ()
    """Service, PodDisruptionBudget, NetworkPolicy, ServiceAccount, PodMonitor, Jobs that fetch weights.

    Here, and among revisions and workloads, may be an object without our label that has a name we need.
    """
    pods: tuple[Pod, ...] = ()
    live: bool = False
    """True if the children were read from the API server for this decision, False if they come from the store."""
    kinds: frozenset[str] = field(default_factory=frozenset)
    """Optional kinds the API server serves and lists: PodMonitor, LeaderWorkerSet."""
    unlisted: frozenset[str] = frozenset()
    """Optional kinds that exist but cannot be listed. That an object of such a kind is missing here means nothing."""
    dead_nodes: frozenset[str] = frozenset()
    """Nodes of terminating pods that are gone or not Ready, so that no kubelet ends those pods."""
