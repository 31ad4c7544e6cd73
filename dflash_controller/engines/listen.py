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

import re
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from types import MappingProxyType

from dflash_controller.engines.command_line import Broken, CommandLine
from dflash_controller.engines.protocol import LaunchRequest

HOST = "--host"
V4, V6 = "IPv4", "IPv6"
_NAME = re.compile(r"(?=.*[A-Za-z])[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*\.?")
"""A host name (RFC 1123): it stands for the addresses of one machine."""
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
    written = line.values[HOST]
    address = _spelled(written)
    families = line.request.pod_ip_families
    if address is None or address not in serves:
        one = address is not None or _NAME.fullmatch(written)
        yield Broken(
            (HOST,),
            f"{HOST}={written} is one address; probes, metrics and the Service use the pod's, which is not known before it starts"
            if one
            else f"{HOST}={written} is neither an address nor a host name",
            _remedy(serves, families),
        )
    elif families and families[0] not in serves[address]:
        yield Broken(
            (HOST,),
            f"{HOST}={written} does not listen on {families[0]}, the family of this cluster's pod addresses",
            _remedy(serves, families),
        )


def _spelled(written: str) -> str | None:
    """Returns an address as the tables spell it (``::0`` is ``::``); None for a host name, and for what is neither."""
    try:
        return str(ip_address(written)) if written else written
    except ValueError:
        return None


def _remedy(serves: Mapping[str, frozenset[str]], families: tuple[str, ...]) -> str:
    fitting = [
        f"{HOST}={address} ({' and '.join(sorted(served))})"
        for address, served in sorted(serves.items())
        if address and (not families or families[0] in served)
    ]
    return f"Remove {HOST}: the engine then listens on every address of its pod. Or write {' or '.join(fitting)}"
