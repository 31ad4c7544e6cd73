"""The state of one DFlashDeployment at one moment: the input of every decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from dflash_controller.model.fetch_report import FetchReason, FetchReport

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
    """Restarts of the containers that the operator renders, without one that has fetched the weights."""
    waiting_reason: str | None
    """Reason of the container that keeps the pod waiting, for instance CrashLoopBackOff."""
    message: str | None
    """The newest container message that explains a failure, after the container's name."""
    unschedulable: str | None
    """While PodScheduled is False: the scheduler's message, or the names of the scheduling gates."""
    unschedulable_since: datetime | None
    """When the scheduler first found no node for it; None if it is scheduled or not yet processed."""
    created_at: datetime | None = None
    unready_since: datetime | None = None
    """Since when it has not been Ready; None while it is, or if the kubelet has not said."""
    scheduled_since: datetime | None = None
    """When it got its node."""
    gated: bool = False
    """Whether scheduling gates keep the scheduler from looking for a node."""
    reason: str | None = None
    """The reason of its phase, for instance Evicted."""
    container: str | None = None
    """The container that ``waiting_reason``, ``message`` and the exit are about."""
    exit_code: int | None = None
    """How that container ended last; None if it never failed."""
    exit_reason: str | None = None
    """For instance OOMKilled."""
    fetch: FetchReason | None = None
    """Why ``dflash-fetch`` ended, if that is the exit."""
    fetching: bool = False
    """Whether its container that fetches weights runs now."""
    fetched: FetchReport | None = None
    """How that container ended last; None if it has not, or has left no report."""
    engine_since: datetime | None = None
    """Since when the engine's container has run; None while it does not."""
    foreign: bool = False
    """Whether that container is one that the operator did not add, for instance the sidecar of a service mesh."""
    mounts: tuple[str, ...] | None = None
    """What it mounts (``Secret/hf-token``), while the kubelet has not set up its volumes and network; None otherwise."""
    workload: str | None = None
    """Name of the workload or Job that its owners lead to; None if it has no controller, or one of another kind."""
    controller: str | None = None
    """Kind and name of what controls it, for instance ``Deployment chat-debug`` (in place of its ReplicaSet); None if nothing does."""
    group: str | None = None
    """Group of a replica over several nodes; None for a replica of one pod. A LeaderWorkerSet numbers its groups from 0."""
    worker_index: int = 0
    """Place in the group; 0 for the leader."""
    whole: bool = True
    """False if a pod of its group is missing, not Ready or terminating. A leader answers requests only with all its workers."""

    @property
    def serving(self) -> bool:
        """Whether it counts as available: Ready, not terminating, and an engine that answers requests, with its whole group."""
        return self.ready and not self.terminating and self.role == "engine" and self.whole


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One deployment with its children, found by label, and without the objects of others that carry it."""

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
    strangers: tuple[str, ...] = ()
    """Kind and name of objects that carry our label and are not ours, for instance ``Deployment chat-debug``; sorted, at most 100."""
