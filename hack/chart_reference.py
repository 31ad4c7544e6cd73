"""``python -m hack.chart_reference CHART`` rewrites what is generated in a chart.

These are the descriptions of its values in README.md and values.schema.json, the releases that its templates check against, in
files/oldest_releases.yaml, and what the API server checks, in files/admission_policy.yaml. ``values.yaml`` explains each value by a comment
above it that begins with ``# --``, and a section by a line ``## Title``. They produce

- in README.md, the text between ``<!-- generated: NAME -->`` and ``<!-- end -->``: ``values``, and ``settings`` from the operator's own;
- in values.schema.json, every ``description``, what is ``required``, the properties of ``settings``, and the Kubernetes types that the
  schema refers to as ``#/definitions/Toleration`` and the like. A misspelt field of a toleration is then refused like a misspelt value.

``prometheusRule.disabledAlerts`` may hold the names of the alerts in the chart's files/rules.

The rest of README.md and values.schema.json is written by hand. A test fails if a file differs from the output of this command.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from dflash_controller.engines.releases import TABLE
from dflash_controller.runtime.settings import PREFIX, Settings
from hack.admission_policy import admission_policy
from hack.docs_tables import renewed as renewed_docs

KUBERNETES = "1.35"
"""Kubernetes release whose types the schema contains."""
ELSEWHERE = frozenset({"namespaces", "hugging_face_endpoint", "http_host", "http_port", "lease_namespace", "pod_ips", "pod_name"})
"""Settings that are not below ``settings``, in addition to Prometheus' settings. The chart has other values for them, or the pod knows
them."""

DEFAULTS = {
    "lease_name": ("", "Name of the Lease by which a leader is elected; absent: the full name of the release."),
    "fetch_image": (
        "",
        "Image with `dflash-fetch`, which fetches the weights of new revisions with `spec.storage` and pinned commits; absent: the "
        "operator's image, unless it needs a pull secret; empty: engines download by themselves.",
    ),
}
"""Default and meaning of settings for which the chart differs from the operator."""

REFINED: Mapping[str, Mapping[str, Any]] = {
    **{f"{engine}_image": {"pattern": r"^$|\{version\}"} for engine in ("sglang", "vllm")},
    **{
        f"{engine}_version": {"pattern": r"^$|^v?\d+\.\d+\.\d+((\.?post|\.?dev|a|b|rc)\d+)?(\+[a-z0-9.]+)?$"}
        for engine in ("sglang", "vllm")
    },
    "allowed_host_paths": {"items": {"type": "string", "pattern": r"^(/(\.?|\.?[^./,][^/,]*|\.\.[^/,]+))+$"}},
    "lease_name": {"maxLength": 253, "pattern": r"^$|^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"},
}
"""Checks of the operator's code, as far as a pattern can express them: no part of a path is ``..``, and a comma would split the path."""

_BLOCK = re.compile(r"(<!-- generated: ([a-z]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_KEY = re.compile(r"( *)([\w-]+):")
_ROW = re.compile(rf"^\| `{PREFIX}(\w+)` \| (?:`(.*)`)? \| (.*) \|$", re.MULTILINE)
_PACKAGES = ("api.core.v1", "api.apps.v1", "api.networking.v1", "apimachinery.pkg.apis.meta.v1")
_VOLUMES = frozenset(
    {"name", "configMap", "csi", "downwardAPI", "emptyDir", "hostPath", "image", "nfs", "persistentVolumeClaim", "projected", "secret"}
)
"""Volume sources that make sense here. The others are deprecated or would add the types of half of Kubernetes."""
_UNIONS = {"IntOrString": ["string", "integer"], "Quantity": ["string", "number"]}


class ChartError(Exception):
    """values.yaml and values.schema.json do not match, or a value has no comment."""


@dataclass(frozen=True)
class Value:
    """One documented value: its path, default, meaning and section."""

    path: tuple[str, ...]
    default: Any
    meaning: str
    section: str


def values(text: str) -> list[Value]:
    """Returns the documented values of a values.yaml, in its order. Raises ChartError if neither a value nor one of its parents has a
    comment."""
    defaults = yaml.safe_load(text)
    found: list[Value] = []
    path: list[str] = []
    comment: list[str] = []
    section = ""
    for line in text.splitlines():
        words = line.strip()
        if words.startswith("## "):
            section = words.removeprefix("## ")
        elif words.startswith("# -- "):
            comment = [words.removeprefix("# -- ")]
        elif words.startswith("# ") and comment:
            comment.append(words.removeprefix("# "))
        elif key := _KEY.match(line):
            path = [*path[: len(key[1]) // 2], key[2]]
            if comment:
                found.append(Value(tuple(path), _at(defaults, path), " ".join(comment), section))
            comment = []
    documented = {value.path for value in found}
    for leaf in _leaves(defaults, ()):
        if not any(leaf[:end] in documented for end in range(1, len(leaf) + 1)):
            raise ChartError(f"values.yaml: {'.'.join(leaf)} has no comment that begins with '# --'")
    return found


def _at(node: Any, path: Sequence[str]) -> Any:
    for key in path:
        node = node[key]
    return node


def _leaves(node: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if isinstance(node, dict) and node:
        for key, inner in node.items():
            yield from _leaves(inner, (*path, key))
    else:
        yield path


# Settings


@dataclass(frozen=True)
class Setting:
    """One value below ``settings``: its name, its default and meaning as in docs/reference/operator.md, and its schema."""

    name: str
    default: str
    meaning: str
    schema: Mapping[str, Any]


def settings() -> list[Setting]:
    """Returns all values of ``settings``."""
    properties = Settings.model_json_schema()["properties"]
    rows = {
        name.lower(): (default, meaning)
        for name, default, meaning in _ROW.findall(renewed_docs("<!-- generated: settings -->\n<!-- end -->"))
    }
    found = []
    for name, node in properties.items():
        if name not in ELSEWHERE and not name.startswith("prometheus_"):
            default, meaning = DEFAULTS.get(name) or rows[name]
            found.append(Setting(_camel(name), default, meaning, {**_setting_schema(node), **REFINED.get(name, {})}))
    return found


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _setting_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    if "anyOf" in schema:
        [schema] = [one for one in schema["anyOf"] if one["type"] != "null"]
    return {key: value for key, value in schema.items() if key not in ("title", "default", "description")}


# Schema


def schema(current: Mapping[str, Any], documented: Sequence[Value], alerts: Sequence[str]) -> dict[str, Any]:
    """Returns the schema with its generated parts rewritten. Raises ChartError if a documented value has no place in it.

    ``alerts`` are the names of the chart's alerts. A section is required, and so is a value that is not empty by default. A section whose
    fields are all commented out is null, and Helm takes a null as a request to remove the default.
    """
    new: dict[str, Any] = json.loads(json.dumps(current))
    new["properties"]["settings"]["properties"] = {one.name: {"description": one.meaning, **one.schema} for one in settings()}
    for value in documented:
        node = new
        for key in value.path:
            if key not in node.get("properties", {}):
                raise ChartError(f"values.schema.json: no property {'.'.join(value.path)}")
            node = node["properties"][key]
        described = {"description": value.meaning, **{key: inner for key, inner in node.items() if key != "description"}}
        node.clear()
        node.update(described)
    _require(new, documented)
    new["properties"]["prometheusRule"]["properties"]["disabledAlerts"]["items"] = {"enum": list(alerts)}
    own = {name: node for name, node in new.get("definitions", {}).items() if name[0].islower()}
    new["definitions"] = own | _kubernetes_types({"properties": new["properties"], "own": own})
    return new


def _require(node: dict[str, Any], documented: Sequence[Value]) -> None:
    required: dict[tuple[str, ...], list[str]] = {}
    for value in documented:
        needed = value.path if value.default and not isinstance(value.default, dict) else value.path[:-1]
        for end in range(1, len(needed) + 1):
            names = required.setdefault(needed[: end - 1], [])
            if needed[end - 1] not in names:
                names.append(needed[end - 1])
    for path, names in required.items():
        section = node
        for key in path:
            section = section["properties"][key]
        section["required"] = [name for name in names if (*path, name) != ("global",)]


def alert_names(chart: Path) -> list[str]:
    """Returns the names of the alerts in files/rules of a chart, sorted."""
    documents = [yaml.safe_load(file.read_text(encoding="utf-8")) for file in sorted((chart / "files" / "rules").glob("*.yaml"))]
    return sorted({rule["alert"] for document in documents for group in document["groups"] for rule in group["rules"] if "alert" in rule})


def _kubernetes_types(node: Any) -> dict[str, Any]:
    """Returns by name the definitions of the types a schema refers to, and of the types they refer to. Names of Kubernetes types begin with
    a capital."""
    found: dict[str, Any] = {}
    missing = _references(node)
    while missing:
        name = missing.pop()
        found[name] = _definition(name)
        missing |= _references(found[name]) - set(found)
    return dict(sorted(found.items()))


def _references(node: Any) -> set[str]:
    if isinstance(node, dict):
        reference = str(node.get("$ref", "")).removeprefix("#/definitions/")
        return {name for value in node.values() for name in _references(value)} | ({reference} if reference[:1].isupper() else set())
    return {name for value in node for name in _references(value)} if isinstance(node, list) else set()


def _definition(name: str) -> dict[str, Any]:
    if name in _UNIONS:
        return {"type": _UNIONS[name]}
    for package in _PACKAGES:
        if full := _kubernetes().get(f"io.k8s.{package}.{name}"):
            definition = _plain(full)
            if name == "Volume":
                definition["properties"] = {key: value for key, value in definition["properties"].items() if key in _VOLUMES}
            assert isinstance(definition, dict)
            return definition
    raise ChartError(f"values.schema.json: Kubernetes {KUBERNETES} has no type {name}")


def _plain(node: Any) -> Any:
    """Returns a node without texts, extensions and null: Helm takes a null as a missing value."""
    if isinstance(node, list):
        return [_plain(value) for value in node]
    if not isinstance(node, dict):
        return node
    plain: dict[str, Any] = {
        key: _plain(value) if key != "properties" else {name: _plain(inner) for name, inner in value.items()}
        for key, value in node.items()
        if key != "description" and not key.startswith("x-kubernetes-") and key != "format"
    }
    if "$ref" in plain:
        return {"$ref": f"#/definitions/{str(plain['$ref']).rpartition('.')[2]}"}
    if isinstance(plain.get("type"), list):
        plain["type"] = plain["type"][0]
    return plain


@cache
def _kubernetes() -> Mapping[str, Any]:
    folder = files("kubernetes_validate") / "kubernetes-json-schema" / f"v{KUBERNETES}.0-local-strict"
    found: Mapping[str, Any] = json.loads((folder / "_definitions.json").read_text(encoding="utf-8"))["$defs"]
    return found


def schema_text(content: Mapping[str, Any]) -> str:
    """Returns the text of the file. The part written by hand is indented; a definition takes one line."""
    definitions = ",\n".join(
        f"    {json.dumps(name)}: {json.dumps(node, ensure_ascii=False)}" for name, node in content["definitions"].items()
    )
    rest = {key: value for key, value in content.items() if key != "definitions"}
    return json.dumps(rest, indent=2, ensure_ascii=False).removesuffix("\n}") + ',\n  "definitions": {\n' + definitions + "\n  }\n}\n"


# README


def readme(text: str, documented: Sequence[Value]) -> str:
    """Returns the README with its generated blocks rewritten. Raises KeyError for an unknown block name."""
    blocks = {"values": _values_tables(documented), "settings": _settings_table()}
    return _BLOCK.sub(lambda match: f"{match[1]}{blocks[match[2]]}{match[3]}", text)


def _values_tables(documented: Sequence[Value]) -> str:
    parts = []
    for section in dict.fromkeys(value.section for value in documented):
        rows = [
            (f"`{'.'.join(value.path)}`", f"`{json.dumps(value.default, ensure_ascii=False)}`", value.meaning)
            for value in documented
            if value.section == section
        ]
        parts.append(f"\n### {section}\n\n" + _table(("Value", "Default", "Meaning"), rows))
    return "".join(parts) + "\n"


def _settings_table() -> str:
    rows = [(f"`settings.{one.name}`", f"`{one.default}`" if one.default else "", one.meaning) for one in settings()]
    return _table(("Value", "Default", "Meaning"), rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---" for _ in head], *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def oldest_releases() -> str:
    """Returns the oldest release allowed for each engine version setting, as YAML."""
    lines = [f'{engine}Version: "{releases.floor}"' for engine, releases in TABLE.items()]
    return "\n".join(["# Generated by make chart.", *lines]) + "\n"


def renewed(chart: Path) -> dict[Path, str]:
    """Returns the expected README.md, values.schema.json and generated files of a chart, by path."""
    documented = values((chart / "values.yaml").read_text(encoding="utf-8"))
    schema_file, readme_file = chart / "values.schema.json", chart / "README.md"
    return {
        schema_file: schema_text(schema(json.loads(schema_file.read_text(encoding="utf-8")), documented, alert_names(chart))),
        readme_file: readme(readme_file.read_text(encoding="utf-8"), documented),
        chart / "files" / "oldest_releases.yaml": oldest_releases(),
        chart / "files" / "admission_policy.yaml": admission_policy(),
    }


def main(charts: Sequence[str]) -> None:
    """Rewrites these files of every chart."""
    for chart in map(Path, charts):
        for file, text in renewed(chart).items():
            file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
