"""How long an engine may take to start before the kubelet gives up on it."""

from __future__ import annotations

import math

from dflash_controller.engines.resolve import Resolved

SAFETY = 1.5
"""On the assumed rate: a shared link or disk is slower when several replicas start together."""
COMPILE_S = 600
"""torch.compile, kernel builds and CUDA graph capture. Measured for an 8B target on one H100: 78 to 187 s in all; kernels that
are compiled just in time without a cache can add minutes."""
SCHEDULING_S = 600
"""Scheduling and image pull, which a startup probe does not see but a progress deadline does."""
PROBE_PERIOD_S = 10


def load_s(resolved: Resolved) -> int:
    """Seconds until the weights have arrived: bytes / assumed rate x 1.5."""
    return math.ceil(resolved.weight_bytes / resolved.load_bytes_per_s * SAFETY)


def startup_budget_s(resolved: Resolved) -> int:
    """Seconds from container start to the first answer: the weights, then compilation and graph capture."""
    return load_s(resolved) + COMPILE_S


def startup_failure_threshold(resolved: Resolved) -> int:
    """Failed startup probes, one every PROBE_PERIOD_S, until the budget is spent."""
    return math.ceil(startup_budget_s(resolved) / PROBE_PERIOD_S)


def progress_deadline_s(resolved: Resolved) -> int:
    """Seconds without progress after which a Deployment says so: start-up budget, scheduling and image pull, and one pod's drain,
    since with maxSurge 0 a new pod waits for the old one's accelerators."""
    return startup_budget_s(resolved) + SCHEDULING_S + resolved.grace_period_s
