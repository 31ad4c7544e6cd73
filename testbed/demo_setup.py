"""Start and end of every demo."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from subprocess import SubprocessError
from typing import Any

from dflash_controller import __version__
from testbed.cluster import Cluster
from testbed.gates import each_gate
from testbed.narration import Teller, show, step
from testbed.nodes import NodePool
from testbed.operator_process import OperatorProcess, install_chart
from testbed.prometheus import Prometheus
from testbed.simulator_process import SimulatorProcess

SETTINGS: Mapping[str, str] = {
    "scrape_seconds": "2",
    "metrics_window_seconds": "16",
    "warm_up_seconds": "2",
    "tuning_seconds": "2",
    "tuning_slot_seconds": "5",
}
"""Settings of the operator with seconds instead of the usual minutes."""
ON_CLUSTERS: Mapping[str, str] = {"allowed_host_paths": "/mnt/models", "fetch_image": f"dflash-operator:{__version__}"}
"""What an install with the chart sets beside them, as the tutorials have it."""
POOLS = (NodePool("b200", 8, resources={"rdma/hca_shared_devices_a": "8"}), NodePool("cpu", 1, gpus=0))
"""Nodes for all of examples/clusters."""
TUNING: Mapping[str, Any] = {"window": "5s", "minDwell": "5s", "maxChangesPerDay": 100, "minGainPercent": 3}
"""The same for ``spec.tuning``."""
ROLLOUT: Mapping[str, Any] = {
    "deadline": "10m",
    "analysis": each_gate(window="5s", interval="1s"),
    "probe": {"prompts": 24, "maxTokens": 64, "promptsPerMinute": 1200},
}
"""The same for ``spec.rollout``."""
TUNED_ROLLOUT: Mapping[str, Any] = {
    **ROLLOUT,
    "maxSurge": 1,
    "maxUnavailable": 0,
    "analysis": {**ROLLOUT["analysis"], "speed": {"interval": "1s", "limit": 25}},
}
"""Rollout for a change of block size. It has one more replica and a trial of seconds, which is too short to show small differences of
speed."""
STOP_S = 3.0
"""Seconds between the deletion of a pod and its SIGTERM; by then clients no longer send requests to it."""
_LOG_LINES, _LOG_WIDTH = 8, 400


class DemoError(RuntimeError):
    """An expected step did not happen; the message says which."""


@dataclass(frozen=True)
class World:
    """The running parts of a demo."""

    cluster: Cluster
    prometheus: Prometheus
    simulator: SimulatorProcess
    operator: OperatorProcess


@contextmanager
def world(*, name: str | None = None, log_format: str = "text", kept: Callable[[World], None] | None = None) -> Iterator[World]:
    """Starts everything and stops it again. With ``kept`` everything keeps running, even after a failure, and ``kept`` explains how to
    inspect it."""
    with ExitStack() as stack:
        with step("Start Kubernetes, Prometheus, the engine simulator and the operator on this machine", "10 s"):
            clock = Teller()
            cluster = stack.enter_context(Cluster(name, POOLS))
            clock.tell("API server, controllers, scheduler; 8 nodes with 8 (pretended) B200 GPUs each")
            prometheus = Prometheus(cluster, scrape_interval_s=1.0).start()
            clock.tell("Prometheus")
            simulator = SimulatorProcess(cluster, stop_s=STOP_S).start()
            clock.tell("engine simulator: plays the engine of every pod")
            install_chart(cluster)
            clock.tell("helm install charts/dflash-operator: CustomResourceDefinition, ServiceAccount, RBAC")
            settings = {**SETTINGS, **ON_CLUSTERS, "log_format": log_format, "prometheus_url": prometheus.url}
            operator = OperatorProcess(cluster, settings).start().wait_to_lead()
            clock.tell("operator, running as that ServiceAccount")
        running = World(cluster, prometheus, simulator, operator)
        try:
            yield running
        except Exception:
            if found := _warnings(operator):
                show("\nThe last warnings in the operator's log:\n" + "\n".join(found))
            if kept is not None:
                cluster.keep()
                kept(running)
            raise
        if kept is not None:
            cluster.keep()
            kept(running)


def ended(demo: Callable[[], None], again: str) -> int:
    """Runs a demo to its end. Returns the exit status. After a failure it prints what went wrong and how to investigate (``again``)."""
    try:
        demo()
    except KeyboardInterrupt:
        print("\nInterrupted: everything that was started has been ended", file=sys.stderr)
        return 130
    except (RuntimeError, OSError, SubprocessError) as error:
        print(f"\nThe demo FAILED: {error}\n{again}", file=sys.stderr, flush=True)
        return 1
    return 0


def _warnings(operator: OperatorProcess) -> list[str]:
    lines = [line for line in operator.log.read_text(errors="replace").splitlines() if "WARNING" in line or "ERROR" in line]
    # It is expected that kinds of other operators are not installed here.
    return [f"    {line[:_LOG_WIDTH]}" for line in lines if "Unresolved resources" not in line][-_LOG_LINES:]
