"""Removes empty parts from manifests.

An empty list in an applied body makes every apply a real write, and a field sent as ``{}`` is owned but never returned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_controller.api.schema import Model

_MEANINGFUL_WHEN_EMPTY = frozenset({"labelSelector", "namespaceSelector"})
"""In pod affinity an empty selector selects everything and an absent one nothing (or the pod's own namespace)."""


def compact(value: Any) -> Any:
    """Returns the value without None, empty maps and empty lists at any depth, except selectors of an affinity. Tuples become lists."""
    match value:
        case str() | int() | float() | None:  # Most values are one of these, and it is slow to ask whether they are a Mapping.
            return value
        case dict() | Mapping():
            return {key: inner for key, item in value.items() if _keep(key, inner := compact(item))}
        case list() | tuple():
            return [inner for item in value if _keep("", inner := compact(item))]
    return value


def as_manifest(model: Model | None) -> dict[str, Any]:
    """Returns an API type as the Kubernetes type of the same shape: camelCase, only the fields that were set.

    Empty strings of its own fields are left out, as the API server does in its answer. Those inside maps belong to the user and stay.
    """
    written = {} if model is None else model.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
    return {key: value for key, value in written.items() if value != ""}


def _keep(key: str, value: Any) -> bool:
    return value is not None and (value not in ({}, []) or (value == {} and key in _MEANINGFUL_WHEN_EMPTY))
