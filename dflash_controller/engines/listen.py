"""Where an engine's HTTP server listens: on every address of its pod, whatever the families of the pod network.

Measured with the servers' own code (uvicorn with uvloop and asyncio, the socket of vLLM):

| ``--host`` | vLLM, and SGLang with several tokenizer processes | SGLang |
|---|---|---|
| ``0.0.0.0`` | IPv4 | IPv4 |
| ``::`` | IPv6 and IPv4; fails on a node whose kernel has no IPv6 | IPv6 only: asyncio sets ``IPV6_V6ONLY`` |
| empty | IPv4 | IPv6 and IPv4; without IPv6 in the kernel IPv4 |

The pod's own address (``status.podIP``) would leave out the loopback interface, which ``kubectl port-forward`` uses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from dflash_controller.engines.command_line import Broken, CommandLine
from dflash_controller.engines.protocol import LaunchRequest

HOST = "--host"
V4, V6 = "IPv4", "IPv6"
ONE_SOCKET: Mapping[str, frozenset[str]] = MappingProxyType({"::": frozenset({V4, V6}), "0.0.0.0": frozenset({V4}), "": frozenset({V4})})
"""Families by host, for a server that binds one socket by itself."""
ASYNCIO: Mapping[str, frozenset[str]] = MappingProxyType({"": frozenset({V4, V6}), "0.0.0.0": frozenset({V4}), "::": frozenset({V6})})
"""Families by host, for a server that lets asyncio bind."""


def host(request: LaunchRequest, serves: Mapping[str, frozenset[str]]) -> str:
    """Returns the address to listen on. Where all pods have IPv4 alone it is IPv4's: their nodes may have a kernel without IPv6."""
    families = frozenset(request.pod_ip_families) or frozenset({V4, V6})
    if families == {V4}:
        return "0.0.0.0"
    return next(address for address, served in serves.items() if served >= families)


def broken(line: CommandLine, serves: Mapping[str, frozenset[str]]) -> Iterator[Broken]:
    """What a user's own address leaves out. The rendered one leaves out nothing."""
    if HOST not in line.written:
        return
    address = line.values[HOST]
    if address not in serves:
        yield Broken(
            (HOST,),
            f"{HOST}={address} is one address; probes, metrics and the Service use the pod's, which is not known before it starts",
            f"Remove {HOST}: the engine then listens on every address of its pod",
        )
    elif line.request.pod_ip_families and line.request.pod_ip_families[0] not in serves[address]:
        yield Broken(
            (HOST,),
            f"{HOST}={address} does not listen on {line.request.pod_ip_families[0]}, the family of this cluster's pod addresses",
            f"Remove {HOST}: the engine then listens on every address of its pod",
        )
