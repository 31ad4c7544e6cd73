"""Load over HTTP on a list of engines, with the OpenAI API."""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import Iterable, Mapping

import aiohttp

from dflash_controller.cli.bench.clients import Clients, Target
from testbed.traffic.mix import Shot
from testbed.traffic.scrape import Totals, total

__all__ = ["Client", "Target"]
WORKLOAD_HEADER = "x-dflash-workload"


class Client(Clients[Shot]):
    """Sends requests of a mix to the completion API."""

    async def open_loop(self, rate: float, seconds: float = math.inf, seed: int = 0) -> None:
        """Sends ``rate`` requests per second on average, at random moments, whatever the engines do, for some seconds or until stop()."""
        arrivals = random.Random(seed)
        due_s = self.now() + arrivals.expovariate(rate)
        end_s = self.now() + seconds
        async with asyncio.TaskGroup() as group:
            while due_s < end_s and not self._stopped:
                await asyncio.sleep(max(0.0, due_s - self.now()))
                group.create_task(self._send(self._requests.next()))
                due_s += arrivals.expovariate(rate)

    async def acceptance_totals(self) -> Totals:
        """Returns the summed counters of all engines that answer."""
        assert self._session is not None
        pages = await asyncio.gather(*(self._page(url) for url in self._target.urls))
        return total(page for page in pages if page is not None)

    async def _page(self, url: str) -> str | None:
        assert self._session is not None
        try:
            async with self._session.get(f"{url}/metrics") as response:
                return await response.text() if response.status == 200 else None
        except (aiohttp.ClientError, TimeoutError):
            return None

    def _body(self, shot: Shot) -> dict[str, object]:
        body: dict[str, object] = {"model": self._target.model, "prompt": shot.prompt, "max_tokens": shot.max_tokens, "temperature": 0}
        body |= {"ignore_eos": True}
        if shot.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body

    async def _complete(self, url: str, shot: Shot) -> tuple[int, float | None]:
        assert self._session is not None
        headers = {WORKLOAD_HEADER: shot.workload}
        async with self._session.post(f"{url}/v1/completions", json=self._body(shot), headers=headers) as response:
            response.raise_for_status()
            if not shot.stream:
                answer = await response.json()
                _refuse_aborted(answer["choices"])
                return int(answer["usage"]["completion_tokens"]), None
            return await self._read_stream(response)

    async def _read_stream(self, response: aiohttp.ClientResponse) -> tuple[int, float | None]:
        first_s: float | None = None
        tokens = 0
        async for line in response.content:
            data = line.removeprefix(b"data: ").strip()
            if not data or data == b"[DONE]":
                continue
            if first_s is None:
                first_s = self.now()
            event = json.loads(data)
            _refuse_aborted(event["choices"])
            if event.get("usage"):
                tokens = int(event["usage"]["completion_tokens"])
        return tokens, first_s


def _refuse_aborted(choices: Iterable[Mapping[str, object]]) -> None:
    if any(choice.get("finish_reason") == "abort" for choice in choices):
        raise ValueError("aborted by the engine")
