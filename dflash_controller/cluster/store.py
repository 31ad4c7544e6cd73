"""The operator's cache of the cluster: updated by watches, by the answer to every write, and by lists, which show what is gone.

Not thread-safe: everything runs on one event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dflash_controller.api import names
from dflash_controller.cluster import kinds
from dflash_controller.cluster.kinds import Kind
from dflash_controller.cluster.pods import project
from dflash_controller.model.snapshot import Key, Object, Pod, Snapshot
from dflash_controller.planning.state.child_ownership import Members, is_generated, is_generated_pod, members

Identity = tuple[Kind, str, str]
"""Kind, namespace and name."""

_NOBODY: frozenset[Key] = frozenset()


@dataclass(frozen=True, slots=True)
class Entry:
    """One object as the store keeps it."""

    identity: Identity
    key: Key | None
    """The DFlashDeployment it is, or belongs to by label; None if neither."""
    version: int
    object: Object | Pod
    generated: bool | None
    """Whether it is one that the operator generates for ``key``, as ``child_ownership.is_generated`` says."""

    @classmethod
    def of(cls, kind: Kind, obj: Mapping[str, Any]) -> Entry:
        """Returns the part of ``obj`` that decisions read: a pod is projected, any other object loses other managers' managedFields."""
        metadata = obj["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        if kind is kinds.DFLASH_DEPLOYMENT:
            key: Key | None = Key(namespace, name)
        else:
            owner = (metadata.get("labels") or {}).get(names.LABEL_DEPLOYMENT)
            key = Key(namespace, owner) if owner else None
        kept = project(obj) if kind is kinds.POD else _trimmed(obj)
        generated: bool | None = True
        if key is not None and kind is not kinds.DFLASH_DEPLOYMENT:
            generated = is_generated_pod(kept, key.name) if isinstance(kept, Pod) else is_generated(kept, key.name)
        return cls((kind, namespace, name), key, int(metadata["resourceVersion"]), kept, generated)


class Store:
    """Objects by kind, namespace and name, indexed by the DFlashDeployment they belong to.

    A version never goes backwards: an object older than the known one, or than its known deletion, is ignored. resourceVersions of one kind
    are ordered numbers (guaranteed by conforming API servers since Kubernetes 1.35, true of etcd before).
    """

    def __init__(self) -> None:
        self._entries: dict[Identity, Entry] = {}
        self._members: dict[Key, dict[Identity, Entry]] = {}
        self._claims: dict[Key, dict[Identity, Object]] = {}
        self._tombstones: dict[Identity, int] = {}
        self._listed: dict[tuple[Kind, str | None], int] = {}
        self.served: frozenset[Kind] = frozenset(kind for kind in kinds.STORED if not kind.optional)
        """Kinds the API server serves, as last discovered, without the unlisted ones."""
        self.unlisted: frozenset[Kind] = frozenset()
        """Optional kinds that the API server serves but does not list. What is known of their objects may be old."""

    def put(self, kind: Kind, obj: Mapping[str, Any]) -> frozenset[Key]:
        """Stores an object. Returns the deployments for which something changed that a decision could depend on."""
        return self.admit(Entry.of(kind, obj))

    def admit(self, entry: Entry) -> frozenset[Key]:
        """Does the same as ``put`` for an object already reduced to an entry."""
        identity = entry.identity
        known = self._entries.get(identity)
        floor = max(self._tombstones.get(identity, 0), 0 if known else self._listed_version(identity))
        if entry.version <= (known.version if known else floor):
            return _NOBODY
        self._tombstones.pop(identity, None)
        if entry.key is None:
            return self._drop(identity)
        moved = self._drop(identity) if known and known.key != entry.key else _NOBODY
        self._entries[identity] = entry
        self._members.setdefault(entry.key, {})[identity] = entry
        if entry.generated is not False:
            self._claims.get(entry.key, {}).pop(identity, None)
        if known and known.key == entry.key and not _matters(known, entry):
            return _NOBODY
        return moved | {entry.key}

    def remove(self, kind: Kind, obj: Mapping[str, Any]) -> frozenset[Key]:
        """Records a deletion; ``obj`` is the last state with the version of the deletion. Returns the deployments concerned."""
        metadata = obj["metadata"]
        return self.forget((kind, metadata["namespace"], metadata["name"]), int(metadata["resourceVersion"]))

    def forget(self, identity: Identity, version: int) -> frozenset[Key]:
        """Removes an object that was gone at this version, unless a newer one is known. Returns the deployments concerned."""
        known = self._entries.get(identity)
        if known and known.version > version:
            return _NOBODY
        self._tombstones[identity] = max(version, self._tombstones.get(identity, 0))
        return self._drop(identity)

    def replace(
        self, kind: Kind, entries: Iterable[Entry], list_version: int, *, namespace: str | None = None, key: Key | None = None
    ) -> frozenset[Key]:
        """Stores a complete list as of ``list_version``: of the cluster, of one ``namespace``, or of one ``key``'s children.

        A known object in the list's scope that is neither in the list nor newer than it is removed. Returns the deployments concerned.
        """
        changed: set[Key] = set()
        seen: set[Identity] = set()
        for entry in entries:
            seen.add(entry.identity)
            changed |= self.admit(entry)
        scope = self._members.get(key, {}) if key else self._entries
        gone = [
            identity
            for identity, known in scope.items()
            if identity[0] is kind and identity not in seen and known.version <= list_version and namespace in (None, identity[1])
        ]
        for identity in gone:
            changed |= self.forget(identity, list_version)
        if key is None:
            self._listed[kind, namespace] = list_version
            self._tombstones = {
                identity: version
                for identity, version in self._tombstones.items()
                if identity[0] is not kind or namespace not in (None, identity[1]) or version > list_version
            }
        return frozenset(changed)

    def claim(self, key: Key, kind: Kind, obj: Mapping[str, Any]) -> None:
        """Remembers an object that has a name ``key`` needs and is not its child.

        It lacks our label, and then is not watched and must be read again, or the operator would not have made it so.
        """
        metadata = obj["metadata"]
        self._claims.setdefault(key, {})[kind, metadata["namespace"], metadata["name"]] = _trimmed(obj)

    def unclaim(self, key: Key, identity: Identity) -> None:
        """Forgets a claim: the name is free, or the object has become a child."""
        self._claims.get(key, {}).pop(identity, None)

    def claims(self, key: Key) -> tuple[Identity, ...]:
        """Returns the objects of others whose names ``key`` needs."""
        return tuple(self._claims.get(key, ()))

    def get(self, identity: Identity) -> Object | None:
        """Returns the object as last seen; None if it is not known, and for pods, of which only a projection is kept."""
        entry = self._entries.get(identity)
        return None if entry is None or isinstance(entry.object, Pod) else entry.object

    def newest(self, kind: Kind) -> int:
        """Returns the highest known version among objects of this kind; 0 if there are none."""
        return max((entry.version for identity, entry in self._entries.items() if identity[0] is kind), default=0)

    def version(self, identity: Identity) -> int | None:
        """Returns the version last seen; None if the object is not known."""
        entry = self._entries.get(identity)
        return entry.version if entry else None

    def belongs(self, identity: Identity) -> Key | None:
        """Returns the deployment whose child the object is by its label, kind, name and record."""
        entry = self._entries.get(identity)
        return entry.key if entry and entry.generated is not False else None

    def claimed(self, key: Key, identity: Identity) -> Object | None:
        """Returns the object of somebody else that has a name ``key`` needs."""
        return self._claims.get(key, {}).get(identity)

    def keys(self) -> frozenset[Key]:
        """Returns every DFlashDeployment that exists or has left children behind."""
        return frozenset(key for key, members in self._members.items() if members)

    def revisions(self) -> tuple[Object, ...]:
        """Returns the ControllerRevisions of every deployment."""
        return tuple(
            entry.object
            for identity, entry in self._entries.items()
            if identity[0] is kinds.CONTROLLER_REVISION and entry.generated and not isinstance(entry.object, Pod)
        )

    def snapshot(self, key: Key, *, live: bool = False) -> Snapshot:
        """Returns one deployment with its children and with objects that have a name it needs, sorted by kind and name.

        Strangers and their pods are left out; the snapshot only names them.
        """
        found, entry = self._divided(key), self._entries.get((kinds.DFLASH_DEPLOYMENT, key.namespace, key.name))
        return Snapshot(
            key=key,
            deployment=entry.object if entry is not None and not isinstance(entry.object, Pod) else None,
            revisions=found.revisions,
            workloads=found.workloads,
            others=found.others,
            pods=found.pods,
            live=live,
            kinds=frozenset(kind.name for kind in self.served if kind.optional),
            strangers=found.strangers,
            unlisted=frozenset(kind.name for kind in self.unlisted),
        )

    def pods(self) -> Iterable[tuple[Key, Pod]]:
        """Yields every pod that belongs to a deployment by its owners, with that deployment."""
        for key in self._members:
            for pod in self._divided(key).pods:
                yield key, pod

    def _divided(self, key: Key) -> Members:
        """Returns what carries the deployment's label, divided into children and strangers."""
        claimed, children, pods = self._claims.get(key, {}), [], []
        for identity, entry in sorted(self._members.get(key, {}).items(), key=lambda item: item[0][2]):
            if isinstance(entry.object, Pod):
                pods.append((entry.object, bool(entry.generated)))
            elif identity[0] in self.unlisted and identity[0] not in kinds.WORKLOADS:
                continue
            elif identity[0] is not kinds.DFLASH_DEPLOYMENT and identity not in claimed:
                children.append((entry.object, entry.generated))
        return members(children, pods, claimed.values())

    def _listed_version(self, identity: Identity) -> int:
        """Returns the version of the last complete list. An unknown object not newer than it was missing there, so it is gone."""
        kind, namespace, _ = identity
        return max(self._listed.get((kind, None), 0), self._listed.get((kind, namespace), 0))

    def _drop(self, identity: Identity) -> frozenset[Key]:
        entry = self._entries.pop(identity, None)
        if entry is None or entry.key is None:
            return _NOBODY
        members = self._members[entry.key]
        del members[identity]
        if not members:
            del self._members[entry.key]
            self._claims.pop(entry.key, None)
        return frozenset({entry.key})


def _trimmed(obj: Mapping[str, Any]) -> Object:
    metadata = obj["metadata"]
    own = [
        entry
        for entry in metadata.get("managedFields") or ()
        if entry.get("manager") == names.FIELD_MANAGER and entry.get("operation") == "Apply"
    ]
    return {**obj, "metadata": {**metadata, "managedFields": own}}


_BOOKKEEPING = ("resourceVersion", "managedFields")


def _matters(known: Entry, entry: Entry) -> bool:
    """Returns whether a decision could depend on the difference. The status of a DFlashDeployment does not count: the operator wrote it."""
    old, new = known.object, entry.object
    if isinstance(old, Pod) or isinstance(new, Pod):
        # The node matters once the pod is Ready, failed or terminating, and each of these is a change by itself; being scheduled is not.
        return not (
            isinstance(old, Pod)
            and isinstance(new, Pod)
            and replace(old, resource_version=new.resource_version, node=new.node, scheduled_since=new.scheduled_since) == new
        )
    ignored = ("metadata", "status") if entry.identity[0] is kinds.DFLASH_DEPLOYMENT else ("metadata",)
    if any(old.get(field) != new.get(field) for field in {*old, *new} if field not in ignored):
        return True
    before, after = old["metadata"], new["metadata"]
    return any(before.get(field) != after.get(field) for field in {*before, *after} if field not in _BOOKKEEPING)
