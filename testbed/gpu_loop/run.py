"""Everything that runs during the loop: control plane, operator, Prometheus, process node, load, time line."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from testbed.cluster import Cluster
from testbed.demo_deployment import Deployment
from testbed.gpu_loop.clients import Parts, StreamClient, Words
from testbed.gpu_loop.engine_log import merged, warnings_of
from testbed.gpu_loop.report import Report
from testbed.gpu_loop.setup import SETTINGS, Setup
from testbed.gpu_loop.timeline import Timeline
from testbed.operator_process import OperatorProcess, install_chart
from testbed.process_node.gpus import Gpu, find_gpus
from testbed.process_node.node import ProcessNode
from testbed.prometheus import Prometheus
from testbed.traffic.mix import Mix
from testbed.traffic.report import Log
from testbed.traffic.service import ServiceTraffic

NAME = "loop"
_SIMULATED_PRODUCT = "NVIDIA-H100-80GB-HBM3"
_KEPT_LOG_BYTES = 4_000_000
_SIMULATOR = ("--simulator=--startup-seconds=3", "--simulator=--log-level=info")


@dataclass
class Run:
    """The running parts, and what phases share."""

    setup: Setup
    cluster: Cluster
    operator: OperatorProcess
    prometheus: Prometheus | None
    node: ProcessNode
    deployment: Deployment
    timeline: Timeline
    report: Report
    product: str
    deadline_s: float
    """End of the budget on the monotonic clock."""
    level_s: float
    parts: Parts = field(default_factory=Parts)
    traffic: ServiceTraffic | None = None
    others: list[Log] = field(default_factory=list)
    """Logs of requests beside the load."""

    def remaining_s(self) -> float:
        return self.deadline_s - time.monotonic()

    def wait(self, condition: Callable[[Mapping[str, Any]], Any], limit_s: float) -> bool:
        """Waits until the deployment's status fulfils a condition. Returns False after ``limit_s`` seconds or at the end of the budget."""
        until_s = min(time.monotonic() + limit_s, self.deadline_s)
        while not condition(self.deployment.status()):
            if time.monotonic() > until_s:
                return False
            time.sleep(0.3)
        return True

    @property
    def load(self) -> ServiceTraffic:
        if self.traffic is None:
            raise RuntimeError("there is no load yet: the phase serve begins it")
        return self.traffic

    def resize(self, clients: int) -> None:
        """Sets the number of clients for each replica."""
        self.load.resize(clients * self.setup.replicas)

    def begin_load(self, stack: ExitStack) -> None:
        """Begins the load with one client for each replica. It lasts until ``stack`` ends."""
        # A word is one token of a made tokenizer, but about four of a real one, and two as the simulator counts.
        words = 24 if self.setup.simulator else 64 if self.setup.shape else 16
        mix = Mix({"made": 1.0}, max_tokens=400, prompt_tokens=words, stream=0.5)
        self.traffic = stack.enter_context(
            ServiceTraffic(
                self.cluster,
                "default",
                NAME,
                model=self.setup.target,
                mix=mix,
                concurrency=self.setup.replicas,
                shots=Words(mix),
                client=partial(StreamClient, parts=self.parts),
            )
        )


@contextmanager
def running(
    setup: Setup, *, budget_s: float, level_s: float, prometheus: bool, keep: str | None, tell: Callable[[str], None]
) -> Iterator[Run]:
    """Starts everything and ends it again; with ``keep`` it stays under that name."""
    report = Report(setup.out)
    began_s = time.monotonic()
    gpus = [Gpu(index, _SIMULATED_PRODUCT) for index in range(setup.gpus or 1)] if setup.simulator else find_gpus()[: setup.gpus]
    setup.prepare()
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(keep, pools=()))
        tell("control plane is up")
        scraper = Prometheus(cluster, scrape_interval_s=1.0).start() if prometheus else None
        node = ProcessNode(cluster, *_node_options(setup, gpus), models=setup.models).start()
        tell(f"process node is Ready: {len(gpus)} x {gpus[0].product}, each offered {setup.share} times")
        install_chart(cluster)
        settings = {**SETTINGS, "warm_up_seconds": f"{setup.warm_up_s:g}", **({"prometheus_url": scraper.url} if scraper else {})}
        operator = OperatorProcess(cluster, settings).start().wait_to_lead()
        tell("operator leads")
        deployment = Deployment(cluster, NAME)
        timeline = stack.enter_context(Timeline(deployment, tell))
        run = Run(
            setup,
            cluster,
            operator,
            scraper,
            node,
            deployment,
            timeline,
            report,
            gpus[0].product,
            began_s + budget_s,
            level_s,
        )
        report.content["setup"] = _described(setup, gpus, run.product)
        report.content["extra_args"] = setup.spec(run.product)["engine"]["extraArgs"]
        report.write()
        try:
            yield run
        finally:
            collect(run)
            if keep:
                cluster.keep()


def _node_options(setup: Setup, gpus: list[Gpu]) -> list[str]:
    options = [f"--gpus={len(gpus)}", f"--share={setup.share}", *(f"--env={name}={value}" for name, value in setup.engine_env.items())]
    if setup.simulator:
        return [*options, f"--product={_SIMULATED_PRODUCT}", *_SIMULATOR]
    return [*options, f"--{setup.engine}-python={setup.python or shutil.which('python3') or 'python3'}"]


def _described(setup: Setup, gpus: list[Gpu], product: str) -> dict[str, Any]:
    return {
        "engine": setup.engine,
        "release": setup.release(),
        "model": setup.model,
        "layers": setup.layers or (setup.shape.layers if setup.shape else None),
        "product": product,
        "gpus": len(gpus),
        "replicas": setup.replicas,
        "each GPU offered": setup.share,
        "simulated": setup.simulator,
        "processors": os.cpu_count(),
    }


def collect(run: Run) -> None:
    """Adds what the whole run has to the report: requests, processes, changes, warnings, time line; and copies the logs beside it."""
    content = run.report.content
    if run.traffic is not None:
        logs = [run.traffic.log, *run.others]
        errors = sum((log.errors for log in logs), Counter[str]())
        content |= {"answered": sum(len(log.completions) for log in logs), "failed": errors.total(), "errors": dict(errors)}
    ran = run.node.ran()
    content["processes"] = [_process(item) for item in ran]
    changes = {(change["what"].split("=")[0], change["why"]): change for item in ran for change in item["changes"]}
    content["changes"] = list(changes.values())
    content["command_lines"] = [{"pod": item["podCommand"], "process": item["command"]} for item in ran]
    files = [Path(item["log"]) for item in ran if Path(item["log"]).exists()]
    levels = run.setup.engine == "vllm"
    found = merged([warnings_of(log.read_text(errors="replace").splitlines(), levels=levels) for log in files])
    content["warnings"] = [asdict(warning) for warning in sorted(found, key=lambda one: -one.count)]
    content["timeline"] = run.timeline.entries()
    run.report.write()
    run.report.plot()
    kept = run.setup.out / "logs"
    kept.mkdir(exist_ok=True)
    for log in (*files, run.operator.log, run.node.log):
        data = log.read_bytes()
        half = _KEPT_LOG_BYTES // 2
        (kept / log.name).write_bytes(data if len(data) <= _KEPT_LOG_BYTES else data[:half] + b"\n[...]\n" + data[-half:])


def _process(item: Mapping[str, Any]) -> dict[str, Any]:
    def between(start: str, end: str) -> float | None:
        return item[end] - item[start] if start in item and end in item else None

    return {
        "pod": item["pod"],
        "block": item["labels"].get("serving.dflash.io/block-size"),
        "gpus": item["gpus"],
        "ready_s": between("startedAt", "readyAt"),
        "stop_s": between("sigtermAt", "endedAt"),
        "killed": "sigkillAt" in item,
        "exitCode": item.get("exitCode"),
    }


class Progress:
    """Where a run stands, in a file that another process can read."""

    def __init__(self, out: Path) -> None:
        self._file = out / "status.json"
        self._lock = threading.Lock()
        self._state: dict[str, Any] = {"pid": os.getpid(), "began": time.time(), "phase": "start", "done": [], "last": ""}

    def set(self, **changes: Any) -> None:
        with self._lock:
            self._state |= {**changes, "at": time.time()}
            unfinished = self._file.with_suffix(".new")
            unfinished.write_text(json.dumps(self._state))
            unfinished.rename(self._file)

    def done(self, phase: str) -> None:
        self.set(done=[*self._state["done"], phase])
