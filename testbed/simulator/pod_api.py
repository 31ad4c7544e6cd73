"""Lists and watches pods at a Kubernetes API server, as plain dictionaries, and writes annotations."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from kubernetes.aio import config as kubernetes_config
from kubernetes.aio.client import Configuration

log = logging.getLogger(__name__)

_PAGE = 500
_RETRY_S = 0.5
Pod = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PodEvent:
    """One event. ``kind`` is ADDED, MODIFIED or DELETED; a complete list arrives as LISTED with all pods."""

    kind: str
    pods: tuple[Pod, ...]


class PodApi:
    """All pods of a cluster, by the current context of a kubeconfig. Use it as an async context manager."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> PodApi:
        settings = Configuration()
        await kubernetes_config.load_kube_config(config_file=str(self._kubeconfig), client_configuration=settings)
        context = ssl.create_default_context(cafile=settings.ssl_ca_cert, cadata=settings.ca_cert_data)
        # The certificate authorities of kwokctl and of older clusters lack extensions that strict checking requires.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if settings.cert_file:
            context.load_cert_chain(settings.cert_file, settings.key_file)
        token = settings.api_key.get("BearerToken")
        self._session = aiohttp.ClientSession(
            settings.host,
            connector=aiohttp.TCPConnector(ssl=context),
            headers={"Authorization": token} if token else {},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
            read_bufsize=2**21,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def events(self) -> AsyncIterator[PodEvent]:
        """Yields all events, forever. After a lost connection or an expired version it starts with a fresh LISTED."""
        while True:
            try:
                pods, version = await self._list()
                yield PodEvent("LISTED", pods)
                async for event in self._watch(version):
                    yield event
            except (aiohttp.ClientError, TimeoutError, json.JSONDecodeError) as error:
                log.warning("pods: %s: %s; listing again", type(error).__name__, error)
            await asyncio.sleep(_RETRY_S)

    async def annotate(self, pod: Pod, annotations: Mapping[str, str | None]) -> None:
        """Sets annotations of a pod; None removes one. A pod that is gone, or another with the same name, is left unchanged."""
        assert self._session is not None
        meta = pod["metadata"]
        body = {"metadata": {"uid": meta["uid"], "annotations": dict(annotations)}}
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        headers = {"Content-Type": "application/merge-patch+json"}
        async with self._session.patch(path, data=json.dumps(body), headers=headers) as response:
            if response.status not in (404, 409):
                response.raise_for_status()

    async def _list(self) -> tuple[tuple[Pod, ...], str]:
        assert self._session is not None
        pods: list[Pod] = []
        params = {"limit": str(_PAGE)}
        while True:
            async with self._session.get("/api/v1/pods", params=params) as response:
                response.raise_for_status()
                page = await response.json()
            pods += page["items"]
            if not page["metadata"].get("continue"):
                return tuple(pods), page["metadata"]["resourceVersion"]
            params["continue"] = page["metadata"]["continue"]

    async def _watch(self, version: str) -> AsyncIterator[PodEvent]:
        assert self._session is not None
        params = {"watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"}
        while True:
            async with self._session.get("/api/v1/pods", params=params) as response:
                response.raise_for_status()
                async for line in response.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        log.info("watch of pods ended: %s", event["object"].get("message"))
                        return
                    params["resourceVersion"] = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        yield PodEvent(event["type"], (event["object"],))
