"""Runs one pod as the kubelet would: start, probes, restarts with back-off, stop with preStop hook and grace period, status."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp

from testbed.process_node.container import ConfigError, Container, containers_of
from testbed.process_node.gpus import GpuShares
from testbed.process_node.node_api import NodeApi
from testbed.process_node.pod_status import BackOff, ContainerState, pod_status, timestamp
from testbed.process_node.probes import ExecuteInContainer, ProbeCount, ProbeSpec, ask
from testbed.process_node.process import ContainerProcess
from testbed.process_node.programs import Program, Programs
from testbed.process_node.supervise import START_ERROR
from testbed.watching_api import Object

log = logging.getLogger(__name__)

_LEAST_GRACE_S = 2.0
"""Least time between SIGTERM and SIGKILL after a preStop hook (kubelet, minimumGracePeriodInSeconds)."""
_RETRY_S = 1.0


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
        self._started_at = timestamp()
        self._states: list[ContainerState] = []
        self._stopping = asyncio.Event()
        self._stop_by_s: float | None = None
        self._changed = asyncio.Event()
        self._dirty = asyncio.Event()
        self._gone = False
        self._processes: dict[str, ContainerProcess] = {}
        self._ran: list[dict[str, Any]] = []
        self.update(pod)

    @property
    def key(self) -> str:
        return f"{self.pod['metadata']['namespace']}/{self.pod['metadata']['name']}"

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
        """Runs the pod to its end."""
        writer = asyncio.create_task(self._write_statuses())
        try:
            await self._run()
        finally:
            for process in self._processes.values():
                process.kill()
            self._node.shares.release(self.pod["metadata"]["uid"])
            writer.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await writer

    async def _run(self) -> None:
        spec = self.pod["spec"]
        before = {item["name"]: item for item in (self.pod.get("status") or {}).get("containerStatuses") or ()}
        self._states = [
            ContainerState(
                one["name"],
                one.get("image", ""),
                {"reason": "ContainerCreating"},
                restarts=before[one["name"]]["restartCount"] + 1 if before.get(one["name"], {}).get("containerID") else 0,
            )
            for one in spec["containers"]
        ]
        self._dirty.set()
        prepared = await self._prepare()
        if prepared is not None:
            try:
                async with asyncio.TaskGroup() as group, aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
                    keepers = [
                        group.create_task(self._keep(container, program, state, session))
                        for (container, program), state in zip(prepared, self._states, strict=True)
                    ]
                    await asyncio.gather(*keepers)
            finally:
                self._node.shares.release(self.pod["metadata"]["uid"])
        self._dirty.set()
        await self._stopping.wait()
        await self._remove()

    async def _prepare(self) -> list[tuple[Container, Program]] | None:
        """Returns what to start; None if the pod ends before it can be started. A container that cannot be made waits, as in a kubelet."""
        told = ""
        while not self._stopping.is_set():
            try:
                return await self._resolve()
            except ConfigError as error:
                if str(error) != told:
                    told = str(error)
                    await self._tell("Warning", "Failed", f"Error: {error}")
                for state in self._states:
                    state.waits("CreateContainerConfigError", told)
                self._dirty.set()
            except (aiohttp.ClientError, OSError) as error:
                log.warning("%s: not prepared, trying again: %s", self.key, error)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), self._node.first_back_off_s)
        return None

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
            for reference, kind in (("secretKeyRef", "secrets"), ("configMapKeyRef", "configmaps"))
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
                self._dirty.set()
                await self._tell("Warning", "BackOff", "Back-off restarting failed container")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), wait_s)

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
            self._dirty.set()
            return START_ERROR
        self._processes[container.name] = process
        self._record(container, program, process)
        state.runs(timestamp(), f"process://{process.pid}", restarts)
        self._dirty.set()
        await self._tell("Normal", "Started", f"Started container {container.name}")
        execute = ExecuteInContainer(program.env, str(program.directory))
        ended = asyncio.create_task(process.wait())
        stopping = asyncio.create_task(self._stopping.wait())
        unhealthy: asyncio.Future[tuple[str, float]] = asyncio.get_running_loop().create_future()
        probing = asyncio.create_task(self._probe(container, state, session, execute, unhealthy))
        try:
            waited: list[asyncio.Future[Any]] = [ended, stopping, unhealthy]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                await self._stop(container, process, ended, execute, unhealthy)
            code = await ended
        finally:
            process.kill()
            for task in (probing, stopping):
                task.cancel()
            await asyncio.gather(probing, stopping, return_exceptions=True)
        state.ended(code, process.last_words() if code and container.log_on_failure else "")
        log.info("%s: %s ended with %d", self.key, container.name, code)
        self._ran[-1] |= {"exitCode": code, "endedAt": time.time()}
        self._write_record()
        self._dirty.set()
        return code

    # Stop

    async def _stop(
        self,
        container: Container,
        process: ContainerProcess,
        ended: asyncio.Task[int],
        execute: ExecuteInContainer,
        unhealthy: asyncio.Future[tuple[str, float]],
    ) -> None:
        """Stops a container: preStop hook, SIGTERM, and SIGKILL when its time is up."""
        own_s: float | None = None
        if not self._stopping.is_set():
            reason, grace_s = unhealthy.result()
            own_s = time.monotonic() + grace_s
            await self._tell("Normal", "Killing", f"Container {container.name} {reason}, will be restarted")
        else:
            await self._tell("Normal", "Killing", f"Stopping container {container.name}")

        def left_s() -> float:
            ends = [end for end in (own_s, self._stop_by_s) if end is not None]
            return min(ends) - time.monotonic()

        hook = asyncio.create_task(self._pre_stop(container, execute))
        await self._until([hook, ended], left_s)
        late = hook.done() and left_s() < _LEAST_GRACE_S and not self._gone
        hook.cancel()
        await asyncio.gather(hook, return_exceptions=True)
        if late:
            own_s, self._stop_by_s = None, time.monotonic() + _LEAST_GRACE_S
        self._note(process, "sigtermAt")
        process.terminate()
        await self._until([ended], left_s)
        if not ended.done():
            log.warning("%s: SIGKILL, its grace period is over", self.key)
            self._note(process, "sigkillAt")
            process.kill()

    async def _until(self, tasks: Sequence[asyncio.Task[Any]], left_s: Any) -> None:
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
            await self._tell("Warning", "FailedPreStopHook", f"PreStopHook failed: exit status {code}")

    # Probes

    async def _probe(
        self,
        container: Container,
        state: ContainerState,
        session: aiohttp.ClientSession,
        execute: ExecuteInContainer,
        unhealthy: asyncio.Future[tuple[str, float]],
    ) -> None:
        """Asks the startup probe until it has succeeded, then the two others."""
        grace_s = float(self.pod["spec"].get("terminationGracePeriodSeconds") or 30)
        if container.startup is not None:
            await asyncio.sleep(container.startup.initial_delay_s)
            if not await self._first_success(container.startup, session, execute):
                self._fail(unhealthy, "failed startup probe", container.startup.grace_period_s or grace_s)
                return
        state.started = True
        state.ready = container.readiness is None
        self._dirty.set()

        async def liveness(spec: ProbeSpec) -> None:
            await asyncio.sleep(spec.initial_delay_s)
            count = ProbeCount(spec)
            while not self._stopping.is_set():
                if count.add(await self._ask("Liveness", spec, session, execute)) is False:
                    self._fail(unhealthy, "failed liveness probe", spec.grace_period_s or grace_s)
                    return
                await asyncio.sleep(spec.period_s)

        async def readiness(spec: ProbeSpec) -> None:
            await asyncio.sleep(spec.initial_delay_s)
            count = ProbeCount(spec)
            while True:
                ready = bool(count.add(await self._ask("Readiness", spec, session, execute)))
                if ready is not state.ready:
                    state.ready = ready
                    self._note(self._processes[container.name], "readyAt" if ready else "unreadyAt")
                    self._dirty.set()
                await asyncio.sleep(spec.period_s)

        asked = [(liveness, container.liveness), (readiness, container.readiness)]
        await asyncio.gather(*(kind(spec) for kind, spec in asked if spec is not None))

    async def _first_success(self, spec: ProbeSpec, session: aiohttp.ClientSession, execute: ExecuteInContainer) -> bool:
        """Asks until a threshold is reached. Returns whether the probe succeeded. Its failures are not told: an engine loads for
        minutes."""
        count = ProbeCount(spec)
        while True:
            passed = count.add(await ask(spec, self._address, session, execute) is None)
            if passed is not None:
                return passed
            await asyncio.sleep(spec.period_s)

    async def _ask(self, kind: str, spec: ProbeSpec, session: aiohttp.ClientSession, execute: ExecuteInContainer) -> bool:
        problem = await ask(spec, self._address, session, execute)
        if problem is not None:
            await self._tell("Warning", "Unhealthy", f"{kind} probe failed: {problem}")
        return problem is None

    def _fail(self, unhealthy: asyncio.Future[tuple[str, float]], reason: str, grace_s: float) -> None:
        if not unhealthy.done():
            unhealthy.set_result((reason, grace_s))

    # Reports

    async def _remove(self) -> None:
        if self._gone:
            return
        codes = [int(state.terminated["exitCode"]) for state in self._states if state.terminated]
        final = "Failed" if any(codes) or len(codes) < len(self._states) else "Succeeded"
        await self._write(pod_status(self.pod, self._states, self._address, self._node.address, self._started_at, final))
        await self._patiently(lambda: self._node.api.remove(self.pod))

    async def _write_statuses(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            await self._write(pod_status(self.pod, self._states, self._address, self._node.address, self._started_at))

    async def _write(self, status: Mapping[str, Any]) -> None:
        await self._patiently(lambda: self._node.api.write_status(self.pod, status))

    async def _patiently(self, write: Any) -> None:
        """Writes, again and again while the API server does not answer."""
        while True:
            try:
                await write()
            except aiohttp.ClientResponseError as error:
                log.error("%s: refused: %s", self.key, error)
                if error.status < 500:
                    return
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                log.warning("%s: not written, trying again: %s", self.key, error)
            else:
                return
            await asyncio.sleep(_RETRY_S)

    async def _tell(self, type: str, reason: str, message: str) -> None:
        log.info("%s: %s: %s", self.key, reason, message)
        try:
            await self._node.api.tell(self.pod, self._node.name, type, reason, message)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            log.warning("%s: event not written: %s", self.key, error)

    def _record(self, container: Container, program: Program, process: ContainerProcess) -> None:
        """Notes a started process, for reports: its command line and how it differs from the pod's."""
        self._ran.append(
            {
                "pod": self.key,
                "container": container.name,
                "labels": self.pod["metadata"].get("labels") or {},
                "pid": process.pid,
                "log": str(process.log),
                "podCommand": list(container.command),
                "podEnv": dict(container.env),
                "command": list(program.command),
                "gpus": program.env.get("CUDA_VISIBLE_DEVICES"),
                "changes": [asdict(change) for change in program.changes],
                "startedAt": time.time(),
            }
        )
        self._write_record()

    def _note(self, process: ContainerProcess, what: str) -> None:
        for ran in self._ran:
            if ran["pid"] == process.pid:
                ran.setdefault(what, time.time())
        self._write_record()

    def _write_record(self) -> None:
        meta = self.pod["metadata"]
        unfinished = self._node.directory / f".{meta['uid']}"
        unfinished.write_text(json.dumps(self._ran, indent=1))
        unfinished.rename(self._node.directory / f"{meta['namespace']}_{meta['name']}.json")
