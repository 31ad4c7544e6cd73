"""A shell runs the lines of ``render --argv`` with the arguments and the environment that the kubelet would give the engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from dflash_controller.cli import failures
from dflash_controller.cli.program import run
from dflash_controller.cli.rendered import pod_templates
from dflash_controller.cli.shell import line
from testbed.simulator.launch import expand

ROOT = Path(__file__).parents[3]
FILES = ("dflash.yaml", "qwen3.5-397b-a17b-sglang-two-nodes.yaml", "qwen3.5-27b-vllm.yaml")
SHELL = {"DFLASH_ADMIN_KEY": "from the 'shell'", "LWS_LEADER_ADDRESS": "leader.models", "LWS_WORKER_INDEX": "1"}
HOSTILE = 'it\'s "$HOME" `id` $(id) \\ !x ~ *\n{a,b}'


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A directory with ``python3`` and ``vllm``, which only say how they were called."""
    says = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"
    for name in ("python3", "vllm"):
        program = tmp_path / name
        program.write_text(f"#!{sys.executable} -I\n{says}\n", encoding="utf-8")
        program.chmod(0o755)
    return tmp_path


def bash(text: str, programs: Path, variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": f"{programs}:{os.environ['PATH']}", **variables}
    return subprocess.run(["bash", "-c", text], env=environ, capture_output=True, text=True, check=False)


def kubelet(argv: Sequence[str], variables: Sequence[Mapping[str, Any]], outside: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """What the kubelet makes of a container: LeaderWorkerSet's variables come first."""
    env = {name: value for name, value in outside.items() if name.startswith("LWS_")}
    for variable in variables:
        env[variable["name"]] = outside[variable["name"]] if "valueFrom" in variable else expand(variable.get("value", ""), env)
    return [expand(word, env) for word in argv], env


def same(text: str, programs: Path, argv: Sequence[str], variables: Sequence[Mapping[str, Any]], outside: Mapping[str, str]) -> None:
    done = bash(text, programs, outside)
    assert done.returncode == 0, done.stderr
    words, environ = json.loads(done.stdout)
    expected, env = kubelet(argv, variables, outside)
    assert words == expected[1:]
    assert {name: environ.get(name) for name in env} == env


@pytest.mark.parametrize("file", FILES)
def test_bash_runs_what_the_kubelet_would_run(file: str, programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(ROOT / "examples" / file)
    assert run(["render", path, "-o", "yaml"]) == failures.OK
    *_, workload = yaml.safe_load_all(capsys.readouterr().out)
    containers = [template["spec"]["containers"][0] for template in pod_templates(workload).values()]
    for container in containers:
        argv, variables = [*container["command"], *container["args"]], container.get("env", [])
        same(line(argv, variables).text, programs, argv, variables, SHELL)
    assert run(["render", path, "--argv"]) == failures.OK
    printed = capsys.readouterr()
    assert printed.out.count("--served-model-name") == len(containers)
    done = bash(printed.out, programs, SHELL)
    assert [json.loads(said)[0] for said in done.stdout.splitlines()] == [
        kubelet([*container["command"], *container["args"]], container.get("env", []), SHELL)[0][1:] for container in containers
    ]


def test_a_model_cards_variable_and_the_key_are_there(programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["render", str(ROOT / "examples" / "qwen3.5-397b-a17b-sglang.yaml"), "--argv"]) == failures.OK
    printed = capsys.readouterr()
    assert printed.err == "# export DFLASH_ADMIN_KEY first: in a pod metadata.uid\n"
    words, environ = json.loads(bash(printed.out, programs, SHELL).stdout)
    assert environ["SGLANG_ENABLE_OVERLAP_PLAN_STREAM"] == "1"
    assert environ["DFLASH_ADMIN_KEY"] == SHELL["DFLASH_ADMIN_KEY"]
    assert f"--admin-api-key={SHELL['DFLASH_ADMIN_KEY']}" in words


@pytest.mark.parametrize("shell", [{}, {"DFLASH_ADMIN_KEY": ""}], ids=["unset", "empty"])
def test_without_the_key_nothing_is_run(shell: dict[str, str], programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["render", str(ROOT / "examples" / "dflash.yaml"), "--argv"]) == failures.OK
    done = bash(capsys.readouterr().out, programs, shell)
    assert done.returncode != 0
    assert done.stdout == ""
    assert "DFLASH_ADMIN_KEY" in done.stderr


def test_references_and_hostile_text(programs: Path) -> None:
    variables: list[dict[str, Any]] = [
        {"name": "PLAIN", "value": HOSTILE.replace("$(", "$$(")},
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "BOTH", "value": "$(PLAIN)/$(KEY)/$(LATER)/$$(KEY)/$$"},
        {"name": "LATER", "value": ""},
        {"name": "NOTHING"},
    ]
    argv = ["python3", "", "$(KEY)", "a$(PLAIN)b$(BOTH)", "$(ABSENT)", "$$(KEY)", HOSTILE.replace("$(", "$$("), "[$(LATER)]", "$(LATER)"]
    made = line(argv, variables)
    assert made.unset == {"KEY": "k of the Secret s"}
    same(made.text, programs, argv, variables, {"KEY": HOSTILE, "ABSENT": "of the shell", "LATER": "of the shell"})


def test_names_that_a_shell_does_not_assign_to(programs: Path) -> None:
    variables: list[dict[str, Any]] = [{"name": "a.b-c", "value": "x y"}, {"name": "D", "value": "$(a.b-c)"}]
    argv = ["python3", "$(a.b-c)"]
    same(line(argv, variables).text, programs, argv, variables, {})


def test_what_a_pod_may_do_without_is_left_to_the_shell(programs: Path) -> None:
    made = line(["python3", "x"], [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": True}}}])
    assert made.unset == {"HF_TOKEN": "k of the Secret s, if it is there"}
    assert "HF_TOKEN" not in json.loads(bash(made.text, programs, {}).stdout)[1]
    assert json.loads(bash(made.text, programs, {"HF_TOKEN": "t"}).stdout)[1]["HF_TOKEN"] == "t"
