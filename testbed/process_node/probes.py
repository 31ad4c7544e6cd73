"""Decides from the answers to a probe what the kubelet would decide, and asks them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp


@dataclass(frozen=True, slots=True)
class ProbeSpec:
    """A probe as in the Pod, with the API's defaults (core/v1 Probe). Exactly one of ``path``, ``tcp`` and ``command`` is set."""

    port: int = 0
    path: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    tcp: bool = False
    command: tuple[str, ...] = ()
    initial_delay_s: int = 0
    period_s: int = 10
    timeout_s: int = 1
    success_threshold: int = 1
    failure_threshold: int = 3
    grace_period_s: int | None = None


class UnsupportedProbe(ValueError):
    """The probe is of a kind that a process node cannot ask."""


def probe_of(container: Mapping[str, Any], kind: str) -> ProbeSpec | None:
    """Returns one probe of a container (``startupProbe``, ``readinessProbe``, ``livenessProbe``). Raises UnsupportedProbe."""
    probe: Mapping[str, Any] | None = container.get(kind)
    if not probe:
        return None
    common: dict[str, Any] = {
        "initial_delay_s": probe.get("initialDelaySeconds") or 0,
        "period_s": probe.get("periodSeconds") or 10,
        "timeout_s": probe.get("timeoutSeconds") or 1,
        "success_threshold": probe.get("successThreshold") or 1,
        "failure_threshold": probe.get("failureThreshold") or 3,
        "grace_period_s": probe.get("terminationGracePeriodSeconds"),
    }
    if http := probe.get("httpGet"):
        if str(http.get("scheme") or "HTTP").upper() != "HTTP":
            raise UnsupportedProbe(f"{kind}: only the scheme HTTP is supported")
        headers = tuple((header["name"], header["value"]) for header in http.get("httpHeaders") or ())
        return ProbeSpec(port=port_number(container, http["port"]), path=http.get("path") or "/", headers=headers, **common)
    if socket := probe.get("tcpSocket"):
        return ProbeSpec(port=port_number(container, socket["port"]), tcp=True, **common)
    if execute := probe.get("exec"):
        return ProbeSpec(command=tuple(execute.get("command") or ()), **common)
    raise UnsupportedProbe(f"{kind}: only httpGet, tcpSocket and exec are supported")


def port_number(container: Mapping[str, Any], port: int | str) -> int:
    """Returns a port that a container names by number or by name. Raises UnsupportedProbe for an unknown name."""
    if isinstance(port, int) or port.isdigit():
        return int(port)
    for known in container.get("ports") or ():
        if known.get("name") == port:
            return int(known["containerPort"])
    raise UnsupportedProbe(f"the container has no port named {port!r}")


class ProbeCount:
    """Counts answers in a row. ``passed`` is the result so far: None before a threshold was reached for the first time."""

    def __init__(self, spec: ProbeSpec) -> None:
        self._spec = spec
        self._last: bool | None = None
        self._run = 0
        self.passed: bool | None = None

    def add(self, succeeded: bool) -> bool | None:
        """Takes in one answer. Returns ``passed``, which changes only when a threshold is reached."""
        self._run = self._run + 1 if succeeded is self._last else 1
        self._last = succeeded
        if self._run >= (self._spec.success_threshold if succeeded else self._spec.failure_threshold):
            self.passed = succeeded
        return self.passed


async def ask(spec: ProbeSpec, address: str, session: aiohttp.ClientSession, execute: ExecuteInContainer) -> str | None:
    """Asks once. Returns None for a success, else what went wrong."""
    try:
        async with asyncio.timeout(spec.timeout_s):
            if spec.command:
                code = await execute(spec.command)
                return None if code == 0 else f"exit status {code}"
            if spec.tcp:
                _, writer = await asyncio.open_connection(address, spec.port)
                writer.close()
                return None
            headers = {"User-Agent": "kube-probe/1.35", "Accept": "*/*", "Connection": "close", **dict(spec.headers)}
            async with session.get(f"http://{address}:{spec.port}{spec.path}", headers=headers, allow_redirects=False) as response:
                await response.read()
                # As the kubelet: 200 to 399 is a success.
                return None if 200 <= response.status < 400 else f"HTTP probe failed with statuscode: {response.status}"
    except TimeoutError:
        return f"no answer within {spec.timeout_s} s"
    except (aiohttp.ClientError, OSError) as error:
        return str(error) or type(error).__name__


class ExecuteInContainer:
    """Runs a command with the environment of a container. Call it with the command; it returns the exit status."""

    def __init__(self, environment: Mapping[str, str], directory: str) -> None:
        self._environment = dict(environment)
        self._directory = directory

    async def __call__(self, command: tuple[str, ...]) -> int:
        process = await asyncio.create_subprocess_exec(
            *command, env=self._environment, cwd=self._directory, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL
        )
        try:
            return await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
