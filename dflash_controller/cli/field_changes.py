"""The fields in which two values differ, for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def changes(before: Any, after: Any, path: str) -> list[str]:
    """Returns the fields below a path that differ, one in a line, each with both values."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        names = [*before, *(name for name in after if name not in before)]
        return [line for name in names for line in changes(before.get(name), after.get(name), f"{path}.{name}")]
    return [] if before == after else [f"{path}: {_shown(before)} -> {_shown(after)}"]


def _shown(value: Any) -> str:
    return "not set" if value is None else json.dumps(value, ensure_ascii=False)
