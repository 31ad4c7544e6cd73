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

AT_ONCE = 50
"""Objects of a list that are processed before others get their turn on the event loop, such as the renewal of the Lease."""
NODE_SECONDS = 10.0
FAILING_SECONDS = 60.0
"""Time for which lists of an optional kind that has been listed before may fail until the kind is left out."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Seen:
    """State of a node at a time of the clock."""

    dead: bool
    at: float


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why an optional kind cannot be listed in a scope, and since when by the clock. ``known``: it was listed before."""

    error: ApiError
    since: float
    known: bool


class Reader:
    """Fills the store from lists. ``namespaces`` limits what is read; empty: the whole cluster. ``clock`` returns monotonic seconds.

    An optional kind that cannot be listed is left out: the store does not count it as served, but as unlisted. Every other failure of a
    list is the caller's.
    """

    def __init__(
        self, client: Client, store: Store, namespaces: Sequence[str] = (), *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._clock = clock
        self._nodes: dict[str, _Seen] = {}
        self._store = store
        self._scopes: tuple[str | None, ...] = tuple(namespaces) or (None,)
        self._found: frozenset[Kind] = frozenset()
        self._listed: set[tuple[Kind, str | None]] = set()
        self._watched: set[Kind] = set()
        self._failures: dict[tuple[Kind, str | None], _Failure] = {}

    @property
    def failing(self) -> frozenset[tuple[Kind, str | None]]:
        """Returns the optional kinds, with the namespace or None for all, whose last list failed. They should be listed again soon."""
        return frozenset(self._failures)

    async def discover(self) -> None:
        """Finds out which optional kinds the API server serves now, and sets them in the store.

        A kind for which this fails counts as served: its list shows what is wrong.
        """
        found: set[Kind] = set()
        for kind in kinds.OPTIONAL:
            try:
                found |= await self._client.served((kind,))
            except ApiError:
                found.add(kind)
        self._found = frozenset(found)
        self._listed = {place for place in self._listed if place[0] in found}
        self._failures = {place: failure for place, failure in self._failures.items() if place[0] in found}
        self._sort_out()

    async def resync(self) -> frozenset[Key]:
        """Lists every kind. Returns the deployments for which the store had missed something.

        Raises an ApiError, about the kind it names, if a kind that is not optional cannot be listed.
        """
        await self.discover()
        changed: set[Key] = set()
        for kind in kinds.STORED:
            if kind.optional:
                # At once, so that the start does not wait for one timeout after the other.
                for found in await asyncio.gather(*(self.relist(kind, namespace) for namespace in self._scopes)):
                    changed |= found
                continue
            for namespace in self._scopes:
                changed |= await self.relist(kind, namespace)
        for key in sorted(self._store.keys()):
            await self._refresh_claims(key)
        return frozenset(changed)

    async def refresh(self, key: Key) -> Snapshot:
        """Reads one deployment and its children from the API server (consistent reads, no cache) and updates the store.

        An optional kind that cannot be read now is missing in the snapshot's ``kinds`` and among its ``unlisted``.
        """
        served = [kind for kind in kinds.CHILDREN if kind in self._store.served]
        reads = asyncio.gather(*(self._refresh_kind(kind, key) for kind in served))
        _, _, done = await asyncio.gather(self._refresh_deployment(key), self._refresh_claims(key), reads)
        failed = frozenset(kind.name for kind, read in zip(served, done, strict=True) if not read)
        snapshot = self._store.snapshot(key, live=True)
        snapshot = replace(snapshot, kinds=snapshot.kinds - failed, unlisted=snapshot.unlisted | failed)
        return await self.with_dead_nodes(snapshot)

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
        """Lists one kind, in one namespace or (None) everywhere. Returns the deployments for which the store had missed something.

        These are all deployments if an optional kind is left out from now on, or no longer. Raises an ApiError, about the kind, if it is
        not optional and cannot be listed.
        """
        if kind.optional and kind not in self._found:
            return self._store.replace(kind, (), self._store.newest(kind), namespace=namespace)
        selector = None if kind is kinds.DFLASH_DEPLOYMENT else kinds.CHILD_SELECTOR
        try:
            entries, version = await self._entries(kind, namespace, selector)
        except ApiError as error:
            if not kind.optional:
                raise error.about(kind.name if namespace is None else f"{kind.name} in {namespace}") from error
            self._note_failure((kind, namespace), error)
            return self._sort_out()
        if kind.optional:
            self._listed.add((kind, namespace))
            self._failures.pop((kind, namespace), None)
        return self._store.replace(kind, entries, version, namespace=namespace) | self._sort_out()

    def watch_began(self, kind: Kind) -> None:
        """Notes that events of this kind arrive from now on."""
        self._watched.add(kind)

    @property
    def unwatched(self) -> frozenset[tuple[Kind, str | None]]:
        """Returns the optional kinds of which no watch has begun, with the namespace or None for all. They should be looked for again soon.

        kopf looks for kinds when a definition changes. If the API server does not serve the kind yet at that moment, kopf never watches it.
        """
        return frozenset(
            (kind, namespace)
            for kind in kinds.OPTIONAL
            if kind not in self._watched
            for namespace in (self._scopes if kind in self._found else self._scopes[:1])
            if (kind, namespace) not in self._failures
        )

    async def catch_up(self, kind: Kind, namespace: str | None) -> frozenset[Key]:
        """Lists a kind whose watch may have missed something. Returns the deployments for which the store had.

        These are all deployments if an optional kind is served since a short time, this one or another: it was not when kinds were looked
        for.
        """
        if not kind.optional or kind in self._found:
            return await self.relist(kind, namespace)
        before = self._found
        await self.discover()
        changed = before ^ self._found
        for other in sorted(changed, key=lambda kind: kind.name):
            for scope in self._scopes:
                await self.relist(other, scope)
        return self._store.keys() if changed else frozenset()

    def _note_failure(self, place: tuple[Kind, str | None], error: ApiError) -> None:
        before = self._failures.get(place)
        self._failures[place] = _Failure(error, before.since if before else self._clock(), place in self._listed)

    def _sort_out(self) -> frozenset[Key]:
        """Tells the store which kinds are served and which are unlisted. Returns every deployment if the unlisted ones have changed.

        A kind that was listed before is not left out for failures of a few seconds: its watch goes on.
        """
        now = self._clock()
        out = {kind: item for (kind, _), item in self._failures.items() if not item.known or now - item.since >= FAILING_SECONDS}
        before = self._store.unlisted
        self._store.unlisted = frozenset(out)
        self._store.served = (self._found | {kind for kind in kinds.STORED if not kind.optional}) - self._store.unlisted
        for kind in sorted(self._store.unlisted - before, key=lambda kind: kind.name):
            log.error("%s cannot be listed and is left out: %s", kind.name, out[kind].error)
        for kind in sorted(before - self._store.unlisted, key=lambda kind: kind.name):
            log.info("%s is no longer left out: it %s", kind.name, "is listed" if kind in self._found else "is not served any more")
        return self._store.keys() if self._store.unlisted != before else frozenset()

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

    async def _refresh_kind(self, kind: Kind, key: Key) -> bool:
        """Returns whether the kind could be read. Raises an ApiError about a kind that is not optional."""
        try:
            entries, version = await self._entries(kind, key.namespace, kinds.selector_of(key.name))
        except ApiError as error:
            if not kind.optional:
                raise error.about(kind.name) from error
            return False
        self._store.replace(kind, entries, version, key=key)
        return True

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
                    for number, obj in enumerate(page):
                        entries.append(Entry.of(kind, obj))
                        if number % AT_ONCE == 0:
                            await asyncio.sleep(0)
                    version = int(list_version)
                return entries, version
            except Gone:
                if last_try:
                    raise
        raise AssertionError("unreachable")
