"""The API server for asynchronous programs of the test bed: JSON requests and watches, as plain dictionaries."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
from kubernetes.aio import config as kubernetes_config
from kubernetes.aio.client import Configuration

log = logging.getLogger(__name__)

_PAGE = 500
_RETRY_S = 0.5
Object = Mapping[str, Any]
Self = TypeVar("Self", bound="WatchingApi")


class WatchingApi:
    """A cluster by the current context of a kubeconfig. Use it as an async context manager."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig
        self._opened: aiohttp.ClientSession | None = None

    async def __aenter__(self: Self) -> Self:
        settings = Configuration()
        await kubernetes_config.load_kube_config(config_file=str(self._kubeconfig), client_configuration=settings)
        context = ssl.create_default_context(cafile=settings.ssl_ca_cert, cadata=settings.ca_cert_data)
        # The certificate authorities of kwokctl and of older clusters lack extensions that strict checking requires.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if settings.cert_file:
            context.load_cert_chain(settings.cert_file, settings.key_file)
        token = settings.api_key.get("BearerToken")
        self._opened = aiohttp.ClientSession(
            settings.host,
            connector=aiohttp.TCPConnector(ssl=context),
            headers={"Authorization": token} if token else {},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
            read_bufsize=2**21,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._opened is not None:
            await self._opened.close()

    @property
    def _session(self) -> aiohttp.ClientSession:
        assert self._opened is not None
        return self._opened

    async def request(self, method: str, path: str, body: Any, type: str = "application/json", *, may: tuple[int, ...] = ()) -> int:
        """Sends a write. Returns its HTTP status. Raises aiohttp.ClientResponseError for one of 400 and above that is not in `may`."""
        # The API server keeps raw data as they are sent, sorts them when it patches, and then takes them for changed.
        data = json.dumps(body, sort_keys=True, separators=(",", ":"))
        async with self._session.request(method, path, data=data, headers={"Content-Type": type}) as response:
            if response.status not in may:
                response.raise_for_status()
            return response.status

    async def watch(self, path: str, **params: str) -> AsyncIterator[tuple[str, tuple[Object, ...]]]:
        """Yields what happens to a collection, forever: ADDED, MODIFIED or DELETED with one object, LISTED with all of them.

        After a lost connection or an expired version it starts with a fresh LISTED.
        """
        while True:
            try:
                objects, version = await self._list(path, params)
                yield "LISTED", objects
                async for event in self._follow(path, params, version):
                    yield event
            except (aiohttp.ClientError, TimeoutError, json.JSONDecodeError) as error:
                log.warning("%s: %s: %s; listing again", path, type(error).__name__, error)
            await asyncio.sleep(_RETRY_S)

    async def _list(self, path: str, params: Mapping[str, str]) -> tuple[tuple[Object, ...], str]:
        objects: list[Object] = []
        params = {**params, "limit": str(_PAGE)}
        while True:
            async with self._session.get(path, params=params) as response:
                response.raise_for_status()
                page = await response.json()
            objects += page["items"]
            if not page["metadata"].get("continue"):
                return tuple(objects), page["metadata"]["resourceVersion"]
            params["continue"] = page["metadata"]["continue"]

    async def _follow(self, path: str, params: Mapping[str, str], version: str) -> AsyncIterator[tuple[str, tuple[Object, ...]]]:
        params = {**params, "watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"}
        while True:
            async with self._session.get(path, params=params) as response:
                response.raise_for_status()
                async for line in response.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        log.info("watch of %s ended: %s", path, event["object"].get("message"))
                        return
                    params["resourceVersion"] = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        yield event["type"], (event["object"],)
