"""One DFlashDeployment of a cluster with what belongs to it, as the operator reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dflash_controller.api.parse import parse_spec
from dflash_controller.api.types import Spec
from dflash_controller.cli.connection import Cluster
from dflash_controller.cli.failures import CLUSTER, Failure
from dflash_controller.cli.times import happened
from dflash_controller.cluster import kinds
from dflash_controller.cluster.client import Obj
from dflash_controller.planning.revisions.revision import Revision
from dflash_controller.planning.revisions.roles import StoredRevisions, read_stored


@dataclass(frozen=True)
class Live:
    """A DFlashDeployment that exists."""

    cluster: Cluster
    obj: Obj

    @staticmethod
    def of(cluster: Cluster, name: str) -> Live:
        """Raises Failure if there is none."""
        return Live(cluster, cluster.deployment(name))

    @property
    def name(self) -> str:
        return str(self.obj["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.obj["metadata"]["namespace"])

    @property
    def status(self) -> Mapping[str, Any]:
        """Empty as long as no operator has seen the deployment."""
        return self.obj.get("status") or {}

    @property
    def rollout(self) -> Mapping[str, Any]:
        return self.status.get("rollout") or {}

    @property
    def spec(self) -> Spec:
        """Raises Failure if the stored spec breaks the rules of this release."""
        spec = parse_spec(self.obj)
        if isinstance(spec, Spec):
            return spec
        raise Failure(f"{self.name}: this release cannot read its spec: {'; '.join(map(str, spec))}", status=CLUSTER)

    @cached_property
    def stored(self) -> StoredRevisions:
        """The revisions that the operator stored."""
        return read_stored(self.cluster.children(kinds.CONTROLLER_REVISION, self.name))

    @property
    def active(self) -> Revision | None:
        """The active revision; None if there is none yet, or revisions may not be read."""
        try:
            return self.stored.stable
        except Failure:
            return None

    def revision(self, name: str | None) -> Revision:
        """Returns a revision by its name, or by the part after the deployment's; None: the active one. Raises Failure."""
        if name is None:
            if self.stored.stable is None:
                raise Failure(f"{self.name} has no active revision yet", "Give a file, or see kubectl dflash status", status=CLUSTER)
            return self.stored.stable
        if found := self.stored.named(name):
            return found
        known = ", ".join(record.name for record in self.stored.records) or "none"
        raise Failure(f"{self.name} has no revision {name}", f"Kept are: {known}", status=CLUSTER)

    @cached_property
    def events(self) -> list[Obj]:
        """Events about it, oldest first; empty if events may not be read."""
        selector = f"involvedObject.kind=DFlashDeployment,involvedObject.name={self.name}"
        try:
            found = self.cluster.objects(kinds.EVENT, self.namespace, field_selector=selector)
        except Failure:
            return []
        return sorted(found, key=happened)
