"""Runs one simulated engine against the wall clock, in slices: a batch of steps at a time, not a timer per step."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from testbed.simulator.batching import Request
from testbed.simulator.engine import SimulatedEngine
from testbed.simulator.faults import Faults

SLICE_S = 0.04
"""Wall seconds between two evaluations of a busy engine, unless a request can finish earlier."""
DRAIN_POLL_S = 0.1
HEALTH_GENERATION_S = 1.0
"""Seconds: SGLang's /health waits for a token and checks once a second."""


class Clock:
    """Simulated seconds: wall seconds times ``speed``. Rates on a metrics page, read by the wall clock, appear ``speed`` times as high."""

    def __init__(self, speed: float = 1.0) -> None:
        self.speed = speed

    def now(self) -> float:
        return time.monotonic() * self.speed


class Host:
    """An engine, its clock and the requests waiting for it.

    ``exited(code, message)`` is called when its process would end. ``faults_changed`` is called with all faults whenever some were set.
    """

    def __init__(
        self,
        engine: SimulatedEngine,
        clock: Clock,
        *,
        exited: Callable[[int, str], None],
        faults_changed: Callable[[Faults], None] = lambda _: None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.engine = engine
        self.clock = clock
        self.created = int(time.time())
        self._exited = exited
        self._faults_changed = faults_changed
        self._env = env or {}
        self._waiting: dict[Request, asyncio.Event] = {}
        self._seen: dict[Request, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._drain: asyncio.Task[None] | None = None
        self._ids = itertools.count(1)
        self.closed = asyncio.Event()

    def next_id(self, prefix: str) -> str:
        return f"{prefix}-{next(self._ids):08d}"

    @property
    def health_delay_s(self) -> float:
        """Returns the wall seconds until /health answers."""
        cheap = self._env.get("SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION", "1").lower() in ("0", "false")
        return 0.0 if cheap or self.engine.settings.engine != "sglang" else HEALTH_GENERATION_S / self.clock.speed

    async def generate(self, request: Request) -> AsyncIterator[int]:
        """Yields the number of tokens generated so far, whenever there are more (streaming) and at the end. Cancelling aborts the
        request."""
        event = self._waiting[request] = asyncio.Event()
        self._seen[request] = 0
        try:
            self.engine.submit(request, self.clock.now())
            self._candidate_block()
            while not request.done:
                await event.wait()
                event.clear()
                if not request.done:
                    yield request.generated
            yield request.generated
        finally:
            del self._waiting[request], self._seen[request]
            self.engine.batch.abort(request)

    def patch_faults(self, changes: Mapping[str, Any]) -> Faults:
        """Changes some faults. Raises ValueError."""
        self.set_faults(self.engine.faults.patched(changes))
        return self.engine.faults

    def set_faults(self, faults: Faults) -> None:
        self.engine.advance(self.clock.now())
        self.engine.set_faults(faults)
        self._candidate_block()
        self._faults_changed(faults)

    def drain(self) -> None:
        """Handles SIGTERM: serves on as the engine does, then exits with 0."""
        self.engine.drain(self.clock.now())
        if self._drain is None:
            self._drain = asyncio.create_task(self._drained())

    async def _drained(self) -> None:
        while not self.engine.may_exit(self.clock.now()):
            await asyncio.sleep(DRAIN_POLL_S)
            self.engine.advance(self.clock.now())
        for request in list(self._waiting):
            self.engine.batch.abort(request)
        self._flush()
        await asyncio.sleep(DRAIN_POLL_S)
        self.exit(0, "drained")

    def exit(self, code: int, message: str) -> None:
        """Ends the process now: connections break."""
        self.close()
        self._exited(code, message)

    def close(self) -> None:
        """Clears the state; running requests are cut off."""
        if self._timer:
            self._timer.cancel()
        if self._drain and self._drain is not asyncio.current_task():
            self._drain.cancel()
        self.closed.set()
        for request in list(self._waiting):
            self.engine.batch.abort(request)
        self._flush()

    def _candidate_block(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        batch = self.engine.batch
        next_event, finish = batch.next_event_s, batch.earliest_finish_s()
        if next_event is None or finish is None or self.engine.faults.hang or self.closed.is_set():
            return
        now = self.clock.now()
        due = max(next_event, min(finish, now + SLICE_S * self.clock.speed))
        beginning = [*batch.in_service, *batch.waiting] if len(batch.in_service) < batch.settings.served else batch.in_service
        if any(request.streaming and request.first_token_s is None for request in beginning):
            due = next_event  # clients time from the first token, which must not wait for the end of a slice
        self._timer = asyncio.get_running_loop().call_later(max(0.0, due - now) / self.clock.speed, self._tick)

    def _tick(self) -> None:
        self.engine.advance(self.clock.now())
        self._flush()
        self._candidate_block()

    def _flush(self) -> None:
        for request, event in self._waiting.items():
            if request.done or (request.streaming and request.generated > self._seen[request]):
                self._seen[request] = request.generated
                event.set()
