"""How the ranks of one engine on several nodes meet and part: rank 0 listens at the address that every rank is given, until its process
ends, as the store of ``torch.distributed`` does.

Behaviour on SIGTERM above rank 0: SGLang waits until rank 0 ends it, once it has joined (since 0.5.21; before, and vLLM's headless ranks
always, end at once).
A rank that is gone leaves the others in a collective operation that never ends: rank 0 then answers nothing more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from testbed.simulator.settings import EngineSettings, version

_RETRY_S = 0.5
_END = b"end\n"
_ENDS_OTHERS_SINCE = (0, 5, 14)
_WAITS_SINCE = (0, 5, 21)


def waits_for_leader(settings: EngineSettings) -> bool:
    """Returns whether a rank above 0 outlives SIGTERM until rank 0 ends it."""
    return settings.engine == "sglang" and version(settings.release) >= _WAITS_SINCE


class Leader:
    """Rank 0. ``joined()`` is called once all ranks are there, ``lost()`` when one is gone before the end."""

    def __init__(self, settings: EngineSettings, joined: Callable[[], None], lost: Callable[[], None]) -> None:
        self._settings = settings
        self._joined = joined
        self._lost = lost
        self._ranks: dict[int, asyncio.StreamWriter] = {}
        self._server: asyncio.Server | None = None
        self._ended = False

    async def start(self) -> None:
        """Listens on every address."""
        self._server = await asyncio.start_server(self._meet, "0.0.0.0", self._settings.meets_at[1])

    async def end(self) -> None:
        """Ends the other ranks, where this release does so, and listens no more."""
        self._ended = True
        for writer in self._ranks.values():
            if self._settings.engine == "sglang" and version(self._settings.release) >= _ENDS_OTHERS_SINCE:
                writer.write(_END)
                with contextlib.suppress(OSError):
                    await writer.drain()
            writer.close()
        if self._server is not None:
            self._server.close()

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            said = await reader.readline()
            if not said:
                writer.close()  # a probe of the port
                return
            rank = int(said)
            self._ranks[rank] = writer
            logging.info("rank %d has joined", rank)
            if len(self._ranks) == self._settings.nodes - 1:
                self._joined()
            await reader.read()
        if not self._ended:
            logging.error("rank %d is gone", rank)
            self._lost()


async def follow(settings: EngineSettings, joined: Callable[[], None]) -> None:
    """Joins rank 0 as a rank above it: resolves its name and connects, again and again until it is there. Returns when rank 0 says that it
    ends; never if rank 0 is gone without a word."""
    host, port = settings.meets_at
    while True:
        try:
            reader, writer = await asyncio.open_connection(host, port)
            break
        except OSError as error:
            logging.info("rank %d cannot join %s:%d yet: %s", settings.node_rank, host, port, error)
            await asyncio.sleep(_RETRY_S)
    writer.write(b"%d\n" % settings.node_rank)
    joined()
    with contextlib.suppress(OSError):
        if await reader.readline() == _END:
            return
    logging.error("rank 0 is gone")
    await asyncio.Event().wait()
