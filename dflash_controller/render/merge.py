"""Merges a change into a stored manifest, so that the result has the change and otherwise stays as it was stored.

The stored manifest may come from another release of the operator, which rendered flags or fields differently. What that release rendered is
kept, except where the change itself differs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from dflash_controller.engines.flags import Flag

_ABSENT: Any = object()


def three_way(base: Any, changed: Any, stored: Any) -> Any:
    """Returns ``stored`` with everything applied in which ``changed`` differs from ``base``.

    ``base`` and ``changed`` are rendered by the same code. If ``stored`` equals ``base``, the result is ``changed``. Maps are merged by
    key, lists by name, command lines by flag, and flags whose value is a JSON object by its keys.
    """
    if changed == base or changed is base:
        return stored
    if stored == base:
        return changed
    match base, changed, stored:
        case Mapping(), Mapping(), Mapping():
            return _merged(base, changed, stored, [*changed, *(key for key in stored if key not in changed)])
        case list(), list(), list():
            return _lists(base, changed, stored)
        case str(), str(), str():
            return _texts(base, changed, stored)
        case (list() | Mapping(), _, list() | Mapping()) if changed is _ABSENT:
            # An empty list or map is not rendered. What the change did not take away stays.
            return three_way(base, type(base)(), stored) or _ABSENT
        case (_, list() | Mapping(), list() | Mapping()) if base is _ABSENT:
            return three_way(type(changed)(), changed, stored)
    return changed


def _merged(base: Mapping[Any, Any], changed: Mapping[Any, Any], stored: Mapping[Any, Any], order: Sequence[Any]) -> dict[Any, Any]:
    found = {key: three_way(base.get(key, _ABSENT), changed.get(key, _ABSENT), stored.get(key, _ABSENT)) for key in order}
    return {key: value for key, value in found.items() if value is not _ABSENT}


def _lists(base: list[Any], changed: list[Any], stored: list[Any]) -> list[Any]:
    """Merges lists in the order of ``stored``. A new item comes after the one that it follows in ``changed``."""
    sides = [_keyed(items) for items in (base, changed, stored)]
    order, place = list(sides[2]), 0
    for key in sides[1]:
        if key in sides[2]:
            place = order.index(key) + 1
        else:
            order.insert(place, key)
            place += 1
    return list(_merged(sides[0], sides[1], sides[2], order).values())


def _keyed(items: Sequence[Any]) -> dict[Hashable, Any]:
    """Returns the items by what identifies them: the name, the flag, or the place among the other words of a command line."""
    seen: Counter[Hashable] = Counter()
    keyed: dict[Hashable, Any] = {}
    for item in items:
        key = _identity(item)
        keyed[key, seen[key]] = item
        seen[key] += 1
    return keyed


def _identity(item: Any) -> Hashable:
    if isinstance(item, str):
        flag = _flag(item)
        return flag.name if flag else ""
    if isinstance(item, Mapping) and "name" in item:
        return ("name", str(item["name"]))
    return json.dumps(item, sort_keys=True)


def _texts(base: str, changed: str, stored: str) -> str:
    objects = [json_value(text) for text in (base, changed, stored)]
    if not all(objects):
        return changed
    merged = three_way(*objects)
    return f"{changed.partition('=')[0]}={json.dumps(merged, separators=(',', ':'), ensure_ascii=False)}"


def json_value(token: str) -> dict[str, Any] | None:
    """Returns the JSON object that a flag has for a value; None if the token is no flag or its value is something else."""
    flag = _flag(token)
    if flag is None or flag.value is None or not flag.value.startswith("{"):
        return None
    try:
        value = json.loads(flag.value)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _flag(token: str) -> Flag | None:
    try:
        return Flag.parse(token)
    except ValueError:
        return None
