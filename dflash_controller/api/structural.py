"""From pydantic's JSON schema to the structural schema that the API server takes.

Structural schemas have no references, no titles, no nullable unions, no closed objects (unknown fields are pruned or refused by
the API server itself) and a type outside every junctor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import WithDefaultSchema

from dflash_controller.api.schema import CLASS_KEY, CLASS_TEXT, SERVER_DEFAULT_KEY, Model

_KEPT = (
    "description",
    "type",
    "format",
    "enum",
    "pattern",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "required",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-preserve-unknown-fields",
)

Schema = dict[str, Any]


class _WithoutDefaults(GenerateJsonSchema):
    """Defaults are the operator's (``defaults``) and no part of a structural schema. To write them down takes as long as the rest."""

    def default_schema(self, schema: WithDefaultSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])


def structural(model: type[Model]) -> Schema:
    """The structural schema of an API type; each leaf's description ends with what a change of it does."""
    schema = model.model_json_schema(by_alias=True, schema_generator=_WithoutDefaults)
    return _convert(schema, schema.get("$defs", {}), None)


def _convert(node: Mapping[str, Any], definitions: Mapping[str, Any], inherited: str | None) -> Schema:
    node = _flatten(node, definitions)
    own = node.get(CLASS_KEY, inherited)
    result: Schema = {key: node[key] for key in _KEPT if key in node}
    if SERVER_DEFAULT_KEY in node:
        result["default"] = node[SERVER_DEFAULT_KEY]
    if "x-kubernetes-int-or-string" in node:
        result["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if properties := node.get("properties"):
        result["properties"] = {name: _convert(value, definitions, own) for name, value in properties.items()}
    if "items" in node:
        result.setdefault("x-kubernetes-list-type", "atomic")
        result["items"] = _convert(node["items"], definitions, own)
    if "x-kubernetes-preserve-unknown-fields" not in node and (values := _map_values(node)) is not None:
        result["additionalProperties"] = _convert(values, definitions, None)
    if own and (CLASS_KEY in node or "properties" not in node) and "description" in result:
        result["description"] = f"{result['description']} {CLASS_TEXT[own]}"
    return result


def _flatten(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    """The node with its reference and its union with null resolved; what stands beside them wins."""
    while "$ref" in node or ("anyOf" in node and "x-kubernetes-int-or-string" not in node):
        outer = dict(node)
        if "$ref" in outer:
            inner = definitions[outer.pop("$ref").rpartition("/")[2]]
        else:
            arms = [arm for arm in outer.pop("anyOf") if arm != {"type": "null"}]
            if len(arms) != 1:
                raise ValueError(f"a union cannot be structural: {node}")
            inner = arms[0]
        node = {**inner, **outer}
    return node


def _map_values(node: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Schema of a map's values. Rules for its keys have no place in a structural schema."""
    if patterns := node.get("patternProperties"):
        return next(iter(patterns.values()), None)
    values = node.get("additionalProperties")
    return values if isinstance(values, Mapping) else None
