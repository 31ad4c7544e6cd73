"""``kubectl dflash validate`` and a real API server: the same verdict on every file, and on every field with every kind of wrong value."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from dflash_controller.api.crd import crd
from dflash_controller.api.names import KIND
from dflash_controller.cli.checks import check
from dflash_controller.cli.manifests import read
from dflash_controller.engines import ENGINES
from dflash_controller.engines.resolve import OperatorDefaults
from testbed.api import ApiError
from testbed.cluster import Cluster

HERE = Path(__file__).parent
FILES = [*sorted((HERE / "valid").glob("*.yaml")), *sorted((HERE / "invalid").glob("*.yaml"))]
EXAMPLES = HERE.parents[1] / "examples"
DRY_RUN = "/apis/serving.dflash.io/v1alpha1/namespaces/default/dflashdeployments?dryRun=All&fieldValidation=Strict"
WRONG: tuple[Any, ...] = (None, True, -1, 0, 1.5, 10**6, "", "x", "-", "ü", "a" * 5000, "25%", "1.5h", [], ["x"], {}, {"x": "y"})
"""Values that every field gets in turn."""


def header(file: Path, key: str) -> str:
    found = (line.removeprefix(f"# {key}: ") for line in file.read_text(encoding="utf-8").splitlines() if line.startswith(f"# {key}: "))
    return next(found, "")


def server_refusal(cluster: Cluster, manifest: Mapping[str, Any]) -> str | None:
    """The API server's message; None if it accepts the object."""
    try:
        cluster.api.request("POST", DRY_RUN, manifest)
    except ApiError as error:
        return str(error)
    return None


def verdict(manifest: Mapping[str, Any]) -> Any:
    return check(manifest, "name", "default", OperatorDefaults())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_files_have_the_verdict_of_the_api_server_and_of_the_operator(cluster: Cluster, file: Path) -> None:
    manifest = yaml.safe_load(file.read_text(encoding="utf-8"))
    found = verdict(manifest)
    assert found.accepted is (server_refusal(cluster, manifest) is None), found
    assert any(header(file, "expect") in str(problem) for problem in found.problems) if header(file, "by") else not found.problems
    assert {problem.by for problem in found.problems} <= {"API server" if header(file, "by") == "apiserver" else "operator"}


def test_examples_are_accepted_by_both(cluster: Cluster) -> None:
    manifests = [document.manifest for document in read([str(EXAMPLES)]) if document.kind == KIND]
    assert len(manifests) >= 5
    for manifest in manifests:
        plain = {**manifest, "metadata": {"name": manifest["metadata"]["name"]}}
        assert verdict(plain).problems == (), manifest["metadata"]["name"]
        assert server_refusal(cluster, plain) is None


def places(schema: Mapping[str, Any], value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of every field of the schema; below those that the base object has it goes on."""
    for name, inner in schema.get("properties", {}).items():
        yield (*path, name)
        if isinstance(value, Mapping) and name in value:
            yield from places(inner, value[name], (*path, name))
    if isinstance(value, list) and value and "items" in schema:
        yield (*path, 0)
        yield from places(schema["items"], value[0], (*path, 0))


def changed(base: Mapping[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    made = copy.deepcopy(dict(base))
    at: Any = made
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return made


def test_every_field_with_wrong_values_has_the_verdict_of_the_api_server(cluster: Cluster) -> None:
    base = yaml.safe_load((HERE / "valid" / "everything.yaml").read_text(encoding="utf-8"))
    owned = {name: engine.owned_flags() for name, engine in ENGINES.items()}
    schema = crd(owned)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    found = [("spec", *path) for path in places(schema, base["spec"])]
    assert len(found) > 100
    differ, refused = [], 0
    for path in found:
        for value in WRONG:
            manifest = changed(base, path, value)
            said, ours = server_refusal(cluster, manifest), verdict(manifest)
            refused += said is not None
            if ours.accepted is not (said is None):
                differ.append((path, value, said, [str(problem) for problem in ours.problems]))
    assert not differ, f"{len(differ)} differ, the first: {differ[:12]}"
    assert refused > 500


SOUND: dict[str, Any] = {
    "apiVersion": "serving.dflash.io/v1alpha1",
    "kind": KIND,
    "metadata": {"name": "a"},
    "spec": {"target": {"model": "Qwen/Qwen3.5-9B"}},
}
MALFORMED: dict[str, dict[str, Any]] = {
    "another-version": {**SOUND, "apiVersion": "serving.dflash.io/v1"},
    "no-spec": {key: value for key, value in SOUND.items() if key != "spec"},
    "no-name": {**SOUND, "metadata": {}},
    "label-number": {**SOUND, "metadata": {"name": "a", "labels": {"x": 1}}},
    "label-value": {**SOUND, "metadata": {"name": "a", "labels": {"x": "a b"}}},
    "label-key": {**SOUND, "metadata": {"name": "a", "labels": {"x y": "b"}}},
    "unknown-in-metadata": {**SOUND, "metadata": {"name": "a", "lables": {"x": "b"}}},
    "unknown-beside-spec": {**SOUND, "specs": {}},
    "upper-case-name": {**SOUND, "metadata": {"name": "Qwen"}},
    "spec-is-a-list": {**SOUND, "spec": []},
}


def test_the_sound_object_is_accepted_by_both(cluster: Cluster) -> None:
    assert server_refusal(cluster, SOUND) is None
    assert not verdict(SOUND).problems


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_wrong_beside_the_spec_is_refused_by_both(cluster: Cluster, name: str) -> None:
    assert server_refusal(cluster, MALFORMED[name]) is not None
    assert not verdict(MALFORMED[name]).accepted
