"""Builds the blockers: reasons why the operator writes nothing, with a message that tells the user how to fix them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dflash_controller.api import names
from dflash_controller.api.conditions import ConditionType, Reason, get_condition
from dflash_controller.api.problem import Problem
from dflash_controller.api.types import Spec
from dflash_controller.model.snapshot import Object, Snapshot
from dflash_controller.planning.replicas.count import LEADER_WORKER_SET
from dflash_controller.planning.revisions.model_commits import Unresolved
from dflash_controller.planning.revisions.roles import StoredRevisions
from dflash_controller.planning.state.child_ownership import controller
from dflash_controller.planning.state.inputs import Blocker, PlannerInputs

STORAGE_FIELDS = ("spec.storage.emptyDir.sizeLimit", "spec.podTemplate.resources.limits.ephemeral-storage")
"""Fields whose values may be too small for the weights."""


def invalid(problems: Sequence[Problem]) -> Blocker:
    """Returns the blocker for a spec that breaks a rule only the operator can check."""
    return Blocker(Reason.INVALID_SPEC, _listed(problems))


def unresolved(problems: Sequence[Problem], spec: Spec, context: PlannerInputs) -> Blocker:
    """Returns the blocker for a spec that the catalog cannot complete or contradicts."""
    drafter = spec.drafter.model
    if drafter is not None and context.catalog.problem(spec.target.model, drafter) is not None:
        return Blocker(Reason.DRAFTER_MISMATCH, _listed(problems))
    if all(problem.field.startswith("spec.engine.") for problem in problems):
        return engine_unsupported(problems)
    if all(problem.field in STORAGE_FIELDS for problem in problems):
        return invalid(problems)
    known = context.catalog.find(spec.target.model) is not None
    return Blocker(Reason.INVALID_SPEC if known else Reason.PAIR_UNKNOWN, _listed(problems))


def engine_unsupported(problems: Sequence[Problem]) -> Blocker:
    """Returns the blocker for an engine release that cannot run what the spec asks for."""
    return Blocker(Reason.ENGINE_UNSUPPORTED, _listed(problems))


def contradicted(problems: Mapping[Reason, Sequence[Problem]]) -> Blocker | None:
    """Returns the blocker for problems by reason, named after the first reason that has any; None if none has."""
    reason = next((reason for reason, found in problems.items() if found), None)
    return Blocker(reason, _listed([problem for found in problems.values() for problem in found])) if reason else None


def not_resolved(missing: Sequence[Unresolved]) -> Blocker:
    """Returns the blocker for branches and tags without a commit, where weights are fetched once for all replicas."""
    fields = " and ".join(gap.choice.field for gap in missing)
    return Blocker(
        Reason.REVISION_NOT_RESOLVED,
        f"{'. '.join(str(gap) for gap in missing)}. Weights are fetched into spec.storage at a commit only, so that replicas never differ: "
        f"set {fields} to a 40-digit commit. The operator asks again by itself",
    )


def leader_worker_set_missing() -> Blocker:
    """Returns the blocker for a replica over several nodes in a cluster that does not serve LeaderWorkerSet."""
    return Blocker(
        Reason.LEADER_WORKER_SET_MISSING,
        "spec.parallelism.nodes: the cluster does not serve LeaderWorkerSet. Install LeaderWorkerSet 0.9 or later, or set it to 1",
    )


def workloads_unknown(snapshot: Snapshot, stored: StoredRevisions) -> Blocker | None:
    """Returns the blocker for a deployment that has replicas over several nodes and whose LeaderWorkerSets are not known.

    What is not listed must not be taken for gone: it would be made again with a wrong size, or its revision retired. A kind that is not
    served has no objects, so then only the revisions in force matter.
    """
    if LEADER_WORKER_SET in snapshot.kinds:
        return None
    if LEADER_WORKER_SET in snapshot.unlisted:
        if not (
            any(record.resolved.nodes > 1 for record in stored.records)
            or any(item["kind"] == LEADER_WORKER_SET for item in snapshot.workloads)
            or any(pod.role == names.ROLE_WORKER for pod in snapshot.pods)
        ):
            return None
        return Blocker(
            Reason.LEADER_WORKER_SET_UNLISTED,
            "LeaderWorkerSets exist in the cluster, but the API server does not list them, so it is unknown what runs. Nothing is changed "
            "until the operator can list them: see its log for the error",
        )
    over_nodes = [record.name for record in (stored.stable, stored.candidate) if record and record.resolved.nodes > 1]
    if not over_nodes:
        return None
    return Blocker(
        Reason.LEADER_WORKER_SET_MISSING,
        f"{over_nodes[0]} has several nodes per replica, and the cluster does not serve LeaderWorkerSet. Install LeaderWorkerSet 0.9 or "
        "later",
    )


def refused_write(message: str, *, forbidden: bool, passing: bool) -> Blocker:
    """Returns the blocker for a write that the API server refused.

    ``forbidden`` is True for a 403, ``passing`` for a failure of the server or of a webhook, which may end by itself.
    """
    if "denied the request" in message:
        return Blocker(Reason.ADMISSION_DENIED, f"An admission webhook denies a write: {message}. Satisfy its rule, or exempt the operator")
    if passing:
        return Blocker(
            Reason.WRITES_FAIL, f"The API server fails a write: {message}. The operator keeps trying. Repair what the message names"
        )
    if "exceeded quota" in message:
        return Blocker(Reason.QUOTA_EXCEEDED, f"A quota of the namespace is used up: {message}. Raise it, or free what it counts")
    if forbidden:
        return Blocker(Reason.PERMISSION_DENIED, f"The API server denies the operator a write: {message}. Grant it the right")
    if "must specify a volume type" in message or ("volumes" in message and ".image: field not declared in schema" in message):
        # Releases before 1.31 do not know the field. Every other source of a volume is older.
        return image_volumes_missing(message)
    if ": .status." in message and "not declared in schema" in message:
        return Blocker(
            Reason.DEFINITION_OUTDATED,
            f"The CustomResourceDefinition in the cluster is older than this operator: {message}. Apply the one of this release",
        )
    return Blocker(Reason.INVALID_SPEC, f"The API server refuses what the spec asks for: {message}. Fix the field it names")


def refused_before(deployment: Object) -> bool:
    """Returns whether the status says that a write was refused."""
    shown = get_condition((deployment.get("status") or {}).get("conditions") or (), ConditionType.STALLED)
    return shown is not None and shown.get("status") == "True" and shown.get("reason") in _REFUSED


_REFUSED = {
    Reason.ADMISSION_DENIED,
    Reason.WRITES_FAIL,
    Reason.QUOTA_EXCEEDED,
    Reason.PERMISSION_DENIED,
    Reason.DEFINITION_OUTDATED,
    Reason.INVALID_SPEC,
}
"""The reasons of ``refused_write``."""


def image_volumes_missing(why: str) -> Blocker:
    """Returns the blocker for weights in an image, where the cluster mounts no images."""
    return Blocker(
        Reason.INVALID_SPEC,
        f"spec.storage.image: the cluster has no image volumes: {why}. They need Kubernetes 1.31 with the feature gate ImageVolume (on by "
        "default from 1.35) in the API server and the kubelets, and a container runtime that has them (containerd 2.1, CRI-O 1.31). Enable "
        "them, or use a persistentVolumeClaim with readOnly",
    )


def revisions_unreadable(objects: Sequence[Object]) -> Blocker:
    """Returns the blocker for unreadable revisions. The active one is unknown, so any write could restart engines without need."""
    listed = ", ".join(item["metadata"]["name"] for item in objects)
    return Blocker(
        Reason.REVISION_UNREADABLE,
        f"ControllerRevision {listed} was written by a newer operator, or damaged. Upgrade the operator, or delete it if nothing runs it",
    )


def pods_without_workload(workloads: Sequence[str]) -> Blocker:
    """Returns the blocker for pods that nothing scales: neither their workload nor their ControllerRevision exists."""
    return Blocker(
        Reason.REVISION_UNREADABLE,
        f"Pods of {', '.join(workloads)} run and hold accelerators, but neither their workload nor their ControllerRevision exists. "
        f"Restore the ControllerRevision, or delete what controls the pods (kubectl get replicasets)",
    )


def nothing_stable(failed: str) -> Blocker:
    """Returns the blocker for revisions of which none is marked Stable, while the one that the spec asks for has failed."""
    return Blocker(
        Reason.REVISION_UNREADABLE,
        f"No ControllerRevision is marked Stable, and {failed}, which the spec asks for, has failed. Mark the one that serves with the "
        f"annotation serving.dflash.io/state=Stable, or change the spec",
    )


def name_taken(objects: Sequence[Object]) -> Blocker:
    """Returns the blocker for an object that the operator must write but that belongs to somebody else."""
    item = objects[0]
    owner = controller(item)
    who = f"controlled by {owner['kind']} {owner['name']}" if owner else "not the operator's"
    more = f", and {len(objects) - 1} more" if len(objects) > 1 else ""
    return Blocker(
        Reason.NAME_TAKEN,
        f"{item['kind']} {item['metadata']['name']} exists and is {who}{more}. "
        f"Delete or rename it, or give the DFlashDeployment another name",
    )


def _listed(problems: Sequence[Problem]) -> str:
    return " ".join(str(problem) if str(problem).endswith(".") else f"{problem}." for problem in problems)
