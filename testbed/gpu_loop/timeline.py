"""What happened when: the rollout's phases, the tuner's decisions, conditions and Events, as they were seen."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from testbed.demo_deployment import Deployment

_LOOK_S = 0.5


class Timeline:
    """Follows one DFlashDeployment from its own thread during its ``with`` block."""

    def __init__(self, deployment: Deployment, tell: Callable[[str], None]) -> None:
        self._deployment = deployment
        self._tell = tell
        self._began_s = time.time()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="timeline", daemon=True)
        self._last: dict[str, str] = {}
        self._events: set[str] = set()
        self._kept: list[dict[str, Any]] = []

    def __enter__(self) -> Timeline:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()

    def entries(self) -> list[dict[str, Any]]:
        """Returns everything so far, oldest first: seconds since the start, what, text."""
        return list(self._kept)

    def note(self, what: str, text: str) -> None:
        """Adds an entry."""
        at_s = time.time() - self._began_s
        self._kept.append({"at_s": round(at_s, 1), "what": what, "text": text})
        self._tell(f"{at_s:6.1f} s  {what}: {text}")

    def _run(self) -> None:
        while not self._ended.wait(_LOOK_S):
            try:
                self._look()
            except (OSError, RuntimeError):
                continue  # the API server is busy; the next look sees the same

    def _look(self) -> None:
        status = self._deployment.status()
        rollout, tuning = status.get("rollout") or {}, status.get("tuning") or {}
        if rollout:
            self._change("rollout", rollout["phase"], f"{rollout['phase']}: {rollout.get('message', '')}")
        if tuning:
            key = f"{tuning['state']} {tuning.get('reason')} {tuning.get('recommendation')}"
            self._change("tuner", key, f"{key}: {tuning.get('message', '')}")
        for item in status.get("conditions") or ():
            key = f"{item['status']} {item['reason']}"
            self._change(f"condition {item['type']}", key, f"{key}: {item['message']}")
        for item in status.get("notices") or ():
            self._change(f"notice {item['reason']}", item["message"], item["message"])
        for event in self._deployment.cluster.api.get("/api/v1/namespaces/default/events")["items"]:
            if event["metadata"]["uid"] not in self._events:
                self._events.add(event["metadata"]["uid"])
                about = event["involvedObject"]
                self.note(f"event {about['kind']}", f"{event['reason']}: {event['message']}")

    def _change(self, what: str, key: str, text: str) -> None:
        if self._last.get(what) != key:
            self._last[what] = key
            self.note(what, text)
