"""The settings that the simulator takes from an engine's command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from testbed.simulator.access import Access
from testbed.simulator.cache_blocks import DEFAULT_UTILIZATION, CacheBlocks

Version = tuple[int, ...]


def version(release: str) -> Version:
    """Returns ``0.5.23`` as numbers to compare. Raises ValueError for anything else."""
    return tuple(int(part) for part in release.split("."))


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """One engine process as its command line describes it. ``block_size`` 1 means that speculation is off."""

    engine: str
    release: str
    target: str
    served_model_name: str
    port: int
    block_size: int = 1
    schedule: tuple[tuple[int, int, int], ...] = ()
    """``(low, high, K)`` by requests in a step, inclusive, ascending from 1; empty for a fixed block size (vLLM >= 0.26)."""
    drafter: str | None = None
    drafter_revision: str | None = None
    tensor_parallel: int = 1
    max_concurrency: int = 32
    state_slots: int = 0
    """Slots of SGLang's state cache; 0 for a target without state, and where their number is not known: then it holds all requests."""
    slots_per_request: int = 5
    cache: CacheBlocks | None = None
    """vLLM's blocks. None: every request finds room."""
    memory_share: float = DEFAULT_UTILIZATION
    """vLLM's ``--gpu-memory-utilization``, as its page shows it."""
    metrics_enabled: bool = True
    nodes: int = 1
    node_rank: int = 0
    meets_at: tuple[str, int] = ("", 0)
    """Host and port of rank 0, where the ranks of several nodes meet."""
    extra_metric_labels: Mapping[str, str] = field(default_factory=dict)
    shutdown_timeout_s: float = 0.0
    decode_log_interval: int = 40
    metrics_of_all_schedulers: bool = False
    argv: tuple[str, ...] = ()
    access: Access = field(default_factory=Access)

    @property
    def served(self) -> int:
        """Requests that the engine serves at once: those asked for, or as many as have slots of state."""
        return min(self.max_concurrency, self.state_slots // self.slots_per_request) if self.state_slots else self.max_concurrency

    def block_for(self, concurrency: int) -> int:
        """Returns the block size of a step with ``concurrency`` requests. In a gap of a schedule and past its end the range before
        applies."""
        if not self.schedule:
            return self.block_size
        begun = [drafts for low, _, drafts in self.schedule if low <= concurrency]
        return min(self.block_size, begun[-1] + 1)
