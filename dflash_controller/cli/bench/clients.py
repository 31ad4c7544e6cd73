"""Clients that send requests over HTTP to a list of engines, in a closed loop."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, Self, TypeVar

import aiohttp

from dflash_controller.cli.bench.answers import Completion, Failure, Log

Balance = Literal["round-robin", "least-busy"]
_PAUSE_S = 0.05
"""After a failure: an engine that refuses at once must not turn a closed loop into a flood."""


@dataclass(frozen=True, slots=True)
class Target:
    """Destination of requests: base URLs such as ``http://127.1.0.1:30000``, and the model's name."""

    urls: Sequence[str]
    """Read at each request, so that a list may change while the clients run."""
    model: str
    balance: Balance = "round-robin"
    timeout_s: float = 300.0
    keep_alive: bool = True
    """Whether connections are used again. A Service chooses a pod for each connection, not for each request."""


class Asked(Protocol):
    """One request to send."""

    @property
    def workload(self) -> str: ...


A = TypeVar("A", bound=Asked)
A_co = TypeVar("A_co", bound=Asked, covariant=True)


class Requests(Protocol[A_co]):
    """An endless sequence of requests."""

    def next(self) -> A_co: ...


class Clients(ABC, Generic[A]):
    """Sends requests and keeps the log. Use it as an async context manager."""

    def __init__(
        self, target: Target, requests: Requests[A], headers: Mapping[str, str] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``clock`` returns seconds; the log counts from its present value."""
        self._target = target
        self._requests = requests
        self._headers = headers
        self._turn = 0
        self._busy: Counter[str] = Counter()
        self._session: aiohttp.ClientSession | None = None
        self._clock = clock
        self.began_s = clock()
        """Start on the clock; times in the log count from here."""
        self._stopped = False
        self._clients = 0
        self._resized = asyncio.Event()
        self._ended = asyncio.Event()
        self.log = Log()
        self.served: set[int] = set()
        """Numbers of the clients that have had an answer or a failure."""

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=self._target.timeout_s)
        connector = aiohttp.TCPConnector(limit=0, force_close=not self._target.keep_alive)
        self._session = aiohttp.ClientSession(timeout=timeout, connector=connector, headers=self._headers)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    def now(self) -> float:
        """Returns the seconds since these clients were created."""
        return self._clock() - self.began_s

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
                await self._send(self._requests.next())
                self.served.add(number)
                self._ended.set()
            at_work.discard(number)

        async with asyncio.TaskGroup() as group:
            while self.now() < end_s and not self._stopped:
                self._resized.clear()
                for number in set(range(self._clients)) - at_work:
                    at_work.add(number)
                    group.create_task(worker(number))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._resized.wait(), None if end_s == math.inf else end_s - self.now())

    async def changed(self, timeout_s: float | None = None) -> None:
        """Waits until a request of the closed loop has ended, with or without an answer, until wake(), or for so many seconds."""
        self._ended.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), timeout_s)

    def wake(self) -> None:
        """Ends changed()."""
        self._ended.set()

    @abstractmethod
    async def _complete(self, url: str, asked: A) -> tuple[int, float | None]:
        """Sends a request; returns the tokens of its answer, and when the first one came if it streams."""

    def _kind(self, error: Exception) -> str:
        """Returns the kind of a failure."""
        return str(error.status) if isinstance(error, aiohttp.ClientResponseError) else type(error).__name__

    def _pick(self) -> str:
        urls = self._target.urls
        if self._target.balance == "least-busy":
            return min(urls, key=lambda url: self._busy[url])
        self._turn += 1
        return urls[self._turn % len(urls)]

    async def _send(self, asked: A) -> None:
        url = self._pick()
        self._busy[url] += 1
        started_s = self.now()
        try:
            tokens, first_s = await self._complete(url, asked)
            self.log.completions.append(Completion(asked.workload, started_s, self.now(), tokens, first_s, url))
        except (aiohttp.ClientError, TimeoutError, ConnectionError, ValueError) as error:
            self.log.failures.append(Failure(started_s, self.now(), self._kind(error), str(error)))
            await asyncio.sleep(_PAUSE_S)
        finally:
            self._busy[url] -= 1
