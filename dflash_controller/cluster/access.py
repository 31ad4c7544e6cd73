"""Configures access to the API server: address, TLS and credentials, from the pod's service account or a kubeconfig."""

from __future__ import annotations

import os
from collections.abc import Mapping

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client import Configuration
from kubernetes.aio.client.rest import RESTClientObject

SOCKET_CONNECT_SECONDS = 10.0


async def load_configuration(environ: Mapping[str, str] = os.environ) -> Configuration:
    """Loads the kubeconfig that ``$KUBECONFIG`` names, else the pod's service account, else ``~/.kube/config``.

    A service account's token is read again every minute, because it is renewed on disk long before it expires.
    Raises ``kubernetes.aio.config.ConfigException`` if none of them can be used.
    """
    configuration = Configuration()
    if not environ.get("KUBECONFIG") and environ.get("KUBERNETES_SERVICE_HOST"):
        config.load_incluster_config(client_configuration=configuration)
    else:
        await config.load_kube_config(config_file=environ.get("KUBECONFIG"), client_configuration=configuration, persist_config=False)
    return configuration


async def watch_session(
    configuration: Configuration, *, connections: int, user_agent: str, observe: aiohttp.ClientMiddlewareType
) -> aiohttp.ClientSession:
    """Returns an HTTP session with the same TLS and credentials, for a library with its own client. ``observe`` sees every request.

    The token is looked up at every request.
    """

    async def authorize(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        settings = (await configuration.auth_settings()).get("BearerToken")
        if settings and settings["value"]:
            request.headers["Authorization"] = settings["value"]
        return await handler(request)

    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=connections, ssl=RESTClientObject(configuration).ssl_context),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=SOCKET_CONNECT_SECONDS),
        headers={"User-Agent": user_agent},
        middlewares=(observe, authorize),
        trust_env=True,
    )
