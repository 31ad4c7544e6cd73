"""Bodies of HTTP answers, read up to a limit."""

from __future__ import annotations

import aiohttp


async def read_capped(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The body; ValueError once it exceeds ``limit`` bytes, of which no more are read."""
    body = bytearray()
    async for chunk in response.content.iter_chunked(64 * 1024):
        body += chunk
        if len(body) > limit:
            raise ValueError(f"body over {limit} bytes")
    return bytes(body)
