"""What the API server says about a DFlashDeployment, without an API server.

The schema is the one that the CustomResourceDefinition is generated from. The checks run in the API server's order: unknown fields, then
the schema, then the CEL rules, which are only evaluated where the schema holds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from dflash_controller.api.crd import schema
from dflash_controller.api.names import API_VERSION, KIND
from dflash_controller.api.patterns import DNS_SUBDOMAIN, LABEL_VALUE, QUALIFIED_NAME
from dflash_controller.cli import cel
from dflash_controller.engines import ENGINES

_RULES = "x-kubernetes-validations"
_INT_OR_STRING = "x-kubernetes-int-or-string"
_PRESERVED = "x-kubernetes-preserve-unknown-fields"
_METADATA = frozenset(
    (
        *("annotations", "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "finalizers", "generateName"),
        *("generation", "labels", "managedFields", "name", "namespace", "ownerReferences", "resourceVersion", "selfLink", "uid"),
    )
)
_TOP = frozenset(("apiVersion", "kind", "metadata", "spec", "status"))


@dataclass(frozen=True, slots=True)
class Refusal:
    """One thing that the API server refuses an object for, in its words. ``field`` is empty for the whole object."""

    field: str
    message: str

    def __str__(self) -> str:
        return sentence(self.field, self.message)


def sentence(field: str, message: str) -> str:
    """Returns a message with its field before it, unless it names it itself, as the rules of the CustomResourceDefinition do."""
    named = not field or message.startswith((*(f"{part}." for part in ("spec", "metadata")), f"{field}:"))
    return message if named else f"{field}: {message}"


def refusals(manifest: Mapping[str, Any]) -> list[Refusal]:
    """Returns what the API server refuses about a manifest of a DFlashDeployment; empty if it accepts it."""
    whole = _schema(status="status" in manifest)
    unknown = [Refusal("", f'unknown field "{path}"') for path in _unknown(manifest, whole)]
    pruned = _without_nulls(manifest, whole)
    found = [*unknown, *_identity(pruned), *_metadata(pruned.get("metadata")), *_node(pruned, whole, "")]
    if any(refusal not in unknown for refusal in found):
        return found
    return [*found, *_rules(_with_defaults(pruned, whole), whole, "")]


@cache
def _schema(*, status: bool) -> Mapping[str, Any]:
    return schema({name: engine.owned_flags() for name, engine in ENGINES.items()}, status=status)


# Unknown fields


def _unknown(value: Any, schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yields the paths of fields that the schema does not have. ``kubectl apply`` asks the API server to refuse them."""
    if isinstance(value, list):
        for place, item in enumerate(value):
            yield from _unknown(item, schema.get("items", {}), f"{path}[{place}]")
        return
    if not isinstance(value, Mapping) or schema.get(_PRESERVED):
        return
    known, others = schema.get("properties", {}), schema.get("additionalProperties")
    for name, item in value.items():
        below = f"{path}.{name}" if path else str(name)
        if path == "metadata":
            if name not in _METADATA:
                yield below
        elif name in known:
            yield from _unknown(item, known[name], below)
        elif others is not None:
            yield from _unknown(item, others, below)
        else:
            yield below


# Type, kind and metadata


def _identity(manifest: Mapping[str, Any]) -> Iterator[Refusal]:
    if manifest.get("apiVersion") != API_VERSION or manifest.get("kind") != KIND:
        yield Refusal("", f"apiVersion {manifest.get('apiVersion')} and kind {manifest.get('kind')}: expected {API_VERSION} {KIND}")


def _metadata(metadata: Any) -> Iterator[Refusal]:
    if not isinstance(metadata, Mapping):
        yield Refusal("metadata.name", "Required value: name or generateName is required")
        return
    name = metadata.get("name")
    if not name and not metadata.get("generateName"):
        yield Refusal("metadata.name", "Required value: name or generateName is required")
    elif isinstance(name, str) and not cel.matches(name, DNS_SUBDOMAIN):
        yield Refusal("metadata.name", f"Invalid value: {json.dumps(name)}: a lowercase RFC 1123 subdomain is required")
    for part in ("labels", "annotations"):
        entries = metadata.get(part)
        for key, value in entries.items() if isinstance(entries, Mapping) else ():
            if not isinstance(value, str):
                yield Refusal(f"metadata.{part}.{key}", f"Invalid value: {_shown(value)}: must be a string; put it in quotes")
            elif not cel.matches(str(key).lower() if part == "annotations" else str(key), QUALIFIED_NAME):
                yield Refusal(f"metadata.{part}", f"Invalid value: {json.dumps(key)}: a qualified name is required")
            elif part == "labels" and (len(value) > 63 or not cel.matches(value, LABEL_VALUE)):
                yield Refusal("metadata.labels", f"Invalid value: {json.dumps(value)}: a valid label of at most 63 characters is required")


# Schema


def _node(value: Any, schema: Mapping[str, Any], path: str) -> Iterator[Refusal]:
    wrong = _wrong_type(value, schema, path)
    if wrong is not None:
        yield wrong
        return
    yield from _bounds(value, schema, path)
    if isinstance(value, Mapping):
        yield from _object(value, schema, path)
    elif isinstance(value, list):
        yield from _duplicates(value, schema, path)
        for place, item in enumerate(value):
            yield from _node(item, schema.get("items", {}), f"{path}[{place}]")


def _object(value: Mapping[str, Any], schema: Mapping[str, Any], path: str) -> Iterator[Refusal]:
    known, others = schema.get("properties", {}), schema.get("additionalProperties")
    for name in schema.get("required", ()):
        if name not in value:
            yield Refusal(_below(path, name), "Required value")
    for name, item in value.items():
        if not path and name in ("metadata", "status"):  # the first is checked above, the second dropped when an object is created
            continue
        if name in known:
            yield from _node(item, known[name], _below(path, name))
        elif others is not None:
            yield from _node(item, others, _below(path, name))


def _wrong_type(value: Any, schema: Mapping[str, Any], path: str) -> Refusal | None:
    if schema.get(_INT_OR_STRING):
        allowed, fits = "integer,string", isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool))
    else:
        allowed = schema.get("type", "")
        fits = not allowed or _is(value, allowed)
    if fits:
        return None
    return Refusal(path, f"Invalid value: {json.dumps(_kind(value))}: {path} in body must be of type {allowed}: {json.dumps(_kind(value))}")


def _is(value: Any, kind: str) -> bool:
    if kind == "integer":
        return not isinstance(value, bool) and (isinstance(value, int) or (isinstance(value, float) and value.is_integer()))
    if kind == "number":
        return isinstance(value, int | float) and not isinstance(value, bool)
    return _kind(value) == kind


def _kind(value: Any) -> str:
    kinds = ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array"), (Mapping, "object"))
    return next((name for of, name in kinds if isinstance(value, of)), "null")


def _bounds(value: Any, schema: Mapping[str, Any], path: str) -> Iterator[Refusal]:
    if (enum := schema.get("enum")) and value not in enum:
        yield Refusal(path, f"Unsupported value: {_shown(value)}: supported values: {', '.join(map(json.dumps, enum))}")
    if isinstance(value, int | float) and not isinstance(value, bool):
        if (least := schema.get("minimum")) is not None and value < least:
            yield _invalid(path, value, f"should be greater than or equal to {least:g}")
        if (most := schema.get("maximum")) is not None and value > most:
            yield _invalid(path, value, f"should be less than or equal to {most:g}")
    elif isinstance(value, str):
        if len(value) < schema.get("minLength", 0):
            yield _invalid(path, value, f"should be at least {schema['minLength']} chars long")
        if len(value) > schema.get("maxLength", len(value)):
            yield Refusal(path, f"Too long: may not be more than {schema['maxLength']} bytes")
    elif isinstance(value, list | Mapping):
        least, most = ("minItems", "maxItems") if isinstance(value, list) else ("minProperties", "maxProperties")
        unit = "items" if isinstance(value, list) else "properties"
        if len(value) < schema.get(least, 0):
            yield _invalid(path, value, f"should have at least {schema[least]} {unit}")
        if len(value) > schema.get(most, len(value)):
            yield Refusal(path, f"Too many: {len(value)}: must have at most {schema[most]} items")


def _duplicates(items: Sequence[Any], schema: Mapping[str, Any], path: str) -> Iterator[Refusal]:
    kind, seen = schema.get("x-kubernetes-list-type"), []
    for place, item in enumerate(items):
        if kind == "map" and isinstance(item, Mapping):
            key: Any = {name: item[name] for name in schema["x-kubernetes-list-map-keys"] if name in item}
        elif kind == "set":
            key = item
        else:
            continue
        if key in seen:
            yield Refusal(f"{path}[{place}]", f"Duplicate value: {json.dumps(key, separators=(',', ':'))}")
        seen.append(key)


def _invalid(path: str, value: Any, what: str) -> Refusal:
    return Refusal(path, f"Invalid value: {_shown(value)}: {path} in body {what}")


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


# Rules


def _rules(value: Any, schema: Mapping[str, Any], path: str) -> Iterator[Refusal]:
    for rule in schema.get(_RULES, ()):
        try:
            holds = cel.evaluate(rule["rule"], value)
        except cel.NotEvaluated as error:
            yield Refusal(path, f"Invalid value: {json.dumps(_kind(value))}: {error}")
            continue
        if not holds:
            message = cel.evaluate(rule["messageExpression"], value) if "messageExpression" in rule else rule["message"]
            whole = isinstance(value, list | Mapping)
            said = message if whole else f"Invalid value: {_shown(value)}: {message}"
            yield Refusal(f"{path}{rule.get('fieldPath', '')}".removeprefix("."), said)
    if isinstance(value, list):
        for place, item in enumerate(value):
            yield from _rules(item, schema.get("items", {}), f"{path}[{place}]")
    elif isinstance(value, Mapping):
        known, others = schema.get("properties", {}), schema.get("additionalProperties")
        for name, item in value.items():
            if (inner := known.get(name, others)) is not None and (path or name != "status"):
                yield from _rules(item, inner, _below(path, name))


# Nulls and defaults


def _without_nulls(value: Any, schema: Mapping[str, Any]) -> Any:
    """Returns the value without fields that are null: no field of the schema is nullable, so the API server drops them."""
    if isinstance(value, list):
        return [_without_nulls(item, schema.get("items", {})) for item in value]
    if not isinstance(value, Mapping):
        return value
    known, others = schema.get("properties", {}), schema.get("additionalProperties") or {}
    return {name: _without_nulls(item, known.get(name, others)) for name, item in value.items() if item is not None or name not in known}


def _with_defaults(value: Any, schema: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        return [_with_defaults(item, schema.get("items", {})) for item in value]
    if not isinstance(value, Mapping):
        return value
    known, others = schema.get("properties", {}), schema.get("additionalProperties") or {}
    filled = {name: inner["default"] for name, inner in known.items() if "default" in inner and name not in value}
    return {**{name: _with_defaults(item, known.get(name, others)) for name, item in value.items()}, **filled}
