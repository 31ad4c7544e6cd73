"""Reads the API server's audit log: who did what, one event per answered request."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

WRITE_VERBS = frozenset({"create", "update", "patch", "delete", "deletecollection"})


def position(log: Path) -> int:
    """Returns the end of the log, counted over all its files: the API server begins a new one at 100 MB."""
    return sum(part.stat().st_size for part in _parts(log))


def read_events(log: Path, since: int = 0, *, user: str | None = None, verbs: Collection[str] | None = None) -> list[dict[str, Any]]:
    """Returns events after position `since` of the log, oldest first, filtered by user name and verb.

    A half-written last line is left for the next call. A line that was half written at `since` counts as earlier and is left out.
    """
    text = b""
    for part in _parts(log):
        size = part.stat().st_size
        if since < size:
            with part.open("rb") as stream:
                stream.seek(max(0, since - 1))
                text += stream.read() if since > 0 else b"\n" + stream.read()
        since = max(0, since - size)
    lines = text.split(b"\n")[1:-1]
    events = (json.loads(line) for line in lines if line)
    return [event for event in events if (user is None or event["user"]["username"] == user) and (verbs is None or event["verb"] in verbs)]


def _parts(log: Path) -> list[Path]:
    """Returns the full files, which have the time in their names, and the current one."""
    return [*sorted(log.parent.glob(f"{log.stem}-*{log.suffix}")), log]


def service_account_user(namespace: str, name: str) -> str:
    """Returns the user name under which a ServiceAccount's requests are logged."""
    return f"system:serviceaccount:{namespace}:{name}"
