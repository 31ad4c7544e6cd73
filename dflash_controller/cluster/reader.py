"""Reads from the API server: everything at start and every few minutes, one deployment before an irreversible step."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dflash_controller.cluster import kinds
from dflash_controller.cluster.client import Client
from dflash_controller.cluster.errors import ApiError, Gone, NotFound
from dflash_controller.cluster.kinds import Kind
from dflash_controller.cluster.store import Entry, Store
from dflash_controller.model.snapshot import Key, Snapshot

NODE_SECONDS = 10.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Seen:
    """State of a node at a time of the clock."""

    dead: bool
    at: float


class Reader:
    """Fills the store from lists. ``namespaces`` limits what is read; empty: the whole cluster. ``clock`` returns monotonic seconds."""

    def __init__(
        self, client: Client, store: Store, namespaces: Sequence[str] = (), *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._clock = clock
        self._nodes: dict[str, _Seen] = {}
        self._store = store
        self._scopes: tuple[str | None, ...] = tuple(namespaces) or (None,)

    async def discover(self) -> frozenset[Kind]:
        """Finds out which optional kinds the API server serves now, and sets them in the store."""
        served = await self._client.served(kind for kind in kinds.STORED if kind.optional)
        self._store.served = served | {kind for kind in kinds.STORED if not kind.optional}
        return served

    async def resync(self) -> frozenset[Key]:
        """Lists every kind, one after the other. Returns the deployments for which the store had missed something."""
        await self.discover()
        changed: set[Key] = set()
        for kind in kinds.STORED:
            for namespace in self._scopes:
                changed |= await self.relist(kind, namespace)
        for key in sorted(self._store.keys()):
            await self._refresh_claims(key)
        return frozenset(changed)

    async def refresh(self, key: Key) -> Snapshot:
        """Reads one deployment and its children from the API server (consistent reads, no cache) and updates the store."""
        served = [kind for kind in kinds.CHILDREN if kind in self._store.served]
        await asyncio.gather(self._refresh_deployment(key), self._refresh_claims(key), *(self._refresh_kind(kind, key) for kind in served))
        return await self.with_dead_nodes(self._store.snapshot(key, live=True))

    async def with_dead_nodes(self, snapshot: Snapshot) -> Snapshot:
        """Returns the snapshot with ``dead_nodes`` set. It reads only the nodes of terminating pods: usually none."""
        nodes = sorted({pod.node for pod in snapshot.pods if pod.terminating and pod.node is not None})
        if not nodes:
            return snapshot
        dead = await asyncio.gather(*(self._is_dead(node) for node in nodes))
        return replace(snapshot, dead_nodes=frozenset(node for node, gone in zip(nodes, dead, strict=True) if gone))

    async def dead_nodes(self, key: Key) -> frozenset[str]:
        """Returns the nodes of the deployment's terminating pods, as the store knows them, that are gone or not Ready."""
        return (await self.with_dead_nodes(self._store.snapshot(key))).dead_nodes

    async def relist(self, kind: Kind, namespace: str | None) -> frozenset[Key]:
        """Lists one kind, in one namespace or (None) everywhere. Returns the deployments for which the store had missed something."""
        if kind not in self._store.served:
            return self._store.replace(kind, (), self._store.newest(kind), namespace=namespace)
        selector = None if kind is kinds.DFLASH_DEPLOYMENT else kinds.CHILD_SELECTOR
        entries, version = await self._entries(kind, namespace, selector)
        return self._store.replace(kind, entries, version, namespace=namespace)

    async def _is_dead(self, node: str) -> bool:
        """Returns whether a node is gone or not Ready, cached for NODE_SECONDS. A node that cannot be read counts as alive."""
        now = self._clock()
        self._nodes = {name: seen for name, seen in self._nodes.items() if now - seen.at < NODE_SECONDS}
        if (seen := self._nodes.get(node)) is not None:
            return seen.dead
        try:
            conditions = (await self._client.get(kinds.NODE, None, node)).get("status", {}).get("conditions") or ()
            dead = not any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
        except NotFound:
            dead = True
        except ApiError as error:
            log.warning("node %s could not be read and counts as alive: %s", node, error)
            dead = False
        self._nodes[node] = _Seen(dead, now)
        return dead

    async def _refresh_kind(self, kind: Kind, key: Key) -> None:
        entries, version = await self._entries(kind, key.namespace, kinds.selector_of(key.name))
        self._store.replace(kind, entries, version, key=key)

    async def _refresh_deployment(self, key: Key) -> None:
        identity = (kinds.DFLASH_DEPLOYMENT, key.namespace, key.name)
        known = self._store.version(identity)
        try:
            self._store.put(kinds.DFLASH_DEPLOYMENT, await self._client.get(*identity))
        except NotFound:
            if known is not None:
                self._store.forget(identity, known)

    async def _refresh_claims(self, key: Key) -> None:
        """Reads the claimed objects, because objects without our label are not watched."""
        for identity in self._store.claims(key):
            try:
                holder = await self._client.get(*identity)
            except NotFound:
                self._store.unclaim(key, identity)
                continue
            self._store.put(identity[0], holder)
            if self._store.belongs(identity) != key:
                self._store.claim(key, identity[0], holder)

    async def _entries(self, kind: Kind, namespace: str | None, selector: str | None) -> tuple[list[Entry], int]:
        """Returns the list, reduced page by page: a whole list of pods would exceed the operator's memory limit."""
        for last_try in (False, True):
            try:
                entries: list[Entry] = []
                version = 0
                async for page, list_version in self._client.pages(kind, namespace, selector=selector):
                    entries += [Entry.of(kind, obj) for obj in page]
                    version = int(list_version)
                return entries, version
            except Gone:
                if last_try:
                    raise
        raise AssertionError("unreachable")
