"""What holds for every deployment, whatever its user wrote."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.render_inputs import deployment, engine_container, rendered

LABEL = st.from_regex(r"[a-z]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True)
WORDS = st.dictionaries(LABEL, LABEL, max_size=2)
QUANTITY = st.sampled_from([1, 16, "500m", "128Gi"])
RESOURCES = st.fixed_dictionaries({}, optional={"cpu": QUANTITY, "memory": QUANTITY, "ephemeral-storage": QUANTITY})
LIMITS = st.fixed_dictionaries(
    {},
    # A limit that cannot hold the weights in an emptyDir is refused.
    optional={"cpu": QUANTITY, "memory": QUANTITY, "ephemeral-storage": st.sampled_from(["128Gi", 200_000_000_000])},
)
TOLERATION = st.fixed_dictionaries(
    {},
    optional={
        "key": LABEL,
        "operator": st.sampled_from(["Equal", "Exists"]),
        "value": LABEL | st.just(""),
        "tolerationSeconds": st.just(0),
    },
)
ENV = st.builds(lambda name, value: {"name": name.upper().replace("-", "_"), "value": value}, LABEL, st.text(max_size=5))
STORAGE = st.sampled_from(
    [
        {"emptyDir": {}},
        {"emptyDir": {"sizeLimit": "80Gi"}},
        {"persistentVolumeClaim": {"claimName": "models"}},
        {"persistentVolumeClaim": {"claimName": "models", "readOnly": False}},
        {"persistentVolumeClaim": {"claimName": "models", "readOnly": True}},
    ]
)


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Any subset of the fields: an empty one too, which users do write."""
    return st.fixed_dictionaries({}, optional=fields)


SPECS = some(
    engine=some(
        name=st.sampled_from(["sglang", "vllm"]),
        env=st.lists(ENV, max_size=3, unique_by=lambda variable: variable["name"]),
        extraArgs=st.just([]),
        maxConcurrency=st.integers(1, 256),
    ),
    parallelism=st.sampled_from([{}, {"tensor": 4}, {"tensor": 16, "nodes": 2}]),
    blockSize=st.sampled_from([1, 8, 16]),
    accelerator=some(product=st.sampled_from(["NVIDIA-B200", "NVIDIA-H100-80GB-HBM3"]), rdma=st.just({"resource": "rdma/hca", "count": 1})),
    storage=STORAGE,
    huggingFace=st.just({"tokenSecretRef": {"name": "hub", "key": "token"}}),
    scheduling=some(
        nodeSelector=WORDS,
        tolerations=st.lists(TOLERATION, max_size=2),
        affinity=some(nodeAffinity=st.just({}), podAffinity=st.just({"requiredDuringSchedulingIgnoredDuringExecution": []})),
        priorityClassName=LABEL,
    ),
    podTemplate=some(
        metadata=some(labels=WORDS, annotations=WORDS),
        imagePullSecrets=st.just([]),
        resources=some(requests=RESOURCES, limits=LIMITS),
        terminationGracePeriodSeconds=st.integers(30, 86400),
    ),
    service=some(port=st.integers(1024, 65535), annotations=WORDS),
)


def parts(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    yield path, value
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from parts(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from parts(inner, f"{path}[{index}]")


@settings(max_examples=150, deadline=None)
@given(SPECS)
def test_nothing_empty_is_rendered_and_everything_is_plain_json(spec: dict[str, Any]) -> None:
    for manifest in rendered(deployment(**spec)):
        assert json.loads(json.dumps(manifest)) == manifest
        for path, value in parts(manifest):
            assert value not in (None, {}, []), f"{manifest['kind']}{path} is {value!r}"


@settings(max_examples=50, deadline=None)
@given(SPECS)
def test_rendering_is_deterministic_and_leaves_its_input_alone(spec: dict[str, Any]) -> None:
    obj = deployment(**spec)
    before = copy.deepcopy(obj)
    assert json.dumps(rendered(obj)) == json.dumps(rendered(obj))
    assert obj == before


@settings(max_examples=50, deadline=None)
@given(SPECS)
def test_environment_names_are_unique(spec: dict[str, Any]) -> None:
    """Server-side apply refuses a list with two items of one key."""
    names = [variable["name"] for variable in engine_container(deployment(**spec)).get("env", [])]
    assert len(names) == len(set(names))
