"""Validators for what the chart renders: Kubernetes' own kinds by its OpenAPI documents, the others by their CustomResourceDefinitions.

All are strict: a field that the type does not have is an error, as ``kubectl apply --validate=strict`` has it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

PROMETHEUS_OPERATOR = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
PROMETHEUS_OPERATOR_SUM = "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s="
"""Its content, as Go's checksum database has it."""
MONITORING_KINDS = ("servicemonitors", "podmonitors", "prometheusrules")

GRAFANA_DASHBOARD: dict[str, Any] = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "grafana.integreatly.org/v1beta1"},
        "kind": {"const": "GrafanaDashboard"},
        "metadata": {"type": "object"},
        "spec": {
            "type": "object",
            "required": ["instanceSelector"],
            "additionalProperties": False,
            "properties": {
                "allowCrossNamespaceImport": {"type": "boolean"},
                "configMapRef": {
                    "type": "object",
                    "required": ["key"],
                    "additionalProperties": False,
                    "properties": {"key": {"type": "string"}, "name": {"type": "string"}, "optional": {"type": "boolean"}},
                },
                "folder": {"type": "string"},
                "instanceSelector": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {"matchLabels": {"type": "object", "additionalProperties": {"type": "string"}}},
                },
                "resyncPeriod": {"type": "string", "pattern": r"^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$"},
            },
        },
    },
}
"""The fields that the chart uses, as grafana-operator 5 defines them."""


def problems(manifest: dict[str, Any], version: str) -> list[str]:
    """What is wrong with an object on this Kubernetes release; empty for a valid one."""
    return list(_problems(json.dumps(manifest, sort_keys=True), version))


@cache
def _problems(text: str, version: str) -> list[str]:
    """Remembered: most objects of two sets of values are the same."""
    manifest = json.loads(text)
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in _validator(manifest, version).iter_errors(manifest)]


def _validator(manifest: dict[str, Any], version: str) -> Draft202012Validator:
    group = manifest["apiVersion"].partition("/")[0]
    if group == "monitoring.coreos.com":
        return _monitoring()[manifest["kind"]]
    if group == "grafana.integreatly.org":
        return Draft202012Validator(GRAFANA_DASHBOARD)
    return _kubernetes(manifest["apiVersion"], manifest["kind"], version)


@cache
def _kubernetes(api_version: str, kind: str, version: str) -> Draft202012Validator:
    folder = files("kubernetes_validate") / "kubernetes-json-schema" / f"v{version}.0-local-strict"
    short = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api_version)
    schema = json.loads((folder / f"{kind.lower()}-{short}.json").read_text(encoding="utf-8"))
    return Draft202012Validator(schema, registry=Resource.from_contents(schema) @ _definitions(version))


@cache
def _definitions(version: str) -> Registry[Any]:
    folder = files("kubernetes_validate") / "kubernetes-json-schema" / f"v{version}.0-local-strict"
    return Resource.from_contents(json.loads((folder / "_definitions.json").read_text(encoding="utf-8"))) @ Registry()


def monitoring_definitions() -> list[Path]:
    """The CustomResourceDefinitions of Prometheus Operator that the chart uses, fetched once into Go's module cache and checked."""
    command = ["go", "mod", "download", "-json", PROMETHEUS_OPERATOR]
    done = subprocess.run(command, cwd="/", env={**os.environ, "GOWORK": "off"}, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    module = json.loads(done.stdout)
    assert module["Sum"] == PROMETHEUS_OPERATOR_SUM
    folder = Path(module["Dir"]) / "example" / "prometheus-operator-crd"
    return [folder / f"monitoring.coreos.com_{plural}.yaml" for plural in MONITORING_KINDS]


@cache
def _monitoring() -> dict[str, Draft202012Validator]:
    found = {}
    for file in monitoring_definitions():
        spec = yaml.load(file.read_text(encoding="utf-8"), yaml.CSafeLoader)["spec"]
        [schema] = [version["schema"]["openAPIV3Schema"] for version in spec["versions"] if version["name"] == "v1"]
        schema["properties"]["metadata"] = {"type": "object"}
        _close(schema)
        found[spec["names"]["kind"]] = Draft202012Validator(schema)
    return found


def _close(schema: Any) -> None:
    """Refuse unknown fields, which the API server would prune."""
    if isinstance(schema, list):
        for inner in schema:
            _close(inner)
    if not isinstance(schema, dict):
        return
    for inner in schema.values():
        _close(inner)
    closed = "properties" in schema and schema.get("type") == "object" and not schema.get("x-kubernetes-preserve-unknown-fields")
    if closed:
        schema.setdefault("additionalProperties", False)
