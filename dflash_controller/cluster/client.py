"""Client of the API server: plain dictionaries in and out, typed errors, limited connections, a timeout for every call."""

from __future__ import annotations

import copy
import json
import re
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import Any, Protocol, Self

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.dynamic import DynamicClient

from dflash_controller import __version__
from dflash_controller.api import names
from dflash_controller.cluster.access import SOCKET_CONNECT_SECONDS
from dflash_controller.cluster.errors import NotFound, Unavailable, error_of
from dflash_controller.cluster.kinds import Kind

PAGE_SIZE = 500
TOTAL_SECONDS = 30.0
CONNECTIONS = 32
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""Characters that JSON allows in a string and YAML only if escaped."""
USER_AGENT = f"dflash-operator/{__version__}"

Obj = dict[str, Any]
_TEXT = Kind("v1", "Text", "")
"""Stands for what is no object where requests are observed."""


class RequestObserver(Protocol):
    """Called after each request; ``code`` is 0 if there was no answer."""

    def __call__(self, verb: str, kind: str, code: int, seconds: float) -> None: ...


def _unobserved(verb: str, kind: str, code: int, seconds: float) -> None:
    """Ignores the request."""


class Client:
    """The official asynchronous dynamic client, reduced to the calls of the operator.

    Every method raises a subclass of ``errors.ApiError``. None retries, because every caller is a loop that tries again.
    """

    def __init__(
        self,
        configuration: Configuration,
        *,
        connections: int = CONNECTIONS,
        total_s: float = TOTAL_SECONDS,
        observe: RequestObserver = _unobserved,
        user_agent: str = USER_AGENT,
        field_manager: str = names.FIELD_MANAGER,
    ) -> None:
        """``user_agent`` and ``field_manager`` are what the API server's audit log and ``metadata.managedFields`` name."""
        own = copy.copy(configuration)
        own.connection_pool_maxsize = connections
        self._api = ApiClient(own)
        self._api.user_agent = user_agent
        self._dynamic = DynamicClient(self._api)
        self._total_s = total_s
        self._manager = field_manager
        self._observe = observe

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        await self._api.close()

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Obj:
        """Returns one object; ``namespace`` is None for a cluster-scoped kind."""
        return await self._call("get", kind, kind.path(namespace, name))

    async def pages(
        self, kind: Kind, namespace: str | None = None, *, selector: str | None = None, field_selector: str | None = None
    ) -> AsyncIterator[tuple[list[Obj], str]]:
        """Yields the collection page by page, each with the resourceVersion of the whole list; ``namespace`` None means all namespaces.

        Raises Gone if a continue token has expired: list again from the start.
        """
        token: str | None = None
        while True:
            page = await self._call(
                "list", kind, kind.path(namespace), label_selector=selector, field_selector=field_selector, limit=PAGE_SIZE, _continue=token
            )
            items: list[Obj] = page.get("items") or []
            for item in items:
                item.setdefault("apiVersion", kind.api_version)
                item.setdefault("kind", kind.name)
            yield items, str(page["metadata"]["resourceVersion"])
            token = page["metadata"].get("continue")
            if not token:
                return

    async def create(self, kind: Kind, manifest: Mapping[str, Any]) -> Obj:
        """Sends a POST. Raises AlreadyExists if the name is taken.

        The body is YAML, so that the API server encodes the stored JSON itself. It stores ``ControllerRevision.data`` byte by byte and
        compares it for immutability: with this client's blanks in it, a later patch of an annotation would count as a change of the data.
        """
        path = kind.path(manifest["metadata"]["namespace"])
        text = _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(manifest, ensure_ascii=False, default=dict))
        return await self._call("create", kind, path, body=text, content_type="application/yaml", field_manager=self._manager)

    async def replace(self, kind: Kind, manifest: Mapping[str, Any]) -> Obj:
        """Sends a PUT. Raises Conflict if the manifest's resourceVersion is not the current one."""
        metadata = manifest["metadata"]
        path = kind.path(metadata["namespace"], metadata["name"])
        return await self._call("update", kind, path, body=dict(manifest), field_manager=self._manager)

    async def apply(self, kind: Kind, manifest: Mapping[str, Any], *, force: bool = True, subresource: str | None = None) -> Obj:
        """Sends a server-side apply. A resourceVersion or uid in the manifest is a precondition, even with force: else raises Conflict."""
        metadata = manifest["metadata"]
        return await self._call(
            "apply",
            kind,
            kind.path(metadata["namespace"], metadata["name"], subresource),
            body=dict(manifest),
            content_type="application/apply-patch+yaml",
            field_manager=self._manager,
            force_conflicts=force,
        )

    async def merge_patch(self, kind: Kind, namespace: str, name: str, patch: Mapping[str, Any]) -> Obj:
        """Sends a JSON merge patch. A ``metadata.resourceVersion`` in it is a precondition: raises Conflict if it fails."""
        return await self._call(
            "patch",
            kind,
            kind.path(namespace, name),
            body=dict(patch),
            content_type="application/merge-patch+json",
            field_manager=self._manager,
        )

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str, resource_version: str | None = None) -> Obj:
        """Deletes in the background if the object still has this UID (and version).

        Returns the object (always while finalizers remain) or a Status.
        """
        preconditions = {"uid": uid} | ({"resourceVersion": resource_version} if resource_version else {})
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background", "preconditions": preconditions}
        return await self._call("delete", kind, kind.path(namespace, name), body=body)

    async def text(self, path: str, **query: Any) -> str:
        """Returns the body of an answer that is no object: a log, or what the API server passes on from a Service."""
        return str(await self._send("get", _TEXT, path, plain=True, query_params=list(query.items())))

    async def served(self, kinds: Iterable[Kind]) -> frozenset[Kind]:
        """Returns the kinds that the API server serves now."""
        found: set[Kind] = set()
        for kind in kinds:
            try:
                resources = await self._call("discover", kind, kind.discovery_path)
            except NotFound:
                continue
            if any(resource["name"] == kind.plural for resource in resources.get("resources", ())):
                found.add(kind)
        return frozenset(found)

    async def _call(self, verb: str, kind: Kind, path: str, **options: Any) -> Obj:
        answer: Obj = await self._send(verb, kind, path, **options)
        return answer

    async def _send(self, verb: str, kind: Kind, path: str, *, plain: bool = False, **options: Any) -> Any:
        """Returns the decoded answer, or its text if it is ``plain``."""
        method = {"get": "get", "list": "get", "discover": "get", "create": "post", "update": "put", "delete": "delete"}.get(verb, "patch")
        started, code = time.monotonic(), 0
        timeout = aiohttp.ClientTimeout(total=self._total_s, sock_connect=min(self._total_s, SOCKET_CONNECT_SECONDS))
        try:
            response = await self._dynamic.request(method, path, serialize=False, _request_timeout=timeout, **options)
            code = response.status
            return await (response.text() if plain else response.json(content_type=None))
        except ApiException as error:
            code = error.status or 0
            raise error_of(code, error.body) from error
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            raise Unavailable(0, "NoAnswer", f"{verb} {path}: {type(error).__name__} {error}".rstrip()) from error
        finally:
            self._observe(verb, kind.name, code, time.monotonic() - started)
