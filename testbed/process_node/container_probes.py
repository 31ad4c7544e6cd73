"""Asks the probes of a running container in the kubelet's order: startup first, then liveness and readiness."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import aiohttp

from testbed.process_node.container import Container
from testbed.process_node.probes import ExecuteInContainer, ProbeCount, ProbeSpec, ask


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Whom the probes tell. ``stopping`` says whether the pod is ending: then liveness no longer matters, but readiness does."""

    started: Callable[[], None]
    ready: Callable[[bool], None]
    unhealthy: Callable[[str, float], None]
    """The container must be restarted: why, and within how many seconds it has to end."""
    stopping: Callable[[], bool]
    tell: Callable[[str, str, str], Awaitable[None]]


class ContainerProbes:
    """The probes of one run of a container. ``grace_s`` is the pod's grace period."""

    def __init__(
        self,
        container: Container,
        address: str,
        grace_s: float,
        session: aiohttp.ClientSession,
        execute: ExecuteInContainer,
        told: Outcomes,
    ) -> None:
        self._container = container
        self._address = address
        self._grace_s = grace_s
        self._session = session
        self._execute = execute
        self._told = told

    async def run(self) -> None:
        """Asks until it is cancelled."""
        startup = self._container.startup
        if startup is not None and not await self._startup(startup):
            self._told.unhealthy("failed startup probe", self._grace(startup))
            return
        self._told.started()
        if self._container.readiness is None:
            self._told.ready(True)
        asked = [(self._liveness, self._container.liveness), (self._readiness, self._container.readiness)]
        await asyncio.gather(*(kind(spec) for kind, spec in asked if spec is not None))

    async def _startup(self, spec: ProbeSpec) -> bool:
        """Asks until a threshold is reached. Returns whether the probe succeeded. Its failures are not told: an engine loads for
        minutes."""
        await asyncio.sleep(spec.initial_delay_s)
        count = ProbeCount(spec)
        while True:
            passed = count.add(await ask(spec, self._address, self._session, self._execute) is None)
            if passed is not None:
                return passed
            await asyncio.sleep(spec.period_s)

    async def _liveness(self, spec: ProbeSpec) -> None:
        await asyncio.sleep(spec.initial_delay_s)
        count = ProbeCount(spec)
        while not self._told.stopping():
            if count.add(await self._ask("Liveness", spec)) is False:
                self._told.unhealthy("failed liveness probe", self._grace(spec))
                return
            await asyncio.sleep(spec.period_s)

    async def _readiness(self, spec: ProbeSpec) -> None:
        await asyncio.sleep(spec.initial_delay_s)
        count = ProbeCount(spec)
        while True:
            self._told.ready(bool(count.add(await self._ask("Readiness", spec))))
            await asyncio.sleep(spec.period_s)

    async def _ask(self, kind: str, spec: ProbeSpec) -> bool:
        problem = await ask(spec, self._address, self._session, self._execute)
        if problem is not None:
            await self._told.tell("Warning", "Unhealthy", f"{kind} probe failed: {problem}")
        return problem is None

    def _grace(self, spec: ProbeSpec) -> float:
        return self._grace_s if spec.grace_period_s is None else float(spec.grace_period_s)
