"""Which inputs define a revision, and when two of them are the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_controller.api.inputs import canonical, revision_inputs
from dflash_controller.api.parse import parse_spec
from dflash_controller.api.types import Spec


def inputs(**fields: Any) -> dict[str, Any]:
    parsed = parse_spec({"spec": {"target": {"model": "Qwen/Qwen3.5-9B"}, **fields}})
    assert isinstance(parsed, Spec), parsed
    return revision_inputs(parsed)


BASE = inputs()


@pytest.mark.parametrize(
    "fields",
    [
        {"replicas": 7},
        {"blockSize": 8},
        {"suspend": True},
        {"tuning": {"mode": "Auto", "blockSizes": [8, 16]}},
        {"rollout": {"maxSurge": 1, "analysis": {"speed": {"limit": 1}}, "window": {"schedule": "0 22 * * *", "duration": "4h"}}},
        {"service": {"type": "NodePort", "annotations": {"a": "b"}}},
        {"target": {"model": "Qwen/Qwen3.5-9B", "mixtureOfExperts": True}},
    ],
)
def test_live_and_policy_fields_and_the_block_are_no_revision_inputs(fields: dict[str, Any]) -> None:
    assert inputs(**fields) == BASE


@pytest.mark.parametrize(
    "fields",
    [
        {"drafter": {"revision": "abc"}},
        {"engine": {"env": [{"name": "A", "value": "1"}]}},
        {"service": {"port": 9000}},
        {"storage": {"emptyDir": {}}},
        {"restartId": "1"},
        {"podTemplate": {"metadata": {"labels": {"a": ""}}}},
        {"scheduling": {"nodeSelector": {"node-role.kubernetes.io/gpu": ""}}},
        {"scheduling": {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"namespaceSelector": {}}]}}}},
        {"target": {"model": "Qwen/Qwen3.5-9B", "hybrid": False}},
    ],
)
def test_revision_fields_make_a_difference(fields: dict[str, Any]) -> None:
    assert canonical(inputs(**fields)) != canonical(BASE)


def test_inputs_are_as_written_and_in_camel_case() -> None:
    assert inputs(engine={"maxConcurrency": 8}, podTemplate={"resources": {"requests": {"cpu": 4}}}) == {
        "target": {"model": "Qwen/Qwen3.5-9B"},
        "engine": {"maxConcurrency": 8},
        "podTemplate": {"resources": {"requests": {"cpu": 4}}},
    }


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"engine": {}}, {}),
        ({"engine": {"env": [], "extraArgs": []}}, {}),
        ({"restartId": ""}, {}),
        ({"podTemplate": {"metadata": {"labels": {}}}}, {}),
        (
            {"engine": {"env": [{"name": "A", "value": "1"}, {"name": "B"}]}},
            {"engine": {"env": [{"name": "B", "value": ""}, {"name": "A", "value": "1"}]}},
        ),
        ({"engine": {"extraArgs": ["--a", "--b=1"]}}, {"engine": {"extraArgs": ["--b=1", "--a"]}}),
        (
            {"podTemplate": {"resources": {"requests": {"cpu": "1000m", "memory": "1Gi"}}}},
            {"podTemplate": {"resources": {"requests": {"cpu": 1, "memory": 1073741824}}}},
        ),
        ({"storage": {"emptyDir": {"sizeLimit": "2Ki"}}}, {"storage": {"emptyDir": {"sizeLimit": "2048"}}}),
        (
            {"scheduling": {"tolerations": [{"key": "a", "operator": "Exists"}, {"key": "b", "operator": "Exists"}]}},
            {"scheduling": {"tolerations": [{"key": "b", "operator": "Exists"}, {"operator": "Exists", "key": "a"}]}},
        ),
        (
            {"podTemplate": {"imagePullSecrets": [{"name": "a"}, {"name": "b"}]}},
            {"podTemplate": {"imagePullSecrets": [{"name": "b"}, {"name": "a"}]}},
        ),
    ],
)
def test_inputs_that_mean_the_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert canonical(inputs(**one)) == canonical(inputs(**other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # The last one of a repeated flag wins.
        ({"engine": {"extraArgs": ["--a=1", "--a=2"]}}, {"engine": {"extraArgs": ["--a=2", "--a=1"]}}),
        # B sees A only where A stands before it.
        (
            {"engine": {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)"}]}},
            {"engine": {"env": [{"name": "B", "value": "$(A)"}, {"name": "A", "value": "1"}]}},
        ),
        ({"target": {"model": "a/\u00e9"}}, {"target": {"model": "a/e\u0301"}}),
    ],
)
def test_inputs_whose_difference_counts(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert canonical(inputs(**one)) != canonical(inputs(**other))


def test_keys_of_a_newer_release_are_kept() -> None:
    assert canonical({"target": {"model": "x"}, "novelty": {"on": False, "none": []}}) == {
        "target": {"model": "x"},
        "novelty": {"on": False},
    }


NAMES = st.text(max_size=8) | st.sampled_from(["cpu", "memory", "env", "extraArgs", "emptyDir", "affinity", "tolerations"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(NAMES, JSON, max_size=5))
def test_canonical_is_stable_and_json_able(data: dict[str, Any]) -> None:
    once = canonical(data)
    assert canonical(once) == once
    assert json.loads(json.dumps(once)) == once
