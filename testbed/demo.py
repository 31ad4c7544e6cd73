"""``make demo``: one DFlashDeployment from ``kubectl apply`` to answered completions, on a real control plane of this machine.

Pods and GPUs are played by kwok and the engine simulator, which reads the very command line the operator rendered; everything else
(API server, scheduler, controllers, Helm, Prometheus, the operator) is the real thing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from contextlib import ExitStack

from openai import OpenAI

from testbed import binaries
from testbed.cluster import Cluster
from testbed.demo_rollout import rollouts
from testbed.demo_tuner import SETTINGS, tuning
from testbed.narration import say, step
from testbed.operator_process import ROOT, OperatorProcess, install_chart
from testbed.prometheus import Prometheus
from testbed.simulator_process import SimulatorProcess
from testbed.traffic.mix import Mix, Shots
from testbed.traffic.over_http import Client, Target
from testbed.traffic.report import summarize
from testbed.waiting import wait_until

EXAMPLE = ROOT / "examples" / "dflash.yaml"
KEPT = "demo"
"""Name of the cluster that `--keep` leaves."""
NAME = "qwen"
MODEL = "Qwen/Qwen3.5-9B"
TRAFFIC_S = 20.0
CONCURRENCY = 16


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m testbed.demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave everything running afterwards")
    options = parser.parse_args(arguments)
    with ExitStack() as stack:
        with step("A control plane, with 8 nodes of 8 B200 GPUs"):
            cluster = stack.enter_context(Cluster(KEPT if options.keep else None))
        with step("Prometheus"):
            prometheus = Prometheus(cluster, scrape_interval_s=1.0).start()
        with step("The engine simulator, which plays every engine pod"):
            simulator = SimulatorProcess(cluster).start()
        with step("helm install: CRD, ServiceAccount and RBAC of charts/dflash-operator"):
            install_chart(cluster)
        with step("The operator, under that ServiceAccount"):
            settings = {**SETTINGS, "prometheus_url": prometheus.url}
            operator = OperatorProcess(cluster, settings).start().wait_to_lead()
        _show(cluster)
        rollouts(cluster, simulator)
        tuning(cluster, prometheus, simulator, operator)
        if options.keep:
            cluster.keep()
            _look_around(cluster, operator, prometheus, simulator)
        else:
            with step("Cleaning up"):
                cluster.stop()
    return 0


def _show(cluster: Cluster) -> None:
    with step(f"kubectl apply -f {EXAMPLE.relative_to(ROOT)}"):
        say(cluster.kubectl("apply", "-f", str(EXAMPLE)))
    with step(f"kubectl wait --for=condition=Ready dfd/{NAME}"):
        say(cluster.kubectl("wait", "--for=condition=Ready", f"dfd/{NAME}", "--timeout=60s"))
    pods = cluster.get("pods", "-l", f"serving.dflash.io/deployment={NAME}")["items"]
    with step("What the pods run (exactly what this engine release needs)"):
        container = pods[0]["spec"]["containers"][0]
        say(" \\\n  ".join([" ".join(container["command"]), *container["args"]]))
    urls = [f"http://{pod['status']['podIP']}:{container['ports'][0]['containerPort']}" for pod in pods]
    with step("A chat completion through the OpenAI client"):
        client = OpenAI(base_url=f"{urls[0]}/v1", api_key="EMPTY")
        answer = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Write a quicksort in Python."}], max_tokens=48
        )
        usage = answer.usage
        say(f"{(answer.choices[0].message.content or '')[:160]} …\n({usage.completion_tokens if usage else 0} tokens)")
    with step(f"{TRAFFIC_S:.0f} s of traffic: {CONCURRENCY} clients, gsm8k and humaneval prompts"):
        measured = asyncio.run(_traffic(urls))
        say(json.dumps(measured))
    with step("kubectl get dfd -o wide"):
        wait_until(lambda: _metric_values(cluster).get("acceptanceLength"), "figures in the status", 30)
        say(cluster.kubectl("get", "dfd", "-o", "wide"))
    metric_values = _metric_values(cluster)
    with step("What the operator measured, beside what the clients saw"):
        say(f"acceptance length {metric_values['acceptanceLength']} (clients: {measured['acceptance_length']:.3g})")
        say(f"tokens/s          {metric_values['tokensPerSecond']} (clients: {measured['tokens_per_second']:.3g})")
    with step("What the operator told (events)"):
        say(
            cluster.kubectl(
                "get", "events", "--field-selector", "involvedObject.kind=DFlashDeployment", "--sort-by=.metadata.creationTimestamp"
            )
        )


def _metric_values(cluster: Cluster) -> dict[str, float]:
    metric_values: dict[str, float] = cluster.get("dfd", NAME)["status"].get("metrics") or {}
    return metric_values


async def _traffic(urls: list[str]) -> dict[str, float]:
    mix = Mix({"gsm8k": 1.0, "humaneval": 1.0}, max_tokens=300, prompt_tokens=64, stream=0.5)
    async with Client(Target(urls, MODEL, "round-robin"), Shots(mix, seed=0)) as client:
        before, start_s = await client.acceptance_totals(), client.now()
        await client.closed_loop(CONCURRENCY, TRAFFIC_S)
        after = await client.acceptance_totals()
        report = summarize(client.log, start_s, start_s + TRAFFIC_S, after.since(before))
    found: dict[str, float] = report.to_json()
    return found


def _look_around(cluster: Cluster, operator: OperatorProcess, prometheus: Prometheus, simulator: SimulatorProcess) -> None:
    print(
        f"""
Everything is left running. To look around:

  export KUBECONFIG={cluster.admin_kubeconfig}
  alias kubectl={binaries.path_of("kubectl")}
  kubectl get dfd -o wide
  kubectl explain dfd.spec.tuning
  kubectl scale dfd {NAME} --replicas 3
  kubectl patch dfd {NAME} --type merge -p '{{"spec":{{"drafter":{{"revision":"{"0" * 39}1"}}}}}}'   # a new drafter
  kubectl get dfd,controllerrevisions,deployments,pods

  Prometheus          {prometheus.url}
  operator metrics    {operator.url}/metrics
  operator log        {operator.log}
  simulated engines   {simulator.control}/pods

To end it: make demo-down"""
    )


if __name__ == "__main__":
    sys.exit(main())
