"""Watches with kopf: every event goes into the store, and the key of its deployment into the queue. kopf itself writes nothing.

kopf runs on its own thread and event loop. When it ends it waits for, then cancels, every task on its loop that is younger than itself; on
a shared loop these would include the workers. On a thread it installs no signal handlers either, so the operator controls the order of
stopping.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import aiohttp
import kopf
from yarl import URL

from dflash_controller.api import names
from dflash_controller.cluster import kinds
from dflash_controller.cluster.access import load_configuration, watch_session
from dflash_controller.cluster.client import PAGE_SIZE, USER_AGENT
from dflash_controller.cluster.kinds import Kind
from dflash_controller.cluster.store import Store
from dflash_controller.model.snapshot import Key

ERROR_BACKOFFS = (1, 1, 2, 3, 5, 8, 13, 21, 34, 34, 34, 34, 34, 34, 34)
"""Pauses in seconds between attempts of a failing watch: about five minutes in total, then the process ends and is restarted."""
OPTIONAL_RETRY_SECONDS = 30.0
"""Pause after a refused list or watch of an optional kind; shorter than ``request_timeout`` below. It is tried again for ever."""
SPARE_CONNECTIONS = 16
WATCH_USER_AGENT = f"{USER_AGENT} (watch)"

log = logging.getLogger(__name__)


Opened = Callable[[Kind, str | None], None]


class EventSink:
    """Passes events from kopf's thread to the operator's loop. Create it on that loop.

    ``opened`` is called with kind and namespace of a watch that begins with a list. kopf emits no event for objects deleted since its last
    list or before its first one, so the owner of a store must list that kind again.
    """

    def __init__(self, store: Store, *, enqueue: Callable[[Key], None], arrived: Callable[[str], None], opened: Opened) -> None:
        self._loop = asyncio.get_running_loop()
        self._store = store
        self._enqueue = enqueue
        self._arrived = arrived
        self._opened = opened

    def receive(self, kind: Kind, event: Mapping[str, Any]) -> None:
        """Called on kopf's thread."""
        self._loop.call_soon_threadsafe(self._take_in, kind, event)

    def watch_opened(self, kind: Kind, namespace: str | None) -> None:
        """Called on kopf's thread."""
        self._loop.call_soon_threadsafe(self._opened, kind, namespace)

    def _take_in(self, kind: Kind, event: Mapping[str, Any]) -> None:
        self._arrived(kind.name)
        take_in = self._store.remove if event["type"] == "DELETED" else self._store.put
        for key in take_in(kind, event["object"]):
            self._enqueue(key)


def make_registry(sink: EventSink, namespaces: Sequence[str]) -> kopf.OperatorRegistry:
    """Returns kopf's handlers: settings at startup, login, and one event handler per kind. No namespaces means all."""
    connections = len(kinds.STORED) * max(1, len(namespaces)) + SPARE_CONNECTIONS
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure_kopf(settings, clusterwide=not namespaces)

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.AiohttpSession:
        configuration = await load_configuration()
        observe = observe_requests(URL(configuration.host).path.rstrip("/"), namespaces or (None,), sink.watch_opened)
        session = await watch_session(configuration, connections=connections, user_agent=WATCH_USER_AGENT, observe=observe)
        return kopf.AiohttpSession(server=configuration.host, aiohttp_session=session)

    for kind in kinds.STORED:
        kopf.on.event(kind.group, kind.version, kind.plural, id=f"on-{kind.plural}", registry=registry)(_handler(kind, sink))
    return registry


def configure_kopf(settings: kopf.OperatorSettings, *, clusterwide: bool) -> None:
    """Turns off peering and posted events, limits waits, and lets the API server filter children.

    An operator limited to some namespaces may read neither CustomResourceDefinitions nor namespaces, and kopf would retry for minutes. So
    kopf does not scan for kinds installed later: the resync looks for them and lists them often, and a restart watches them.
    """
    settings.scanning.disabled = not clusterwide
    settings.peering.standalone = True
    settings.persistence.finalizer = f"{names.GROUP}/finalizer"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=names.GROUP, v1=False)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=names.GROUP, key="last-handled", v1=False)
    settings.posting.enabled = False
    settings.networking.connect_timeout = 10
    settings.networking.request_timeout = 60
    settings.networking.error_backoffs = ERROR_BACKOFFS
    settings.watching.chunk_size = PAGE_SIZE
    settings.queueing.idle_timeout = 1
    settings.queueing.exit_timeout = 2
    for kind in kinds.CHILDREN:
        settings.watching.label_selectors[kind.group, kind.version, kind.plural] = kinds.CHILD_SELECTOR


class Watches:
    """kopf, running until stopped or until it fails."""

    def __init__(self, sink: EventSink, *, namespaces: Sequence[str], identity: str) -> None:
        self._sink = sink
        self._namespaces = tuple(namespaces)
        self._identity = identity
        self._stop = threading.Event()

    async def run(self) -> None:
        """Watches until ``stop`` is called. Raises the error on which kopf gives up, such as a watch refused for minutes."""
        await asyncio.to_thread(self._run)

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        # By default kopf takes the identity from the user's name, which a random UID in a container does not have.
        identity: Any = self._identity
        kopf.run(
            registry=make_registry(self._sink, self._namespaces),
            clusterwide=not self._namespaces,
            namespaces=self._namespaces,
            standalone=True,
            identity=identity,
            stop_flag=self._stop,
        )


def _handler(kind: Kind, sink: EventSink) -> Callable[..., Any]:
    async def on_event(event: Mapping[str, Any], **_: Any) -> None:
        sink.receive(kind, event)

    return on_event


def observe_requests(
    prefix: str, namespaces: Sequence[str | None], opened: Opened, *, pause_s: float = OPTIONAL_RETRY_SECONDS
) -> aiohttp.ClientMiddlewareType:
    """Returns a middleware for kopf's requests. ``prefix`` is the path of the API server's address.

    It calls ``opened`` for watches that follow a list, as opposed to resumed ones, because kopf has no hook for it. It turns a refused
    request for an optional kind into a lost connection: kopf ends the process for minutes of refusals, but tries again for ever after
    lost connections.
    """
    places = {prefix + kind.path(namespace): (kind, namespace) for kind in kinds.STORED for namespace in namespaces}
    listed: set[str] = set()

    async def observe(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        response = await handler(request)
        path = request.url.path
        if path in places and places[path][0].optional and (response.status in (403, 404) or response.status >= 500):
            response.release()
            await asyncio.sleep(pause_s)
            raise aiohttp.ClientConnectionError(f"{places[path][0].name} cannot be read: HTTP status {response.status}")
        if path in places and response.status == 200:
            if request.url.query.get("watch") != "true":
                listed.add(path)
            elif path in listed:
                listed.discard(path)
                opened(*places[path])
        return response

    return observe
