"""``python -m testbed.simulator serve``: the process that stands in for an engine's container; and the traffic command on it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from urllib.error import URLError
from urllib.request import urlopen

from testbed.waiting import wait_until
from tests.support.releases import default_release

COMMAND = [
    *("sglang", "serve", "--model-path=Qwen/Qwen3.5-9B", "--served-model-name=m", "--enable-metrics", "--speculative-algorithm=DFLASH"),
    *("--speculative-draft-model-path=z-lab/Qwen3.5-9B-DFlash", "--speculative-num-draft-tokens=16"),
]


def start(*arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "DFLASH_SIM_RELEASE": default_release("sglang")}
    command = [sys.executable, "-m", "testbed.simulator", "serve", "--host=127.0.0.1", "--speed=10", "--", *arguments]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def test_a_refused_command_line_ends_as_the_engine_would() -> None:
    process = start(*COMMAND, "--no-such-flag")
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 2
    assert "unrecognized arguments: --no-such-flag" in errors


def test_it_serves_traffic_until_it_is_told_to_end() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = start(*COMMAND, f"--port={port}")
    try:

        def is_ready() -> bool:
            try:
                return urlopen(f"http://127.0.0.1:{port}/ready", timeout=2).status == 200
            except URLError:
                return False

        wait_until(is_ready, "the server", 20)
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
