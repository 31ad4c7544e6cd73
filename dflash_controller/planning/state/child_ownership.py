"""Decides whose an object with our label is: this deployment's, nobody's (an orphan to adopt), somebody else's, or a stranger's.

A stranger only carries the label: a copy made to debug, a gateway in front of the engines. The store keeps strangers out of the snapshot,
so they are never counted, and nothing is written to them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dflash_controller.api import names
from dflash_controller.model.snapshot import Object, Pod
from dflash_controller.planning.replicas.count import LEADER_WORKER_SET, revision_of, with_groups
from dflash_controller.planning.revisions.revision import HASH_PATTERN
from dflash_controller.planning.state.plan import Adopt, Ref
from dflash_controller.render.prefetch import NAME_SUFFIX, NODE_PATTERN
from dflash_controller.render.service_account import service_account_name
from dflash_controller.render.workload import workload_name

STRANGERS_NAMED = 100
_WORKLOADS = ("Deployment", LEADER_WORKER_SET)
_HASHED = re.compile(HASH_PATTERN)
_OF_JOB = re.compile(f"{HASH_PATTERN}{NAME_SUFFIX}(-{NODE_PATTERN})?")
_PER_REVISION = {"ControllerRevision": _HASHED, "Deployment": _HASHED, LEADER_WORKER_SET: _HASHED, "Job": _OF_JOB}


def is_generated(child: Object, deployment: str) -> bool | None:
    """Returns whether kind, name, label and record of the child are those that the operator gives it for the deployment of this name.

    Returns None for a workload without a record: only the ControllerRevision of its name can tell. A record that names its own hash decides
    alone, so a label that was edited is put back. Records of earlier operators name none, and are judged by name and label.
    """
    kind, name = child["kind"], child["metadata"]["name"]
    if not _is_name(kind, name, deployment):
        return False
    if kind not in (*_WORKLOADS, "ControllerRevision"):
        return True
    record = _record(child)
    if record is None:
        # The controller of a StatefulSet gives its own ControllerRevisions our labels and annotations.
        return None if kind in _WORKLOADS else False
    if "hash" in record:
        return bool(record["hash"] == revision_of(child))
    return (child["metadata"].get("labels") or {}).get(names.LABEL_REVISION) in (None, revision_of(child))


def is_generated_pod(pod: Pod, deployment: str) -> bool:
    """Returns whether the pod's owners lead to a workload or Job of the deployment of this name."""
    return pod.workload is not None and any(_is_name(kind, pod.workload, deployment) for kind in ("Deployment", "Job"))


def _is_name(kind: str, name: str, deployment: str) -> bool:
    if pattern := _PER_REVISION.get(kind):
        prefix = workload_name(deployment, "")
        return name.startswith(prefix) and pattern.fullmatch(name, len(prefix)) is not None
    return bool(name == (service_account_name(deployment) if kind == "ServiceAccount" else deployment))


def _record(child: Object) -> Mapping[str, Any] | None:
    """Returns the record of a revision that a ControllerRevision or a workload carries; None if it carries none."""
    record = child.get("data") if child["kind"] == "ControllerRevision" else _parsed(child)
    return record if isinstance(record, Mapping) and "inputs" in record else None


def _parsed(workload: Object) -> Any:
    try:
        return json.loads((workload["metadata"].get("annotations") or {})[names.ANNOTATION_RECORD])
    except (KeyError, RecursionError, TypeError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class Members:
    """The children and pods of one deployment, and the kinds and names of the strangers among what carries its label."""

    revisions: tuple[Object, ...]
    workloads: tuple[Object, ...]
    others: tuple[Object, ...]
    pods: tuple[Pod, ...]
    strangers: tuple[str, ...]


def members(children: Iterable[tuple[Object, bool | None]], pods: Iterable[tuple[Pod, bool]], needed: Iterable[Object] = ()) -> Members:
    """Divides what carries the label of one deployment. Each object comes with the answer of ``is_generated`` or ``is_generated_pod``.

    ``needed`` are objects of others that have a name the deployment needs. They are members, because they are an obstacle.
    """
    labelled, counted = list(children), list(pods)
    recorded = {item["metadata"]["name"] for item, generated in labelled if generated and item["kind"] == "ControllerRevision"}
    ours: list[Object] = [*needed]
    foreign_names: set[str] = set()
    others: set[str] = set()
    for item, generated in labelled:
        name = item["metadata"]["name"]
        if generated or (generated is None and name in recorded):
            ours.append(item)
            continue
        if item["kind"] in (*_WORKLOADS, "Job"):
            foreign_names.add(name)
        if named := _name(item):
            others.add(named)
    # The name of a stranger may look like ours. Then its pods do, too.
    counted = [(pod, generated and pod.workload not in foreign_names) for pod, generated in counted]
    ours.sort(key=lambda item: (item["kind"], item["metadata"]["name"]))
    others |= {pod.controller or f"Pod {pod.name}" for pod, generated in counted if not generated}
    revisions = tuple(item for item in ours if item["kind"] == "ControllerRevision")
    workloads = tuple(item for item in ours if item["kind"] in _WORKLOADS)
    return Members(
        revisions=revisions,
        workloads=workloads,
        others=tuple(item for item in ours if item["kind"] not in ("ControllerRevision", *_WORKLOADS)),
        pods=with_groups([pod for pod, generated in counted if generated], workloads, revisions),
        strangers=tuple(sorted(others)[:STRANGERS_NAMED]),
    )


def _name(stranger: Object) -> str | None:
    """Returns kind and name of a stranger, or of its controller, which made it. None for what a controller derives from our workloads."""
    owner = controller(stranger)
    if owner is None or owner["kind"] == names.KIND:
        return f"{stranger['kind']} {stranger['metadata']['name']}"
    return None if owner["kind"] in ("StatefulSet", LEADER_WORKER_SET) else f"{owner['kind']} {owner['name']}"


def owner_reference(deployment: Object) -> dict[str, Any]:
    """Returns the controller reference of every child. It does not block the owner's deletion, because no clean-up has to come first."""
    metadata = deployment["metadata"]
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }


def controller(child: Object) -> Mapping[str, Any] | None:
    """Returns the owner reference marked as controller, or None."""
    references = child["metadata"].get("ownerReferences") or ()
    return next((reference for reference in references if reference.get("controller")), None)


def ref(child: Object) -> Ref:
    """Returns a fence for writes: the identity and version of the object now."""
    metadata = child["metadata"]
    return Ref(child["apiVersion"], child["kind"], metadata["namespace"], metadata["name"], metadata["uid"], metadata["resourceVersion"])


def _may_be_generated(child: Object, deployment: Object) -> bool:
    """Returns False for an object in another namespace, and for one that the operator does not generate for this deployment."""
    metadata = deployment["metadata"]
    return child["metadata"].get("namespace") == metadata.get("namespace") and is_generated(child, metadata["name"]) is not False


def is_ours(child: Object, deployment: Object) -> bool:
    """Returns whether this deployment controls the child, and the child is one that the operator generates."""
    owner, metadata = controller(child), deployment["metadata"]
    return owner is not None and owner.get("uid") == metadata["uid"] and _may_be_generated(child, deployment)


def is_adoptable(child: Object, deployment: Object) -> bool:
    """Returns whether the deployment may adopt the child.

    The child carries our label. It has no controller, or its controller is an earlier deployment of the same name (a restore from backup).
    """
    metadata = deployment["metadata"]
    if not _is_labelled(child, deployment) or not _may_be_generated(child, deployment):
        return False
    owner = controller(child)
    return owner is None or (
        owner.get("kind") == names.KIND
        and str(owner.get("apiVersion", "")).partition("/")[0] == names.GROUP
        and owner.get("name") == metadata["name"]
        and owner.get("uid") != metadata["uid"]
    )


def foreign(children: Iterable[Object], deployment: Object) -> list[Object]:
    """Returns the children that are neither ours nor adoptable. The operator never writes such an object."""
    return [child for child in children if not is_ours(child, deployment) and not is_adoptable(child, deployment)]


def adoptions(children: Iterable[Object], deployment: Object) -> list[Adopt]:
    """Returns one write for each orphan, and for each child that lost the label the operator selects by.

    It removes references to earlier controllers and keeps all others. ControllerRevisions come first, because they hold the state.
    """
    own, labels = owner_reference(deployment), names.child_labels(deployment["metadata"]["name"])
    ours = [child for child in children if is_ours(child, deployment) or is_adoptable(child, deployment)]
    orphans = [child for child in ours if not (is_ours(child, deployment) and _is_labelled(child, deployment))]
    orphans.sort(key=lambda child: (child["kind"] != "ControllerRevision", child["kind"], child["metadata"]["name"]))
    return [
        Adopt(
            ref(child),
            (*(owner for owner in child["metadata"].get("ownerReferences") or () if not owner.get("controller")), own),
            labels,
        )
        for child in orphans
    ]


def _is_labelled(child: Object, deployment: Object) -> bool:
    labels = child["metadata"].get("labels") or {}
    return bool(labels.get(names.LABEL_DEPLOYMENT) == deployment["metadata"]["name"])


def being_deleted(child: Object) -> bool:
    """Returns whether the deletion of the child was requested."""
    return "deletionTimestamp" in child["metadata"]
