"""Reading the API server's audit log: who did what, one event per answered request."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

WRITE_VERBS = frozenset({"create", "update", "patch", "delete", "deletecollection"})


def read_events(log: Path, since: int = 0, *, user: str | None = None, verbs: Collection[str] | None = None) -> list[dict[str, Any]]:
    """Events after byte `since` of the log, oldest first, kept where user name and verb match.

    A half-written last line is left for later.
    """
    with log.open("rb") as stream:
        stream.seek(since)
        lines = stream.read().split(b"\n")[:-1]
    events = (json.loads(line) for line in lines)
    return [event for event in events if (user is None or event["user"]["username"] == user) and (verbs is None or event["verb"] in verbs)]


def service_account_user(namespace: str, name: str) -> str:
    """User name under which a ServiceAccount's requests are logged."""
    return f"system:serviceaccount:{namespace}:{name}"
