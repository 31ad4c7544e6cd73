"""``python -m testbed.simulator serve``: the process that stands in for an engine's container; and the traffic command on it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from testbed.waiting import wait_until
from tests.support.releases import default_release

COMMAND = [
    *("sglang", "serve", "--model-path=Qwen/Qwen3.5-9B", "--served-model-name=m", "--enable-metrics", "--speculative-algorithm=DFLASH"),
    *("--speculative-draft-model-path=z-lab/Qwen3.5-9B-DFlash", "--speculative-num-draft-tokens=16"),
]


VLLM = ("vllm", "serve", "Qwen/Qwen3.5-9B", "--served-model-name=m", "--shutdown-timeout=30")


def start(*arguments: str, release: str = default_release("sglang")) -> subprocess.Popen[str]:
    environment = {**os.environ, "DFLASH_SIM_RELEASE": release}
    command = [sys.executable, "-m", "testbed.simulator", "serve", "--host=127.0.0.1", "--speed=10", "--", *arguments]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    try:
        return bool(urlopen(f"http://127.0.0.1:{port}/health", timeout=2).status == 200)
    except OSError:
        return False


class Ranks:
    """Two ranks of one engine, which end with the block."""

    def __init__(self, *command: str, release: str) -> None:
        vllm = command[0] == "vllm"
        self.port, self.workers_port, meeting = free_port(), free_port(), free_port()
        address = ["--master-addr=127.0.0.1", f"--master-port={meeting}"] if vllm else [f"--dist-init-addr=127.0.0.1:{meeting}"]
        self._common = [*command, "--tensor-parallel-size=2", "--nnodes=2", *address]
        self._headless = ["--headless"] if vllm else []
        self._release = release
        self.processes: list[subprocess.Popen[str]] = []

    def leader(self) -> subprocess.Popen[str]:
        return self._start("--node-rank=0", f"--port={self.port}")

    def worker(self) -> subprocess.Popen[str]:
        return self._start("--node-rank=1", f"--port={self.workers_port}", *self._headless)

    def _start(self, *arguments: str) -> subprocess.Popen[str]:
        process = start(*self._common, *arguments, release=self._release)
        self.processes.append(process)
        return process

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


@pytest.mark.parametrize(
    ("command", "release", "waits"),
    [(COMMAND, "0.5.21", True), (COMMAND, "0.5.20", False), (VLLM, default_release("vllm"), False)],
    ids=["SGLang that waits", "SGLang", "vLLM"],
)
def test_ranks_of_two_nodes_meet_and_part(command: Sequence[str], release: str, waits: bool) -> None:
    with Ranks(*command, release=release) as ranks:
        worker = ranks.worker()
        leader = ranks.leader()
        wait_until(lambda: answers(ranks.port), "the leader", 60)
        assert answers(ranks.workers_port) == (command is COMMAND), "ranks of SGLang above 0 answer /health"
        worker.send_signal(signal.SIGTERM)
        if waits:
            leader.send_signal(signal.SIGTERM)
            assert [leader.wait(timeout=60), worker.wait(timeout=60)] == [0, 0]
            return
        assert worker.wait(timeout=60) == (143 if command is COMMAND else 0)
        wait_until(lambda: not answers(ranks.port), "the leader to hang without its worker", 60)
        assert leader.poll() is None


def test_a_leader_alone_is_not_ready() -> None:
    with Ranks(*COMMAND, release="0.5.21") as ranks:
        ranks.leader()
        wait_until(lambda: refuses(ranks.port), "the leader to say that it is not ready", 60)
        ranks.worker()
        wait_until(lambda: answers(ranks.port), "the leader", 60)


def refuses(port: int) -> bool:
    try:
        urlopen(f"http://127.0.0.1:{port}/health", timeout=2).close()
    except HTTPError as error:
        return error.code == 503
    except OSError:
        return False
    return False


def test_a_refused_command_line_ends_as_the_engine_would() -> None:
    process = start(*COMMAND, "--no-such-flag")
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 2
    assert "unrecognized arguments: --no-such-flag" in errors


def test_it_serves_traffic_until_it_is_told_to_end() -> None:
    port = free_port()
    process = start(*COMMAND, f"--port={port}")
    try:
        wait_until(lambda: answers(port), "the server", 60)
        load = ["--model=m", "--concurrency=2", "--seconds=1", "--stream=0.5", "--max-tokens=200", f"http://127.0.0.1:{port}"]
        sent = subprocess.run([sys.executable, "-m", "testbed.traffic", *load], capture_output=True, text=True, timeout=30, check=True)
        report = json.loads(sent.stdout)
        assert report["requests"] > 5
        assert not report["errors"]
        assert 5.0 < report["acceptance_length"] < 8.0
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=5) == 0
    finally:
        process.kill()
        process.communicate()
