"""The engine simulator as a process that plays every engine pod of a cluster."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.request import Request, urlopen

from testbed.cluster import Cluster
from testbed.waiting import wait_until

ROOT = Path(__file__).parent.parent


class SimulatorProcess:
    """The simulator's process. ``speed`` is simulated seconds per second; ``startup_s`` is the load time of engines whose pods do not set
    one.

    ``stop_s``: deleted pods get SIGTERM after this many seconds instead of their preStop pause, and end as soon as their engine is drained.
    """

    def __init__(self, cluster: Cluster, *, speed: float = 1.0, startup_s: float = 0.0, stop_s: float | None = None) -> None:
        self._cluster = cluster
        self._options = [f"--speed={speed}", f"--startup-seconds={startup_s}", "--log-level=info"]
        self._options += [] if stop_s is None else [f"--stop-seconds={stop_s}"]
        self.log = cluster.directory / "simulator.log"
        self._process = cluster.workspace.process("simulator")
        self.control = ""

    def start(self) -> SimulatorProcess:
        """Starts the simulator and waits until it has seen every pod."""
        self.log.unlink(missing_ok=True)
        command = [sys.executable, "-m", "testbed.simulator", "fleet", f"--kubeconfig={self._cluster.admin_kubeconfig}", *self._options]
        self._process.start(command, self.log, _environment())
        self.control = wait_until(self._control, f"the simulator (see {self.log})", 30)
        return self

    def stop(self) -> None:
        self._process.stop()

    def pods(self) -> list[dict[str, Any]]:
        """Returns address, port, engine, release, block size, argv and faults of each simulated pod."""
        listed: list[dict[str, Any]] = self.ask("GET", "/pods")
        return listed

    def ask(self, method: str, path: str, body: Mapping[str, Any] | Sequence[Any] | None = None) -> Any:
        """Returns the answer of its control interface, or with a full URL that of a pod's own ``/sim/`` interface."""
        url = path if path.startswith("http") else self.control + path
        data = None if body is None else json.dumps(body).encode()
        with urlopen(Request(url, data, {"Content-Type": "application/json"}, method=method), timeout=10) as answer:
            text = answer.read().decode()
        return json.loads(text) if text else None

    def __enter__(self) -> SimulatorProcess:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _control(self) -> str | None:
        for line in self.log.read_text(errors="replace").splitlines() if self.log.exists() else ():
            if line.startswith('{"event": "ready"'):
                return str(json.loads(line)["control"])
        if self._process.pid() is None:
            raise RuntimeError(f"the simulator ended:\n{self.log.read_text(errors='replace')[-3000:]}")
        return None


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}
