"""Simulated engines behind their real HTTP server, on a loop whose time jumps: minutes of probing in a fraction of a second."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from aiohttp import web

from dflash_controller.model.probe import Endpoint, ProbeRequest
from dflash_controller.model.snapshot import Key
from testbed.simulator.engine import SimulatedEngine
from testbed.simulator.faults import Faults
from testbed.simulator.host import Clock, Host
from testbed.simulator.server import EngineApp, OneHost
from testbed.simulator.settings import EngineSettings
from testbed.simulator.table import seed_table
from tests.support.releases import default_release

T = TypeVar("T")
TARGET = "Qwen/Qwen3.5-9B"
KEY = Key("ns", "demo")
_IN_FLIGHT_S = 0.02


class _PatientSelector(selectors.DefaultSelector):
    """Time jumps to the next timer only where no connection has anything to read."""

    jump = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout is None or timeout <= 0:
            return ready or super().select(timeout)
        # Before a long jump, such as one to a time-out: what was sent within this process is about to arrive.
        if timeout > 1.0 and (ready := super().select(_IN_FLIGHT_S)):
            return ready
        self.jump += timeout
        return []


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._patient = _PatientSelector()
        super().__init__(self._patient)

    def time(self) -> float:
        return self._patient.jump


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """To the end, in time that jumps."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(coroutine)


class LoopClock(Clock):
    """Simulated seconds are the loop's."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()


@dataclass(frozen=True, slots=True)
class Served:
    """A simulated engine and where it listens."""

    endpoint: Endpoint
    host: Host


@asynccontextmanager
async def served(engine: str, revision: str, faults: Faults | None = None, *, seed: int = 3, **settings: Any) -> AsyncIterator[Served]:
    """An engine that serves; ``revision`` is also its drafter's."""
    made = EngineSettings(
        engine, default_release(engine), TARGET, TARGET, 0, **{"block_size": 16, "drafter": "d", "drafter_revision": revision, **settings}
    )
    clock = LoopClock()
    simulated = SimulatedEngine(made, seed_table().match(TARGET), now=clock.now(), faults=faults or Faults(), seed=seed)
    host = Host(simulated, clock, exited=lambda code, message: None)
    runner = EngineApp(OneHost(host)).runner()
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        port = int(site.name.rsplit(":", 1)[1])
        yield Served(Endpoint(revision, f"pod-{revision}", "127.0.0.1", port, engine, TARGET), host)
    finally:
        host.close()
        await runner.cleanup()


def request(candidate: Endpoint | None, reference: Endpoint | None, **changes: Any) -> ProbeRequest:
    return replace(ProbeRequest(KEY, candidate, reference, prompts=64, max_tokens=256, prompts_per_minute=60, timeout_s=60.0), **changes)
