"""``make demo``: one DFlashDeployment, from ``kubectl apply`` to answers, with a bad drafter and a change of load.

kwok and the engine simulator play pods and GPUs. The simulator reads the same command line that the operator rendered for the engine.
Everything else is real: API server, scheduler, controllers, Helm, Prometheus and the operator.
"""

from __future__ import annotations

import argparse
import sys
import time

from openai import OpenAI, OpenAIError

from testbed import binaries
from testbed.demo_deployment import Deployment, follow_load, refuse_failures
from testbed.demo_setup import TUNED_ROLLOUT, TUNING, DemoError, World, ended, world
from testbed.narration import Teller, duration, say, show, step
from testbed.operator_process import ROOT
from testbed.simulator_process import SimulatorProcess
from testbed.traffic.mix import Mix
from testbed.traffic.service import ServiceTraffic

EXAMPLE = ROOT / "examples" / "dflash.yaml"
KEPT = "demo"
"""Name of the cluster that `--keep` leaves running."""
NAME, MODEL, REPLICAS = "qwen", "Qwen/Qwen3.5-9B", 2
BROKEN = "c" * 40
QUIET, BUSY = 4, 28
"""Clients per replica."""
MIX = Mix({"gsm8k": 1.0, "mt-bench": 1.0}, max_tokens=120, prompt_tokens=16, stream=0.2)
_COUNTED = 1000
"""Number of answers whose tokens are counted after a change of load."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m testbed.demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave everything running afterwards")
    options = parser.parse_args(arguments)
    again = "make demo-down ends what is left" if options.keep else "make demo KEEP=1 leaves everything running, to look into it"
    return ended(lambda: demo(keep=options.keep), again)


def demo(*, keep: bool) -> None:
    """Runs the whole demo. Raises if a step fails."""
    teller, summary = Teller(), dict[str, str]()
    with world(name=KEPT if keep else None, kept=look_around if keep else None) as running:
        deployment = Deployment(running.cluster, NAME)
        summary["served"] = served(deployment)
        with traffic_on(deployment) as traffic:
            summary["asked"] = f"{asked(deployment)}; answered {duration(teller.elapsed_s)} after the start"
            summary["measured"] = measured(deployment, traffic)
            summary["rolled back"] = rolled_back(deployment, running.simulator, traffic)
            summary["followed"] = followed(deployment, traffic)
        refuse_failures(traffic)
        show(f"\n==> Done in {duration(teller.elapsed_s)}: {sum(traffic.answered().values()):,} requests answered, none failed")
        for what, text in summary.items():
            show(f"    {what:<13}{text}")


def served(deployment: Deployment) -> str:
    """Goes from the example to Ready pods."""
    name = EXAMPLE.relative_to(ROOT)
    with step(f"Serve: kubectl apply -f {name}, then wait until it is Ready", "2 s"):
        teller = Teller()
        say(deployment.cluster.kubectl("apply", "-f", str(EXAMPLE)))
        deployment.wait_ready()
        took = duration(teller.elapsed_s)
        say(deployment.cluster.kubectl("get", "dfd", NAME))
        pods = deployment.pods()
        container = pods[0]["spec"]["containers"][0]
        say(f"The command line of these {len(pods)} pods, as the operator rendered it for this engine release:")
        say(" \\\n  ".join([" ".join(container["command"]), *container["args"]]))
    return f"{len(pods)} replicas of {MODEL}, Ready {took} after kubectl apply"


def traffic_on(deployment: Deployment) -> ServiceTraffic:
    return ServiceTraffic(deployment.cluster, "default", NAME, model=MODEL, mix=MIX, concurrency=QUIET * REPLICAS)


def asked(deployment: Deployment) -> str:
    """Sends one chat completion."""
    with step("Ask: a chat completion through the OpenAI client", "1 s"):
        client = OpenAI(base_url=f"{deployment.urls()[0]}/v1", api_key="EMPTY")
        teller = Teller()
        try:
            answer = client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "Write a quicksort in Python."}], max_tokens=48
            )
        except OpenAIError as error:
            raise DemoError(f"the completion was not answered: {error}") from error
        took, text, usage = duration(teller.elapsed_s), answer.choices[0].message.content, answer.usage
        if not text or not usage or not usage.completion_tokens:
            raise DemoError(f"the completion is empty: {answer}")
        say(f"{text[:100]} …")
        say("(There is no model on this machine: the simulated engine answers with words drawn from the prompt.)")
    return f"{usage.completion_tokens} tokens in {took}"


def measured(deployment: Deployment, traffic: ServiceTraffic) -> str:
    """Compares the status with the counts of clients and engines."""
    with step(f"Measure: since the pods are Ready, {QUIET} clients for each replica have been sending requests", "10 s"):
        before, begun = deployment.counters(), time.monotonic()
        deployment.wait(lambda status: "acceptanceLength" in (status.get("metrics") or {}), "metrics in the status")
        shown, counted, now = deployment.metrics(), deployment.counters().since(before), time.monotonic()
        say(deployment.cluster.kubectl("get", "dfd", NAME))
        length = f"acceptance length {shown['acceptanceLength']:.3g} (the engines count {counted or 0.0:.3g})"
        speed = f"{shown['tokensPerSecond']:,.0f} tokens/s (the clients count {traffic.tokens_per_second(begun, now):,.0f})"
        say(f"The operator reports in the status: {length}, {speed}")
    return f"{length}, {speed}"


def rolled_back(deployment: Deployment, simulator: SimulatorProcess, traffic: ServiceTraffic) -> str:
    """Tries a drafter whose tokens the target refuses."""
    simulator.ask("PUT", "/rules", [{"match": {"drafter_revision": BROKEN}, "faults": {"acceptance": 0.0}}])
    with step("Roll back: a bad drafter. The target accepts none of its tokens; nothing crashes, and no log says so", "12 s"):
        deployment.patch({"rollout": TUNED_ROLLOUT, "tuning": TUNING})
        say("(From here on a trial takes seconds instead of minutes: spec.rollout and spec.tuning were changed, which restarts nothing.)")
        say('kubectl patch dfd qwen --type merge --patch \'{"spec": {"drafter": {"revision": "cccc…"}}}\'')
        teller, before = Teller(), sum(traffic.answered().values())
        phases = deployment.follow(teller, lambda: deployment.patch({"drafter": {"revision": BROKEN}}), "16", end="RolledBack")
        answered = traffic.answered()
        met = f"{answered.get(deployment.candidate(), 0)} of {sum(answered.values()) - before} requests met it"
        refuse_failures(traffic)
        deployment.patch({"drafter": {"revision": None}})
        deployment.wait_ready()
        teller.tell("spec.drafter names the old drafter again: Ready")
        say(f"{met}, none failed")
    return f"a bad drafter on one replica, caught after {duration(phases['RollingBack'])}; {met}, none failed"


def followed(deployment: Deployment, traffic: ServiceTraffic) -> str:
    """Raises the load, for which a shorter block is faster."""
    with step(f"Follow the load: {BUSY} clients for each replica instead of {QUIET}; block size 8 is faster than 16 now", "40 s"):
        found = follow_load(deployment, traffic, Teller(), BUSY * REPLICAS, "8", _COUNTED)
        say(deployment.cluster.kubectl("get", "dfd", NAME))
        say(f"The clients got {found.before:,.0f} tokens/s with block size 16 and get {found.after:,.0f} with block size 8")
    return f"block size 16 -> 8 in {duration(found.seconds)}; {found.before:,.0f} tokens/s before, {found.after:,.0f} after"


def look_around(running: World) -> None:
    """Prints what is left running and what can be done with it."""
    show(
        f"""
Everything is left running. To look around:

  export KUBECONFIG={running.cluster.admin_kubeconfig}
  export PATH={binaries.path_of("kubectl").parent}:$PATH
  kubectl get dfd -o wide
  kubectl get dfd,controllerrevisions,deployments,pods
  kubectl get events --sort-by=.metadata.creationTimestamp
  kubectl explain dfd.spec.tuning
  kubectl scale dfd {NAME} --replicas 3

Send requests to the pods that serve now, from this directory:

  {sys.executable} -m testbed.traffic --model {MODEL} --concurrency 16 --seconds 120 \\
    $(kubectl get pods -l serving.dflash.io/deployment={NAME} -o jsonpath='{{range .items[*]}}http://{{.status.podIP}}:30000 {{end}}')

Change the drafter. It is tried on one replica; requests to the old and the new pods bring the verdict:

  kubectl patch dfd {NAME} --type merge -p '{{"spec":{{"drafter":{{"revision":"{"0" * 39}1"}}}}}}'
  kubectl get dfd {NAME} --watch

  Prometheus          {running.prometheus.url}
  operator metrics    {running.operator.url}/metrics
  operator log        {running.operator.log}
  simulated engines   {running.simulator.control}/pods

To end it: make demo-down"""
    )


if __name__ == "__main__":
    sys.exit(main())
