"""Runs a benchmark: cell after cell, each with a warm-up, a window that is measured, and a look at what happened to the deployment."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import aiohttp

from dflash_controller.cli.bench.answers import Log
from dflash_controller.cli.bench.chat import ANSWER_S, ChatClients, Question, Refused, kind
from dflash_controller.cli.bench.clients import Target
from dflash_controller.cli.bench.prompts import Questions
from dflash_controller.cli.bench.rows import Cell, Plan, Row, Window, counted, row
from dflash_controller.cli.bench.subject import Subject, changes
from dflash_controller.cli.failures import Failure
from dflash_controller.observe.sources.scrape.source import Scraper, ScrapeSettings

LOOK_S = 2.0
"""Seconds between two looks at the deployment."""
SERVES_S = 120.0
"""How long a cell waits for a replica that serves."""
_TOLD_S, _LEAST_S = 0.5, 0.001
"""Longest and shortest wait between two looks at the clients, in seconds."""
_EVERY = 1_000_000
_FIRST = Question("first", "Say hello.", 16)


@dataclass(slots=True)
class Side:
    """One deployment of the run."""

    subject: Subject
    """As it was last seen."""
    look: Callable[[], Awaitable[Subject]]
    """Returns it as it is now. Raises Failure."""
    first: Subject
    """As it was when the run began."""
    urls: tuple[str, ...] = ()
    """Where the user sends requests; empty: to the replicas themselves."""

    @property
    def engines(self) -> tuple[str, ...]:
        return self.urls or self.subject.urls


@dataclass(slots=True)
class Seen:
    """What was seen of a deployment during one cell."""

    changes: list[str] = field(default_factory=list)
    blind: bool = False
    """Whether the last look failed."""


class Unanswered(Exception):
    """An engine did not answer the first question. ``status`` is None where it cannot be reached at all."""

    def __init__(self, side: Side, url: str, error: Exception) -> None:
        self.side, self.url, self.reason = side, url, kind(error)
        self.status = error.status if isinstance(error, Refused) else None
        self.message = str(error) if isinstance(error, Refused) else ""
        super().__init__(f"{url}: {self.reason}")


class Benchmark:
    """Measures the cells of a plan on one or two deployments, cell by cell on one after the other."""

    def __init__(
        self,
        plan: Plan,
        sides: Sequence[Side],
        *,
        api_key: str | None = None,
        measured: Callable[[Row], None] = lambda _: None,
        progress: Callable[[Side, str, int, float], None] = lambda *_: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``measured`` is given each row; ``progress`` side, workload, concurrency, and how much of that cell is done (0 to 1)."""
        self._plan = plan
        self._sides = sides
        self._api_key = api_key
        self._measured = measured
        self._progress = progress
        self._clock = clock
        self._clients: ChatClients | None = None
        self.interrupted = False
        self.rows: list[Row] = []

    def interrupt(self) -> None:
        """Ends the run as soon as the answers under way are complete. What was measured of the present cell becomes a row."""
        self.interrupted = True
        if self._clients is not None:
            self._clients.wake()

    async def first_answers(self) -> None:
        """Asks every engine one short question. Raises Unanswered for the first that does not answer."""
        for side in self._sides:
            async with ChatClients(self._target(side, side.engines), Questions("chat", 1), api_key=self._api_key) as clients:
                await asyncio.gather(*(self._first_answer(clients, side, url) for url in side.engines))

    async def _first_answer(self, clients: ChatClients, side: Side, url: str) -> None:
        try:
            await clients.ask(url, _FIRST)
        except (aiohttp.ClientError, TimeoutError, ConnectionError, ValueError) as error:
            raise Unanswered(side, url, error) from error

    async def run(self) -> list[Row]:
        """Measures every cell. Returns the rows, which are those so far after interrupt()."""
        for workload, concurrency in self._plan.cells():
            for side in self._sides:
                if self.interrupted:
                    return self.rows
                found = await self._cell(side, workload, concurrency)
                if found is not None:
                    self.rows.append(found)
                    self._measured(found)
        return self.rows

    async def _cell(self, side: Side, workload: str, concurrency: int) -> Row | None:
        await self._serving(side)
        before, urls, seen, over = side.subject, list(side.engines), Seen(), asyncio.Event()
        cell = Cell(before.name, before.machine, workload, concurrency, before.block_size, max(1, len(urls)), self._plan.max_tokens)
        if not urls:
            return row(cell, Log(), Window(0.0, 0.0, changes=("no replica serves",)))
        questions = Questions(workload, self._plan.max_tokens)
        watching = asyncio.create_task(self._watch(side, urls, seen, over))
        try:
            async with ChatClients(self._target(side, urls), questions, api_key=self._api_key, clock=self._clock) as clients:
                self._clients = clients
                window = await self._window(side, cell, clients)
        finally:
            self._clients = None
            over.set()
            await watching
        if window is None:
            return None
        remarks = ["interrupted"] if window.end_s - window.start_s < self._plan.seconds else []
        if before.revision.name != side.first.revision.name:
            remarks.append(f"measured on {before.revision.name} ({before.speculation}), not on {side.first.revision.name} as before")
        remarks += ["the API server did not answer, so changes may have been missed"] if seen.blind else []
        whole = Window(window.start_s, window.end_s, window.counted, window.cpu_share, tuple(seen.changes), tuple(remarks))
        return row(cell, clients.log, whole)

    async def _window(self, side: Side, cell: Cell, clients: ChatClients) -> Window | None:
        """Loads the engines; returns the window that was measured, None if it was interrupted before that."""
        targets = side.subject.targets(side.engines)
        scraper = Scraper(ScrapeSettings(math.inf, math.inf, timeout_s=10.0, pods_per_revision=_EVERY, max_pods=_EVERY), self._clock)
        sending = asyncio.create_task(clients.closed_loop(cell.clients))
        sending.add_done_callback(lambda _: clients.wake())
        told = (side, cell.workload, cell.concurrency)
        try:
            # From then on the engines have compiled what they need, and the clients' requests are no longer in step.
            while len(clients.served) < cell.clients and not self.interrupted and not sending.done():
                self._progress(*told, 0.0)
                await clients.changed(_TOLD_S)
            if self.interrupted:
                return None
            # Both times are taken just before their pages, so that reading those lengthens neither the window nor what is counted in it.
            start_s, cpu_s, real_s, ended = clients.now(), time.process_time(), time.perf_counter(), clients.log.ended
            first = await scraper.collect(targets)
            end_s, least = start_s + self._plan.seconds, self._plan.requests or cell.clients
            while not self.interrupted and not sending.done():
                now_s, answers = clients.now(), clients.log.ended - ended
                if now_s >= end_s and answers >= least:
                    break
                self._progress(*told, min(1.0, (now_s - start_s) / self._plan.seconds, answers / least))
                await clients.changed(min(_TOLD_S, max(_LEAST_S, end_s - now_s)) if now_s < end_s else _TOLD_S)
            last_s = clients.now()
            last = await scraper.collect(targets)
            share = (time.process_time() - cpu_s) / max(1e-9, time.perf_counter() - real_s)
            clients.stop()
            await sending
            return Window(start_s, last_s, counted(targets, first, last), share)
        finally:
            clients.stop()
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sending
            await scraper.close()

    async def _serving(self, side: Side) -> None:
        """Looks at the deployment, until a replica serves or it was waited for long enough."""
        end_s = self._clock() + SERVES_S
        while not self.interrupted:
            with contextlib.suppress(Failure):
                side.subject = await side.look()
            if side.engines or self._clock() > end_s:
                return
            await asyncio.sleep(LOOK_S)

    async def _watch(self, side: Side, urls: list[str], seen: Seen, over: asyncio.Event) -> None:
        """Notes what changes, and keeps the addresses current, until the cell is over and was looked at once more."""
        before, ended = side.subject, False
        while not ended:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), LOOK_S)
            ended = over.is_set()
            try:
                side.subject = await side.look()
            except Failure:
                seen.blind = True
                continue
            seen.blind = False
            seen.changes += [change for change in changes(before, side.subject) if change not in seen.changes]
            if side.engines:
                urls[:] = side.engines

    def _target(self, side: Side, urls: Sequence[str]) -> Target:
        return Target(urls, side.subject.revision.resolved.served_model_name, "least-busy", ANSWER_S)
