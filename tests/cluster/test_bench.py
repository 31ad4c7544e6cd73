"""``kubectl dflash bench`` on simulated engines: what it measures is what their counters say, and what disturbs it is told."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from dflash_controller.cli import failures
from testbed.cluster import Cluster
from testbed.operator_process import ROOT
from testbed.simulator_process import SimulatorProcess
from testbed.traffic.scrape import total
from testbed.waiting import wait_until
from tests.cluster.conftest import Dflash
from tests.conftest import StartOperator
from tests.support.deployment import Deployment, rollout_spec

TOKENS = 48
FIRST = 16
"""Tokens of the question that every engine is asked before the load."""
SHORT = ("--workload", "math", "--seconds", "1", "--max-tokens", str(TOKENS), "--yes")


def urls(deployment: Deployment) -> list[str]:
    found = deployment.children("pods")
    return [f"http://{pod['status']['podIP']}:{pod['spec']['containers'][0]['ports'][0]['containerPort']}" for pod in found]


def pages(of: Sequence[str]) -> list[str]:
    found = []
    for url in of:
        with urlopen(f"{url}/metrics", timeout=10) as answer:
            found.append(answer.read().decode())
    return found


def generated(of: Sequence[str]) -> float:
    """Tokens that engines have generated, by the counter that both engines have under one name."""
    lines = [line for page in pages(of) for line in page.splitlines() if ":generation_tokens_total{" in line]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_it_measures_what_the_engines_count(
    engine: str, start_operator: StartOperator, cluster: Cluster, namespace: str, dflash: Dflash, tmp_path: Path
) -> None:
    start_operator()
    chat = Deployment(cluster, namespace).create(rollout_spec(1, engine={"name": engine}))
    plain = Deployment(cluster, namespace, "plain").create(rollout_spec(2, engine={"name": engine}, blockSize=1))
    for deployment in (chat, plain):
        deployment.wait_done()
    engines = urls(chat)
    before, so_far = total(pages(engines)), generated(engines)
    # Nobody is there to agree, and --dry-run only says what would be done.
    status, _, err = dflash("bench", "chat", *SHORT[:-1])
    assert (status, "--yes" in err) == (failures.USAGE, True)
    status, out, err = dflash("bench", "chat", "--dry-run")
    assert (status, out) == (failures.OK, "")
    assert f"chat in namespace {namespace} gets load: Qwen/Qwen3.5-9B on {engine} " in err
    assert "Questions of math, code, chat from 1, 8, 16, 32 clients per replica, greedy answers of up to 512 tokens." in err
    assert "12 measurements of at least 30 s, each after a warm-up: more than 6 min." in err
    assert generated(engines) == so_far, "nothing is sent unless somebody agrees"

    status, out, err = dflash("bench", "chat", *SHORT, "--concurrency", "1", "--requests", "40", "-o", "json")
    assert (status, json.loads(out)["interrupted"]) == (failures.OK, False), err
    [row] = json.loads(out)["rows"]
    assert (row["blockSize"], row["errors"], row["changes"]) == (16, {}, [])
    assert row["answers"] >= 40
    after, truth = total(pages(engines)), generated(engines) - so_far
    # The one client has had one answer before the window; a part of its first and of its last one may lie outside.
    assert (row["answers"] - 1) * TOKENS <= row["tokens"] <= (row["answers"] + 1) * TOKENS
    assert row["tokens"] <= truth - FIRST - TOKENS + 1
    assert row["engineTokens"] == pytest.approx(row["tokens"], rel=0.2)
    assert row["engineTokens"] <= truth - FIRST
    assert row["tokensPerSecond"] == pytest.approx(row["tokens"] / row["seconds"], rel=0.01)
    assert row["acceptanceLength"] == pytest.approx(after.since(before), rel=0.1)
    assert 0 < row["timeToFirstTokenSeconds"]["p50"] <= row["timeToFirstTokenSeconds"]["p95"]
    assert 0 < row["timePerOutputTokenSeconds"]["p50"] <= row["timePerOutputTokenSeconds"]["p95"]

    # With a baseline of two replicas, to both of which the load goes.
    before_each = [generated([url]) for url in urls(plain)]
    file = tmp_path / "run.csv"
    arguments = ("--concurrency", "2,4", "--baseline", "plain", "--csv", str(file), "--plot", str(tmp_path / "run.png"))
    status, out, err = dflash("bench", "chat", *SHORT, *arguments)
    assert status == failures.OK, err
    assert err.count(" of 4: ") == 4, "one line for each measurement, where nobody watches"
    assert out.splitlines()[0].split()[:4] == ["DEPLOYMENT", "WORKLOAD", "BLOCK", "CLIENTS"]
    assert [line.split()[:4] for line in out.splitlines()[1:]] == [
        [name, "math", block, str(clients)] for c in (2, 4) for name, block, clients in (("plain", "off", 2 * c), ("chat", "16", c))
    ]
    each = [generated([url]) - told for url, told in zip(urls(plain), before_each, strict=True)]
    assert min(each) > 0.5 * max(each), "the least busy replica is asked first"
    with file.open(newline="", encoding="utf-8") as lines:
        table = list(csv.DictReader(lines))
    assert [(line["block_size"], line["method"], line["concurrency"]) for line in table] == [
        *(("16", "DFlash", c) for c in ("2", "4")),
        *(("1", "AR", c) for c in ("2", "4")),
    ]
    for fast, slow in zip(table[:2], table[2:], strict=True):
        assert float(fast["speedup"]) == pytest.approx(float(fast["tok_per_s"]) / float(slow["tok_per_s"]), rel=0.01)
        assert slow["speedup"] == "1.000"
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")

    # Later and without a cluster: the same numbers, from the files.
    status, out, _ = dflash("bench", str(file), "-o", "json")
    rows = json.loads(out)["rows"]
    assert (status, [row["tokensPerSecondPerReplica"] for row in rows]) == (failures.OK, [float(line["tok_per_s"]) for line in table])
    assert [row["acceptanceLength"] is None for row in rows] == [False, False, True, True]
    assert rows[0]["speedup"] == pytest.approx(float(table[0]["speedup"]), abs=0.01)


def test_what_disturbs_it_is_told_and_not_counted(
    start_operator: StartOperator, cluster: Cluster, namespace: str, dflash: Dflash, simulator: SimulatorProcess, tmp_path: Path
) -> None:
    start_operator()
    chat = Deployment(cluster, namespace).create(rollout_spec(2))
    chat.wait_done()
    crashed, _ = urls(chat)

    def crash() -> None:
        wait_until(lambda: generated([crashed]) > 20 * TOKENS, "the load after the warm-up")
        simulator.ask("POST", f"{crashed}/sim/crash", {"code": 137})

    thread = threading.Thread(target=crash, daemon=True)
    thread.start()
    file = tmp_path / "run.csv"
    status, out, err = dflash("bench", "chat", *SHORT, "--concurrency", "2,1", "--requests", "300", "-o", "json", "--csv", str(file))
    thread.join()
    assert status == failures.NEGATIVE, err
    row = json.loads(out)["rows"][0]
    [pod] = [item["metadata"]["name"] for item in chat.children("pods") if item["status"]["podIP"] in crashed]
    assert any(change in row["changes"] for change in (f"pod {pod} restarted", f"pod {pod} no longer serves")), row
    assert row["errors"], "answers under way were lost"
    line = file.read_text(encoding="utf-8").splitlines()[1]
    assert ",DFlash,,," in line, "it is no measurement"
    assert "not counted" in line


def test_pods_that_cannot_be_reached_are_measured_by_a_url(
    start_operator: StartOperator, cluster: Cluster, namespace: str, dflash: Dflash, simulator: SimulatorProcess
) -> None:
    start_operator()
    chat = Deployment(cluster, namespace).create(rollout_spec(1, engine={"extraArgs": ["--api-key=secret"]}))
    chat.wait_done()
    [url] = urls(chat)
    status, _, err = dflash("bench", "chat", *SHORT)
    assert (status, err.splitlines()[-1]) == (
        failures.CLUSTER,
        f"error: {url} asks for a key (HTTP 401). Give it with --api-key, or in KUBECTL_DFLASH_API_KEY",
    )
    status, out, _ = dflash("bench", "chat", *SHORT, "--concurrency", "1", "--url", f"{url}/v1/", "--api-key", "secret", "-o", "json")
    [row] = json.loads(out)["rows"]
    assert (status, row["errors"], row["acceptanceLength"] > 1) == (failures.OK, {}, True)

    # No engine listens at the address any more, though its pod is still said to be Ready.
    simulator.stop()
    try:
        status, _, err = dflash("bench", "chat", *SHORT)
    finally:
        simulator.start()
    [pod] = chat.names("pods")
    where = f"--kubeconfig {cluster.admin_kubeconfig} --namespace {namespace}"
    assert status == failures.CLUSTER
    assert err.splitlines()[-3:] == [
        f"error: {url} of chat cannot be reached from here (connection failed: Connection refused). "
        "Forward a port to a replica, and leave that running; then name it:",
        f"  kubectl port-forward {where} pod/{pod} 30000:30000",
        f"  kubectl dflash bench chat {where} --url http://127.0.0.1:30000",
    ]


@contextmanager
def running(cluster: Cluster, namespace: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The command as a process of its own."""
    command = [sys.executable, "-m", "dflash_controller.cli.program", "bench", "chat", *arguments]
    where = ["--kubeconfig", str(cluster.admin_kubeconfig), "--namespace", namespace]
    process = subprocess.Popen(
        [*command, *where], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_ctrl_c_ends_with_what_was_measured_so_far(start_operator: StartOperator, cluster: Cluster, namespace: str) -> None:
    start_operator()
    Deployment(cluster, namespace).create(rollout_spec(1)).wait_done()
    arguments = ("--concurrency", "1,2", "--seconds", "1", "--max-tokens", "200", "--yes", "-o", "json")
    with running(cluster, namespace, *arguments) as process:
        assert process.stderr is not None
        said: list[str] = []
        for line in process.stderr:
            said.append(line)
            if line.startswith("2 of 6: "):
                process.send_signal(signal.SIGINT)
                break
        out, err = process.communicate(timeout=60)
    assert process.returncode == failures.INTERRUPTED, (said, err)
    assert "Traceback" not in err
    told: dict[str, Any] = json.loads(out)
    assert told["interrupted"] is True
    assert 2 <= len(told["rows"]) < 6
    assert all(row["tokens"] > 0 for row in told["rows"])
