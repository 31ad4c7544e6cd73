"""Whose object is it: ours, an orphan to adopt, or somebody else's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dflash_controller.api import names
from dflash_controller.model.snapshot import Object
from dflash_controller.planning.state.plan import Adopt, Ref


def owner_reference(deployment: Object) -> dict[str, Any]:
    """The controller reference every child carries. It does not block the owner's deletion: nothing has to happen in between."""
    metadata = deployment["metadata"]
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }


def controller(child: Object) -> Mapping[str, Any] | None:
    """The owner reference marked as controller."""
    references = child["metadata"].get("ownerReferences") or ()
    return next((reference for reference in references if reference.get("controller")), None)


def ref(child: Object) -> Ref:
    """A fence: the object as it is now."""
    metadata = child["metadata"]
    return Ref(child["apiVersion"], child["kind"], metadata["namespace"], metadata["name"], metadata["uid"], metadata["resourceVersion"])


def is_ours(child: Object, deployment: Object) -> bool:
    """Controlled by this very deployment."""
    owner = controller(child)
    return owner is not None and owner.get("uid") == deployment["metadata"]["uid"]


def is_adoptable(child: Object, deployment: Object) -> bool:
    """Ours by label and without a controller, or controlled by an earlier deployment of the same name (a restore from backup)."""
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
    """Children that are neither ours nor to be adopted. Such an object is never written."""
    return [child for child in children if not is_ours(child, deployment) and not is_adoptable(child, deployment)]


def adoptions(children: Iterable[Object], deployment: Object) -> list[Adopt]:
    """One write for each orphan, and for each child that lost the label it is found by.

    References to earlier controllers go, others stay. ControllerRevisions first, since they are the state.
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
    """Its deletion has been asked for."""
    return "deletionTimestamp" in child["metadata"]
