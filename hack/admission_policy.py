"""The spec of the chart's ValidatingAdmissionPolicy: CEL that refuses at once what only the catalog and the table of releases know.

The tables are part of the policy, as variables. A ConfigMap as parameter would be one object and one read more for data that changes only
with the chart, and a key of a ConfigMap cannot hold the ``/`` of a model's name.

The operator checks the same (``validation.problems``, ``Catalog.problem``, ``Releases.dialect``), and a test compares the two. What CEL
cannot tell is let through, and so is an object whose evaluation fails: the operator then says in ``Stalled`` what is wrong.

The functions used here are in the CEL of Kubernetes 1.29 and later (apiserver, pkg/cel/environment/base.go), so 1.30 has them all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from dflash_controller.api.names import GROUP, PLURAL, VERSION
from dflash_controller.catalog import Catalog
from dflash_controller.engines.releases import TABLE, Releases, version

DEFAULT_ENGINE = "sglang"
_PLAIN = r"^[0-9]+\\.[0-9]+\\.[0-9]+"
_RELEASE = _PLAIN + r"((\\.?post|\\.?dev|a|b|rc)[0-9]+)?$"
"""``releases.version`` as far as the CRD's pattern of the field allows it: no ``v`` before it, no ``+`` in it."""
_BEFORE_RELEASE = _PLAIN + r"(\\.?dev|a|b|rc)[0-9]+$"
_LONGEST_NUMBER = 18
"""Digits that a CEL integer holds."""

_TARGET, _DRAFTER, _TRAINED = ".target.?model", ".?drafter.?model", ".?drafter.?trainedBlockSize"
_BLOCK, _BLOCKS = ".?blockSize", ".?tuning.?blockSizes"
_ENGINE, _VERSION = ".?engine.?name", ".?engine.?version"
"""Paths below ``spec``, each to an optional value."""


def policy_spec(catalog: Catalog, table: Mapping[str, Releases]) -> dict[str, Any]:
    """The spec of the policy. Fields that the API server would fill in are written out, so that a GitOps tool sees no difference."""
    variables = {**_catalog_tables(catalog), **_release_tables(table), **_rules()}
    return {
        "failurePolicy": "Ignore",
        "matchConstraints": {
            "matchPolicy": "Equivalent",
            "namespaceSelector": {},
            "objectSelector": {},
            "resourceRules": [
                {
                    "apiGroups": [GROUP],
                    "apiVersions": [VERSION],
                    "operations": ["CREATE", "UPDATE"],
                    # Not its subresources: status and scale change none of the fields.
                    "resources": [PLURAL],
                    "scope": "*",
                }
            ],
        },
        "variables": [{"name": name, "expression": expression} for name, expression in variables.items()],
        "validations": [
            {"expression": "variables.problems.size() == 0", "messageExpression": "variables.problems.join(' ')", "reason": "Invalid"}
        ],
    }


def _catalog_tables(catalog: Catalog) -> dict[str, str]:
    """Keys are lower-case, because case does not matter in the name of a model."""
    owners: dict[str, str] = {}
    for pair in catalog.pairs:
        for drafter in pair.drafters:
            owners.setdefault(drafter.lower(), pair.target)
    return {
        "knownTargets": _map((pair.target.lower(), _text(pair.target)) for pair in catalog.pairs),
        "knownDrafters": _map((pair.target.lower(), f"[{', '.join(map(_text, pair.drafters))}]") for pair in catalog.pairs),
        "trainedFor": _map((drafter, _text(target)) for drafter, target in owners.items()),
        "trainedBlockSizes": _map((pair.target.lower(), str(pair.trained_block_size)) for pair in catalog.pairs if pair.trained_block_size),
    }


def _release_tables(table: Mapping[str, Releases]) -> dict[str, str]:
    return {
        "engineTitles": _map((name, _text(each.engine)) for name, each in table.items()),
        "oldestReleases": _map((name, str(_floor(each))) for name, each in table.items()),
        "tooOld": _map((name, _text(_too_old(each))) for name, each in table.items()),
        "newestTested": _map((name, _text(each.tested[-1])) for name, each in table.items()),
    }


def _floor(releases: Releases) -> list[int]:
    """Major, minor and patch. Raises ValueError for a floor with more: the comparison in CEL takes it for a release of its own."""
    *numbers, kind, number = version(releases.floor)
    if kind or number:
        raise ValueError(f"{releases.engine}: the policy compares with major.minor.patch, and the oldest release is {releases.floor}")
    return numbers


def _too_old(releases: Releases) -> str:
    tested = ", ".join(releases.tested)
    return f"is older than {releases.floor}, {releases.floor_reason}. Use {releases.floor} or later; {tested} are tested."


def _rules() -> dict[str, str]:
    """Variables, each of which may name those before it; ``problems`` is the last. Every rule gives a list of texts."""
    lines = {
        "target": "object.spec.target.model.lowerAscii()",
        "namedDrafter": f"object.spec{_DRAFTER}.orValue('')",
        "drafter": """
            variables.namedDrafter != '' ? variables.namedDrafter :
            variables.target in variables.knownDrafters ? variables.knownDrafters[variables.target][0] : ''""",
        "isPair": """
            variables.target in variables.knownDrafters &&
            variables.knownDrafters[variables.target].exists(d, d.lowerAscii() == variables.drafter.lowerAscii())""",
        # 0 where nobody knows it.
        "trained": f"""
            object.spec{_TRAINED}.orValue(
              variables.isPair && variables.target in variables.trainedBlockSizes ? variables.trainedBlockSizes[variables.target] : 0)""",
        "tooLarge": """
            ' is larger than ' + string(variables.trained) + ', the block size the drafter was trained with. ' +
            'Use at most ' + string(variables.trained) + '.'""",
        "blockSize": f"object.spec{_BLOCK}.orValue(0)",
        "blockSizeProblems": f"""
            variables.trained > 0 && variables.blockSize > variables.trained && {_changed(_TARGET, _DRAFTER, _TRAINED, _BLOCK)} ?
            ['spec.blockSize: ' + string(variables.blockSize) + variables.tooLarge] : []""",
        "blockSizes": f"object.spec{_BLOCKS}.orValue([])",
        # Each value is there once: the CRD sees to it.
        "blockSizesProblems": f"""
            variables.trained > 0 && {_changed(_TARGET, _DRAFTER, _TRAINED, _BLOCKS)} ?
            variables.blockSizes.filter(b, b > variables.trained).map(b,
              'spec.tuning.blockSizes[' + string(variables.blockSizes.indexOf(b)) + ']: ' + string(b) + variables.tooLarge) : []""",
        "engine": f"object.spec{_ENGINE}.orValue('{DEFAULT_ENGINE}')",
        "version": f"object.spec{_VERSION}.orValue('')",
        "isRelease": f"variables.version.matches('{_RELEASE}')",
        "numbers": f"""
            !variables.isRelease ? [] : variables.version.find('{_PLAIN}').split('.')
            .map(n, n.size() > {_LONGEST_NUMBER} ? {"9" * _LONGEST_NUMBER} : int(n))""",
        "oldest": "variables.oldestReleases[variables.engine]",
        "isTooOld": f"""
            variables.isRelease && (
            variables.numbers[0] < variables.oldest[0] || variables.numbers[0] == variables.oldest[0] && (
            variables.numbers[1] < variables.oldest[1] || variables.numbers[1] == variables.oldest[1] && (
            variables.numbers[2] < variables.oldest[2] || variables.numbers[2] == variables.oldest[2] &&
            variables.version.matches('{_BEFORE_RELEASE}'))))""",
        "versionProblems": f"""
            variables.version == '' || !{_changed(_ENGINE, _VERSION)} ? [] :
            !variables.isRelease ? ['spec.engine.version: \\'' + variables.version + '\\' is not a version of ' +
              variables.engineTitles[variables.engine] + '. Write a release such as ' + variables.newestTested[variables.engine] + '.'] :
            variables.isTooOld ? ['spec.engine.version: ' + variables.engineTitles[variables.engine] + ' ' + variables.version + ' ' +
              variables.tooOld[variables.engine]] : []""",
        "drafterProblems": f"""
            variables.namedDrafter.lowerAscii() in variables.trainedFor && variables.target in variables.knownTargets &&
            !variables.isPair && {_changed(_TARGET, _DRAFTER)} ?
            ['spec.drafter.model: ' + variables.namedDrafter + ' was trained for ' +
              variables.trainedFor[variables.namedDrafter.lowerAscii()] + ', not for ' + variables.knownTargets[variables.target] +
              '. Use ' + variables.knownDrafters[variables.target][0] + ', or omit spec.drafter.model.'] : []""",
        "problems": """
            variables.blockSizeProblems + variables.blockSizesProblems + variables.versionProblems + variables.drafterProblems""",
    }
    return {name: "\n".join(line.strip() for line in text.strip().splitlines()) for name, text in lines.items()}


def _changed(*paths: str) -> str:
    """True for a new object, or where one of the fields differs from the old one: what was stored before does not block other changes."""
    differs = (f"object.spec{path} != oldObject.spec{path}" for path in paths)
    return "(" + " ||\n".join(["oldObject == null", *differs]) + ")"


def _map(entries: Iterable[tuple[str, str]]) -> str:
    """A map in CEL, one entry a line, so that a change of the catalog is one line in a diff."""
    return "{\n" + ",\n".join(f"{_text(key)}: {value}" for key, value in entries) + "\n}"


def _text(value: str) -> str:
    """A string in CEL, which reads the escapes of JSON."""
    return json.dumps(value)


class _Dumper(yaml.SafeDumper):
    """Writes an expression as a block, so that quotes and backslashes in it stay as they are."""


_Dumper.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text or "'" in text else None)
)


def admission_policy() -> str:
    """The spec for the catalog and the releases of this release, as YAML."""
    text = yaml.dump(policy_spec(Catalog.load(), TABLE), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1_000_000)
    return "# Generated by make chart.\n" + text
