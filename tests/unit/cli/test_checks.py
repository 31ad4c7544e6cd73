"""``validate`` after the first error: what the operator would say next, and flags that the engine does not know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dflash_controller.api.names import API_VERSION, KIND
from dflash_controller.cli.checks import Verdict, check
from dflash_controller.cli.server_checks import refusals
from dflash_controller.engines import ENGINES
from dflash_controller.engines.resolve import OperatorDefaults
from tests.support.releases import default_release

ROOT = Path(__file__).parents[3]
FLAGS = "spec.engine.extraArgs"
HOST_PATH = {"hostPath": {"path": "/etc"}}


def manifest(spec: dict[str, Any]) -> dict[str, Any]:
    whole = {"target": {"model": "Qwen/Qwen3.5-9B"}, **spec}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "qwen"}, "spec": whole}


def verdict(spec: dict[str, Any]) -> Verdict:
    return check(manifest(spec), "qwen", "default", OperatorDefaults())


def found(spec: dict[str, Any]) -> set[tuple[str, str]]:
    return {(problem.by, problem.field or problem.message.partition(":")[0]) for problem in verdict(spec).problems}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        # A field of the schema, then what the catalog and the operator's settings say.
        (
            {"replicas": -1, "target": {"model": "acme/none"}, "storage": HOST_PATH},
            {("API server", "spec.replicas"), ("operator", "spec.drafter.model"), ("operator", "spec.storage.hostPath.path")},
        ),
        # A rule of the definition; the spec can be read as a whole.
        (
            {"blockSize": 9, "drafter": {"trainedBlockSize": 8}, "storage": HOST_PATH},
            {("API server", "spec.blockSize"), ("operator", "spec.storage.hostPath.path")},
        ),
        (
            {"colour": "red", "storage": HOST_PATH},
            {("API server", 'unknown field "spec.colour"'), ("operator", "spec.storage.hostPath.path")},
        ),
        # The rules of the definition are not evaluated while the schema does not hold: the operator's reader says the same of texts.
        ({"replicas": -1, "engine": {"image": "a b"}}, {("API server", "spec.replicas"), ("operator", "spec.engine.image")}),
        # One cause is one problem.
        ({"engine": {"extraArgs": ["--port=1"]}}, {("API server", FLAGS)}),
        ({"engine": {"extraArgs": ["--pp-size=2"]}}, {("API server", FLAGS)}),
        ({"engine": {"extraArgs": ["--port=1", "--revision=x"]}}, {("API server", FLAGS), ("operator", f"{FLAGS}[1]")}),
        ({"storage": {**HOST_PATH, "emptyDir": {}}}, {("API server", "spec.storage")}),
        ({"engine": {"extraArgs": [5, *["--log-level=info"] * 64]}}, {("API server", FLAGS), ("API server", f"{FLAGS}[0]")}),
        # What depends on a field that cannot be read is not judged.
        ({"engine": {"name": "tgi", "extraArgs": ["--no-such-flag"]}}, {("API server", "spec.engine.name")}),
        ({"drafter": {"trainedBlockSize": "x"}, "blockSize": 17}, {("API server", "spec.drafter.trainedBlockSize")}),
        ({"parallelism": {"nodes": 2, "tensor": "x"}}, {("API server", "spec.parallelism.tensor")}),
        ({"rollout": {"maxSurge": "x%", "maxUnavailable": 0}}, {("API server", "spec.rollout.maxSurge")}),
        ({"target": {}}, {("API server", "spec.target.model")}),
        ({"target": "x", "blockSize": 99}, {("API server", "spec.target"), ("API server", "spec.blockSize")}),
        # Flags keep their places, whatever is left out before them.
        (
            {"engine": {"extraArgs": ["a b", "--no-such-flag", "--port=1"]}},
            {("API server", f"{FLAGS}[0]"), ("API server", FLAGS), ("engine", f"{FLAGS}[1]")},
        ),
        (
            {"replicas": -1, "engine": {"extraArgs": ["--attention-backend=hpc_ops", "--no-such-flag"]}},
            {("API server", "spec.replicas"), ("operator", f"{FLAGS}[0]"), ("engine", f"{FLAGS}[1]")},
        ),
        # A flag may be wrong only without the one that cannot be read.
        (
            {"replicas": -1, "engine": {"extraArgs": ["-tp=2", "--attention-backend=hpc_ops", "--port=1"]}},
            {("API server", "spec.replicas"), ("operator", f"{FLAGS}[0]"), ("operator", f"{FLAGS}[2]")},
        ),
    ],
)
def test_what_the_operator_would_say_next_is_said_at_once(spec: dict[str, Any], expected: set[tuple[str, str]]) -> None:
    assert found(spec) == expected
    assert not verdict(spec).accepted


@pytest.mark.parametrize(
    ("engine", "flag", "said"),
    [
        ("sglang", "--context-lenght=4096", "SGLang {release} has no flag --context-lenght. Write --context-length if that is meant"),
        ("sglang", "--max-model-len=4096", "SGLang {release} has no flag --max-model-len"),
        ("sglang", "--no-such-flag", "SGLang {release} has no flag --no-such-flag. Remove --no-such-flag."),
        ("sglang", "--max-runing-requests=4", "If --max-running-requests is meant: spec.engine.maxConcurrency decides it."),
        ("sglang", "--log-req=1", "SGLang {release} takes --log-req for --log-requests, --log-requests-"),
        ("vllm", "--max-model-length=4096", "vLLM {release} has no flag --max-model-length. Write --max-model-len if that is meant"),
        ("vllm", "--disable-radix-cache", "vLLM {release} has no flag --disable-radix-cache"),
    ],
)
def test_a_flag_that_the_release_does_not_know_is_named_with_the_nearest_one(engine: str, flag: str, said: str) -> None:
    made = verdict({"engine": {"name": engine, "extraArgs": [flag]}})
    assert [(problem.by, problem.field) for problem in made.problems] == [("engine", f"{FLAGS}[0]")]
    assert said.format(release=default_release(engine)) in str(made.problems[0])
    assert made.accepted
    assert made.made is not None


@pytest.mark.parametrize("more", [{"image": "registry.example/vllm:mine"}, {"version": "0.99.0"}])
def test_where_the_engine_may_know_the_flag_it_is_advice(more: dict[str, str]) -> None:
    made = verdict({"engine": {"name": "vllm", "extraArgs": ["--no-such-flag"], **more}})
    assert made.problems == ()
    assert any("has no flag --no-such-flag" in text for text in made.advice)


def test_rdma_needs_a_namespace_that_takes_its_capability() -> None:
    groups = {"parallelism": {"tensor": 16, "nodes": 2}}
    rdma = {"accelerator": {"rdma": {"resource": "rdma/hca_shared_devices_a", "count": 1}}}
    assert not any("IPC_LOCK" in text for text in verdict(groups).advice)
    assert any("IPC_LOCK" in text for text in verdict({**groups, **rdma}).advice)


def test_flags_that_the_operator_translates_or_takes_off_are_known() -> None:
    """SGLang cannot turn off what ``--no-trust-remote-code`` is about, so the operator leaves both away."""
    engine = ENGINES["sglang"]
    assert list(engine.unknown_flags(["--no-trust-remote-code"], default_release("sglang"))) == []
    assert list(engine.unknown_flags(["--mamba-scheduler-strategy=extra_buffer"], "0.5.19")) == []


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_the_definition_names_each_flag_of_the_operator_and_what_decides_it(engine: str) -> None:
    owned = {flag: reason for flag, reason in ENGINES[engine].owned_flags().items() if flag.startswith("--")}
    assert len(owned) > 20
    for flag, reason in owned.items():
        [refusal] = refusals(manifest({"engine": {"name": engine, "extraArgs": ["--log-level=info", f"{flag}=x"]}}))
        assert refusal.field == FLAGS
        assert refusal.message == f"{FLAGS}: {flag} is set by the operator for {engine}, or abbreviates a flag that is; remove it: {reason}"


@pytest.mark.parametrize("flag", ["--pipeline-parallel-size", "--pp-size", "--pipeline-par"])
def test_the_definition_names_the_flag_of_pipeline_parallelism(flag: str) -> None:
    [refusal] = refusals(manifest({"engine": {"extraArgs": [f"{flag}=2"]}}))
    assert refusal.message.startswith(f"{FLAGS}: {flag} is for pipeline parallelism")
    assert "spec.parallelism.tensor" in refusal.message


@pytest.mark.parametrize(
    ("engine", "flag", "said"),
    [
        (
            "vllm",
            "--enforce-eager=maybe",
            "takes --enforce-eager without a value, not with =maybe. Write --enforce-eager alone, or --no-enforce-eager",
        ),
        ("vllm", "--no-enforce-eager=1", "Write --no-enforce-eager alone, or --enforce-eager for the opposite"),
        ("vllm", "--enforce-eag=true", "takes --enforce-eag without a value"),
        ("sglang", "--disable-radix-cache=false", "Write --disable-radix-cache alone, or remove it"),
    ],
)
def test_a_switch_takes_no_value(engine: str, flag: str, said: str) -> None:
    [problem] = verdict({"engine": {"name": engine, "extraArgs": [flag]}}).problems
    assert (problem.by, problem.field) == ("engine", f"{FLAGS}[0]")
    assert said in problem.message
    assert found({"engine": {"name": engine, "extraArgs": [flag.partition("=")[0]]}}) == set()


def test_the_placeholder_of_the_examples_is_said() -> None:
    file = "examples/clusters/one-b200-node/qwen-9b.yaml"
    spec = yaml.safe_load((ROOT / file).read_text(encoding="utf-8"))["spec"]
    spec["storage"] = {"emptyDir": {}}
    assert [text for text in verdict(spec).advice if "placeholder" in text] == [
        "spec.target.revision and spec.drafter.revision: the placeholder of the examples. Replace it with the commit that you tested"
    ]
    spec["target"]["revision"] = "f" * 40
    assert [text.partition(":")[0] for text in verdict(spec).advice if "placeholder" in text] == ["spec.drafter.revision"]
