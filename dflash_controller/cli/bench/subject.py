"""What is measured: a deployment as it is at one moment, and what has changed since an earlier one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from dflash_controller.api import defaults
from dflash_controller.cli.bench.rows import Machine
from dflash_controller.cli.connection import Cluster
from dflash_controller.cli.deployments import Live
from dflash_controller.cli.failures import NEGATIVE, Failure
from dflash_controller.cluster import kinds
from dflash_controller.cluster.pods import project
from dflash_controller.observe.peer import base_url
from dflash_controller.observe.pipeline.source import Target
from dflash_controller.planning.replicas.count import engines, with_groups
from dflash_controller.planning.revisions.revision import Revision

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica that serves."""

    pod: str
    """Name of the pod that answers requests."""
    uid: str
    url: str
    restarts: int


@dataclass(frozen=True, slots=True)
class Subject:
    """A deployment at one moment. Its replicas are those of the active revision that serve."""

    namespace: str
    name: str
    revision: Revision
    candidate: str | None
    """Name of the revision on trial."""
    phase: str
    """Phase of the rollout."""
    tuned: bool
    """Whether the tuner may act."""
    replicas: tuple[Replica, ...]

    @property
    def model(self) -> str:
        """Last part of the target's name, as in the published tables."""
        return self.revision.resolved.target.model.rstrip("/").rpartition("/")[2]

    @property
    def block_size(self) -> int:
        """The largest one; 1 is speculation off."""
        return self.revision.speculation.max_block_size

    @property
    def speculation(self) -> str:
        """Words for the block size."""
        label = self.revision.speculation.label()
        return "speculation off" if self.block_size <= 1 else f"block size {label}"

    @property
    def engine(self) -> str:
        return f"{self.revision.resolved.engine} {self.revision.resolved.version}"

    @property
    def accelerators(self) -> str:
        """Accelerators of one replica."""
        return f"{self.revision.resolved.tensor_parallel}x {self.revision.resolved.gpu_product}"

    @property
    def machine(self) -> Machine:
        resolved = self.revision.resolved
        kind = ", ".join(word for word, true in (("hybrid", resolved.hybrid), ("MoE", resolved.mixture_of_experts)) if true) or "dense"
        return Machine(f"kubectl dflash bench, {self.engine}, {self.accelerators}", self.model, kind)

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(replica.url for replica in self.replicas)

    def targets(self, urls: tuple[str, ...]) -> list[Target]:
        """Returns the engines at these URLs as the readers of metrics take them; one that is reached otherwise than by HTTP is left out."""
        resolved = self.revision.resolved
        found = []
        for url in urls:
            parts = urlsplit(url)
            if parts.scheme == "http" and parts.hostname and not parts.path:
                port = parts.port or _PORTS[parts.scheme]
                target = Target(
                    self.namespace, url, url, parts.hostname, port, self.name, self.revision.hash, resolved.engine, self.block_size > 1
                )
                found.append(target)
        return found

    def to_json(self) -> dict[str, Any]:
        resolved = self.revision.resolved
        return {
            "namespace": self.namespace,
            "name": self.name,
            "target": resolved.target.model,
            "drafter": resolved.drafter.model,
            "drafterRevision": resolved.drafter.revision,
            "engine": self.engine,
            "accelerators": self.accelerators,
            "revision": self.revision.name,
            "speculation": self.revision.speculation.label(),
            "blockSize": self.block_size,
        }


def look(cluster: Cluster, name: str) -> Subject:
    """Returns a deployment as it is now. Raises Failure if there is none, or it has no active revision."""
    live = Live.of(cluster, name)
    revision = live.revision(None)
    resolved = revision.resolved
    pods = with_groups([project(pod) for pod in cluster.children(kinds.POD, name)], (), [record.source for record in live.stored.records])
    serving = sorted(
        (pod for pod in engines(pods) if pod.serving and pod.ip and pod.revision == revision.hash), key=lambda pod: (pod.name, pod.uid)
    )
    policy = defaults.effective_tuning(live.spec, resolved.trained_block_size)
    return Subject(
        namespace=live.namespace,
        name=live.name,
        revision=revision,
        candidate=live.stored.candidate.name if live.stored.candidate else None,
        phase=str(live.rollout.get("phase") or ""),
        tuned=policy.mode == "Auto" and not live.spec.rollout.paused,
        replicas=tuple(Replica(pod.name, pod.uid, base_url(str(pod.ip), resolved.port), pod.restarts) for pod in serving),
    )


def checked_url(text: str) -> str:
    """Returns the base URL that a user wrote, without ``/v1``. Raises Failure if it is none."""
    try:
        parts = urlsplit(text)
        valid = parts.scheme in _PORTS and parts.hostname and parts.port != 0 and not parts.query and not parts.fragment
    except ValueError:
        valid = False
    if not valid:
        raise Failure(f"--url {text} is no URL of an engine", "Write it like http://127.0.0.1:30000")
    return text.rstrip("/").removesuffix("/v1").rstrip("/")


def changes(before: Subject, after: Subject) -> Iterator[str]:
    """Yields what has happened to a deployment that makes measurements before and after it different things."""
    if after.revision.name != before.revision.name:
        yield (
            f"the active revision changed from {before.revision.name} ({before.speculation}) to {after.revision.name} ({after.speculation})"
        )
        return
    if after.candidate is not None and after.candidate != before.candidate:
        yield f"a rollout of {after.candidate} began"
    then, now = ({replica.uid: replica for replica in subject.replicas} for subject in (before, after))
    for uid, replica in then.items():
        if uid not in now:
            yield f"pod {replica.pod} no longer serves"
        elif now[uid].restarts > replica.restarts:
            yield f"pod {replica.pod} restarted"
    for uid, replica in now.items():
        if uid not in then:
            yield f"pod {replica.pod} began to serve"


def serving(subject: Subject) -> Subject:
    """Returns the subject. Raises Failure if none of its replicas serves."""
    if subject.replicas:
        return subject
    remedy = f"See kubectl dflash status {subject.name}"
    raise Failure(f"no replica of {subject.name} serves", remedy, status=NEGATIVE)
