"""Systems that are well, on which no alert may fire."""

from __future__ import annotations

from typing import Any

from tests.monitoring.engines import DEPLOYMENT, NAME, role, sglang, target, vllm
from tests.monitoring.story import Series, counter, gauge, label_set, silence

_OPERATOR = {"namespace": "dflash-system", "pod": "dflash-operator-1", "instance": "10.0.0.1:8080", "job": "dflash-operator"}


_MINUTES = 100
"""How long each is watched."""


def _operator() -> Series:
    return {
        f"dflash_build_info{label_set(**_OPERATOR)}": gauge((1, _MINUTES)),
        f"dflash_leader{label_set(lease='dflash-operator', **_OPERATOR)}": gauge((1, _MINUTES)),
        f"dflash_workqueue_oldest_seconds{label_set(**_OPERATOR)}": gauge((0, _MINUTES)),
        f"dflash_last_resync_timestamp_seconds{label_set(**_OPERATOR)}": f"0+60x{_MINUTES - 1}",
        f"dflash_reconcile_total{label_set(result='success', **_OPERATOR)}": counter((2, _MINUTES)),
    }


def _phase(phase: str, *load_samples: tuple[float | None, int]) -> Series:
    return {f"dflash_rollout_phase{label_set(phase=phase, **DEPLOYMENT)}": gauge(*load_samples)}


def _tuner(state: str, reason: str, *load_samples: tuple[float | None, int]) -> Series:
    return {f"dflash_tuner_state{label_set(state=state, reason=reason, **DEPLOYMENT)}": gauge(*load_samples)}


def _ended(series: Series) -> Series:
    """The pods go: Prometheus marks their series as ended."""
    return {name: f"{values} stale" for name, values in series.items()}


def _called(name: str, series: Series) -> Series:
    """The same of another deployment, its pods and revisions."""
    return {
        one.replace(f'"{NAME}"', f'"{name}"').replace('pod="', f'pod="{name}-').replace('"r1"', f'"{name}-1"'): values
        for one, values in series.items()
    }


def _requests(pod: str) -> Series:
    """Fast answers of vLLM."""
    labels = target(pod)
    found = {}
    for name in ("time_to_first_token", "request_time_per_output_token"):
        for bound in ("0.01", "0.2", "2.5", "+Inf"):
            found[f"vllm:{name}_seconds_bucket{label_set(le=bound, engine='0', **labels)}"] = counter((60, _MINUTES))
    found[f"vllm:request_success_total{label_set(finished_reason='stop', engine='0', **labels)}"] = counter((60, _MINUTES))
    found[f"vllm:request_success_total{label_set(finished_reason='error', engine='0', **labels)}"] = counter((0, _MINUTES))
    found[f"vllm:num_requests_waiting{label_set(engine='0', **labels)}"] = gauge((0, _MINUTES))
    found[f"vllm:kv_cache_usage_perc{label_set(engine='0', **labels)}"] = gauge((0.4, _MINUTES))
    return found


def _settled() -> Series:
    return role("stable", _MINUTES) | _phase("Completed", (1, _MINUTES)) | _tuner("Advising", "Tuned", (1, _MINUTES))


def _settled_systems() -> Series:
    """Deployments beside each other: busy, idle after some traffic, scaled to zero, in a first start of 50 minutes."""
    last = _MINUTES - 1
    zero = (
        _ended(vllm("a", (600, 4, 20)))
        | role("stable", _MINUTES)
        | _phase("Completed", (1, _MINUTES))
        | _tuner("Held", "MetricsMissing", (None, 21), (1, _MINUTES - 21))
        | _tuner("Advising", "Tuned", (1, 21), (None, _MINUTES - 21))
    )
    first = {f"up{label_set(**target('a'))}": gauge((0, 50), (1, _MINUTES - 50))} | _phase("Progressing", (1, 55), (None, _MINUTES - 55))
    return (
        _operator()
        | _called("busy", _settled() | vllm("a", (600, 4, last)) | _requests("a"))
        | _called("idle-vllm", _settled() | vllm("a", (600, 4, 20), (0, 0, last - 20)))
        | _called("idle-sglang", _settled() | sglang("a", (600, 4, 20), (0, 0, last - 20)))
        | _called("zero", zero)
        | _called("first", first)
    )


def _rollout() -> Series:
    """r2 loads for 20 minutes on one replica, is judged for 20 and takes the place of r1."""
    loading = {f"up{label_set(**target('c', 'r2'))}": gauge((None, 10), (0, 20), (1, _MINUTES - 30))}
    roles = {
        ("r1", "stable"): gauge((1, 50), (None, _MINUTES - 50)),
        ("r2", "candidate"): gauge((None, 10), (1, 40), (None, _MINUTES - 50)),
        ("r2", "stable"): gauge((None, 50), (1, _MINUTES - 50)),
        ("r1", "retired"): gauge((None, 50), (1, _MINUTES - 50)),
    }
    return (
        _operator()
        | _ended(vllm("a", (600, 4, 60)))
        | _ended(sglang("b", (600, 4, 70)))
        | {name: "_x30 " + values for name, values in vllm("c", (600, 4.2, _MINUTES - 31), revision="r2").items()}
        | loading
        | {
            f"dflash_revision_info{label_set(revision=revision, role=role, **DEPLOYMENT)}": values
            for (revision, role), values in roles.items()
        }
        | _phase("Completed", (1, 10), (None, _MINUTES - 10))
        | _phase("Canary", (None, 10), (1, 20), (None, _MINUTES - 30))
        | _phase("Analyzing", (None, 30), (1, 20), (None, _MINUTES - 50))
        | _phase("Progressing", (None, 50), (1, _MINUTES - 50))
        | _tuner("Frozen", "Frozen", (None, 10), (1, _MINUTES - 10))
    )


def groups(alerts: list[str]) -> list[dict[str, Any]]:
    """A test group for each."""
    return [
        silence("healthy deployments", _settled_systems(), ("5m", "21m", "30m", "49m", "59m", "85m", "99m"), alerts),
        silence("a rollout", _rollout(), ("9m", "29m", "35m", "52m", "62m", "75m", "99m"), alerts),
    ]
