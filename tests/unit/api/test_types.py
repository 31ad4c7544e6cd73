"""The spec's types: names on the wire, classes, bounds, what was written, and how errors read."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from dflash_controller.api import names, parse
from dflash_controller.api.crd import crd
from dflash_controller.api.parse import parse_spec
from dflash_controller.api.patterns import REFUSALS
from dflash_controller.api.problem import Problem
from dflash_controller.api.schema import CLASS_TEXT
from dflash_controller.api.structural import structural
from dflash_controller.api.types import Spec, as_written, field_classes
from hack.crd import definition

LEAST = {"target": {"model": "Qwen/Qwen3.5-9B"}}


def spec(**fields: Any) -> Spec:
    parsed = parse_spec({"spec": {**LEAST, **fields}})
    assert isinstance(parsed, Spec), parsed
    return parsed


def refused(**fields: Any) -> list[Problem]:
    parsed = parse_spec({"spec": {**LEAST, **fields}})
    assert isinstance(parsed, list), "this spec should not be accepted"
    return parsed


def test_every_leaf_of_the_spec_has_a_class() -> None:
    assert [path for path, found in field_classes().items() if found is None] == []


@pytest.mark.parametrize(
    ("leaf", "expected"),
    [
        ("target.model", "revision"),
        ("drafter.revision", "revision"),
        ("engine.env[].valueFrom.secretKeyRef.key", "revision"),
        ("blockSize", "revision"),
        ("service.port", "revision"),
        ("restartId", "revision"),
        ("scheduling.tolerations[].key", "revision"),
        ("replicas", "live"),
        ("service.type", "live"),
        ("service.annotations", "live"),
        ("rollout.maxSurge", "live"),
        ("rollout.maxUnavailable", "live"),
        ("rollout.analysis.speed.limit", "policy"),
        ("tuning.mode", "policy"),
        ("suspend", "policy"),
    ],
)
def test_classes_of_well_known_leaves(leaf: str, expected: str) -> None:
    assert field_classes()[leaf] == expected


def test_only_what_was_written_comes_back() -> None:
    written = {**LEAST, "tuning": {"blockSizes": [8]}, "engine": {"env": [{"name": "A", "value": ""}]}, "storage": {"emptyDir": {}}}
    assert as_written(spec(**{key: value for key, value in written.items() if key != "target"})) == written


def test_snake_case_is_not_the_wire_format_but_python_reads_it() -> None:
    assert spec(blockSize=8).block_size == 8
    assert spec(podTemplate={"resources": {"requests": {"ephemeral-storage": "1Gi"}}}).pod_template.resources is not None


def test_errors_name_the_field_and_a_remedy() -> None:
    (problem,) = refused(engine={"env": [{"name": "A"}, {"value": "x"}]})
    assert problem.field == "spec.engine.env[1].name"
    assert str(problem) == "spec.engine.env[1].name: is required. Set it."
    (problem,) = refused(tuning={"blocksizes": [8]})
    assert (problem.field, problem.message) == ("spec.tuning.blocksizes", "is not a field")


WRONG_VALUES: tuple[object, ...] = (
    None,
    -1,
    10**12,
    1.5,
    True,
    math.nan,
    "",
    "x" * 2000,
    "a b!",
    "1",
    "nan",
    [],
    [1],
    ["x"] * 2000,
    {},
    {"zz": 1},
)


def test_no_wrong_value_is_refused_in_words_of_python() -> None:
    """Each field of the schema gets a value of each type, out of range, too long and too short."""
    schema = yaml.safe_load(definition())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    said: set[str] = set()
    for value in _with_each_field_wrong(schema):
        parsed = parse_spec({"spec": value})
        said |= set() if isinstance(parsed, Spec) else {f"{problem.message}. {problem.remedy}" for problem in parsed}
    for text in (
        "must be a whole number. Write it without quotes.",
        "must be at least 1. Raise it.",
        "must have 253 or fewer characters. Shorten it.",
        "must be an object. Write its fields below it; kubectl explain dfd.spec.engine names them.",
        "must be a list. Write each item on a line of its own, after a dash.",
        "must be 'Hold', 'Promote' or 'Rollback'. Use one of the values named.",
    ):
        assert text in said
    for text in said:
        assert re.match(r"(must|is|are|cannot) ", text), text
        assert not re.search(r"[{}]|Input|String|tuple|dictionary|instance of|parse|unable|[Pp]attern", text), text


def test_an_error_that_has_no_words_yet_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The types of the spec may get a check whose words were forgotten: that must not stop a reconcile."""
    monkeypatch.delitem(parse._SAID, "missing")
    (problem,) = refused(engine={"env": [{"value": "x"}]})
    assert str(problem) == "spec.engine.env[0].name: cannot be used. See kubectl explain dfd.spec.engine.env.name."


def _with_each_field_wrong(schema: Mapping[str, Any]) -> Iterator[Any]:
    yield from WRONG_VALUES
    if schema.get("type") == "array":
        yield from ([item] for item in _with_each_field_wrong(schema["items"]))
    for name, field in schema.get("properties", {}).items():
        yield from ({name: value} for value in _with_each_field_wrong(field))


def test_a_union_is_one_problem_at_its_own_path() -> None:
    (problem,) = refused(rollout={"maxSurge": "half"})
    assert problem.field == "spec.rollout.maxSurge"
    assert str(problem) == (
        "spec.rollout.maxSurge: must be a number of replicas or a percentage from 0% to 100%. "
        'Write 1 without quotation marks, or "25%" with them.'
    )


def test_a_local_path_as_a_model_is_told_how_local_weights_are_served() -> None:
    (problem,) = refused(target={"model": "/models/x"})
    assert problem.message.startswith("must be a repository on Hugging Face, as in Qwen/Qwen3.5-9B")
    assert "spec.storage.persistentVolumeClaim with readOnly: true" in problem.remedy


def patterns(node: Any) -> Iterator[str]:
    """Every regular expression of a schema."""
    if isinstance(node, dict):
        yield from (value for key, value in node.items() if key == "pattern" and isinstance(value, str))
        node = list(node.values())
    for child in node if isinstance(node, list) else ():
        yield from patterns(child)


def test_no_pattern_refuses_without_saying_what_is_allowed_and_what_to_do() -> None:
    spec = yaml.safe_load(definition())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert not list(patterns(spec))
    assert set(patterns(structural(Spec))) == set(REFUSALS), "each pattern of the types, and no other, has a text"
    for refusal in REFUSALS.values():
        assert refusal.allowed.startswith("must be ")


def test_a_malformed_map_key_is_named() -> None:
    (problem,) = refused(scheduling={"nodeSelector": {"not a key": "x"}})
    assert problem.field == "spec.scheduling.nodeSelector.not a key"


def test_a_missing_spec_is_a_problem() -> None:
    assert isinstance(parse_spec({}), list)
    assert isinstance(parse_spec({"spec": None}), list)


@pytest.mark.parametrize("model", ["--port", "../etc", "/models/x", "a b", "a/b/c", "", "a/.b", "x$(HOME)", "a\nb"])
def test_a_model_is_neither_a_flag_nor_a_path(model: str) -> None:
    assert isinstance(parse_spec({"spec": {"target": {"model": model}}}), list)


@pytest.mark.parametrize("model", ["Qwen/Qwen3.5-9B", "gpt2", "Организация/モデル-9B", "a/b_c.d"])
def test_a_model_may_have_letters_of_any_script(model: str) -> None:
    parsed = parse_spec({"spec": {"target": {"model": model}}})
    assert isinstance(parsed, Spec)
    assert parsed.target.model == model


@pytest.mark.parametrize("duration", ["", "5", "5 m", "0s", "00m", "1d", "-5m", "1.5h", "5m30"])
def test_durations_are_whole_and_above_zero(duration: str) -> None:
    refused(tuning={"window": duration})


def test_dwell_may_be_zero() -> None:
    assert spec(tuning={"minDwell": "0s"}).tuning.min_dwell == "0s"


def nodes(schema: dict[str, Any], path: str = "") -> list[tuple[str, dict[str, Any]]]:
    found = [(path, schema)]
    for name, child in schema.get("properties", {}).items():
        found += nodes(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            found += nodes(schema[key], f"{path}.{key}")
    return found


@pytest.fixture(scope="module")
def schema() -> list[tuple[str, dict[str, Any]]]:
    owned = {"--port": "spec.service.port decides it"}
    [version] = crd({"sglang": owned, "vllm": owned})["spec"]["versions"]
    assert version["name"] == names.VERSION
    return nodes(version["schema"]["openAPIV3Schema"])


def test_every_text_list_and_map_is_bounded(schema: list[tuple[str, dict[str, Any]]]) -> None:
    unbounded = [
        path
        for path, node in schema
        if path not in (".apiVersion", ".kind")
        and (
            (node.get("type") == "string" and "maxLength" not in node and "enum" not in node)
            or (node.get("type") == "array" and "maxItems" not in node)
            or ("additionalProperties" in node and "maxProperties" not in node)
            or (node.get("x-kubernetes-preserve-unknown-fields") and "maxProperties" not in node)
        )
    ]
    assert unbounded == []


def test_every_field_is_described_and_every_leaf_of_the_spec_tells_its_class(schema: list[tuple[str, dict[str, Any]]]) -> None:
    described = [
        (path, node) for path, node in schema if path.startswith((".spec", ".status")) and not path.endswith(("items", "Properties"))
    ]
    assert [path for path, node in described if not node.get("description")] == []
    leaves = [(path, node) for path, node in described if path.startswith(".spec") and "properties" not in node and "items" not in node]
    assert [path for path, node in leaves if not node["description"].endswith(tuple(CLASS_TEXT.values()))] == []


def test_schema_is_structural(schema: list[tuple[str, dict[str, Any]]]) -> None:
    forbidden = {"title", "$ref", "$defs", "const", "prefixItems", "patternProperties", "propertyNames", "exclusiveMinimum", "uniqueItems"}
    assert [path for path, node in schema if forbidden & node.keys() or node.get("additionalProperties") is False] == []
    assert [path for path, node in schema if "default" in node] == [".spec.replicas"]
