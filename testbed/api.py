"""The API server over plain HTTP as its administrator, to wait, clean and create without starting kubectl each time."""

from __future__ import annotations

import json
import select
import ssl
import threading
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml


class ApiError(RuntimeError):
    """The API server refused a request. `status` is its HTTP status code."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class AdminApi:
    """JSON requests with the client certificate of an admin kubeconfig. Thread-safe: each thread keeps its own connection."""

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self.server: str = cluster["server"]
        self.ca_file = Path(cluster["certificate-authority"])
        self._tls = ssl.create_default_context(cafile=str(self.ca_file))
        self._tls.load_cert_chain(user["client-certificate"], user["client-key"])
        self._kept = threading.local()

    def request(self, method: str, path: str, body: Any = None, timeout: float = 30.0) -> Any:
        """Returns the decoded answer (text if it is not JSON). Raises ApiError for a status of 400 and above, OSError without a
        connection."""
        connection = self._connection(timeout)
        try:
            content = None if body is None else json.dumps(body)
            headers = {"Content-Type": "application/merge-patch+json" if method == "PATCH" else "application/json"}
            connection.request(method, path, content, headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        except BaseException as error:
            connection.close()
            if isinstance(error, HTTPException):
                raise ConnectionError(f"{method} {path}: {error!r}") from error
            raise
        decoded = json.loads(text) if text.startswith("{") else text
        if answer.status >= 400:
            raise ApiError(answer.status, decoded.get("message", text) if isinstance(decoded, dict) else text)
        return decoded

    def _connection(self, timeout: float) -> HTTPSConnection:
        """Returns this thread's connection. It opens itself when needed, and is closed here if the server has gone in the meantime."""
        connection: HTTPSConnection | None = getattr(self._kept, "connection", None)
        if connection is None:
            address = urlsplit(self.server)
            connection = self._kept.connection = HTTPSConnection(address.hostname or "127.0.0.1", address.port, context=self._tls)
        connection.timeout = timeout
        if connection.sock is not None:
            connection.sock.settimeout(timeout)
            # Between two requests a server sends nothing but the end of the connection.
            poll = select.poll()
            poll.register(connection.sock, select.POLLIN)
            if poll.poll(0):
                connection.close()
        return connection

    def get(self, path: str) -> Any:
        """Returns the answer to a GET."""
        return self.request("GET", path)

    def delete(self, path: str, **options: Any) -> None:
        """Deletes an object or, with a collection's path, all its objects. Missing ones are no error."""
        try:
            self.request("DELETE", path, {"apiVersion": "v1", "kind": "DeleteOptions", **options})
        except ApiError as error:
            if error.status != 404:
                raise

    def is_ready(self) -> bool:
        """Returns whether the API server answers and reports ready, within one second."""
        try:
            return bool(self.request("GET", "/readyz", timeout=1.0) == "ok")
        except (OSError, ApiError):
            return False
