"""Serves the progress over HTTP, because a pod without an API token cannot write it anywhere that the operator could read."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PATH = "/progress"


def serve(port: int, report: Callable[[], dict[str, object]], host: str = "") -> ThreadingHTTPServer:
    """Answers ``GET /progress`` with one JSON object until the process ends. Port 0 takes a free one."""

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

    server = ThreadingHTTPServer((host, port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True, name="progress").start()
    return server
