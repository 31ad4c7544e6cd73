"""One simulated engine process: starting, serving, draining, with its batch, metrics and faults. The caller gives the time."""

from __future__ import annotations

import enum
import math
import random
from collections.abc import Sequence

from testbed.simulator.batching import Batch, Request
from testbed.simulator.faults import SOUND, Faults
from testbed.simulator.metrics_sglang import SglangMetrics
from testbed.simulator.metrics_vllm import VllmMetrics
from testbed.simulator.settings import EngineSettings, version
from testbed.simulator.table import ModelTable
from testbed.simulator.text import answer, flipped


class Phase(enum.Enum):
    STARTING = "Starting"
    SERVING = "Serving"
    DRAINING = "Draining"


class SimulatedEngine:
    """A simulated engine. ``now`` is always in simulated seconds; ``created_s`` is the Unix time of the start, for the metrics page."""

    def __init__(
        self,
        settings: EngineSettings,
        table: ModelTable,
        *,
        now: float,
        startup_s: float = 0.0,
        faults: Faults = SOUND,
        created_s: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.settings = settings
        self.metrics: SglangMetrics | VllmMetrics = (
            SglangMetrics(settings) if settings.engine == "sglang" else VllmMetrics(settings, created_s)
        )
        self.batch = Batch(settings, table, self.metrics, seed)
        self.started_s = now
        self.ready_at_s = now + (startup_s if faults.startup_s is None else faults.startup_s)
        self._startup_s = 0.0
        self.draining_since_s: float | None = None
        self._now = now
        self._frozen_page: str | None = None
        self._random = random.Random(seed)
        self.faults = SOUND
        self.set_faults(faults)

    def wait_for_ranks(self) -> None:
        """Lets it start for as long as not all ranks have joined."""
        self._startup_s, self.ready_at_s = self.ready_at_s - self.started_s, math.inf

    def ranks_joined(self, now: float) -> None:
        """Lets it load its weights: it is ready after the time that it needs for that."""
        self.ready_at_s = now + self._startup_s

    def phase(self, now: float) -> Phase:
        if self.draining_since_s is not None:
            return Phase.DRAINING
        return Phase.SERVING if now >= self.ready_at_s else Phase.STARTING

    def set_faults(self, faults: Faults) -> None:
        """Sets the faults from the next step on. Call advance(now) first."""
        if faults.metrics == "frozen" and self.faults.metrics != "frozen":
            self._frozen_page = self._render(faults)
        self.faults = faults
        self.batch.acceptance_factor = faults.acceptance
        self.batch.step_time_factor = faults.step_time
        self.batch.compile_s = faults.compile_s

    def advance(self, now: float) -> None:
        """Runs everything up to ``now``. A hung engine only lets time pass."""
        if self.faults.hang:
            self.batch.delay(now - self._now)
        else:
            self.batch.advance(now)
        self._now = max(now, self._now)

    def submit(self, request: Request, now: float) -> None:
        """Adds a request to a serving engine."""
        self.advance(now)
        self.batch.submit(request, now)

    def drain(self, now: float) -> None:
        """Handles SIGTERM. SGLang serves on without a time limit; vLLM takes nothing new and drains for --shutdown-timeout seconds."""
        if self.draining_since_s is None:
            self.advance(now)
            self.draining_since_s = now

    def accepts(self, now: float) -> bool:
        """Returns whether a new request is served. If not, vLLM answers it at once with an aborted result."""
        return self.phase(now) is not Phase.DRAINING or self.settings.engine == "sglang"

    def may_exit(self, now: float) -> bool:
        """Returns whether the draining process ends now."""
        if self.draining_since_s is None:
            return False
        spent = self.settings.engine == "vllm" and now >= self.draining_since_s + self.settings.shutdown_timeout_s
        return spent or self.batch.idle

    def healthy(self, now: float) -> bool:
        """Returns the answer of /health: SGLang is unhealthy from SIGTERM on, vLLM is not."""
        if self.faults.unhealthy:
            return False
        return self.phase(now) is Phase.SERVING or (self.phase(now) is Phase.DRAINING and self.settings.engine == "vllm")

    @property
    def has_ready_endpoint(self) -> bool:
        """Returns whether the engine has /ready; SGLang has it since 0.5.20."""
        return self.settings.engine == "sglang" and version(self.settings.release) >= (0, 5, 20)

    @property
    def answers_http_while_starting(self) -> bool:
        """Returns whether the engine answers HTTP while it loads: SGLang answers 503; vLLM binds its port but answers nothing."""
        return self.settings.engine == "sglang"

    def page(self, now: float) -> str | None:
        """Returns the /metrics page; None if there is none."""
        if self.faults.metrics == "missing" or (self.settings.engine == "sglang" and not self.settings.metrics_enabled):
            return None
        if self.faults.metrics == "frozen":
            return self._frozen_page
        self.advance(now)
        return self._render(self.faults)

    def _render(self, faults: Faults) -> str:
        self.metrics.refresh(self.batch, self._now)
        # vLLM without statistics still serves the page, with the counts of its web server.
        return self.metrics.page.render((*faults.missing_series, *(() if self.settings.metrics_enabled else ("vllm:",))))

    def api_error(self) -> int | None:
        """Returns the status that this API request fails with, or None."""
        if self.faults.error_status and self._random.random() < self.faults.error_rate:
            return self.faults.error_status
        return None

    def text(self, prompt: str, tokens: int) -> Sequence[str]:
        """Returns the tokens of the answer. They depend on target and prompt only, unless the fault wrong_text or tie_rate is set."""
        settings = self.settings
        author = f"{settings.target} with {settings.drafter} {settings.drafter_revision}" if self.faults.wrong_text else settings.target
        right = answer(author, prompt, tokens)
        if self.faults.tie_rate and self._random.random() < self.faults.tie_rate:
            return flipped(right, author, prompt, at=self._random.randrange(max(1, tokens)))
        return right
