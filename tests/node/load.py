"""Load on a Service's cluster address, from a thread: what failed, and the longest time without an answer."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import UTC, datetime
from itertools import pairwise
from types import TracebackType

from testbed.traffic.mix import Mix, Shots
from testbed.traffic.over_http import Client, Target
from testbed.traffic.report import Log

MIX = Mix({"gsm8k": 1.0, "humaneval": 1.0}, max_tokens=60, stream=0.5)


class Load:
    """Sends ``rate`` requests per second on average during its ``with`` block, half of them streaming, whatever the engines do."""

    def __init__(self, url: str, model: str, rate: float, *, keep_alive: bool = False) -> None:
        self._target = Target([url], model, keep_alive=keep_alive)
        self._rate = rate
        self._ended = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name=f"load on {url}", daemon=True)
        self._began = 0.0
        self.log = Log()

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def answered(self) -> int:
        """Returns the number of requests with a whole answer so far."""
        return len(self.log.completions)

    def longest_gap_s(self) -> float:
        """Returns the longest time in seconds in which no answer ended."""
        ends = sorted(one.finished_s for one in self.log.completions)
        return max((after - before for before, after in pairwise(ends)), default=0.0)

    def summary(self) -> str:
        """Returns requests, failures and longest gap, for people."""
        streamed = sum(one.first_token_s is not None for one in self.log.completions)
        failures = self.log.failures
        lines = [
            f"{len(failures)} of {self.answered + len(failures)} requests failed {dict(self.log.errors) or ''}; {streamed} streamed; "
            f"longest time without an answer {self.longest_gap_s():.2f} s"
        ]
        lines += [f"{self._clock(one.started_s)} to {self._clock(one.failed_s)} {one.kind}: {one.reason}" for one in failures]
        return "\n".join(lines)

    def _clock(self, moment_s: float) -> str:
        """Returns a moment of the log as the logs of the cluster write it."""
        return datetime.fromtimestamp(self._began + moment_s, UTC).strftime("%H:%M:%S.%f")[:-3]

    async def _run(self) -> None:
        async with Client(self._target, Shots(MIX)) as client:
            client.log = self.log
            self._began = time.time() - client.now()
            sending = asyncio.create_task(client.open_loop(self._rate))
            await asyncio.to_thread(self._ended.wait)
            client.stop()
            await sending
