"""What a pod's container is to run: variables, mounts, GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.process_node.container import ConfigError, Container, containers_of, engine_of
from testbed.process_node.programs import Programs

STORED = {("secrets", "hub", "token"): "s3cret", ("configmaps", "site", "mode"): "quiet"}


def pod(**container: Any) -> dict[str, Any]:
    volumes = [{"name": "shm", "emptyDir": {"medium": "Memory"}}, {"name": "disk", "hostPath": {"path": "/mnt"}}, {"name": "scratch"}]
    return {
        "metadata": {"name": "qwen-1", "namespace": "inference", "labels": {"app": "x"}, "annotations": {}},
        "spec": {
            "nodeName": "node",
            "containers": [{"name": "engine", "image": "vllm/vllm-openai:v0.26.0", **container}],
            "volumes": volumes,
        },
    }


def only(made: dict[str, Any]) -> Container:
    return containers_of(made, "127.1.250.7", "127.1.250.254", lambda *key: STORED.get(key))[0]


def test_variables_come_from_fields_secrets_and_configmaps_and_refer_to_earlier_ones() -> None:
    fields = {"POD": "metadata.name", "IP": "status.podIP", "HOST": "status.hostIP", "APP": "metadata.labels['app']"}
    env = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()]
    env += [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}]
    env += [{"name": "MODE", "valueFrom": {"configMapKeyRef": {"name": "site", "key": "mode"}}}]
    env += [{"name": "NONE", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "gone", "optional": True}}}]
    env += [{"name": "URL", "value": "http://$(IP)/$(UNKNOWN)$$(IP)"}]

    found = only(pod(env=env, command=["vllm", "serve"], args=["$(POD)", "--x=$(TOKEN)"]))

    assert found.env == {
        "POD": "qwen-1",
        "IP": "127.1.250.7",
        "HOST": "127.1.250.254",
        "APP": "x",
        "TOKEN": "s3cret",
        "MODE": "quiet",
        "URL": "http://127.1.250.7/$(UNKNOWN)$(IP)",
    }
    assert found.command == ("vllm", "serve", "qwen-1", "--x=s3cret")


def test_a_missing_key_of_a_secret_is_an_error_of_the_configuration() -> None:
    with pytest.raises(ConfigError, match="no key gone in secret hub"):
        only(pod(env=[{"name": "T", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "gone"}}}]))


@pytest.mark.parametrize(
    "mount", [{"name": "shm", "mountPath": "/dev/shm"}, {"name": "disk", "mountPath": "/mnt/models", "subPath": "models"}]
)
def test_a_mount_that_a_process_has_anyway_is_accepted(mount: dict[str, str]) -> None:
    assert only(pod(volumeMounts=[mount])).name == "engine"


@pytest.mark.parametrize("mount", [{"name": "scratch", "mountPath": "/cache"}, {"name": "disk", "mountPath": "/models"}])
def test_a_mount_that_a_process_cannot_have_is_an_error_of_the_configuration(mount: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="a process cannot have"):
        only(pod(volumeMounts=[mount]))


def test_gpus_are_those_of_the_limits() -> None:
    assert only(pod(resources={"limits": {"nvidia.com/gpu": "2"}})).gpus == 2
    assert only(pod()).gpus == 0


def test_the_image_names_the_engine_before_the_command_does() -> None:
    assert engine_of("registry.example/sglang:v0.5.23", ("python3", "-m", "x")) == "sglang"
    assert engine_of("own/image", ("vllm", "serve", "x")) == "vllm"
    with pytest.raises(ConfigError, match="is of an engine"):
        engine_of("own/image", ("sleep", "9"))


def test_each_entry_point_runs_in_the_named_environment() -> None:
    programs = Programs({"vllm": "/v/python", "sglang": "/s/python"})

    def command(image: str, *words: str) -> tuple[str, ...]:
        return programs.program(Container("engine", image, words, {}, 0, None, None, None, {}, True), "127.0.0.9", []).command

    own = ("-m", "vllm.entrypoints.cli.main", "serve", "m", "--host=127.0.0.9")
    assert command("vllm/vllm-openai:v0.26.0", "vllm", "serve", "m") == ("/v/python", *own)
    assert command("vllm/vllm-openai:v0.26.0", "--model", "m")[:4] == ("/v/python", "-m", "vllm.entrypoints.cli.main", "serve")
    assert command("lmsysorg/sglang:v0.5.17", "python3", "-m", "sglang.launch_server", "--host", "0.0.0.0") == (
        *("/s/python", "-m", "sglang.launch_server"),
        *("--host", "127.0.0.9"),
    )
    with pytest.raises(ConfigError, match="'bash' is not known here"):
        command("vllm/vllm-openai:v0.26.0", "bash", "-c", "vllm serve")
    with pytest.raises(ConfigError, match="no Python environment with vllm"):
        Programs().program(Container("engine", "vllm:v1", ("vllm", "serve"), {}, 0, None, None, None, {}, True), "127.0.0.9", [])


def test_an_engine_does_not_inherit_what_is_the_test_beds_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONPATH", "KUBECONFIG", "DFLASH_TESTBED_PROGRAMS", "POD_NAME"):
        monkeypatch.setenv(name, "ours")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/cuda")
    container = Container("engine", "vllm:v1", ("vllm", "serve"), {"HF_HUB_OFFLINE": "1"}, 2, None, None, None, {}, True)

    env = Programs({"vllm": "python"}, {"PYTHONPATH": "/tmp/site"}).program(container, "127.0.0.9", [1, 3]).env

    assert env["PYTHONPATH"] == "/tmp/site"
    assert env["LD_LIBRARY_PATH"] == "/cuda"
    assert env["HF_HUB_OFFLINE"] == "1"
    assert env["CUDA_VISIBLE_DEVICES"] == "1,3"
    assert not {"KUBECONFIG", "DFLASH_TESTBED_PROGRAMS", "POD_NAME"} & env.keys()
