"""Continuous batching in simulated time: requests join and leave between steps.

A step with c requests lasts ``s(B, c)`` and commits a random 1 ... B tokens for each of them. Nothing here reads a clock: the caller gives
the time and may be late; every event still happens at its exact time.
"""

from __future__ import annotations

import math
import random
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from testbed.simulator.acceptance import Sampler
from testbed.simulator.settings import EngineSettings
from testbed.simulator.table import ModelTable

PREFILL_S_PER_TOKEN = 1e-5
"""Prefill time in seconds per prompt token: 100,000 tokens per second. It is small compared with decoding, as in the published tables
(which include prefill)."""
SCHEDULE_DRAFT_COST = 1.045
"""Step time factor of a schedule below its largest block size. A schedule is 3 to 6 % slower there than a true block of that size, because
the draft pass still computes the full block."""


@dataclass(slots=True, eq=False)
class Request:
    """One request in an engine. Times are simulated seconds, None before they happen (``last_token_s``: 0 before the first token)."""

    workload: str
    prompt_tokens: int
    max_tokens: int
    streaming: bool = False
    arrived_s: float = 0.0
    admitted_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float = 0.0
    finished_s: float | None = None
    generated: int = 0
    verify_steps: int = 0
    preemptions: int = 0
    aborted: bool = False
    chances: random.Random | None = None
    """Draws this request's acceptance; None: the engine's own generator draws it."""
    draws: list[int] | None = None
    """If it is a list, the tokens of each verify step are appended to it, including those that the length limit cuts."""

    @property
    def done(self) -> bool:
        return self.finished_s is not None or self.aborted

    @property
    def tokens(self) -> int:
        """Tokens of prompt and answer so far."""
        return self.prompt_tokens + self.generated


@dataclass(slots=True)
class Pass:
    """One step of the engine. Request ``decoding[i]`` received ``draws[i]`` tokens, of which its length limit kept ``kept[i]``."""

    start_s: float
    end_s: float
    block: int
    decoding: list[Request]
    prefilling: list[Request]
    draws: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)


class Observer(Protocol):
    """Is called for every event, in order."""

    def admitted(self, request: Request) -> None:
        """The request enters its first forward pass at ``admitted_s``."""

    def stepped(self, done: Pass, batch: Batch) -> None:
        """A pass ended and its tokens are credited to its requests. ``last_token_s`` still holds the time of each request's previous
        token."""

    def finished(self, request: Request) -> None:
        """The request generated its last token."""

    def preempted(self, request: Request) -> None:
        """The request gave its blocks to others and waits again. It will prefill its prompt and what it has generated."""

    def aborted(self, request: Request) -> None:
        """The client disconnected or the engine dropped the request."""


class Batch:
    """The scheduler of one engine."""

    def __init__(self, settings: EngineSettings, table: ModelTable, observer: Observer, seed: int = 0) -> None:
        self.settings = settings
        self.table = table
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self.step_time_factor = 1.0
        self.prefill_pass_s = 0.0
        """Seconds that a pass with any prefill takes longer, however few its tokens: about 0.08 with a hybrid target on an H100."""
        self.compile_s = 0.0
        """Seconds that the first pass of each shape takes longer (``faults.Faults``)."""
        self._compiled: set[tuple[int, int]] = set()
        self._acceptance_factor = 1.0
        self._observer = observer
        self._random = random.Random(seed)
        self._mixed_prefill = settings.engine == "vllm"
        self._current: Pass | None = None
        self._samplers: dict[tuple[str, int], Sampler] = {}

    @property
    def acceptance_factor(self) -> float:
        return self._acceptance_factor

    @acceptance_factor.setter
    def acceptance_factor(self, factor: float) -> None:
        if factor != self._acceptance_factor:
            self._acceptance_factor = factor
            self._samplers.clear()

    @property
    def next_event_s(self) -> float | None:
        """Returns when the current pass ends; None while idle."""
        return self._current.end_s if self._current else None

    @property
    def idle(self) -> bool:
        return self._current is None

    @property
    def in_service(self) -> list[Request]:
        """Returns the admitted requests, including those in prefill."""
        return self.running + [r for r in self._current.prefilling if not r.done] if self._current else self.running

    @property
    def tokens_held(self) -> int:
        """Returns the number of tokens in the KV cache."""
        return sum(request.tokens for request in self.in_service)

    @property
    def blocks_held(self) -> int:
        """Returns the blocks of the cache that requests hold."""
        return sum(map(self._blocks, self.in_service))

    def submit(self, request: Request, now: float) -> None:
        """Adds a request. Call advance(now) first if passes may have ended since."""
        request.arrived_s = now
        self.waiting.append(request)
        if self._current is None:
            self._begin(now)

    def abort(self, request: Request) -> None:
        """Drops a request. Its share of the current pass is lost."""
        if request.done:
            return
        request.aborted = True
        if request in self.waiting:
            self.waiting.remove(request)
        elif request in self.running:
            self.running.remove(request)
        self._observer.aborted(request)

    def advance(self, now: float) -> None:
        """Runs every pass that has ended by ``now``."""
        while self._current is not None and self._current.end_s <= now:
            self.step()

    def step(self) -> float:
        """Ends the current pass and begins the next; returns the time. Raises RuntimeError while idle."""
        done = self._current
        if done is None:
            raise RuntimeError("nothing to do")
        self._complete(done)
        self._begin(done.end_s)
        return done.end_s

    def delay(self, seconds: float) -> None:
        """Delays the end of the current pass, because the engine stood still in the meantime."""
        if self._current is not None:
            self._current.end_s += seconds

    def earliest_finish_s(self) -> float | None:
        """Returns a time before which no request can finish; None while idle. With it a caller is on time without waking for every step."""
        current = self._current
        if current is None:
            return None
        remaining = min((r.max_tokens - r.generated for r in current.decoding), default=1)
        if any(r.max_tokens == 1 for r in current.prefilling):
            remaining = 1
        steps = -(-remaining // current.block)
        return current.end_s + (steps - 1) * (current.end_s - current.start_s)

    def _begin(self, now: float) -> None:
        admitted = self._admit(now)
        if not admitted and not self.running:
            self._current = None
            return
        decoding = list(self.running) if self._mixed_prefill or not admitted else []
        block = self.settings.block_for(len(decoding) + len(admitted))  # vLLM decides by all requests of the step, prefills included
        duration = sum(request.tokens for request in admitted) * PREFILL_S_PER_TOKEN + (self.prefill_pass_s if admitted else 0.0)
        if decoding:
            duration += self._decode_s(decoding, block)
        duration = duration * self.step_time_factor + self._compile_s(block, decoding, admitted)
        self._current = Pass(now, now + duration, block, decoding, admitted)

    def _compile_s(self, block: int, decoding: Sequence[Request], admitted: Sequence[Request]) -> float:
        shapes = {(block, (len(decoding) - 1).bit_length())} if decoding else set()
        if admitted:
            shapes.add((0, sum(request.prompt_tokens for request in admitted).bit_length()))
        new = shapes - self._compiled
        self._compiled |= new
        return len(new) * self.compile_s

    def _admit(self, now: float) -> list[Request]:
        """Returns the waiting requests that enter the next pass, in their order.

        vLLM first finds blocks for the tokens that the running requests may get. Where there are none, it takes those of the request that
        was admitted last, and admits nothing in that pass (``Scheduler.schedule``).
        """
        room = self._room()
        admitted: list[Request] = []
        while self.waiting and len(self.running) + len(admitted) < self.settings.served:
            room -= self._blocks(self.waiting[0])
            if room < 0 and (self.running or admitted):
                break
            request = self.waiting.popleft()
            admitted.append(request)
            if request.admitted_s is None:
                request.admitted_s = now
                self._observer.admitted(request)
        return admitted

    def _room(self) -> float:
        """Returns the free blocks, 0 after a preemption."""
        cache = self.settings.cache
        if cache is None:
            return math.inf
        room = cache.usable - sum(map(self._blocks, self.running))
        if room >= 0:
            return room
        while room < 0 and len(self.running) > 1:
            last = self.running.pop()
            room += self._blocks(last)
            last.preemptions += 1
            self.waiting.appendleft(last)
            self._observer.preempted(last)
        return 0

    def _blocks(self, request: Request) -> int:
        """Returns the blocks of a request, those for the drafts of its next step included."""
        cache = self.settings.cache
        return 0 if cache is None else cache.held(request.tokens + self.settings.block_size)

    def _decode_s(self, decoding: Sequence[Request], block: int) -> float:
        concurrency = len(decoding)
        mix = Counter(request.workload for request in decoding)
        step = sum(n * self.table.step_time_s(workload, block, concurrency) for workload, n in mix.items()) / concurrency
        return step * SCHEDULE_DRAFT_COST if 1 < block < self.settings.block_size else step

    def _complete(self, done: Pass) -> None:
        done.decoding = [request for request in done.decoding if not request.aborted]
        done.prefilling = [request for request in done.prefilling if not request.aborted]
        for request in done.decoding:
            chances = request.chances or self._random
            draw = 1 + self._sampler(request.workload, done.block).accepted(chances.random())
            kept = min(draw, request.max_tokens - request.generated)
            done.draws.append(draw)
            done.kept.append(kept)
            request.generated += kept
            request.verify_steps += 1
            if request.draws is not None:
                request.draws.append(draw)
        for request in done.prefilling:
            request.generated += 1
            if request.first_token_s is None:
                request.first_token_s = done.end_s
        self.running.extend(done.prefilling)
        self._observer.stepped(done, self)
        for request in (*done.decoding, *done.prefilling):
            request.last_token_s = done.end_s
            if request.generated >= request.max_tokens:
                request.finished_s = done.end_s
                self._observer.finished(request)
        self.running = [request for request in self.running if request.finished_s is None]

    def _sampler(self, workload: str, block: int) -> Sampler:
        key = (workload, block)
        sampler = self._samplers.get(key)
        if sampler is None:
            survival = self.table.acceptance(workload, block).survival(block, self._acceptance_factor) if block > 1 else ()
            sampler = self._samplers[key] = Sampler(survival)
        return sampler
