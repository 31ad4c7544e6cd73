"""How a pod is reached over HTTP, and in which words it is told that it was not."""

from __future__ import annotations

import os

import aiohttp


def base_url(address: str, port: int) -> str:
    """Returns the base URL of a server at an IPv4 or IPv6 address."""
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


def not_connected(error: aiohttp.ClientConnectorError) -> str:
    """Returns one line without the address, which would change the message with every pod."""
    number = error.os_error.errno
    return f"connection failed: {os.strerror(number) if number else type(error.os_error).__name__}"
