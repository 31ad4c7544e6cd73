"""``diff``: the revision that the operator would make, from what it has stored."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from dflash_controller.api import names
from dflash_controller.cli.comparison import Difference, compare
from dflash_controller.cli.connection import Cluster
from dflash_controller.cli.deployments import Live
from dflash_controller.cluster import kinds
from dflash_controller.cluster.kinds import Kind
from dflash_controller.engines.resolved import OperatorDefaults
from dflash_controller.planning.revisions.revision import Revision, RevisionState

OLD, NEW = "a" * 40, "b" * 40
FETCHES = OperatorDefaults(fetch_image="operator:1")


@dataclass
class Stored:
    """The revisions of a cluster."""

    revisions: list[dict[str, Any]] = field(default_factory=list)

    def children(self, kind: Kind, deployment: str) -> list[dict[str, Any]]:
        return self.revisions if kind is kinds.CONTROLLER_REVISION else []


def asked(drafter: str, **spec: Any) -> dict[str, Any]:
    models = {"target": {"model": "Qwen/Qwen3.5-9B", "revision": OLD}, "drafter": {"revision": drafter}}
    head = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "qwen", "namespace": "default"}}
    return {**head, "spec": {**models, **spec}}


def found(stored: Stored, manifest: dict[str, Any], operator: OperatorDefaults = FETCHES) -> Difference:
    live = Live(cast(Cluster, stored), asked(OLD, storage={"persistentVolumeClaim": {"claimName": "weights"}}))
    difference = compare(live, manifest, operator)
    assert isinstance(difference, Difference), difference
    return difference


def kept(revision: Revision, rates: str | None = None) -> dict[str, Any]:
    """The active revision as it is stored."""
    source = copy.deepcopy(dict(revision.source))
    annotations = {names.ANNOTATION_STATE: RevisionState.STABLE.value} | ({names.ANNOTATION_RATES: rates} if rates else {})
    source["metadata"]["annotations"] = {**source["metadata"]["annotations"], **annotations}
    return source


def budget(revision: Revision) -> int:
    """Seconds that the engine of a revision may take to start."""
    [container] = revision.workload["spec"]["template"]["spec"]["containers"]
    probe = container["startupProbe"]
    return int(probe["failureThreshold"]) * int(probe["periodSeconds"])


@pytest.mark.parametrize("more", [{}, {"restartId": "again"}], ids=["another drafter", "restart"])
def test_a_new_revision_has_the_start_up_budget_of_measured_rates(more: dict[str, Any]) -> None:
    storage = {"persistentVolumeClaim": {"claimName": "weights"}}
    old, new = asked(OLD, storage=storage), asked(OLD if more else NEW, storage=storage, **more)
    first = found(Stored(), old).after
    assumed = found(Stored([kept(first)]), new)
    slow = Stored([kept(first, '{"fetch": 50000000, "load": 20000000}')])
    measured = found(slow, new)
    assert assumed.new
    assert measured.new
    assert measured.after.resolved.load_measured
    assert measured.after.resolved.fetch_bytes_per_s == 50_000_000
    assert budget(measured.after) > budget(assumed.after) == budget(first)
    assert "failureThreshold" in measured.manifests()
    assert not found(slow, old).any, "what runs keeps the budget that it was made with"
    elsewhere = asked(NEW, storage={"persistentVolumeClaim": {"claimName": "others"}})
    assert not found(slow, elsewhere).after.resolved.load_measured, "another storage, another rate"
