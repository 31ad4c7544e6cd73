"""From a pod to the engine it runs."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.simulator.argv import ArgvError
from testbed.simulator.launch import Process, UnknownEngine, expand, identify, process_of, settings_of, startup_s
from testbed.simulator.rules import faults_for, parse_rules
from testbed.simulator.settings import EngineSettings

SGLANG = [
    *("python3", "-m", "sglang.launch_server", "--model-path", "Qwen/Qwen3.5-9B", "--port", "30001", "--enable-metrics"),
    *("--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", "z-lab/Qwen3.5-9B-DFlash"),
    *("--speculative-num-draft-tokens", "8", "--max-running-requests", "24"),
]
VLLM = [
    *("vllm", "serve", "Qwen/Qwen3.5-9B", "--max-num-seqs", "16", "--shutdown-timeout", "60", "--speculative-config"),
    '{"method":"dflash","model":"z-lab/Qwen3.5-9B-DFlash","revision":"abc","num_speculative_tokens":15}',
]


def pod(command: list[str], image: str = "lmsysorg/sglang:v0.5.23", **extra: Any) -> dict[str, Any]:
    container = {"name": "engine", "image": image, "command": command[:1], "args": command[1:], **extra}
    return {
        "metadata": {"name": "p", "namespace": "d", "labels": {"serving.dflash.io/revision": "r1"}},
        "spec": {"containers": [{"name": "side", "image": "x"}, container]},
        "status": {"podIP": "127.1.2.3"},
    }


def test_variables_expand_as_the_kubelet_does() -> None:
    env = {"A": "1", "B_C": "x y"}
    assert expand("$(A)-$(B_C)-$(NONE)-$$(A)-$A", env) == "1-x y-$(NONE)-$(A)-$A"


def test_environment_comes_from_values_and_fields_in_order() -> None:
    env = [
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "REV", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['serving.dflash.io/revision']"}}},
        {"name": "BOTH", "value": "$(IP)/$(REV)/$(LATER)"},
        {"name": "LATER", "value": "z"},
        {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
    ]
    process = process_of(pod(["run", "--x=$(BOTH)"], env=env))
    assert process is not None
    assert process.command == ("run", "--x=127.1.2.3/r1/$(LATER)")
    assert "SECRET" not in process.env


def test_a_pod_without_engine_container_is_none_of_ours() -> None:
    other = pod(["x"])
    other["spec"]["containers"].pop()
    assert process_of(other) is None


@pytest.mark.parametrize(
    ("image", "annotations", "env", "command", "expected"),
    [
        ("lmsysorg/sglang:v0.5.23", {}, {}, (), ("sglang", "0.5.23")),
        ("registry:5000/vllm/vllm-openai:v0.33.0-cu130", {}, {}, (), ("vllm", "0.33.0")),
        ("mirror/inference:v0.26.0", {}, {}, ("vllm", "serve", "m"), ("vllm", "0.26.0")),
        ("mirror/inference:latest", {"sim/release": "0.5.19"}, {}, ("python3", "-m", "sglang.launch_server"), ("sglang", "0.5.19")),
        ("lmsysorg/sglang:v0.5.23", {"sim/engine": "vllm", "sim/release": "0.33.0"}, {}, (), ("vllm", "0.33.0")),
        ("", {}, {"DFLASH_SIM_RELEASE": "0.5.17"}, ("sglang", "serve"), ("sglang", "0.5.17")),
    ],
)
def test_engine_and_release(
    image: str, annotations: dict[str, str], env: dict[str, str], command: tuple[str, ...], expected: tuple[str, str]
) -> None:
    assert identify(Process(command, env, image, annotations)) == expected


@pytest.mark.parametrize("image", ["nginx:1.2.3", "lmsysorg/sglang:latest", "lmsysorg/sglang"])
def test_what_cannot_be_identified_is_said(image: str) -> None:
    with pytest.raises(UnknownEngine, match="neither"):
        identify(Process(("serve",), {}, image))


def test_settings_of_sglang() -> None:
    process = process_of(pod(SGLANG))
    assert process is not None
    settings = settings_of(process)
    assert (settings.engine, settings.release, settings.port, settings.block_size, settings.max_concurrency) == (
        "sglang",
        "0.5.23",
        30001,
        8,
        24,
    )
    assert (settings.target, settings.drafter, settings.metrics_enabled) == ("Qwen/Qwen3.5-9B", "z-lab/Qwen3.5-9B-DFlash", True)


def test_settings_of_vllm_in_a_release_without_tables_of_its_own() -> None:
    process = process_of(pod(VLLM, image="vllm/vllm-openai:v0.29.0"))
    assert process is not None
    settings = settings_of(process)
    assert (settings.release, settings.port, settings.block_size, settings.drafter_revision) == ("0.29.0", 8000, 16, "abc")
    assert settings.shutdown_timeout_s == 60


def test_a_refused_command_line_carries_the_engines_error() -> None:
    process = process_of(pod([*SGLANG, "--no-such-flag=1"]))
    assert process is not None
    with pytest.raises(ArgvError) as refusal:
        settings_of(process)
    assert refusal.value.exit_code == 2
    assert "--no-such-flag" in refusal.value.stderr


def test_startup_time_from_annotation_environment_default() -> None:
    assert startup_s(Process((), {"DFLASH_SIM_STARTUP_SECONDS": "7"}, "", {"sim/ready-after": "3"}), 1.0) == 3.0
    assert startup_s(Process((), {"DFLASH_SIM_STARTUP_SECONDS": "7"}), 1.0) == 7.0
    assert startup_s(Process(()), 1.0) == 1.0


def test_rules_give_faults_by_what_an_engine_runs() -> None:
    process = process_of(pod(VLLM, image="vllm/vllm-openai:v0.33.0"))
    assert process is not None
    settings = settings_of(process)
    rules = parse_rules(
        [
            {"match": {"drafter_revision": "a*", "block_size": "16"}, "faults": {"acceptance": 0.5}},
            {"match": {"namespace": "other"}, "faults": {"hang": True}},
            {"match": {"pod": "web-*"}, "faults": {"step_time": 2}},
        ]
    )
    faults = faults_for(rules, settings, "d", "web-1")
    assert (faults.acceptance, faults.step_time, faults.hang) == (0.5, 2, False)


@pytest.mark.parametrize(
    "data",
    [
        {},
        [{"match": {}}],
        [{"match": {"colour": "red"}, "faults": {}}],
        [{"match": {}, "faults": {"acceptance": "low"}}],
        [{"match": {}, "faults": {"acceptance": -1}}],
        [{"match": {}, "faults": {"metrics": "odd"}}],
        [{"match": {}, "faults": {"nothing": 1}}],
    ],
)
def test_wrong_rules_are_refused(data: Any) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_rules(data)


def scheduled(table: object, *flags: str) -> list[str]:
    config = VLLM[-1].replace("}", f',"num_speculative_tokens_per_batch_size":{table}}}')
    return [*VLLM[:-1], config, *flags]


def vllm_settings(command: list[str], release: str = "0.26.0") -> EngineSettings:
    process = process_of(pod(command, image=f"vllm/vllm-openai:v{release}"))
    assert process is not None
    return settings_of(process)


def test_vllm_follows_a_schedule_from_its_command_line() -> None:
    settings = vllm_settings(scheduled([[17, 64, 7], [1, 16, 15]]))
    assert settings.schedule == ((1, 16, 15), (17, 64, 7))
    assert (settings.block_size, settings.block_for(16), settings.block_for(17)) == (16, 16, 8)
    assert vllm_settings(VLLM).schedule == ()


def test_vllm_ignores_a_schedule_under_data_parallelism() -> None:
    table = [[1, 16, 15], [17, 64, 7]]
    assert vllm_settings(scheduled(table, "--data-parallel-size=2")).block_for(40) == 16
    assert vllm_settings(scheduled(table, "--data-parallel-size=1")).block_for(40) == 8


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([[2, 8, 15]], "must start at 1"),
        ([[1, 8, 15], [8, 64, 7]], "non-overlapping"),
        ([[1, 8, 15], [64, 9, 7]], "no more than its end"),
        ([[0, 8, 15]], "must be positive"),
        ([[1, 8, -1]], ">= 0"),
    ],
)
def test_vllm_ends_over_a_broken_schedule(table: object, message: str) -> None:
    with pytest.raises(ArgvError) as caught:
        vllm_settings(scheduled(table))
    assert caught.value.exit_code == 1
    assert message in caught.value.stderr


@pytest.mark.parametrize(
    ("command", "gpus", "device"),
    [
        ([*SGLANG, "--dp-size", "2"], 1, 1),
        ([*SGLANG, "--tp-size", "4"], 2, 3),
        ([*SGLANG, "--base-gpu-id", "1"], 1, 1),
        ([*SGLANG, "--tp-size", "2", "--dp-size", "2", "--enable-dp-attention", "--enable-dp-lm-head"], 2, None),
        ([*VLLM, "--data-parallel-size", "2"], 1, 1),
        ([*VLLM, "--data-parallel-size", "2", "--data-parallel-size-local", "1"], 1, None),
        ([*VLLM, "--prefill-context-parallel-size", "2"], 1, 1),
        ([*VLLM, "-tp", "2"], 2, None),
    ],
)
def test_an_engine_with_more_ranks_than_gpus_ends(command: list[str], gpus: int, device: int | None) -> None:
    image = "lmsysorg/sglang:v0.5.23" if "sglang" in command[2] else "vllm/vllm-openai:v0.26.0"
    env = [{"name": "SGLANG_ENABLE_DP_SPEC_PREFILL_COORDINATION", "value": "0"}]
    process = process_of(pod(command, image, resources={"limits": {"nvidia.com/gpu": str(gpus)}}, env=env))
    assert process is not None
    if device is None:
        assert settings_of(process)
    else:
        with pytest.raises(ArgvError, match=f"needs device {device}, and the pod has {gpus}"):
            settings_of(process)


def test_a_pod_that_asks_for_no_gpus_may_start_any_number_of_ranks() -> None:
    process = process_of(pod([*SGLANG, "--dp-size", "2"]))
    assert process is not None
    assert settings_of(process)


@pytest.mark.parametrize(
    ("flags", "slots", "served"),
    [
        (("--max-mamba-cache-size=160",), 160, 32),
        (("--max-mamba-cache-size=83",), 83, 16),
        (("--max-mamba-cache-size=83", "--disable-overlap-schedule"), 83, 20),
        ((), 1085, 32),
    ],
)
def test_slots_of_state_limit_the_requests_that_sglang_serves(flags: tuple[str, ...], slots: int, served: int) -> None:
    command = ("python3", "-m", "sglang.launch_server", "--model-path=Qwen/Qwen3.5-9B", "--max-running-requests=32", *flags)
    settings = settings_of(Process((*command, "--mem-fraction-static=0.75"), image="lmsysorg/sglang:v0.5.17"))
    assert (settings.state_slots, settings.served) == (slots, served)
