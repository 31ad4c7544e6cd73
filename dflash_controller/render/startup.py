"""Computes how long an engine may take to start before the kubelet restarts it, from the bytes and the rate of the weights."""

from __future__ import annotations

import math

from dflash_controller.engines.resolve import Resolved
from dflash_controller.model.fetch_progress import in_units

SAFETY = 1.5
"""Safety factor on the load time: a shared link or disk is slower when several replicas start together."""
COMPILE_S = 600
"""Time for torch.compile, kernel builds and CUDA graph capture. Measured on one H100 from start to ready: 78 to 187 s for a
dense 8B target; 224 and 243 s (vLLM 0.26.0), 165 s (SGLang 0.5.17) for a hybrid 9B. Kernels compiled just in time without a cache can add
minutes, and so can a larger target, so the slowest start takes less than half of this."""
SCHEDULING_S = 600
"""Time for scheduling and image pull, which count towards a progress deadline but not a startup probe."""
PROBE_PERIOD_S = 10
SLOWEST_BYTES_PER_S = 20_000_000
"""Rate of a slow line to a hub, at which weights are still fetched ahead of a rollout."""


def load_s(resolved: Resolved) -> int:
    """Returns the seconds to load the weights: bytes / assumed rate x 1.5."""
    return math.ceil(resolved.weight_bytes / resolved.load_bytes_per_s * SAFETY)


def fetch_s(resolved: Resolved) -> int:
    """Returns the seconds in which the init container fetches the weights; 0 if the engine downloads them: ``load_s`` includes it then."""
    if not resolved.fetch_image:
        return 0
    return math.ceil(resolved.weight_bytes / (resolved.fetch_bytes_per_s or resolved.load_bytes_per_s) * SAFETY)


def job_limit_s(resolved: Resolved) -> int:
    """Returns the seconds after which an attempt to fetch the weights ahead is ended.

    ``dflash-fetch`` itself ends when no byte has arrived for ten minutes. Otherwise this limit ends a download that hangs.
    """
    if not resolved.fetch_image:
        return load_s(resolved)
    return max(fetch_s(resolved), math.ceil(resolved.weight_bytes / SLOWEST_BYTES_PER_S))


def budget_reason(resolved: Resolved) -> str:
    """Returns what the start-up budget is made of, in one line."""
    size = in_units(resolved.weight_bytes) if resolved.weights_known else f"at most {in_units(resolved.weight_bytes)}"
    how = "measured at the slowest start from this storage" if resolved.load_measured else "assumed: no start has been measured yet"
    factor = f"times {SAFETY} for safety"
    text = f"{size} at {in_units(resolved.load_bytes_per_s)}/s ({how}), {factor}, and {COMPILE_S} s to compile"
    if not resolved.fetch_image:
        return text
    fetched = in_units(resolved.fetch_bytes_per_s or resolved.load_bytes_per_s)
    source = "measured" if resolved.fetch_bytes_per_s else "assumed"
    return f"{text}. Before that, up to {fetch_s(resolved)} s to fetch them at {fetched}/s ({source}), and longer while bytes arrive"


def startup_budget_s(resolved: Resolved) -> int:
    """Returns the seconds from container start to the first answer: load the weights, compile, capture graphs."""
    return load_s(resolved) + COMPILE_S


def startup_failure_threshold(resolved: Resolved) -> int:
    """Returns the number of startup probes, one every PROBE_PERIOD_S, that may fail within the budget."""
    return math.ceil(startup_budget_s(resolved) / PROBE_PERIOD_S)


def progress_deadline_s(resolved: Resolved) -> int:
    """Returns progressDeadlineSeconds of a Deployment: fetch, start-up budget, scheduling and image pull, and the drain of one pod.

    With maxSurge 0 a new pod waits for the accelerators of the old one.
    """
    return fetch_s(resolved) + startup_budget_s(resolved) + SCHEDULING_S + resolved.grace_period_s
