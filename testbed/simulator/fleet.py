"""One process simulates the engine of every pod of a test cluster, at the pod's own loopback address.

kwok simulates the kubelet. Pods, kwok's stages and this process communicate by annotations:

* ``sim/ready-after`` (wall seconds) is read by both: kwok's delay to Ready, the engine's start-up time. This process writes it if the
  default start-up time or a fault requires it. Without it a pod is ready at once.
* ``sim/exit-after`` (wall seconds until a deleted pod ends) is written here if a stop time is given and the pod does not set it. It is the
  grace period at first, and 0 once the engine has answered its last request.
* ``sim/crash`` (exit code) and ``sim/message`` are written here if an engine refuses its command line or is crashed on demand. In the first
  case the pod crash-loops until it is deleted. In the second they are removed as soon as kwok has seen the crash, so the pod restarts.
* ``sim/ready: "false"`` is written while an engine would fail its probes (fault ``hang`` or ``unhealthy``).
* ``sim/engine`` and ``sim/release`` override the image's name and tag.

Without simulated crash or deletion an engine lives as long as its container. Each start has fresh counters.
"""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

from testbed.simulator.argv import ArgvError
from testbed.simulator.engine import SimulatedEngine
from testbed.simulator.faults import Faults
from testbed.simulator.host import Clock, Host
from testbed.simulator.launch import ANNOTATION_READY_AFTER, ENGINE_CONTAINER, Process, pre_stop_s, process_of, settings_of, startup_s
from testbed.simulator.pod_api import Pod, PodApi, PodEvent
from testbed.simulator.rules import Rule, faults_for
from testbed.simulator.server import EngineApp
from testbed.simulator.settings import EngineSettings
from testbed.simulator.table import Table
from testbed.simulator.weights import with_mounted_weights

log = logging.getLogger(__name__)

ANNOTATION_CRASH = "sim/crash"
ANNOTATION_MESSAGE = "sim/message"
ANNOTATION_READY = "sim/ready"
ANNOTATION_EXIT_AFTER = "sim/exit-after"
ARGV_EXIT_CODE = 2
_MESSAGE_LIMIT = 4000


@dataclass(slots=True)
class PodState:
    """State of one pod. ``incarnation`` is the restart count of its engine, -1 before the first start."""

    pod: Pod
    faults: Faults | None = None
    incarnation: int = -1
    host: Host | None = None
    site: web.TCPSite | None = None
    refused: str | None = None
    crash_pending: bool = False
    draining: bool = False
    annotated: dict[str, str | None] = field(default_factory=dict)

    @property
    def key(self) -> str:
        meta = self.pod["metadata"]
        return f"{meta['namespace']}/{meta['name']}"


class Fleet:
    """Follows the pods of a cluster and serves their engines."""

    def __init__(self, api: PodApi, table: Table, clock: Clock, default_startup_s: float = 0.0, stop_s: float | None = None) -> None:
        """Creates a fleet. ``stop_s``: deleted pods get SIGTERM after this many wall seconds instead of their preStop pause, and end as
        soon as they can."""
        self._api = api
        self._table = table
        self._clock = clock
        self._default_startup_s = default_startup_s
        self._stop_s = stop_s
        self._pods: dict[str, PodState] = {}
        self._addresses: dict[tuple[str, int], PodState] = {}
        self._rules: tuple[Rule, ...] = ()
        self._runner = EngineApp(self).runner()
        self._patches: asyncio.Queue[tuple[PodState, dict[str, str | None]]] = asyncio.Queue()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.listed = asyncio.Event()
        """Set once the first complete list of pods was handled."""

    def find(self, address: str, port: int) -> Host | None:
        state = self._addresses.get((address, port))
        return state.host if state else None

    @property
    def rules(self) -> tuple[Rule, ...]:
        return self._rules

    def set_rules(self, rules: Iterable[Rule]) -> None:
        """Replaces the rules. They decide the faults of every pod, present and future, and override earlier settings of single pods."""
        self._rules = tuple(rules)
        for state in self._pods.values():
            state.faults = None
            if state.host:
                state.host.set_faults(self._faults_of(state, state.host.engine.settings))

    def pods(self) -> list[dict[str, Any]]:
        """Returns one entry per pod, for people and tests."""
        return [_summary(state) for state in sorted(self._pods.values(), key=lambda state: state.key)]

    async def run(self) -> None:
        """Runs forever."""
        await self._runner.setup()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._patch_loop())
                group.create_task(self._follow())
        finally:
            for state in list(self._pods.values()):
                await self._stop(state)
            await self._runner.cleanup()

    async def _follow(self) -> None:
        async for event in self._api.events():
            await self.handle(event)
            if event.kind == "LISTED":
                self.listed.set()

    async def handle(self, event: PodEvent) -> None:
        """Handles an event of pods."""
        if event.kind == "LISTED":
            present = {pod["metadata"]["uid"] for pod in event.pods}
            for uid in [uid for uid in self._pods if uid not in present]:
                await self._forget(uid)
        for pod in event.pods:
            if event.kind == "DELETED":
                await self._forget(pod["metadata"]["uid"])
            else:
                await self._take(pod)

    async def _forget(self, uid: str) -> None:
        state = self._pods.pop(uid, None)
        if state:
            await self._stop(state)

    async def _take(self, pod: Pod) -> None:
        uid = pod["metadata"]["uid"]
        state = self._pods.get(uid)
        if state is None:
            if process_of(pod) is None:
                return
            state = self._pods[uid] = PodState(pod)
            if self._stop_s is not None and ANNOTATION_EXIT_AFTER not in (pod["metadata"].get("annotations") or {}):
                self._annotate(state, {ANNOTATION_EXIT_AFTER: f"{pod['spec'].get('terminationGracePeriodSeconds', 30)}"})
            self._meet(state)
        state.pod = pod
        if pod["metadata"].get("deletionTimestamp"):
            self._end(state)
            return
        if state.refused:
            return
        status = _engine_status(pod)
        container = status.get("state") or {}
        if state.crash_pending and "waiting" in container:
            state.crash_pending = False
            self._annotate(state, {ANNOTATION_CRASH: None, ANNOTATION_MESSAGE: None})
        running = pod["status"].get("phase") == "Running" and "running" in container
        if not running:
            await self._stop(state)
        elif not state.crash_pending and pod["status"].get("podIP"):
            restarts = status.get("restartCount", 0)
            if state.host is None or state.incarnation != restarts:
                await self._stop(state)
                await self._start(state, restarts)

    def _end(self, state: PodState) -> None:
        """Ends a deleted pod as the kubelet does: SIGTERM comes after the preStop pause."""
        if state.draining:
            return
        state.draining = True
        if state.host is None:
            self._ended(state)
        else:
            pause_s = pre_stop_s(state.pod) if self._stop_s is None else self._stop_s
            asyncio.get_running_loop().call_later(pause_s, state.host.drain)

    def _ended(self, state: PodState) -> None:
        """Handles the end of a deleted pod's last process."""
        if ANNOTATION_EXIT_AFTER in state.annotated:
            self._annotate(state, {ANNOTATION_EXIT_AFTER: "0"})

    def _meet(self, state: PodState) -> None:
        """Registers a new pod, usually before its containers start."""
        known = self._command(state)
        if known is None:
            return
        process, settings, delay_s = known
        self._faults_changed(state, self._faults_of(state, settings))
        if delay_s and ANNOTATION_READY_AFTER not in process.annotations and ANNOTATION_READY_AFTER not in state.annotated:
            self._annotate(state, {ANNOTATION_READY_AFTER: f"{delay_s:g}"})

    def _command(self, state: PodState) -> tuple[Process, EngineSettings, float] | None:
        """Returns the engine's process, settings and wall seconds to readiness. Returns None for a refused command line; the pod then
        crashes."""
        process = process_of(state.pod)
        assert process is not None
        try:
            return process, with_mounted_weights(settings_of(process), state.pod), startup_s(process, self._default_startup_s)
        except ArgvError as error:
            self._refuse(state, error.exit_code, error.stderr)
        except ValueError as error:
            self._refuse(state, ARGV_EXIT_CODE, str(error))
        return None

    def _refuse(self, state: PodState, code: int, message: str) -> None:
        state.refused = message
        log.error("%s: the engine refuses its command line: %s", state.key, message)
        self._annotate(state, {ANNOTATION_CRASH: str(code), ANNOTATION_MESSAGE: message[-_MESSAGE_LIMIT:]})

    async def _start(self, state: PodState, incarnation: int) -> None:
        known = self._command(state)
        if known is None:
            return
        process, settings, delay_s = known
        address = state.pod["status"]["podIP"]
        faults = self._faults_of(state, settings)
        engine = SimulatedEngine(
            settings,
            self._table.match(settings.target, settings.served_model_name),
            now=self._clock.now(),
            startup_s=delay_s * self._clock.speed,
            faults=faults,
            created_s=time.time(),
            seed=zlib.crc32(f"{state.key}/{incarnation}".encode()),
        )
        state.incarnation = incarnation
        state.host = Host(
            engine,
            self._clock,
            exited=lambda code, message: self._exited(state, code, message),
            faults_changed=lambda faults: self._faults_changed(state, faults),
            env=process.env,
        )
        self._addresses[address, settings.port] = state
        self._faults_changed(state, faults)
        state.site = web.TCPSite(self._runner, address, settings.port)
        try:
            await state.site.start()
        except OSError as error:
            log.error("%s: cannot listen on %s:%d: %s", state.key, address, settings.port, error)
        log.info("%s: %s %s on %s:%d, block %d", state.key, settings.engine, settings.release, address, settings.port, settings.block_size)

    async def _stop(self, state: PodState) -> None:
        host, state.host = state.host, None
        if host is None:
            return
        host.close()
        self._addresses = {address: other for address, other in self._addresses.items() if other is not state}
        if state.site is not None:
            await state.site.stop()
            state.site = None

    def _exited(self, state: PodState, code: int, message: str) -> None:
        log.info("%s: engine ended with %d: %s", state.key, code, message)
        if state.pod["metadata"].get("deletionTimestamp"):
            self._ended(state)
        else:
            state.crash_pending = True
            self._annotate(state, {ANNOTATION_CRASH: str(code), ANNOTATION_MESSAGE: message[-_MESSAGE_LIMIT:]})
        task = asyncio.ensure_future(self._stop(state))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _faults_of(self, state: PodState, settings: EngineSettings) -> Faults:
        if state.faults is None:
            meta = state.pod["metadata"]
            state.faults = faults_for(self._rules, settings, meta["namespace"], meta["name"])
        return state.faults

    def _faults_changed(self, state: PodState, faults: Faults) -> None:
        state.faults = faults
        wanted: dict[str, str | None] = {ANNOTATION_READY: "false" if faults.hang or faults.unhealthy else None}
        if faults.startup_s is not None:
            wanted[ANNOTATION_READY_AFTER] = f"{faults.startup_s / self._clock.speed:g}"
        self._annotate(state, {key: value for key, value in wanted.items() if state.annotated.get(key) != value})

    def _annotate(self, state: PodState, annotations: dict[str, str | None]) -> None:
        if annotations:
            state.annotated.update(annotations)
            self._patches.put_nowait((state, annotations))

    async def _patch_loop(self) -> None:
        while True:
            state, annotations = await self._patches.get()
            try:
                await self._api.annotate(state.pod, annotations)
            except (aiohttp.ClientError, OSError) as error:
                if isinstance(error, aiohttp.ClientResponseError) and error.status < 500:
                    log.error("%s: annotations refused: %s", state.key, error)
                    continue
                log.warning("%s: annotations not written, trying again: %s", state.key, error)
                self._patches.put_nowait((state, annotations))
                await asyncio.sleep(1)


def _engine_status(pod: Pod) -> Mapping[str, Any]:
    statuses: list[Mapping[str, Any]] = (pod.get("status") or {}).get("containerStatuses") or []
    return next((status for status in statuses if status["name"] == ENGINE_CONTAINER), {})


def _summary(state: PodState) -> dict[str, Any]:
    host = state.host
    settings = host.engine.settings if host else None
    return {
        "pod": state.key,
        "address": state.pod["status"].get("podIP"),
        "port": settings.port if settings else None,
        "engine": settings.engine if settings else None,
        "release": settings.release if settings else None,
        "block_size": settings.block_size if settings else None,
        "drafter_revision": settings.drafter_revision if settings else None,
        "phase": host.engine.phase(host.clock.now()).value if host else "Refused" if state.refused else "Down",
        "refused": state.refused,
        "faults": state.faults.to_json() if state.faults else None,
        "argv": list(settings.argv) if settings else None,
    }
