"""What has changed about a deployment, and URLs that users write."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dflash_controller.cli.bench.subject import changes, checked_url, serving
from dflash_controller.cli.failures import Failure
from dflash_controller.observe.peer import base_url
from tests.support.bench_world import restarted, subject

ONE, TWO = "http://10.0.0.1:30000", "http://10.0.0.2:30000"


def test_changes_are_those_that_make_it_another_thing() -> None:
    before = subject(ONE, TWO)
    assert list(changes(before, before)) == []
    assert list(changes(before, replace(before, phase="Progressing", tuned=True))) == []
    assert list(changes(before, restarted(before, 1))) == ["pod qwen-1 restarted"]
    assert list(changes(before, replace(before, replicas=before.replicas[:1]))) == ["pod qwen-1 no longer serves"]
    assert list(changes(replace(before, replicas=before.replicas[1:]), before)) == ["pod qwen-0 began to serve"]
    assert list(changes(before, replace(before, candidate="qwen-rccccccc"))) == ["a rollout of qwen-rccccccc began"]
    trial = replace(before, candidate="qwen-rccccccc")
    assert list(changes(trial, trial)) == []
    other = subject(ONE, hash="rbbbbbbb", blockSize=1)
    assert list(changes(before, other)) == [
        "the active revision changed from qwen-raaaaaaa (block size 16) to qwen-rbbbbbbb (speculation off)"
    ]


def test_a_deployment_is_told_in_the_words_of_measured_tables() -> None:
    now = subject(
        ONE, engine="vllm", target={"model": "Qwen/Qwen3.5-35B-A3B"}, accelerator={"product": "NVIDIA-H200"}, parallelism={"tensor": 2}
    )
    assert now.machine.model == "Qwen3.5-35B-A3B"
    assert now.machine.source.startswith("kubectl dflash bench, vllm ")
    assert now.machine.source.endswith(", 2x NVIDIA-H200")
    assert now.machine.kind == "hybrid, MoE"
    assert now.to_json()["blockSize"] == now.block_size


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://127.0.0.1:30000", "http://127.0.0.1:30000"),
        ("http://127.0.0.1:30000/", "http://127.0.0.1:30000"),
        ("https://gateway.example/llm/v1/", "https://gateway.example/llm"),
        ("http://[::1]:30000/v1", "http://[::1]:30000"),
    ],
)
def test_a_url_may_be_written_with_the_path_of_the_api(text: str, url: str) -> None:
    assert checked_url(text) == url


@pytest.mark.parametrize(
    "text", ["", "localhost:30000", "127.0.0.1", "ftp://x", "http://", "http://x:port", "http://x:99999", "http://x?a=1"]
)
def test_what_is_no_url_is_refused(text: str) -> None:
    with pytest.raises(Failure, match=r"is no URL of an engine. Write it like http://127.0.0.1:30000"):
        checked_url(text)


def test_metrics_are_read_where_they_are_the_engines_own() -> None:
    now = subject(ONE)
    [target] = now.targets(("http://[::1]:8000", "https://gateway.example", "http://gateway.example/llm"))
    assert (target.ip, target.port, target.speculation_on, target.engine) == ("::1", 8000, True, "sglang")
    [target] = now.targets(("http://engine",))
    assert (target.ip, target.port) == ("engine", 80)
    assert base_url("fd00::1", 1) == "http://[fd00::1]:1"


def test_without_a_replica_there_is_nothing_to_measure() -> None:
    assert serving(subject(ONE)).replicas
    with pytest.raises(Failure, match=r"no replica of qwen serves. See kubectl dflash status qwen"):
        serving(subject())
