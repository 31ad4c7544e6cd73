"""Direct scrapes of engine pods: the source used where no Prometheus is configured."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import aiohttp

from dflash_controller.api.conditions import Reason
from dflash_controller.engines import ENGINES
from dflash_controller.model.counters import CounterSnapshot
from dflash_controller.model.measurement import NO_SERIES, Absent, Error
from dflash_controller.model.series import CounterWindow, Scrape, Span
from dflash_controller.observe.peer import base_url, not_connected
from dflash_controller.observe.pipeline.body import read_capped
from dflash_controller.observe.pipeline.source import Refusal, Round, Target, choose
from dflash_controller.observe.sources.scrape.exposition import read_page
from dflash_controller.observe.sources.scrape.ring import Ring


@dataclass(frozen=True, slots=True)
class ScrapeSettings:
    """Limits of direct scraping. Beyond ``max_pods`` Ready pods in all, Prometheus is required."""

    window_s: float = 300.0
    max_age_s: float = 90.0
    """A pod whose newest page is older no longer counts: three rounds of 30 s."""
    timeout_s: float = 2.0
    max_body: int = 4 * 2**20
    concurrency: int = 16
    pods_per_revision: int = 4
    max_pods: int = 200

    @property
    def span_s(self) -> float:
        """Least length of a span: one round of 30 s, or more rounds where those are closer, for windows of 300 s."""
        return self.window_s / 12


class Scraper:
    """Scrapes a stable choice of pods and keeps their last pages."""

    failed_reason = Reason.METRICS_UNREACHABLE
    where = "Direct scrape of the engine pods"

    def __init__(
        self,
        settings: ScrapeSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings or ScrapeSettings()
        self._clock = clock
        self._wall = wall
        self._rings: dict[str, Ring] = {}
        self._session: aiohttp.ClientSession | None = None

    async def collect(self, targets: Sequence[Target]) -> Round:
        """Scrape once. The rings of pods that are no longer chosen are dropped."""
        settings = self._settings
        if len(targets) > settings.max_pods:
            self._rings.clear()
            message = f"Direct scraping serves up to {settings.max_pods} engine pods; set the operator's Prometheus URL."
            return Round(refusal=Refusal(Reason.PROMETHEUS_REQUIRED, message))
        chosen = choose(targets, self._rings, settings.pods_per_revision)
        self._rings = {target.uid: self._rings.get(target.uid) or Ring(settings.window_s) for target in chosen}
        slots = asyncio.Semaphore(settings.concurrency)
        answers = await asyncio.gather(*(self._scrape(target, slots) for target in chosen))
        windows: dict[str, CounterWindow] = {}
        failures: dict[str, Absent | Error] = {}
        readings: dict[str, tuple[CounterSnapshot, ...]] = {}
        spans: dict[str, tuple[Span, ...]] = {}
        names: dict[str, frozenset[str]] = {}
        for target, (at, answer) in zip(chosen, answers, strict=True):
            ring = self._rings[target.uid]
            if isinstance(answer, Scrape):
                schema = ENGINES[target.engine].metric_schema
                ring.add(at, answer)
                names[target.uid] = answer.names
                read_at_s = self._wall() - (self._clock() - at)
                readings[target.uid] = (schema.counter_snapshot(answer, read_at_s, target.speculation_on),)
                step = ring.step(settings.span_s, settings.max_age_s, schema.load_samples) if target.tuned else None
                if step is not None:
                    spans[target.uid] = (Span(read_at_s, step),)
            else:
                failures[target.uid] = answer
            window = ring.window(self._clock())
            if window is not None and window.age_s <= settings.max_age_s:
                windows[target.uid] = window
        return Round(windows, failures, frozenset(self._rings) - failures.keys(), readings, names, spans=spans)

    async def _scrape(self, target: Target, slots: asyncio.Semaphore) -> tuple[float, Scrape | Absent | Error]:
        async with slots:
            try:
                text = await self._get(target)
                page = read_page(text, ENGINES[target.engine].metric_schema)
            except TimeoutError:
                return self._clock(), Error(f"no answer within {self._settings.timeout_s:g} s")
            except (aiohttp.ClientError, OSError) as error:
                return self._clock(), Error(_short(error))
            except ValueError as error:
                return self._clock(), Error(f"malformed page: {error}")
            return self._clock(), NO_SERIES if page is None else page

    async def _get(self, target: Target) -> str:
        """Raises ValueError on a body that is too large or not text. Redirects are not followed: a pod does not steer our requests."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=self._settings.timeout_s),
                headers={"Accept": "text/plain;version=0.0.4", "Accept-Encoding": "identity"},
                raise_for_status=False,
            )
        async with self._session.get(f"{base_url(target.ip, target.port)}/metrics", allow_redirects=False) as response:
            if response.status != 200:
                raise aiohttp.ClientPayloadError(f"HTTP status {response.status}")
            return (await read_capped(response, self._settings.max_body)).decode()

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None


def _short(error: Exception) -> str:
    """One line, without addresses."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return not_connected(error)
    return str(error) or type(error).__name__
