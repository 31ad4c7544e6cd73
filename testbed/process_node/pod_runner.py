"""Runs one pod as the kubelet would: start, probes, restarts with back-off, stop with preStop hook and grace period, status."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from testbed.process_node.container import ConfigError, Container, containers_of
from testbed.process_node.container_probes import ContainerProbes, Outcomes
from testbed.process_node.gpus import GpuShares
from testbed.process_node.node_api import NodeApi
from testbed.process_node.pod_reports import PodReports
from testbed.process_node.pod_status import BackOff, ContainerState, pod_status, timestamp
from testbed.process_node.probes import ExecuteInContainer
from testbed.process_node.process import ContainerProcess
from testbed.process_node.programs import Program, Programs
from testbed.process_node.supervise import START_ERROR
from testbed.watching_api import Object

log = logging.getLogger(__name__)

_LEAST_GRACE_S = 2.0
"""Least time between SIGTERM and SIGKILL, even if the preStop hook took all of the grace period (kubelet,
minimumGracePeriodInSeconds)."""
_REFERENCES = (("secretKeyRef", "secrets"), ("configMapKeyRef", "configmaps"))


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a node's pods share."""

    name: str
    address: str
    directory: Path
    programs: Programs
    shares: GpuShares
    api: NodeApi
    first_back_off_s: float = 10.0


class PodRunner:
    """One pod of this node. ``run`` ends when the pod is gone."""

    def __init__(self, pod: Object, address: str, node: NodeFacts) -> None:
        self.pod = pod
        self._address = address
        self._node = node
        self._started_at = str((pod.get("status") or {}).get("startTime") or timestamp())
        self._states: list[ContainerState] = []
        self._stopping = asyncio.Event()
        self._stop_by_s: float | None = None
        self._changed = asyncio.Event()
        self._gone = False
        self._reports = PodReports(node.api, node.name, node.directory, pod, self._status)
        self.update(pod)

    @property
    def key(self) -> str:
        return self._reports.key

    def update(self, pod: Object) -> None:
        """Takes in a newer state of the object. A deletion, or a shorter grace period, takes effect at once."""
        self.pod = pod
        meta = pod["metadata"]
        if meta.get("deletionTimestamp"):
            stop_by_s = time.monotonic() + float(meta.get("deletionGracePeriodSeconds") or 0)
            if self._stop_by_s is None or stop_by_s < self._stop_by_s:
                self._stop_by_s = stop_by_s
            self._stopping.set()
            self._changed.set()

    def gone(self) -> None:
        """The object is gone: everything ends at once."""
        self._gone = True
        self._stop_by_s = time.monotonic()
        self._stopping.set()
        self._changed.set()

    async def run(self) -> None:
        """Runs the pod to its end. When it is cancelled, its processes end at once."""
        before = {item["name"]: item for item in (self.pod.get("status") or {}).get("containerStatuses") or ()}
        self._states = [
            ContainerState(
                one["name"],
                one.get("image", ""),
                {"reason": "ContainerCreating"},
                # An earlier agent ran it; how it ended there nobody knows.
                restarts=before[one["name"]]["restartCount"] + 1 if before.get(one["name"], {}).get("containerID") else 0,
            )
            for one in self.pod["spec"]["containers"]
        ]
        async with self._reports.writing():
            self._reports.changed()
            try:
                await self._run_containers()
            finally:
                self._node.shares.release(self.pod["metadata"]["uid"])
            self._reports.changed()
            await self._stopping.wait()
        if not self._gone:
            codes = [int(state.terminated["exitCode"]) for state in self._states if state.terminated]
            await self._reports.end(self._status("Failed" if any(codes) or len(codes) < len(self._states) else "Succeeded"))

    def _status(self, final: str | None = None) -> dict[str, Any]:
        return pod_status(self.pod, self._states, self._address, self._node.address, self._started_at, final)

    # Start

    async def _run_containers(self) -> None:
        prepared = await self._prepare()
        if prepared is None:
            return
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session, asyncio.TaskGroup() as group:
            for (container, program), state in zip(prepared, self._states, strict=True):
                group.create_task(self._keep(container, program, state, session))

    async def _prepare(self) -> list[tuple[Container, Program]] | None:
        """Returns what to start; None if the pod ends before it can be started. A container that cannot be made waits, as in a kubelet."""
        told = ""
        while not self._stopping.is_set():
            try:
                return await self._resolve()
            except ConfigError as error:
                if str(error) != told:
                    told = str(error)
                    await self._reports.tell("Warning", "Failed", f"Error: {error}")
                for state in self._states:
                    state.waits("CreateContainerConfigError", told)
                self._reports.changed()
            except (aiohttp.ClientError, OSError) as error:
                log.warning("%s: not prepared, trying again: %s", self.key, error)
            await self._sleep(self._node.first_back_off_s)
        return None

    async def _sleep(self, seconds: float) -> None:
        """Waits, but not longer than until the pod is to end."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _resolve(self) -> list[tuple[Container, Program]]:
        values = await self._referenced()
        containers = containers_of(self.pod, self._address, self._node.address, lambda *key: values.get(key))
        gpus = self._node.shares.take(self.pod["metadata"]["uid"], sum(container.gpus for container in containers))
        if gpus is None:
            raise ConfigError("there are not so many free GPUs")
        found, free = [], list(gpus)
        for container in containers:
            mine, free = free[: container.gpus], free[container.gpus :]
            found.append((container, self._node.programs.program(container, self._address, mine)))
        return found

    async def _referenced(self) -> dict[tuple[str, str, str], str]:
        """Returns the values of all Secrets and ConfigMaps that the pod's variables refer to."""
        names = {
            (kind, source[reference]["name"])
            for container in self.pod["spec"]["containers"]
            for entry in container.get("env") or ()
            for source in [entry.get("valueFrom") or {}]
            for reference, kind in _REFERENCES
            if reference in source
        }
        values: dict[tuple[str, str, str], str] = {}
        for kind, name in names:
            found = await self._node.api.read(f"/api/v1/namespaces/{self.pod['metadata']['namespace']}/{kind}/{name}")
            for key, value in ((found or {}).get("data") or {}).items():
                values[kind, name, key] = base64.b64decode(value).decode() if kind == "secrets" else value
        return values

    async def _keep(self, container: Container, program: Program, state: ContainerState, session: aiohttp.ClientSession) -> None:
        """Runs a container, again and again if the pod's restart policy says so."""
        back_off = BackOff(self._node.first_back_off_s)
        policy = self.pod["spec"].get("restartPolicy") or "Always"
        while not self._stopping.is_set():
            began_s = time.monotonic()
            code = await self._run_once(container, program, state, session)
            if self._stopping.is_set() or policy == "Never" or (policy == "OnFailure" and code == 0):
                return
            wait_s = back_off.after(time.monotonic() - began_s)
            if wait_s:
                message = f"back-off {wait_s:.0f}s restarting failed container={container.name} pod={self.pod['metadata']['name']}"
                state.waits("CrashLoopBackOff", message)
                self._reports.changed()
                await self._reports.tell("Warning", "BackOff", "Back-off restarting failed container")
                await self._sleep(wait_s)

    async def _run_once(self, container: Container, program: Program, state: ContainerState, session: aiohttp.ClientSession) -> int:
        """Runs a container once. Returns its exit code."""
        meta = self.pod["metadata"]
        restarts = state.restarts + (1 if state.terminated or state.last else 0)
        name = f"{meta['namespace']}_{meta['name']}_{container.name}_{restarts}"
        try:
            process = await ContainerProcess.start(program, self._node.directory / f"{name}.log", f"{self._node.directory}/{name}")
        except OSError as error:  # the working directory is gone, or there are too many processes
            state.runs(timestamp(), "", restarts)
            state.ended(START_ERROR, str(error))
            self._reports.changed()
            return START_ERROR
        self._reports.started(container, program, process)
        state.runs(timestamp(), f"process://{process.pid}", restarts)
        self._reports.changed()
        await self._reports.tell("Normal", "Started", f"Started container {container.name}")
        code = await self._supervise(_Running(container, program, state, process), session)
        state.ended(code, process.last_words() if code and container.log_on_failure else "")
        log.info("%s: %s ended with %d", self.key, container.name, code)
        self._reports.note(process, "endedAt", exitCode=code)
        self._reports.changed()
        return code

    async def _supervise(self, running: _Running, session: aiohttp.ClientSession) -> int:
        """Waits for the end of a container, and brings it about when the pod ends or a probe fails. Returns the exit code."""
        container, process = running.container, running.process
        execute = ExecuteInContainer(running.program.env, str(running.program.directory))
        unhealthy: asyncio.Future[tuple[str, float]] = asyncio.get_running_loop().create_future()
        grace_s = float(self.pod["spec"].get("terminationGracePeriodSeconds") or 30)
        probes = ContainerProbes(container, self._address, grace_s, session, execute, self._outcomes(running, unhealthy))
        ended = asyncio.create_task(process.wait())
        others = [asyncio.create_task(self._stopping.wait()), asyncio.create_task(probes.run())]
        try:
            waited: list[asyncio.Future[Any]] = [ended, others[0], unhealthy]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                failed = None if self._stopping.is_set() else unhealthy.result()
                await self._stop(running, ended, execute, failed)
            return await ended
        finally:
            process.kill()
            for task in others:
                task.cancel()
            for result in await asyncio.gather(*others, return_exceptions=True):
                if isinstance(result, Exception):
                    log.error("%s: %r", self.key, result, exc_info=result)

    def _outcomes(self, running: _Running, unhealthy: asyncio.Future[tuple[str, float]]) -> Outcomes:
        state = running.state

        def started() -> None:
            state.started = True
            self._reports.changed()

        def ready(now: bool) -> None:
            if now is not state.ready:
                state.ready = now
                self._reports.note(running.process, "readyAt" if now else "unreadyAt")
                self._reports.changed()

        def fail(reason: str, grace_s: float) -> None:
            if not unhealthy.done():
                unhealthy.set_result((reason, grace_s))

        return Outcomes(started, ready, fail, self._stopping.is_set, self._reports.tell)

    # Stop

    async def _stop(
        self, running: _Running, ended: asyncio.Task[int], execute: ExecuteInContainer, failed: tuple[str, float] | None
    ) -> None:
        """Stops a container: preStop hook, SIGTERM, and SIGKILL when its time is up. ``failed`` is a failed probe: why, and seconds."""
        own_s: float | None = None
        least_s = 0.0
        name, process = running.container.name, running.process
        if failed is not None:
            own_s = time.monotonic() + failed[1]
            await self._reports.tell("Normal", "Killing", f"Container {name} {failed[0]}, will be restarted")
        else:
            await self._reports.tell("Normal", "Killing", f"Stopping container {name}")

        def left_s() -> float:
            if self._gone:
                return 0.0
            return max(least_s, min(end for end in (own_s, self._stop_by_s) if end is not None)) - time.monotonic()

        hook = asyncio.create_task(self._pre_stop(running.container, execute))
        await self._until([hook, ended], left_s)
        hook.cancel()
        await asyncio.gather(hook, return_exceptions=True)
        least_s = time.monotonic() + _LEAST_GRACE_S
        self._reports.note(process, "sigtermAt")
        process.terminate()
        await self._until([ended], left_s)
        if not ended.done():
            log.warning("%s: SIGKILL, its grace period is over", self.key)
            self._reports.note(process, "sigkillAt")
            process.kill()

    async def _until(self, tasks: Sequence[asyncio.Task[Any]], left_s: Callable[[], float]) -> None:
        """Waits until one of the tasks has ended or no time is left, which may become less meanwhile."""
        while not any(task.done() for task in tasks) and (left := left_s()) > 0:
            self._changed.clear()
            changed = asyncio.create_task(self._changed.wait())
            await asyncio.wait([*tasks, changed], timeout=left, return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()

    async def _pre_stop(self, container: Container, execute: ExecuteInContainer) -> None:
        hook = container.pre_stop
        if sleep := hook.get("sleep"):
            await asyncio.sleep(float(sleep["seconds"]))
        elif (command := (hook.get("exec") or {}).get("command")) and (code := await execute(tuple(command))):
            await self._reports.tell("Warning", "FailedPreStopHook", f"PreStopHook failed: exit status {code}")


@dataclass(frozen=True, slots=True)
class _Running:
    """A container that runs."""

    container: Container
    program: Program
    state: ContainerState
    process: ContainerProcess
