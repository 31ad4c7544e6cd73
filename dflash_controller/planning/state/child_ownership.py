"""Decides who owns an object: this deployment, nobody (an orphan to adopt), or somebody else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dflash_controller.api import names
from dflash_controller.model.snapshot import Object
from dflash_controller.planning.state.plan import Adopt, Ref


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


def is_ours(child: Object, deployment: Object) -> bool:
    """Returns whether this deployment controls the child."""
    owner = controller(child)
    return owner is not None and owner.get("uid") == deployment["metadata"]["uid"]


def is_adoptable(child: Object, deployment: Object) -> bool:
    """Returns whether the deployment may adopt the child.

    The child carries our label. It has no controller, or its controller is an earlier deployment of the same name (a restore from backup).
    """
    metadata = deployment["metadata"]
    if not _is_labelled(child, deployment):
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
