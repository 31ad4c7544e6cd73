"""One run of the probe: every prompt to every side, at its pace, as far as there are slots for its requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from dflash_controller.engines.probe_reading import ProbeFailure
from dflash_controller.model.counters import Answer, ProbeRun
from dflash_controller.model.probe import Endpoint, ProbeRequest, ProbeRuns
from dflash_controller.model.snapshot import Key
from dflash_controller.observe.probe.client import Client
from dflash_controller.observe.probe.prompts import prompts
from dflash_controller.observe.probe.slots import Slots

FIRST_PROMPTS = 5
"""A side that answers none of so many prompts at the start will not answer the others."""


class ProbeError(Exception):
    """The run brought nothing that can be compared. The message says which side failed and how; it names no address."""


class Asks(Protocol):
    """``client.Client``."""

    async def ask(self, endpoint: Endpoint, prompt: str, max_tokens: int, timeout_s: float) -> Answer: ...

    async def close(self) -> None: ...


@dataclass(slots=True)
class _Side:
    """One engine and what it answered so far."""

    name: str
    endpoint: Endpoint
    answers: list[Answer | None] = field(default_factory=list)
    failure: str = ""

    def take(self, answer: Answer | None, of: int) -> None:
        """Raises ProbeError where the side has failed too often."""
        self.answers.append(answer)
        failed = self.answers.count(None)
        if failed == len(self.answers) == FIRST_PROMPTS:
            raise ProbeError(f"The {self.name} answered none of the probe's first {FIRST_PROMPTS} prompts: {self.failure}.")
        if 2 * failed > of:
            raise ProbeError(f"The {self.name} failed more than half of the probe's prompts, the last one with: {self.failure}.")


class Probe:
    """Sends the prompts. ``now`` dates a run (seconds since the epoch), ``clock`` paces it."""

    def __init__(
        self,
        client: Asks | None = None,
        *,
        slots: Slots | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._client = client or Client(clock)
        self._slots = slots or Slots(clock=clock)
        self._clock = clock
        self._now = now

    async def run(self, request: ProbeRequest) -> ProbeRuns:
        """Ask everything that is to be asked. Raises ProbeError.

        A prompt goes to one side and then to the other, taking turns in who is first, so that neither has more than one request in flight
        and both see the same load. In a second pass the engines show whether they repeat themselves: prompts with two different texts are
        asked again on both sides, and where there is one side only, whose text may be found different later, all of them are.
        """
        sides = [
            _Side(name, endpoint)
            for name, endpoint in (("candidate", request.candidate), ("stable replica", request.reference))
            if endpoint is not None
        ]
        texts = prompts(request.prompts)
        pace = _Pace(60.0 / request.prompts_per_minute, self._clock)
        for number, text in enumerate(texts):
            await pace.wait()
            for side in sides if number % 2 == 0 else reversed(sides):
                side.take(await self._ask(side, text, request, pace), len(texts))
        for number in _to_repeat(sides):
            await pace.wait()
            for side in sides if number % 2 == 0 else reversed(sides):
                before, again = side.answers[number], await self._ask(side, texts[number], request, pace)
                if before is not None and again is not None:
                    side.answers[number] = replace(before, repeats=again.text == before.text)
        # Both bear the same date, by which runs that were made side by side are known.
        at = float(round(self._now()))
        runs = {side.name: ProbeRun(side.endpoint.revision, request.prompts_name, tuple(side.answers), at) for side in sides}
        return ProbeRuns(runs.get("candidate"), runs.get("stable replica"))

    def waited_s(self, key: Key) -> float:
        """Returns for how many seconds the deployment's requests have waited for slots since ``forget``."""
        return self._slots.waited_s(key)

    def forget(self, key: Key) -> None:
        """Counts ``waited_s`` from zero again."""
        self._slots.forget(key)

    async def _ask(self, side: _Side, text: str, request: ProbeRequest, pace: _Pace) -> Answer | None:
        async with self._slots.turn(request.key):
            pace.begin()
            try:
                return await self._client.ask(side.endpoint, text, request.max_tokens, request.timeout_s)
            except ProbeFailure as failure:
                side.failure = str(failure)
                return None

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()


def _to_repeat(sides: Sequence[_Side]) -> Iterable[int]:
    for number, answers in enumerate(zip(*(side.answers for side in sides), strict=True)):
        texts = {answer.text for answer in answers if answer is not None}
        if texts and (len(sides) == 1 or len(texts) > 1):
            yield number


class _Pace:
    """At least ``period_s`` between the first requests of two prompts; one that comes late does not make the next come early."""

    def __init__(self, period_s: float, clock: Callable[[], float]) -> None:
        self._period_s = period_s
        self._clock = clock
        self._next_s: float | None = None
        self._begun = False

    async def wait(self) -> None:
        """Waits until the next prompt may be sent."""
        if self._next_s is not None:
            await asyncio.sleep(max(0.0, self._next_s - self._clock()))
        self._begun = False

    def begin(self) -> None:
        """Notes that a request is sent now: the time spent waiting for a slot does not count."""
        if not self._begun:
            self._begun, self._next_s = True, self._clock() + self._period_s
