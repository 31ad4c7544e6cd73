"""Load on a DFlashDeployment through the pods that currently serve, spread as a Service would do it."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from testbed.cluster import Cluster
from testbed.traffic.mix import Mix, Shots
from testbed.traffic.over_http import Client, Target
from testbed.traffic.report import Log, summarize
from testbed.waiting import wait_until

_LOOK_S = 0.2


class ServiceTraffic:
    """Sends requests from its own thread during its ``with`` block."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        deployment: str,
        *,
        model: str,
        mix: Mix,
        rate: float | None = None,
        concurrency: int | None = None,
        seed: int = 0,
        shots: Shots | None = None,
        client: Callable[[Target, Shots], Client] = Client,
    ) -> None:
        """Takes either ``rate`` requests per second on average, whatever the engines do, or ``concurrency`` clients in a closed loop over
        all replicas together. Raises ValueError unless exactly one is given.

        ``shots`` are the requests instead of those of ``mix``, and ``client`` sends them."""
        if (rate is None) == (concurrency is None):
            raise ValueError("traffic has either a rate or a concurrency")
        self._cluster = cluster
        selector = f"serving.dflash.io%2Fdeployment%3D{deployment}%2Cserving.dflash.io%2Frole%3Dengine"
        self._pods = f"/api/v1/namespaces/{namespace}/pods?labelSelector={selector}"
        self._urls: list[str] = []
        self._revisions: dict[str, str] = {}
        self._answered: Counter[str] = Counter()
        self._counted = 0
        self._counting = threading.Lock()
        self._target = Target(self._urls, model)
        self._shots = shots or Shots(mix, seed)
        self._client = client
        self._rate = rate
        self._concurrency = concurrency
        self._seed = seed
        self._ended = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name=f"traffic of {deployment}", daemon=True)
        self._began_s = 0.0
        self.log = Log()

    def __enter__(self) -> ServiceTraffic:
        wait_until(self._look, "a pod that serves")
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        if error is None and not self.log.completions:
            raise RuntimeError("no request was ever answered")

    def resize(self, concurrency: int) -> None:
        """Sets the number of clients of a closed loop, at the next check of the pods. Raises ValueError for traffic at a rate."""
        if self._concurrency is None:
            raise ValueError("traffic at a steady rate has no clients to count")
        self._concurrency = concurrency

    @property
    def failed(self) -> int:
        """Returns the number of requests without a whole answer."""
        return sum(self.log.errors.values())

    @property
    def began_s(self) -> float:
        """Returns the moment on the monotonic clock from which the log counts."""
        return self._began_s

    def tokens_per_second(self, start: float, end: float) -> float:
        """Returns the generated tokens per second between two moments of the monotonic clock, from answered requests."""
        began_s = self._began_s
        return summarize(Log(list(self.log.completions)), start - began_s, end - began_s, None).tokens_per_second

    def answered(self) -> Mapping[str, int]:
        """Returns the requests answered so far, by revision."""
        with self._counting:
            done = self.log.completions[self._counted :]
            self._answered.update(self._revisions[one.url] for one in done)
            self._counted += len(done)
            return self._answered.copy()

    def _look(self) -> bool:
        """Updates which pods serve. Addresses of pods that stopped serving are kept, because their last answers are still to come."""
        pods = [pod for pod in self._cluster.api.get(self._pods)["items"] if _serves(pod)]
        # A new pod may have the address of one that is gone, whose answers are not its own.
        self.answered()
        for pod in pods:
            self._revisions[_url(pod)] = pod["metadata"]["labels"]["serving.dflash.io/revision"]
        if pods:
            self._urls[:] = sorted(_url(pod) for pod in pods)
        return bool(pods)

    async def _run(self) -> None:
        async with self._client(self._target, self._shots) as client:
            client.log, self._began_s = self.log, client.began_s
            if self._rate is not None:
                sending = asyncio.create_task(client.open_loop(self._rate, seed=self._seed))
            else:
                sending = asyncio.create_task(client.closed_loop(self._concurrency or 0))
            while not self._ended.is_set():
                if self._concurrency is not None:
                    client.resize(self._concurrency)
                await asyncio.to_thread(self._look)
                await asyncio.sleep(_LOOK_S)
            client.stop()
            await sending


def _serves(pod: Mapping[str, Any]) -> bool:
    ready = any(item["type"] == "Ready" and item["status"] == "True" for item in pod["status"].get("conditions") or ())
    return ready and "deletionTimestamp" not in pod["metadata"]


def _url(pod: Mapping[str, Any]) -> str:
    port = pod["spec"]["containers"][0]["ports"][0]["containerPort"]
    return f"http://{pod['status']['podIP']}:{port}"
