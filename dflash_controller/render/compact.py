"""Manifests without empty parts.

An empty list in an applied body makes every apply a real write, and a field that was sent as ``{}`` is owned but never shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_controller.api.schema import Model

_MEANINGFUL_WHEN_EMPTY = frozenset({"labelSelector", "namespaceSelector"})
"""In pod affinity an empty selector selects everything and an absent one nothing (or the pod's own namespace)."""


def compact(value: Any) -> Any:
    """The value without None, empty maps and empty lists at any depth (selectors of an affinity excepted); tuples become lists."""
    match value:
        case Mapping():
            return {key: inner for key, item in value.items() if _keep(key, inner := compact(item))}
        case list() | tuple():
            return [inner for item in value if _keep("", inner := compact(item))]
    return value


def as_manifest(model: Model | None) -> dict[str, Any]:
    """An API type as the Kubernetes type of the same shape: camelCase, only what was written.

    Its own empty strings are left out, as the API server leaves them out of its answer; those inside maps are the user's.
    """
    written = {} if model is None else model.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
    return {key: value for key, value in written.items() if value != ""}


def _keep(key: str, value: Any) -> bool:
    return value is not None and (value not in ({}, []) or (value == {} and key in _MEANINGFUL_WHEN_EMPTY))
