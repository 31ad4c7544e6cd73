"""Serves the progress over HTTP, because a pod without an API token cannot write it anywhere that the operator could read."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from dflash_controller.model.fetch_progress import PATH


class _BothFamilies(ThreadingHTTPServer):
    """Listens on IPv6 and IPv4 where the kernel has both."""

    daemon_threads = True

    def __init__(self, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        super().__init__(("", port), handler)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


def serve(port: int, report: Callable[[], dict[str, object]]) -> ThreadingHTTPServer:
    """Answers ``GET /progress`` with one JSON object until the process ends. Port 0 takes a free one. Raises OSError."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(report()).encode() if self.path == PATH else b""
            self.send_response(200 if body else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Keeps requests out of the log, which is for the download."""

    server = _BothFamilies(port, Handler)
    threading.Thread(target=server.serve_forever, daemon=True, name="progress").start()
    return server
