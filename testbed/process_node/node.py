"""The node agent as a process of a cluster of the test bed."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from testbed.cluster import Cluster
from testbed.waiting import wait_until

ROOT = Path(__file__).parents[2]
_NETWORK = 250
"""Third part of the node's addresses. kwok's nodes have the first ones."""


class ProcessNode:
    """One process node. ``options`` are those of ``python -m testbed.process_node``."""

    def __init__(self, cluster: Cluster, *options: str, name: str = "process-node", models: Path = Path("/")) -> None:
        self._cluster = cluster
        self.name = name
        self.directory = cluster.directory / name
        self.log = cluster.directory / f"{name}.log"
        self._process = cluster.workspace.process(name)
        network = ".".join([*cluster.pod_network.split(".")[:2], str(_NETWORK)])
        self._command = [sys.executable, "-m", "testbed.process_node", f"--kubeconfig={cluster.admin_kubeconfig}", f"--name={name}"]
        self._command += [f"--network={network}", f"--directory={self.directory}", f"--models={models}", *options]

    def start(self) -> ProcessNode:
        """Starts the agent and waits until its node is Ready."""
        self.log.unlink(missing_ok=True)
        self._process.start(self._command, self.log, {**os.environ, "PYTHONPATH": _path()})
        wait_until(self._registered, f"the process node (see {self.log})", 30)
        wait_until(lambda: self.name in self._cluster.ready_nodes(), f"node {self.name} to be Ready")
        return self

    def stop(self) -> None:
        """Stops the agent, and with it every process of its pods at once."""
        self._process.stop()

    def ran(self) -> list[dict[str, Any]]:
        """Returns every process that was started, oldest first: pod, command line, changes, GPUs, log, times, exit code."""
        found = [entry for file in self.directory.glob("*.json") for entry in json.loads(file.read_text())]
        return sorted(found, key=lambda entry: float(entry["startedAt"]))

    def __enter__(self) -> ProcessNode:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _registered(self) -> bool:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        if self._process.pid() is None:
            raise RuntimeError(f"the process node ended:\n{text[-3000:]}")
        return '{"event": "ready"' in text


def _path() -> str:
    """Returns PYTHONPATH with this project in front; dependencies may come from further folders."""
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
