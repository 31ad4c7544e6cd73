"""The chart of models, rendered by the real Helm: what comes out is valid, and what cannot be is refused in words that name it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import textwrap
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from dflash_controller import __version__
from dflash_controller.api.parse import parse_spec
from dflash_controller.api.speculation import Fixed
from dflash_controller.api.types import Spec
from dflash_controller.api.validation import problems
from dflash_controller.catalog import Catalog
from dflash_controller.engines import ENGINES
from dflash_controller.engines.resolve import resolve
from dflash_controller.engines.resolved import OperatorDefaults, Resolved
from hack import models_chart
from hack.crd import definition
from testbed import binaries
from tests.support.releases import default_release

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "dflash-models"
CATALOG = CHART / "examples" / "catalog.yaml"
KUBERNETES = "1.35"
NAMESPACE = "models"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
EVERYTHING = yaml.safe_load((ROOT / "tests" / "api" / "valid" / "everything.yaml").read_text(encoding="utf-8"))["spec"]

Values = dict[str, Any]


def helm(*arguments: str, input: str | None = None) -> subprocess.CompletedProcess[str]:
    """It ends before garbage is worth collecting."""
    command, environment = [binaries.path_of("helm"), *arguments], {**os.environ, "GOGC": "off"}
    return subprocess.run(command, env=environment, input=input, capture_output=True, text=True, check=False, timeout=60)


def render(values: Mapping[str, Any]) -> subprocess.CompletedProcess[str]:
    head = ("template", "all", str(CHART), "--namespace", NAMESPACE, "--kube-version", KUBERNETES)
    return helm(*head, "--values", "-", input=yaml.safe_dump(dict(values)))


def manifests(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    done = render(values)
    assert done.returncode == 0, done.stderr
    return [manifest for manifest in yaml.load_all(done.stdout, yaml.CSafeLoader) if manifest]


def specs(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [manifest["spec"] for manifest in manifests(values)]


@cache
def validator() -> Draft202012Validator:
    """Of the definition's schema, unknown fields refused. What it says in CEL is in ``validation.problems`` too."""
    schema = yaml.load(definition(), yaml.CSafeLoader)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["metadata"] = {"type": "object"}
    _for_python(schema)
    return Draft202012Validator(schema)


def _for_python(node: dict[str, Any]) -> None:
    """Closed, and with patterns as Python spells them."""
    if "pattern" in node:
        node["pattern"] = node["pattern"].replace(r"\p{L}\p{M}\p{N}", r"\w").replace(r"\p{L}\p{N}", r"\w")
    if "properties" in node and not node.get("x-kubernetes-preserve-unknown-fields"):
        node["additionalProperties"] = False
    inner = [*node.get("properties", {}).values(), node.get("items"), node.get("additionalProperties")]
    for child in inner:
        if isinstance(child, dict):
            _for_python(child)


def complaints(manifest: Mapping[str, Any]) -> list[str]:
    """What the definition, its rules and the types say against an object."""
    found = [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in validator().iter_errors(manifest)]
    spec = parse_spec(manifest)
    if not isinstance(spec, Spec):
        return [*found, *map(str, spec)]
    owned = ENGINES[spec.engine.name or "sglang"].owned_flags()
    return [*found, *map(str, problems(spec, owned_flags=owned, host_path_roots=["/"]))]


# Values, and the names of the models that they make.
CASES: dict[str, tuple[Values, list[str]]] = {
    "nothing": ({}, []),
    "no models, but defaults": ({"defaults": {"spec": {"replicas": 2}}}, []),
    "by catalog name": ({"models": [{"model": "Qwen/Qwen3.5-9B"}]}, ["qwen3-5-9b"]),
    "two engines of one model": (
        {
            "defaults": {"spec": {"target": {"model": "Qwen/Qwen3.5-9B"}, "replicas": 2}},
            "models": [{"name": "chat"}, {"name": "code", "spec": {"engine": {"name": "vllm", "version": default_release("vllm")}}}],
        },
        ["chat", "code"],
    ),
    "a spec as it stands": ({"models": [{"name": "everything", "spec": EVERYTHING}]}, ["everything"]),
    "a spec as defaults": ({"defaults": {"spec": EVERYTHING}, "models": [{"name": "one"}, {"name": "two"}]}, ["one", "two"]),
    "defaults for a team": (
        {
            "defaults": {
                "labels": {"team": "inference"},
                "annotations": {"example.com/owner": "inference@example.com"},
                "spec": {
                    "replicas": 2,
                    "accelerator": {"product": "NVIDIA-H200"},
                    "storage": {"persistentVolumeClaim": {"claimName": "weights"}},
                    "scheduling": {"nodeSelector": {"pool": "a"}, "tolerations": [{"key": "a", "operator": "Exists"}]},
                    "rollout": {"maxSurge": 1, "maxUnavailable": 0, "window": {"schedule": "0 20 * * 1-4", "duration": "3h"}},
                    "huggingFace": {"tokenSecretRef": {"name": "hugging-face", "key": "token"}},
                },
            },
            "models": [
                {"model": "Qwen/Qwen3.5-9B", "spec": {"drafter": {"revision": COMMIT}}},
                {
                    "model": "Qwen/Qwen3.5-397B-A17B",
                    "labels": {"tier": "large"},
                    "spec": {
                        "replicas": 0,
                        "parallelism": {"tensor": 8},
                        "storage": {"persistentVolumeClaim": None, "hostPath": {"path": "/models"}},
                        "scheduling": {"nodeSelector": {"pool": None, "zone": "b"}, "tolerations": []},
                        "rollout": {"maxUnavailable": "50%", "window": None},
                    },
                },
            ],
        },
        ["qwen3-5-9b", "qwen3-5-397b-a17b"],
    ),
    "below a parent chart": (
        {"global": {"imageRegistry": "registry.example"}, "models": [{"model": "openai/gpt-oss-20b"}]},
        ["gpt-oss-20b"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_values_become_valid_deployments(case: str) -> None:
    values, names = CASES[case]
    made = manifests(values)
    assert [manifest["metadata"]["name"] for manifest in made] == names
    for manifest in made:
        assert manifest["metadata"]["namespace"] == NAMESPACE
        assert complaints(manifest) == []


@pytest.mark.parametrize("case", CASES)
def test_lint_finds_nothing(case: str) -> None:
    done = helm("lint", "--strict", str(CHART), "--kube-version", KUBERNETES, "--values", "-", input=yaml.safe_dump(CASES[case][0]))
    assert done.returncode == 0, done.stdout


def test_validation_here_does_find_something() -> None:
    [made] = manifests(CASES["by catalog name"][0])
    wrongs: list[Values] = [{"replica": 1}, {"replicas": -1}, {"blockSize": "16"}, {"tuning": {"blockSizes": [16, 8]}}, {"target": {}}]
    for wrong in wrongs:
        assert complaints({**made, "spec": {**made["spec"], **wrong}}), wrong


def test_a_spec_passes_through_unchanged() -> None:
    assert specs(CASES["a spec as it stands"][0]) == [EVERYTHING]
    assert specs(CASES["a spec as defaults"][0]) == [EVERYTHING, EVERYTHING]


def test_what_a_model_writes_is_merged_over_the_defaults() -> None:
    small, large = specs(CASES["defaults for a team"][0])
    defaults = CASES["defaults for a team"][0]["defaults"]["spec"]
    assert small == {**defaults, "target": {"model": "Qwen/Qwen3.5-9B"}, "drafter": {"revision": COMMIT}}
    assert large == {
        "replicas": 0,
        "target": {"model": "Qwen/Qwen3.5-397B-A17B"},
        "parallelism": {"tensor": 8},
        "accelerator": {"product": "NVIDIA-H200"},
        "storage": {"hostPath": {"path": "/models"}},
        "scheduling": {"nodeSelector": {"zone": "b"}, "tolerations": []},
        "rollout": {"maxSurge": 1, "maxUnavailable": "50%"},
        "huggingFace": {"tokenSecretRef": {"name": "hugging-face", "key": "token"}},
    }


@pytest.mark.parametrize(
    ("lower", "upper", "merged"),
    [
        ({"suspend": True}, {"suspend": False}, {"suspend": False}),
        ({"replicas": 2}, {"replicas": 0}, {"replicas": 0}),
        ({"restartId": "a"}, {"restartId": ""}, {"restartId": ""}),
        ({"tuning": {"blockSizes": [8, 16]}}, {"tuning": {"blockSizes": [16]}}, {"tuning": {"blockSizes": [16]}}),
        ({"storage": {"hostPath": {"path": "/a"}}}, {"storage": {"hostPath": None, "emptyDir": {}}}, {"storage": {"emptyDir": {}}}),
        ({"drafter": {"revision": COMMIT}}, {"drafter": None}, {}),
        ({}, {"rollout": {"window": None, "paused": True}}, {"rollout": {"paused": True}}),
        ({"podTemplate": {"terminationGracePeriodSeconds": 86400}}, {}, {"podTemplate": {"terminationGracePeriodSeconds": 86400}}),
    ],
)
def test_values_that_say_nothing_replace_too_and_null_removes(lower: Values, upper: Values, merged: Values) -> None:
    [made] = specs({"defaults": {"spec": lower}, "models": [{"model": "a/b", "spec": upper}]})
    del made["target"]
    assert made == merged


def test_one_model_does_not_leak_into_the_next() -> None:
    first, second = specs({"defaults": {"spec": {"engine": {"name": "sglang"}}}, "models": [
        {"name": "a", "model": "a/b", "spec": {"engine": {"version": "0.5.19"}, "drafter": {"revision": COMMIT}}},
        {"name": "b", "model": "a/b"},
    ]})  # fmt: skip
    assert first["engine"] == {"name": "sglang", "version": "0.5.19"}
    assert second == {"engine": {"name": "sglang"}, "target": {"model": "a/b"}}


def test_labels_and_annotations_are_merged_and_the_charts_own_stay() -> None:
    values = {
        "defaults": {"labels": {"team": "a", "tier": "b"}, "annotations": {"serving.dflash.io/pin": "chat-rabc", "note": "a"}},
        "models": [{"model": "a/b", "labels": {"tier": None, "app.kubernetes.io/instance": "mine"}, "annotations": {"note": "b"}}],
    }
    [made] = manifests(values)
    labels = made["metadata"]["labels"]
    assert (labels["team"], labels["app.kubernetes.io/instance"], labels["app.kubernetes.io/managed-by"]) == ("a", "all", "Helm")
    assert "tier" not in labels
    assert made["metadata"]["annotations"] == {"serving.dflash.io/pin": "chat-rabc", "note": "b"}


def test_defaults_of_a_second_file_are_merged_with_those_of_the_first(tmp_path: Path) -> None:
    """How environments differ: the list is in one file, what differs is in the other."""
    models, production = tmp_path / "models.yaml", tmp_path / "production.yaml"
    models.write_text(yaml.safe_dump({"defaults": {"spec": {"replicas": 1, "suspend": True}}, "models": [{"model": "a/b"}]}))
    production.write_text(yaml.safe_dump({"defaults": {"spec": {"replicas": 4, "suspend": None}}}))
    files = ("--values", str(models), "--values", str(production))
    done = helm("template", "all", str(CHART), "--kube-version", KUBERNETES, *files)
    assert yaml.safe_load(done.stdout)["spec"] == {"replicas": 4, "target": {"model": "a/b"}}, done.stderr


def one(**spec: Any) -> Values:
    return {"models": [{"model": "a/b", "spec": spec}]}


# Values, where the message points to, and words that say what is wrong. The first come from the schema, the others from the templates.
REFUSED: dict[str, tuple[Values, str, str]] = {
    "misspelt value": ({"model": []}, "at ''", "additional properties 'model' not allowed"),
    "models by name": ({"models": {"chat": {"model": "a/b"}}}, "at '/models'", "got object, want array"),
    "model as text": ({"models": ["a/b"]}, "at '/models/0'", "got string, want object"),
    "namespace of a model": (
        {"models": [{"model": "a/b", "namespace": "c"}]},
        "at '/models/0'",
        "additional properties 'namespace' not allowed",
    ),
    "field beside the spec": (
        {"models": [{"model": "a/b", "replicas": 2}]},
        "at '/models/0'",
        "additional properties 'replicas' not allowed",
    ),
    "field beside the default spec": ({"defaults": {"replicas": 2}}, "at '/defaults'", "additional properties 'replicas' not allowed"),
    "name with capitals": ({"models": [{"name": "Chat", "model": "a/b"}]}, "at '/models/0/name'", "'Chat' does not match pattern"),
    "name too long": ({"models": [{"name": "a" * 41, "model": "a/b"}]}, "at '/models/0/name'", "maxLength: got 41, want 40"),
    "model that cannot be": ({"models": [{"model": "a b"}]}, "at '/models/0/model'", "'a b' does not match pattern"),
    "label that cannot be": ({"models": [{"model": "a/b", "labels": {"a": "b c"}}]}, "at '/models/0/labels/a'", "does not match pattern"),
    "annotation that is no text": (
        {"defaults": {"annotations": {"a": True}}},
        "at '/defaults/annotations/a'",
        "got boolean, want null or string",
    ),
    "misspelt field": (one(replica=2), "at '/models/0/spec'", "additional properties 'replica' not allowed"),
    "misspelt default": ({"defaults": {"spec": {"tuning": {"modes": "Off"}}}}, "at '/defaults/spec/tuning'", "'modes' not allowed"),
    "number as text": (one(replicas="2"), "at '/models/0/spec/replicas'", "got string, want null or integer"),
    "out of range": (one(blockSize=65), "at '/models/0/spec/blockSize'", "maximum: got 65, want 64"),
    "unknown engine": (one(engine={"name": "trt"}), "at '/models/0/spec/engine/name'", "must be one of 'sglang', 'vllm'"),
    "Off without quotes": (one(tuning={"mode": False}), "at '/models/0/spec/tuning/mode'", "got boolean, want null or string"),
    "duration in words": (one(tuning={"window": "5 minutes"}), "at '/models/0/spec/tuning/window'", "does not match pattern"),
    "item without what it needs": (one(engine={"env": [{"value": "a"}]}), "at '/models/0/spec/engine/env/0'", "missing property 'name'"),
    "null in a list": (
        one(engine={"env": [{"name": "A", "value": None}]}),
        "at '/models/0/spec/engine/env/0/value'",
        "got null, want string",
    ),
    "spec left blank": ({"models": [{"model": "a/b", "spec": None}]}, "at '/models/0/spec'", "got null, want object"),
    "name twice": (
        {"models": [{"name": "chat", "model": "a/b"}, {"name": "code", "model": "a/b"}, {"name": "chat", "model": "c/d"}]},
        "models[2] (chat)",
        "the name chat is that of models[0] already; set another name",
    ),
    "name twice, made of the model": ({"models": [{"model": "a/b"}, {"model": "c/B"}]}, "models[1] (b)", "that of models[0] already"),
    "no model": ({"models": [{"name": "chat", "spec": {"replicas": 2}}]}, "models[0] (chat)", "no model is named; set model"),
    "no name to be made": ({"models": [{"model": "a/7B"}]}, "models[0]", "no name can be made of model a/7B; set name"),
    "no short name to be made": ({"models": [{"model": "a" * 41}]}, "models[0]", "set name to at most 40"),
    "two models in one": (
        {"models": [{"model": "a/b", "spec": {"target": {"model": "c/d"}}}]},
        "models[0] (b)",
        "model is a/b and spec.target.model is c/d; keep one of them",
    ),
    "storage of the defaults not removed": (
        {"defaults": {"spec": {"storage": {"hostPath": {"path": "/a"}}}}, **one(storage={"emptyDir": {}})},
        "models[0] (b)",
        "spec.storage has emptyDir and hostPath, defaults included; set the one you do not want to null",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_value_is_refused_in_words(case: str) -> None:
    wrong, where, what = REFUSED[case]
    done = render(wrong)
    assert done.returncode != 0
    told = [line for line in done.stderr.splitlines() if line.startswith("- ")]
    assert len(told) == 1, f"one mistake, one complaint: {done.stderr}"
    assert where in told[0]
    assert what in told[0]


def test_all_that_is_wrong_is_told_at_once() -> None:
    done = render({"models": [{"name": "a"}, {"model": "x/7B"}, {"name": "a", "model": "b/c"}]})
    assert [line.partition(":")[0] for line in done.stderr.splitlines() if line.startswith("- ")] == [
        "- models[0] (a)",
        "- models[1]",
        "- models[2] (a)",
    ]


def test_the_schema_takes_no_more_than_the_definition_but_null_and_parts() -> None:
    """Every object that the API server refuses by its schema is refused; rules of CEL are its own."""
    files = sorted((ROOT / "tests" / "api" / "invalid").glob("*.yaml"))
    refused = []
    for file in files:
        written = yaml.safe_load(file.read_text(encoding="utf-8"))
        by_schema = [error for error in validator().iter_errors(written) if error.validator != "required"]
        if by_schema and isinstance(written.get("spec"), dict):
            done = render({"models": [{"name": "a", "spec": written["spec"]}]})
            assert done.returncode != 0, file.name
            refused.append(file.name)
    assert len(refused) >= 8, refused


def test_the_example_has_every_model_of_the_catalog_and_none_has_a_problem() -> None:
    catalog, defaults = Catalog.load(), OperatorDefaults()
    made = manifests(yaml.safe_load(CATALOG.read_text(encoding="utf-8")))
    assert sorted(manifest["spec"]["target"]["model"] for manifest in made) == sorted(pair.target for pair in catalog.pairs)
    accelerators = 0
    for manifest in made:
        assert manifest["spec"]["tuning"]["mode"] == "Advise"
        assert complaints(manifest) == []
        spec = parse_spec(manifest)
        assert isinstance(spec, Spec)
        resolved = resolve(spec, manifest["metadata"]["name"], NAMESPACE, catalog, defaults)
        assert isinstance(resolved, Resolved), resolved
        speculation = Fixed(spec.block_size or resolved.trained_block_size)
        assert list(ENGINES[resolved.engine].problems(resolved.launch_request(speculation))) == []
        accelerators += resolved.tensor_parallel
    assert f"ask for {accelerators} accelerators" in CATALOG.read_text(encoding="utf-8")


def test_readme_and_schema_are_what_values_and_types_say() -> None:
    for file, text in models_chart.renewed().items():
        assert file.read_text(encoding="utf-8") == text, f"{file.name} is out of date: run `make chart`"


def objects(node: Any) -> list[dict[str, Any]]:
    """Every object of a schema that lists its properties."""
    if isinstance(node, list):
        return [found for inner in node for found in objects(inner)]
    if not isinstance(node, dict):
        return []
    own = [node] if isinstance(node.get("properties"), dict) and "type" in node else []
    return own + [found for inner in node.values() for found in objects(inner)]


def test_every_object_of_the_schema_is_closed() -> None:
    found = objects(json.loads((CHART / "values.schema.json").read_text(encoding="utf-8")))
    assert len(found) > 20
    assert [node for node in found if node.get("additionalProperties") is not False] == []


def test_the_app_version_is_the_operators() -> None:
    assert yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))["appVersion"] == __version__


def yaml_blocks(page: Path) -> list[Any]:
    """Of a page, those in a list too."""
    found = re.findall(r"^( *)```yaml\n(.*?)^ *```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [yaml.safe_load(textwrap.dedent(block)) for _, block in found]


def test_the_values_of_the_readme_are_valid() -> None:
    blocks = yaml_blocks(CHART / "README.md")
    made = [manifest for block in blocks for manifest in manifests(block)]
    assert [manifest["metadata"]["name"] for manifest in made] == ["qwen3-5-9b", "code", "gpt-oss-20b", "gpt-oss-120b"]
    assert [complaint for manifest in made for complaint in complaints(manifest)] == []


def test_the_values_told_for_gitops_are_valid() -> None:
    blocks = {block.get("kind"): block for block in yaml_blocks(ROOT / "docs" / "how-to" / "gitops.md")}
    for values in (blocks["HelmRelease"]["spec"]["values"], blocks["Application"]["spec"]["source"]["helm"]["valuesObject"]):
        [made] = manifests(values)
        assert made["metadata"]["name"] == "qwen3-5-9b"
        assert complaints(made) == []
