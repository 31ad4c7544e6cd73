"""``make demo-rollout``: a good drafter is promoted; a broken one is caught on one replica and rolled back. Both happen under traffic.

Time runs at normal speed, but settings use seconds instead of the usual minutes, so the demo ends in a minute or two.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from dflash_controller.engines.releases import TABLE
from testbed.demo_deployment import Deployment, refuse_failures
from testbed.demo_setup import ROLLOUT, ended, world
from testbed.narration import Teller, duration, say, show, step
from testbed.traffic.mix import Mix
from testbed.traffic.service import ServiceTraffic

NAME = "chat"
MODEL = "Qwen/Qwen3.5-9B"
NOW, GOOD, BROKEN = "a" * 40, "b" * 40, "c" * 40
RATE = 24.0
MIX = Mix({"gsm8k": 1.0, "humaneval": 1.0}, max_tokens=80, prompt_tokens=16, stream=0.5)
SPEC: Mapping[str, Any] = {
    "target": {"model": MODEL, "revision": "f" * 40},
    "drafter": {"revision": NOW},
    "engine": {"name": "sglang", "version": TABLE["sglang"].default},
    "replicas": 3,
    "tuning": {"mode": "Off"},
    "rollout": ROLLOUT,
}


def main() -> int:
    return ended(demo, "make demo KEEP=1 leaves a cluster to try it in by hand")


def demo() -> None:
    """Runs both rollouts. Raises if one does not end as expected."""
    teller, summary = Teller(), dict[str, str]()
    with world() as running:
        deployment = Deployment(running.cluster, NAME)
        with step("Serve: three replicas with drafter revision aaaaaaa", "2 s"):
            deployment.create(SPEC)
            say(running.cluster.kubectl("get", "dfd", NAME))
        with ServiceTraffic(running.cluster, "default", NAME, model=MODEL, rate=RATE, mix=MIX) as traffic:
            with step(f"Drafter revision bbbbbbb, as good as the one that serves, under {RATE:g} requests/s", "45 s"):
                phases = change_drafter(deployment, GOOD, "Completed")
                say_verdicts(deployment)
                summary["promoted"] = f"a good drafter, on all 3 replicas after {duration(phases['Completed'])}"
            running.simulator.ask("PUT", "/rules", [{"match": {"drafter_revision": BROKEN}, "faults": {"acceptance": 0.0}}])
            before = sum(traffic.answered().values())
            with step("Drafter revision ccccccc: the target accepts none of its tokens; nothing crashes, and no log says so", "20 s"):
                phases = change_drafter(deployment, BROKEN, "RolledBack")
                say_verdicts(deployment)
                answered = traffic.answered()
                met, since = answered.get(deployment.candidate(), 0), sum(answered.values()) - before
                summary["rolled back"] = (
                    f"a broken drafter, caught on one replica after {duration(phases['RollingBack'])} and gone after "
                    f"{duration(phases['RolledBack'])}; {met} of {since} requests met it"
                )
        refuse_failures(traffic)
        show(f"\n==> Done in {duration(teller.elapsed_s)}: {sum(traffic.answered().values()):,} requests answered, none failed")
        for what, text in summary.items():
            show(f"    {what:<13}{text}")


def change_drafter(deployment: Deployment, drafter: str, end: str) -> dict[str, float]:
    """Changes the drafter and follows the rollout. Returns the seconds after which each phase was reached."""
    return deployment.follow(Teller(), lambda: deployment.patch({"drafter": {"revision": drafter}}), "16", end=end)


def say_verdicts(deployment: Deployment) -> None:
    """Prints the analysis as the status shows it (status.rollout.analysis)."""
    widths = {"candidate": 10, "stable": 10, "limit": 8, "samples": 9}
    lines = [f"{'metric':<24}{'verdict':<14}" + "".join(f"{name:>{width}}" for name, width in widths.items())]
    for item in deployment.status()["rollout"].get("analysis") or ():
        lines.append(f"{item['metric']:<24}{item['verdict']:<14}" + "".join(f"{_number(item.get(k)):>{w}}" for k, w in widths.items()))
    say("\n".join(lines))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


if __name__ == "__main__":
    sys.exit(main())
