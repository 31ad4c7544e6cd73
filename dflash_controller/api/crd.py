"""The CustomResourceDefinition, generated from the types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from dflash_controller.api import names
from dflash_controller.api.patterns import QUANTITY, REFUSALS
from dflash_controller.api.rules import rules
from dflash_controller.api.structural import Schema, structural
from dflash_controller.api.types import Spec

_HEADER = "# Generated from dflash_controller/api by `make crd`; change the types there.\n"


def crd(owned_flags: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """The CustomResourceDefinition. ``owned_flags``: by engine, the flags that extraArgs may not set, with what decides each."""
    version = {
        "name": names.VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema(owned_flags)},
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": _COLUMNS,
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names.PLURAL}.{names.GROUP}"},
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": names.PLURAL,
                "singular": names.KIND.lower(),
                "shortNames": ["dfd"],
                "categories": ["all", "dflash"],
            },
            "versions": [version],
        },
    }


def render(owned_flags: Mapping[str, Mapping[str, str]]) -> str:
    """The CustomResourceDefinition as YAML text."""
    return _HEADER + yaml.dump(crd(owned_flags), Dumper=_Plain, sort_keys=False, allow_unicode=True, width=140)


class _Plain(yaml.SafeDumper):
    """Repeats equal parts instead of pointing at the first one."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def schema(owned_flags: Mapping[str, Mapping[str, str]], *, status: bool = True) -> Schema:
    """Returns the schema with its rules. ``status`` False leaves out the status, which takes as long to make as the rest."""
    made: Schema = {
        "description": "A target model served with its DFlash drafter, kept at the best block size for its load.",
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            # The bound keeps the cost of the rule on the name low; the API server has the same one.
            "metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 253}}},
            "spec": _with_messages(structural(Spec)),
        },
    }
    if status:
        from dflash_controller.api.status import Status

        made["properties"]["status"] = structural(Status)
    for rule in rules(owned_flags):
        node(made, rule.path).setdefault("x-kubernetes-validations", []).append(rule.to_json())
    return made


def _with_messages(node: Any) -> Any:
    """Returns a part of the schema with each pattern as a CEL rule that says what is allowed. Raises KeyError for an unknown pattern."""
    if isinstance(node, list):
        return [_with_messages(item) for item in node]
    if not isinstance(node, dict):
        return node
    done = {key: _with_messages(value) for key, value in node.items()}
    if isinstance(pattern := done.get("pattern"), str):
        del done["pattern"]
        rule = {"rule": _matches(pattern, or_integer="x-kubernetes-int-or-string" in done), "message": REFUSALS[pattern].message}
        done["x-kubernetes-validations"] = [rule]
    return done


def _matches(pattern: str, *, or_integer: bool) -> str:
    """Returns the CEL expression of a pattern. For the API server a text that may be an integer has no bound."""
    if pattern == QUANTITY:
        return "type(self) == int || (isQuantity(string(self)) && !string(self).startsWith('-'))"
    return f"type(self) == int || string(self).matches(r'{pattern}')" if or_integer else f"self.matches(r'{pattern}')"


def node(schema: Schema, path: str) -> Schema:
    """The node of a schema at a path such as ``spec.engine.env[].valueFrom``. Raises KeyError where there is none."""
    for step in path.split(".") if path else ():
        name = step.removesuffix("[]")
        schema = schema["properties"][name]
        if step.endswith("[]"):
            schema = schema["items"]
    return schema


def _column(name: str, type: str, path: str, description: str, *, wide: bool = False) -> dict[str, Any]:
    return {"name": name, "type": type, "jsonPath": path, "description": description, "priority": int(wide)}


def _condition(type: str, field: str) -> str:
    return f'.status.conditions[?(@.type=="{type}")].{field}'


_COLUMNS = [
    _column("Ready", "string", _condition("Ready", "status"), "Whether what runs is what the spec asks for."),
    _column("Engine", "string", ".status.engine", "Active engine and release."),
    _column("Block", "string", ".status.speculation.label", "Active block size."),
    _column("Acceptance", "number", ".status.metrics.acceptanceLength", "Tokens committed per verify step."),
    _column("Replicas", "string", ".status.serving", "Serving and desired replicas."),
    _column("Revision", "string", ".status.stableRevision", "Active revision."),
    _column("Phase", "string", ".status.rollout.phase", "Phase of the rollout."),
    _column("Age", "date", ".metadata.creationTimestamp", "Time since creation."),
    _column("Target", "string", ".spec.target.model", "Model that is served.", wide=True),
    _column("Drafter", "string", ".status.drafter", "Active drafter.", wide=True),
    _column("Drafter-revision", "string", ".status.drafterRevision", "Revision of the active drafter.", wide=True),
    _column("Concurrency", "number", ".status.metrics.concurrency", "Requests in service per replica.", wide=True),
    _column("Tokens/s", "number", ".status.metrics.tokensPerSecond", "Output tokens per second, all replicas.", wide=True),
    _column("Reason", "string", _condition("Ready", "reason"), "Why it is or is not Ready.", wide=True),
]
