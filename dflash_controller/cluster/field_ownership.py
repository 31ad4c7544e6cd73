"""Whether an object still is what was applied: the manifest held against the live object and the fields the API server says are ours.

The API server keeps, per field manager, the tree of fields it applied (``metadata.managedFields[].fieldsV1``). That tree tells more than
the values do: a field somebody else changed is no longer ours, and its shape says which lists are keyed (``k:``), which are sets (``v:``)
and which are one atomic value, for built-in kinds and custom resources alike. So no table of merge keys is needed, and a field no longer
rendered is found too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from dflash_controller.api import names
from dflash_controller.api.quantity import canonical_quantity

Path = tuple[str, ...]
"""Segments as in fieldsV1: ``f:spec``, ``f:containers``, ``k:{"name":"engine"}``."""

Tree = Mapping[str, Any]

_UNMANAGED = {"apiVersion", "kind"}
_UNMANAGED_METADATA = {"name", "namespace", "uid", "resourceVersion", "managedFields", "generation", "creationTimestamp"}
_QUANTITY_MAPS = {"limits", "requests", "overhead"}
_QUANTITY_FIELDS = {"sizeLimit", "divisor"}


def drift(manifest: Mapping[str, Any], live: Mapping[str, Any]) -> list[Path]:
    """The fields in which ``live`` is not what applying ``manifest`` would leave; empty when applying would change nothing.

    A field differs when its value does, when it is not (any more) the operator's, or when it is the operator's and no longer rendered.
    """
    owned = owned_fields(live, names.FIELD_MANAGER)
    rendered = {field: value for field, value in manifest.items() if field not in _UNMANAGED}
    rendered["metadata"] = {field: value for field, value in manifest["metadata"].items() if field not in _UNMANAGED_METADATA} or None
    found: list[Path] = []
    _compare_map(rendered, live, owned, (), found)
    return found


def owned_fields(obj: Mapping[str, Any], manager: str) -> Tree:
    """The fields this manager applied to the object itself (not to a subresource); empty when there are none."""
    for entry in obj["metadata"].get("managedFields") or ():
        if entry.get("manager") == manager and entry.get("operation") == "Apply" and not entry.get("subresource"):
            fields: Tree = entry.get("fieldsV1") or {}
            return fields
    return {}


def other_managers(obj: Mapping[str, Any], paths: Iterable[Path]) -> tuple[str, ...]:
    """Managers other than the operator that hold one of the fields, the latest writer first. ``obj`` must carry all its managedFields."""
    wanted = tuple(paths)
    holders = [
        (entry.get("time") or "", str(entry.get("manager") or "unknown"))
        for entry in obj["metadata"].get("managedFields") or ()
        if entry.get("manager") != names.FIELD_MANAGER and any(_holds(entry.get("fieldsV1") or {}, path) for path in wanted)
    ]
    return tuple(dict.fromkeys(manager for _, manager in sorted(holders, reverse=True)))


def readable(path: Path) -> str:
    """The path as a user would write it: ``spec.template.spec.containers[name=engine].image``."""
    text = ""
    for segment in path:
        tag, _, rest = segment.partition(":")
        if tag == "f":
            text += f".{rest}"
        elif tag == "k":
            text += "[" + ",".join(f"{name}={value}" for name, value in _item_key(segment).items()) + "]"
        else:
            text += f"[{rest}]"
    return text.lstrip(".")


def equal_leaf(rendered: Any, live: Any, path: Path = ()) -> bool:
    """Whether an atomic value is what was rendered: maps may carry defaults too, lists agree item by item, quantities as numbers."""
    if isinstance(rendered, Mapping):
        return isinstance(live, Mapping) and all(
            equal_leaf(value, live.get(field), (*path, f"f:{field}")) for field, value in rendered.items() if value is not None
        )
    if _is_list(rendered):
        return _is_list(live) and len(rendered) == len(live) and all(equal_leaf(a, b, path) for a, b in zip(rendered, live, strict=True))
    if isinstance(rendered, bool) or isinstance(live, bool):
        return rendered is live
    return bool(rendered == live) or (_is_quantity(path) and _same_quantity(rendered, live))


def _compare(rendered: Any, live: Any, owned: Tree, path: Path, found: list[Path]) -> None:
    children = [segment for segment in owned if segment != "."]
    if isinstance(rendered, Mapping) and children:
        _compare_map(rendered, live if isinstance(live, Mapping) else {}, owned, path, found)
    elif _is_list(rendered) and any(segment.startswith("k:") for segment in children):
        _compare_keyed(rendered, live if _is_list(live) else [], owned, path, found)
    elif _is_list(rendered) and any(segment.startswith("v:") for segment in children):
        wanted = {f"v:{json.dumps(value)}" for value in rendered}
        if wanted != set(children) or not _is_list(live) or any(value not in live for value in rendered):
            found.append(path)
    elif not equal_leaf(rendered, live, path):
        found.append(path)


def _compare_map(rendered: Mapping[str, Any], live: Mapping[str, Any], owned: Tree, path: Path, found: list[Path]) -> None:
    wanted = {f"f:{field}": value for field, value in rendered.items() if value is not None}
    for segment, value in wanted.items():
        here = (*path, segment)
        if segment in owned:
            _compare(value, live.get(segment[2:]), owned[segment], here, found)
        else:
            found.append(here)
    found += [(*path, segment) for segment in owned if segment.startswith("f:") and segment not in wanted]


def _compare_keyed(rendered: Sequence[Any], live: Sequence[Any], owned: Tree, path: Path, found: list[Path]) -> None:
    left = [segment for segment in owned if segment.startswith("k:")]
    for item in rendered:
        segment = next((candidate for candidate in left if _has_key(item, _item_key(candidate))), None)
        if segment is None:
            found.append(path)
            continue
        left.remove(segment)
        key = _item_key(segment)
        counterpart = next((other for other in live if all(other.get(field) == value for field, value in key.items())), None)
        _compare(item, counterpart, owned[segment], (*path, segment), found)
    found += [(*path, segment) for segment in left]


def _holds(tree: Tree, path: Path) -> bool:
    for segment in path:
        if segment not in tree:
            return not [child for child in tree if child != "."]
        tree = tree[segment]
    return True


def _has_key(item: Mapping[str, Any], key: Mapping[str, Any]) -> bool:
    """A key field the manifest leaves out (a port's protocol) is filled in by the API server."""
    return all(item.get(field, value) == value for field, value in key.items())


@lru_cache(maxsize=4096)
def _item_key(segment: str) -> Mapping[str, Any]:
    key: Mapping[str, Any] = json.loads(segment[2:])
    return key


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _is_quantity(path: Path) -> bool:
    last = path[-1][2:] if path else ""
    above = path[-2][2:] if len(path) > 1 else ""
    return above in _QUANTITY_MAPS or last in _QUANTITY_FIELDS


def _same_quantity(rendered: Any, live: Any) -> bool:
    try:
        return canonical_quantity(rendered) == canonical_quantity(live)
    except ValueError:
        return False
