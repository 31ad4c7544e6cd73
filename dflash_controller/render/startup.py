"""Computes how long an engine may take to start before the kubelet restarts it."""

from __future__ import annotations

import math

from dflash_controller.engines.resolve import Resolved

SAFETY = 1.5
"""Safety factor on the load time: a shared link or disk is slower when several replicas start together."""
COMPILE_S = 600
"""Time for torch.compile, kernel builds and CUDA graph capture. Measured on one H100 from start to ready: 78 to 187 s for a
dense 8B target; 224 and 243 s (vLLM 0.26.0), 165 s (SGLang 0.5.17) for a hybrid 9B. Kernels compiled just in time without a cache can add
minutes, and so can a larger target, so the slowest start takes less than half of this."""
SCHEDULING_S = 600
"""Time for scheduling and image pull, which count towards a progress deadline but not a startup probe."""
PROBE_PERIOD_S = 10


def load_s(resolved: Resolved) -> int:
    """Returns the seconds to load the weights: bytes / assumed rate x 1.5."""
    return math.ceil(resolved.weight_bytes / resolved.load_bytes_per_s * SAFETY)


def startup_budget_s(resolved: Resolved) -> int:
    """Returns the seconds from container start to the first answer: load the weights, compile, capture graphs."""
    return load_s(resolved) + COMPILE_S


def startup_failure_threshold(resolved: Resolved) -> int:
    """Returns the number of startup probes, one every PROBE_PERIOD_S, that may fail within the budget."""
    return math.ceil(startup_budget_s(resolved) / PROBE_PERIOD_S)


def progress_deadline_s(resolved: Resolved) -> int:
    """Returns progressDeadlineSeconds of a Deployment: start-up budget, scheduling and image pull, and the drain of one pod.

    With maxSurge 0 a new pod waits for the accelerators of the old one.
    """
    return startup_budget_s(resolved) + SCHEDULING_S + resolved.grace_period_s
