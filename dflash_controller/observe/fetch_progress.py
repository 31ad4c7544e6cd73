"""Asks pods that fetch weights how far they are."""

from __future__ import annotations

import aiohttp

from dflash_controller.model.fetch_progress import PATH, PORT, FetchProgress, parse_progress
from dflash_controller.observe.peer import base_url

TIMEOUT_S = 5.0
MAX_BYTES = 4096


async def read_progress(ip: str, port: int = PORT) -> FetchProgress | None:
    """Returns the progress of the pod with this address; None if it does not answer, for instance because a NetworkPolicy forbids it."""
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S), trust_env=False) as session,
            session.get(f"{base_url(ip, port)}{PATH}", allow_redirects=False) as answer,
        ):
            if answer.status != 200:
                return None
            return parse_progress((await answer.content.read(MAX_BYTES)).decode(errors="replace"))
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None
