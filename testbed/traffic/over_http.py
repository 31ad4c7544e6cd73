"""Load over HTTP on a list of engines, with the OpenAI API."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import random
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import aiohttp

from testbed.traffic.mix import Shot, Shots
from testbed.traffic.report import Completion, Failure, Log
from testbed.traffic.scrape import Totals, total

Balance = Literal["round-robin", "least-busy"]
WORKLOAD_HEADER = "x-dflash-workload"


@dataclass(frozen=True, slots=True)
class Target:
    """Destination of requests: base URLs such as ``http://127.1.0.1:30000``, and the model's name."""

    urls: Sequence[str]
    model: str
    balance: Balance = "round-robin"
    timeout_s: float = 300.0
    keep_alive: bool = True
    """Whether connections are used again. A Service chooses a pod for each connection, not for each request."""


class Client:
    """Sends requests and keeps the log. Use it as an async context manager."""

    def __init__(self, target: Target, shots: Shots) -> None:
        self._target = target
        self._shots = shots
        self._turn = 0
        self._busy: Counter[str] = Counter()
        self._session: aiohttp.ClientSession | None = None
        self.began_s = time.monotonic()
        """Start on the monotonic clock; times in the log count from here."""
        self._stopped = False
        self._clients = 0
        self._resized = asyncio.Event()
        self.log = Log()

    async def __aenter__(self) -> Client:
        timeout = aiohttp.ClientTimeout(total=self._target.timeout_s)
        connector = aiohttp.TCPConnector(limit=0, force_close=not self._target.keep_alive)
        self._session = aiohttp.ClientSession(timeout=timeout, connector=connector)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    def now(self) -> float:
        """Returns the seconds since this client was created."""
        return time.monotonic() - self.began_s

    def stop(self) -> None:
        """Stops sending. The loops end with their last answers."""
        self._stopped = True
        self._resized.set()

    def resize(self, concurrency: int) -> None:
        """Sets the number of clients of the closed loop, 0 included. New clients send at once; surplus ones end with their answers."""
        if concurrency != self._clients:
            self._clients = concurrency
            self._resized.set()

    async def closed_loop(self, concurrency: int, seconds: float = math.inf) -> None:
        """Runs ``concurrency`` clients for some seconds or until stop(). Each sends its next request when it has its answer.

        resize() changes their number in between. Only one loop may run at a time.
        """
        self.resize(concurrency)
        end_s = self.now() + seconds
        at_work: set[int] = set()

        async def worker(number: int) -> None:
            while number < self._clients and self.now() < end_s and not self._stopped:
                await self._send(self._shots.next())
            at_work.discard(number)

        async with asyncio.TaskGroup() as group:
            while self.now() < end_s and not self._stopped:
                self._resized.clear()
                for number in set(range(self._clients)) - at_work:
                    at_work.add(number)
                    group.create_task(worker(number))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._resized.wait(), None if end_s == math.inf else end_s - self.now())

    async def open_loop(self, rate: float, seconds: float = math.inf, seed: int = 0) -> None:
        """Sends ``rate`` requests per second on average, at random moments, whatever the engines do, for some seconds or until stop()."""
        arrivals = random.Random(seed)
        due_s = self.now() + arrivals.expovariate(rate)
        end_s = self.now() + seconds
        async with asyncio.TaskGroup() as group:
            while due_s < end_s and not self._stopped:
                await asyncio.sleep(max(0.0, due_s - self.now()))
                group.create_task(self._send(self._shots.next()))
                due_s += arrivals.expovariate(rate)

    async def acceptance_totals(self) -> Totals:
        """Returns the summed counters of all engines that answer."""
        assert self._session is not None
        pages = await asyncio.gather(*(self._page(url) for url in self._target.urls))
        return total(page for page in pages if page is not None)

    async def _page(self, url: str) -> str | None:
        assert self._session is not None
        try:
            async with self._session.get(f"{url}/metrics") as response:
                return await response.text() if response.status == 200 else None
        except (aiohttp.ClientError, TimeoutError):
            return None

    def _pick(self) -> str:
        urls = self._target.urls
        if self._target.balance == "least-busy":
            return min(urls, key=lambda url: self._busy[url])
        self._turn += 1
        return urls[self._turn % len(urls)]

    async def _send(self, shot: Shot) -> None:
        url = self._pick()
        self._busy[url] += 1
        started_s = self.now()
        try:
            tokens, first_s = await self._complete(url, shot)
            self.log.completions.append(Completion(shot.workload, started_s, self.now(), tokens, first_s, url))
        except aiohttp.ClientResponseError as error:
            await self._failed(started_s, str(error.status), error)
        except (aiohttp.ClientError, TimeoutError, ConnectionError, ValueError) as error:
            await self._failed(started_s, type(error).__name__, error)
        finally:
            self._busy[url] -= 1

    async def _failed(self, started_s: float, kind: str, error: Exception) -> None:
        self.log.failures.append(Failure(started_s, self.now(), kind, str(error)))
        await asyncio.sleep(0.05)  # an engine that refuses at once must not turn a closed loop into a flood

    def _body(self, shot: Shot) -> dict[str, object]:
        body: dict[str, object] = {"model": self._target.model, "prompt": shot.prompt, "max_tokens": shot.max_tokens, "temperature": 0}
        body |= {"ignore_eos": True}
        if shot.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body

    async def _complete(self, url: str, shot: Shot) -> tuple[int, float | None]:
        assert self._session is not None
        headers = {WORKLOAD_HEADER: shot.workload}
        async with self._session.post(f"{url}/v1/completions", json=self._body(shot), headers=headers) as response:
            response.raise_for_status()
            if not shot.stream:
                answer = await response.json()
                _refuse_aborted(answer["choices"])
                return int(answer["usage"]["completion_tokens"]), None
            return await self._read_stream(response)

    async def _read_stream(self, response: aiohttp.ClientResponse) -> tuple[int, float | None]:
        first_s: float | None = None
        tokens = 0
        async for line in response.content:
            data = line.removeprefix(b"data: ").strip()
            if not data or data == b"[DONE]":
                continue
            if first_s is None:
                first_s = self.now()
            event = json.loads(data)
            _refuse_aborted(event["choices"])
            if event.get("usage"):
                tokens = int(event["usage"]["completion_tokens"])
        return tokens, first_s


def _refuse_aborted(choices: Iterable[Mapping[str, object]]) -> None:
    if any(choice.get("finish_reason") == "abort" for choice in choices):
        raise ValueError("aborted by the engine")
