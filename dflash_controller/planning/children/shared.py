"""Builds the children that all revisions share, as server-side applies. An apply that changes nothing is not sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dflash_controller.api.types import Spec
from dflash_controller.model.snapshot import Object
from dflash_controller.planning.revisions.revision import Revision
from dflash_controller.planning.state.child_ownership import owner_reference, ref
from dflash_controller.planning.state.plan import Apply
from dflash_controller.planning.state.reconcile_state import ReconcileState
from dflash_controller.render.disruption_budget import pod_disruption_budget
from dflash_controller.render.monitor import pod_monitor
from dflash_controller.render.network_policy import network_policy
from dflash_controller.render.service import service
from dflash_controller.render.service_account import service_account


def account(state: ReconcileState) -> list[Apply]:
    """Returns the apply of the ServiceAccount. It comes before the workloads: the API server refuses pods that name an unknown one."""
    return other_children(state, [service_account(state.snapshot.key.name, state.snapshot.key.namespace)])


def accessories(state: ReconcileState, spec: Spec, in_force: Revision) -> list[Apply]:
    """Returns the applies of the shared children that pods do not need to run, and of the Jobs that the rollout waits for."""
    key, running = state.snapshot.key, _running(state, in_force)
    multi_node = any(record.resolved.nodes > 1 for record in running)
    fetches = any(record.resolved.fetch_image for record in running)
    manifests: list[Mapping[str, Any]] = [
        service(key.name, key.namespace, spec, in_force.resolved.port),
        pod_disruption_budget(key.name, key.namespace),
        network_policy(key.name, key.namespace, multi_node=multi_node, fetches=fetches),
    ]
    if "PodMonitor" in state.snapshot.kinds:
        manifests.append(pod_monitor(key.name, key.namespace))
    return other_children(state, [*manifests, *(state.outcome.jobs if state.outcome else ())])


def other_children(state: ReconcileState, manifests: Iterable[Mapping[str, Any]]) -> list[Apply]:
    """Returns applies of children that are neither revisions nor workloads, each against its live object if there is one.

    It leaves out those whose names others hold.
    """
    live = {(item["kind"], item["metadata"]["name"]): item for item in state.snapshot.others}
    named = [((manifest["kind"], manifest["metadata"]["name"]), manifest) for manifest in manifests]
    return [child(state.deployment, manifest, live.get(name)) for name, manifest in named if name not in state.taken]


def child(deployment: Object, manifest: Mapping[str, Any], live: Object | None) -> Apply:
    """Returns an apply of a child with its owner, against the live object if there is one."""
    owned = {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [owner_reference(deployment)]}}
    return Apply(owned, fence=ref(live) if live is not None else None)


def _running(state: ReconcileState, in_force: Revision) -> list[Revision]:
    return [record for record in state.records if record is in_force or state.pool(record.hash).existing]
