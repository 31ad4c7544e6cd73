"""``python -m hack.models_chart`` rewrites the descriptions of the chart's values in README.md and values.schema.json.

The schema of ``spec`` is made from the same types as the CustomResourceDefinition. It differs because values are merged. A field may be
missing, because the defaults may have it. A field may be null, which removes a default. Lists are not merged, so their items are checked as
they are. A values schema has no place for the definition's rules (CEL); the API server checks them.

Texts come from the comments in values.yaml. A test fails if a file differs from the output of this command.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dflash_controller.api.structural import structural
from dflash_controller.api.types import Spec
from hack.chart_reference import readme, values

CHART = Path(__file__).parents[1] / "charts" / "dflash-models"
_FROM_TYPES = ("description", "enum", "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "maxProperties")
_NAME = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
_LABEL_KEY = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
_LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"

Schema = dict[str, Any]


def schema(meanings: Mapping[tuple[str, ...], str]) -> Schema:
    """Returns the values schema. ``meanings`` holds the text of values.yaml for each value, by path."""
    spec = partial(structural(Spec))
    model = {key: value for key, value in spec["properties"]["target"]["properties"]["model"].items() if key != "description"}
    parts = {name: {"$ref": f"#/definitions/{name}"} for name in ("labels", "annotations", "spec")}
    entry = {
        "name": {
            "description": "Name of the DFlashDeployment and of its Service. Default: the last part of model, in lower case.",
            "type": "string",
            "maxLength": 40,
            "pattern": _NAME,
        },
        "model": {"description": "Target, as the catalog or Hugging Face has it: spec.target.model in short.", **model, "type": "string"},
        **parts,
    }
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        **_closed(
            {
                "enabled": {
                    "description": "What a parent chart switches this chart on and off with: its condition in Chart.yaml. "
                    "This chart does not use it itself.",
                    "type": ["boolean", "null"],
                },
                "global": {"description": "What parent charts keep for all of their charts; not used here.", "type": "object"},
                "defaults": _closed({name: {"description": meanings["defaults", name], **node} for name, node in parts.items()}),
                "models": {"description": meanings["models",], "type": "array", "items": _closed(entry)},
            }
        ),
        "definitions": {
            "labels": {
                "type": "object",
                "propertyNames": {"pattern": _LABEL_KEY},
                "additionalProperties": {"type": ["string", "null"], "maxLength": 63, "pattern": _LABEL_VALUE},
            },
            "annotations": {
                "type": "object",
                "propertyNames": {"pattern": _LABEL_KEY},
                "additionalProperties": {"type": ["string", "null"]},
            },
            "spec": {**spec, "type": "object"},
        },
    }


def partial(node: Mapping[str, Any], *, merged: bool = True) -> Schema:
    """Returns a node of the definition's schema as a values schema. ``merged``: the node is not in a list, so it may be incomplete or
    null."""
    kept: Schema = {key: node[key] for key in _FROM_TYPES if key in node}
    types = ["integer", "string"] if node.get("x-kubernetes-int-or-string") else [node["type"]]
    types += ["null"] if merged else []
    kept["type"] = types if len(types) > 1 else types[0]
    if "enum" in kept and merged:
        kept["enum"] = [*kept["enum"], None]
    if "properties" in node:
        kept |= _closed({name: partial(inner, merged=merged) for name, inner in node["properties"].items()}) | {"type": kept["type"]}
        if not merged and "required" in node:
            kept["required"] = node["required"]
    elif isinstance(node.get("additionalProperties"), Mapping):
        kept["additionalProperties"] = partial(node["additionalProperties"], merged=merged)
    if "items" in node:
        kept["items"] = partial(node["items"], merged=False)
    return kept


def _closed(properties: Schema) -> Schema:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def renewed() -> dict[Path, str]:
    """Returns the expected content of README.md and values.schema.json, by path."""
    documented = values((CHART / "values.yaml").read_text(encoding="utf-8"))
    made = schema({value.path: value.meaning for value in documented})
    readme_file = CHART / "README.md"
    return {
        CHART / "values.schema.json": json.dumps(made, indent=2, ensure_ascii=False) + "\n",
        readme_file: readme(readme_file.read_text(encoding="utf-8"), documented),
    }


if __name__ == "__main__":
    for file, text in renewed().items():
        file.write_text(text, encoding="utf-8")
