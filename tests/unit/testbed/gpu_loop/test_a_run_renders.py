"""The spec of a run without weights, as the operator renders it, and the process that the node makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from testbed.gpu_loop.setup import Setup
from testbed.gpu_loop.shapes import COLLAPSED, SHAPES, TRAINED_BLOCK, acceptance_rates, make_models, taps
from testbed.process_node.container import Container
from testbed.process_node.programs import Program, Programs, option
from tests.support.render_inputs import deployment, rendered_workload

RELEASES = {"vllm": "0.26.0", "sglang": "0.5.17"}
ADDRESS = "127.9.250.1"


def started(tmp_path: Path, engine: str, model: str, **spec: Any) -> tuple[list[str], Program]:
    """The pod's command line, and the process of a node whose models were made."""
    setup = Setup(engine=engine, model=model, out=tmp_path, layers=12, version=RELEASES[engine], memory=0.42)
    setup.prepare()
    wanted = setup.spec("NVIDIA-H100-80GB-HBM3") | spec
    container = rendered_workload(deployment(**wanted))["spec"]["template"]["spec"]["containers"][0]
    command = (*container["command"], *container["args"])
    process = Programs({engine: "/engines/bin/python"}, {}, setup.models).program(
        Container("engine", container["image"], command, {}, 1, None, None, None, {}, True), ADDRESS, [0]
    )
    return list(command), process


@pytest.mark.parametrize("model", SHAPES)
@pytest.mark.parametrize("engine", RELEASES)
def test_only_the_address_and_the_imposed_acceptance_differ_from_the_pods_command_line(tmp_path: Path, engine: str, model: str) -> None:
    command, process = started(tmp_path, engine, model)

    assert "--load-format=dummy" in command
    kept = [word for word in process.command if not word.startswith(("--host", "--speculative-config"))]
    program = 1  # vllm, or python3: the node has an interpreter of its own
    own = [word for word in command[program:] if not word.startswith(("--host", "--speculative-config"))]
    assert kept[-len(own) :] == own
    assert f"--host={ADDRESS}" in process.command
    assert process.env["CUDA_VISIBLE_DEVICES"] == "0"
    assert len(process.changes) == 2


def test_vllm_accepts_as_many_drafts_as_the_drafters_folder_says(tmp_path: Path) -> None:
    _, process = started(tmp_path, "vllm", "dense", blockSize=8)

    config = json.loads((option(process.command, "--speculative-config") or (0, ""))[1])
    assert config["num_speculative_tokens"] == 7
    assert config["rejection_sample_method"] == "synthetic"
    assert config["synthetic_acceptance_rates"] == acceptance_rates(7)


def test_sglang_accepts_as_many_drafts_as_the_drafters_folder_says(tmp_path: Path) -> None:
    _, process = started(tmp_path, "sglang", "dense", blockSize=8)

    assert float(process.env["SGLANG_SIMULATE_ACC_LEN"]) == pytest.approx(1 + sum(acceptance_rates(7)), abs=1e-3)


@pytest.mark.parametrize("engine", RELEASES)
def test_the_collapsed_drafter_is_one_that_the_engine_hardly_accepts(tmp_path: Path, engine: str) -> None:
    _, process = started(tmp_path, engine, "dense", drafter={"model": COLLAPSED, "trainedBlockSize": TRAINED_BLOCK})

    if engine == "vllm":
        config = json.loads((option(process.command, "--speculative-config") or (0, ""))[1])
        length = 1 + sum(config["synthetic_acceptance_rates"])
    else:
        length = float(process.env["SGLANG_SIMULATE_ACC_LEN"])
    assert 1 < length < 1.05


def test_the_imposed_acceptance_is_the_one_of_the_measured_tables() -> None:
    assert 1 + sum(acceptance_rates(15)) == pytest.approx(6.42, abs=0.01)
    assert 1 + sum(acceptance_rates(7)) == pytest.approx(5.14, abs=0.01)


def test_the_drafter_reads_layers_spread_over_the_target() -> None:
    assert taps(36, 5) == [1, 9, 17, 25, 33]
    assert taps(32, 8) == [1, 5, 9, 13, 17, 21, 25, 29]
    assert len(set(taps(12, 8))) == 8


def test_a_shape_keeps_its_pattern_of_layers_when_it_gets_fewer(tmp_path: Path) -> None:
    make_models(tmp_path, SHAPES["hybrid"], 16)

    config = json.loads((tmp_path / "Qwen/Qwen3.5-9B/config.json").read_text())["text_config"]
    assert config["num_hidden_layers"] == 16
    assert config["layer_types"] == ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 4
    with pytest.raises(ValueError, match="multiple of 4"):
        make_models(tmp_path, SHAPES["hybrid"], 14)
