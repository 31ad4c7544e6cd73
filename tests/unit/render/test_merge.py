"""A change merged into a stored manifest: the change and nothing else, whatever release of the operator rendered what is stored."""

from __future__ import annotations

import copy
import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings

from dflash_controller.api.speculation import Fixed, Off, Schedule, Speculation
from dflash_controller.engines import ENGINES
from dflash_controller.render.merge import three_way
from dflash_controller.render.workload import workload
from tests.support.render_inputs import INPUTS, NAMESPACE, deployment, parsed, pod_templates, resolved
from tests.unit.render.test_properties import SPECS

SPECULATIONS: list[Speculation] = [Off(), Fixed(8), Fixed(16), Schedule(((1, 8, 15), (9, 256, 7)))]
SHAPES = {
    f"{engine}-{nodes}-nodes": deployment(
        target={"model": "Qwen/Qwen3.5-397B-A17B"}, engine={"name": engine}, parallelism={"tensor": 8 * nodes, "nodes": nodes}
    )
    for engine in ("sglang", "vllm")
    for nodes in (1, 2)
}


def rendered(obj: dict[str, Any], revision: str, speculation: Speculation) -> dict[str, Any]:
    facts = resolved(obj)
    engine = ENGINES[facts.engine]
    launch, probes = engine.launch(facts.launch_request(speculation)), engine.probes(facts.version)
    return workload(obj["metadata"]["name"], NAMESPACE, revision, parsed(obj), facts, launch, probes, speculation)


def legal(obj: dict[str, Any]) -> list[Speculation]:
    facts = resolved(obj)
    return [item for item in SPECULATIONS if not ENGINES[facts.engine].problems(facts.launch_request(item))]


def changes(obj: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Before and after, of every change from one speculation to another."""
    return [(rendered(obj, "raaaaaaa", one), rendered(obj, "rbbbbbbb", other)) for one, other in itertools.permutations(legal(obj), 2)]


def text(manifest: Any) -> str:
    return json.dumps(manifest)


def of_older_release(manifest: dict[str, Any]) -> dict[str, Any]:
    """As a release renders it that knows one flag and one variable more, one flag less, and a field of the pod that is gone."""
    older = copy.deepcopy(manifest)
    for template in pod_templates(older).values():
        template["spec"]["hostname"] = "engine"
        [container] = template["spec"]["containers"]
        container["args"] = [token for token in container["args"] if not token.startswith("--port")] + ["--gone=1"]
        container["env"] = [{"name": "GONE", "value": "1"}, *container.get("env", ())]
    return older


def in_any_order(manifest: dict[str, Any]) -> dict[str, Any]:
    """Where a flag or a variable is added among those of another release says nothing."""
    for template in pod_templates(manifest).values():
        [container] = template["spec"]["containers"]
        container["args"] = sorted(container["args"])
        container["env"] = sorted(container["env"], key=lambda variable: str(variable["name"]))
    return manifest


@pytest.mark.parametrize("obj", [*INPUTS.values(), *SHAPES.values()], ids=[*INPUTS, *SHAPES])
def test_under_the_release_that_stored_it_the_result_is_what_that_release_renders(obj: dict[str, Any]) -> None:
    assert len(legal(obj)) >= 3
    for before, after in changes(obj):
        assert text(three_way(before, after, copy.deepcopy(before))) == text(after)


@settings(max_examples=30, deadline=None)
@given(spec=SPECS)
def test_under_the_release_that_stored_it_any_spec_gives_what_that_release_renders(spec: dict[str, Any]) -> None:
    obj = deployment(**spec)
    for before, after in changes(obj):
        assert text(three_way(before, after, copy.deepcopy(before))) == text(after)


@pytest.mark.parametrize("obj", [*INPUTS.values(), *SHAPES.values()], ids=[*INPUTS, *SHAPES])
def test_what_another_release_rendered_stays_as_it_is(obj: dict[str, Any]) -> None:
    """The result is what the other release would have rendered for the change."""
    for before, after in changes(obj):
        merged, expected = three_way(before, after, of_older_release(before)), of_older_release(after)
        assert in_any_order(merged) == in_any_order(expected)


def test_a_flag_with_a_json_value_is_merged_by_its_keys() -> None:
    base, changed = ['--config={"tokens":15,"method":"dflash","new":1}'], ['--config={"tokens":7,"method":"dflash","new":1}']
    assert three_way(base, changed, ['--config={"tokens":15,"method":"dflash"}']) == ['--config={"tokens":7,"method":"dflash"}']


@pytest.mark.parametrize(
    ("base", "changed", "stored", "merged"),
    [
        (["model", "--a=1"], ["model", "--a=2"], ["model", "--a=1", "--b"], ["model", "--a=2", "--b"]),
        (["model", "--a=1", "--b"], ["model", "--a=2", "--b"], ["model", "--a=1"], ["model", "--a=2"]),
        (["--a", "--c"], ["--a", "--b", "--c"], ["--a", "--c", "--d"], ["--a", "--b", "--c", "--d"]),
        (["--a", "--b"], ["--b"], ["--a", "--b", "--c"], ["--b", "--c"]),
        (["--x=1", "--x=2"], ["--x=1", "--x=3"], ["--x=1", "--x=2", "--y"], ["--x=1", "--x=3", "--y"]),
        (["--a"], ["--b", "--a"], ["--z", "--a"], ["--b", "--z", "--a"]),
        (["--host=", "--block=16"], ["--host=", "--block=8"], ["--host=0.0.0.0", "--block=16"], ["--host=0.0.0.0", "--block=8"]),
    ],
)
def test_command_lines_are_merged_by_flag(base: list[str], changed: list[str], stored: list[str], merged: list[str]) -> None:
    assert three_way(base, changed, stored) == merged
