"""Detects whether a live object still matches the applied manifest, from its values and the fields that the operator owns.

The API server keeps, per field manager, the tree of fields it applied (``metadata.managedFields[].fieldsV1``). A field that somebody else
changed is no longer in the operator's tree. The tree also shows which lists are keyed (``k:``), which are sets (``v:``) and which are one
atomic value, for built-in kinds and custom resources alike. So no table of merge keys is needed, and fields no longer rendered are found.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from dflash_controller.api import names
from dflash_controller.api.quantity import canonical_quantity

Path = tuple[str, ...]
"""Segments of fieldsV1: ``f:spec``, ``f:containers``, ``k:{"name":"engine"}``."""

Tree = Mapping[str, Any]

_UNMANAGED = {"apiVersion", "kind"}
_UNMANAGED_METADATA = {"name", "namespace", "uid", "resourceVersion", "managedFields", "generation", "creationTimestamp"}
_QUANTITY_MAPS = {"limits", "requests", "overhead"}
_QUANTITY_FIELDS = {"sizeLimit", "divisor"}


def drift(manifest: Mapping[str, Any], live: Mapping[str, Any]) -> list[Path]:
    """Returns the fields that applying ``manifest`` would change in ``live``; empty if none.

    A field differs if its value differs, if the operator does not own it (any more), or if the operator owns it and no longer renders it.
    """
    owned = owned_fields(live, names.FIELD_MANAGER)
    rendered = {field: value for field, value in manifest.items() if field not in _UNMANAGED}
    rendered["metadata"] = {field: value for field, value in manifest["metadata"].items() if field not in _UNMANAGED_METADATA} or None
    found: list[Path] = []
    _compare_map(rendered, live, owned, (), found)
    return found


def owned_fields(obj: Mapping[str, Any], manager: str) -> Tree:
    """Returns the fields this manager applied to the object itself (not to a subresource); empty if there are none."""
    for entry in obj["metadata"].get("managedFields") or ():
        if entry.get("manager") == manager and entry.get("operation") == "Apply" and not entry.get("subresource"):
            fields: Tree = entry.get("fieldsV1") or {}
            return fields
    return {}


def other_managers(obj: Mapping[str, Any], paths: Iterable[Path]) -> tuple[str, ...]:
    """Returns the other managers that own one of the fields, the latest writer first. ``obj`` must have all its managedFields."""
    fields = tuple(paths)
    holders = [
        (entry.get("time") or "", str(entry.get("manager") or "unknown"))
        for entry in obj["metadata"].get("managedFields") or ()
        if entry.get("manager") != names.FIELD_MANAGER and any(_holds(entry.get("fieldsV1") or {}, path) for path in fields)
    ]
    return tuple(dict.fromkeys(manager for _, manager in sorted(holders, reverse=True)))


def readable(path: Path) -> str:
    """Returns the path as a user would write it: ``spec.template.spec.containers[name=engine].image``."""
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
    """Returns whether an atomic value equals the rendered one. Maps may have defaults too; quantities are compared as numbers."""
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
        desired = {f"v:{json.dumps(value)}" for value in rendered}
        if desired != set(children) or not _is_list(live) or any(value not in live for value in rendered):
            found.append(path)
    elif not equal_leaf(rendered, live, path):
        found.append(path)


def _compare_map(rendered: Mapping[str, Any], live: Mapping[str, Any], owned: Tree, path: Path, found: list[Path]) -> None:
    desired = {f"f:{field}": value for field, value in rendered.items() if value is not None}
    for segment, value in desired.items():
        here = (*path, segment)
        if segment in owned:
            _compare(value, live.get(segment[2:]), owned[segment], here, found)
        else:
            found.append(here)
    found += [(*path, segment) for segment in owned if segment.startswith("f:") and segment not in desired]


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
    """Returns whether an item has this key. The API server fills in key fields that the manifest omits (a port's protocol)."""
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
