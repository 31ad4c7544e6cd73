"""Recording rules of revisions and deployments. Pods are summed before quotients, so a busy pod weighs more than an idle one. Pure."""

from __future__ import annotations

from dflash_controller.model.series import PROCESS, Series
from monitoring.engine_queries import METRIC_SCHEMAS, rate, rate_of
from monitoring.rule import DEPLOYMENT, QUANTILES, REVISION, REVISION_INFO, Rule, any_of, listed, quotient, summed, tagged

TTFT_OBJECTIVE_S = 2.0
TPOT_OBJECTIVE_S = 0.2
"""Time to first token and per output token, in seconds, that 99 of 100 requests should keep. These are the limits of MLPerf Inference for
Llama 2 70B, scenario Server (99th percentile at most 2000 ms and 200 ms)."""
_TTFT_BOUND = '"2|2[.]0|2[.]5"'
"""The bucket next to the objective: SGLang's ends at 2 s, vLLM's at 2.5 s."""
_TPOT_BOUND = '"0[.]2"'

_SGLANG_TOKENS = Series("token_gap", "sglang:inter_token_latency_seconds_bucket", PROCESS)
"""Used for releases without a time per output token by request (before 0.5.22). It has one observation per token, for streaming requests
only."""


def rules() -> list[Rule]:
    """Returns the rules in order: later rules use earlier ones. The rules of pods come before."""
    return [*_speculation(), *_load(), *_latencies()]


def deployment_rules() -> list[Rule]:
    """Returns the rules in order: later rules use earlier ones. The rules of revisions come before."""
    return [*_deployments(), *_objectives()]


def _rule(what: str, expr: str, also: tuple[str, ...] = ()) -> Rule:
    return Rule(f"dflash:revision_{what}", expr, (*REVISION, *also))


def _sum(what: str) -> Rule:
    return _rule(what, summed(REVISION, f"dflash:pod_{what}"))


def _speculation() -> list[Rule]:
    steps, accepted, drafted = (f"dflash:revision_{what}:rate2m" for what in ("steps", "accepted_tokens", "drafted_tokens"))
    at = f"dflash:pod_acceptance_at_position * on ({listed((*REVISION, 'pod'))}) group_left () dflash:pod_steps:rate2m"
    shared = f"/ on ({listed(REVISION)}) group_left () ({steps} > 0)"
    return [
        _rule("pods", f"count by ({listed(REVISION)}) (dflash:pod_info)"),
        _rule("block_size", f"max by ({listed(REVISION)}) (dflash:pod_block_size)"),
        *(_sum(f"{what}:rate2m") for what in ("steps", "drafted_tokens", "accepted_tokens", "wasted_tokens")),
        _rule("block_size_used", f"1 + {quotient(drafted, steps)}"),
        _rule("acceptance_length", f"1 + {quotient(accepted, steps)}"),
        _rule("acceptance_ratio", quotient(accepted, drafted)),
        _rule("acceptance_at_position", f"{summed((*REVISION, 'position'), at)} {shared}", also=("position",)),
    ]


def _load() -> list[Rule]:
    seconds, steps = "dflash:revision_decode_seconds:rate2m", "dflash:revision_decode_steps:rate2m"
    per_step = '(dflash:revision_acceptance_length or dflash:revision_block_size{block_size="off"})'
    return [
        *(_sum(f"{what}:rate2m") for what in ("generated_tokens", "prompt_tokens", "requests", "failed_requests")),
        *(_sum(f"{what}:rate2m") for what in ("decode_seconds", "decode_steps")),
        _rule("error_ratio", quotient("dflash:revision_failed_requests:rate2m", "dflash:revision_requests:rate2m")),
        _rule("concurrency", any_of(f"avg by ({listed(REVISION)}) (dflash:pod_concurrency > 0)", "0 * dflash:revision_pods")),
        _rule("step_seconds", quotient(seconds, steps) + " > 0"),
        _rule("tpot_seconds_mean", f"dflash:revision_step_seconds / {per_step}"),
        _rule("replica_speed", "(dflash:revision_concurrency > 0) / dflash:revision_tpot_seconds_mean"),
    ]


def _latencies() -> list[Rule]:
    per_token = f"({rate_of('sglang', 'time_per_token', ('le',))}) or on (namespace, pod) ({rate(_SGLANG_TOKENS, ('le',))})"
    buckets = {
        "ttft_seconds": [rate_of(engine, "ttft", ("le",)) for engine in METRIC_SCHEMAS],
        "tpot_seconds": [rate_of("vllm", "time_per_token", ("le",)), per_token],
        "request_seconds": [rate_of(engine, "latency", ("le",)) for engine in METRIC_SCHEMAS],
    }
    found = []
    for what, exprs in buckets.items():
        counted = f"{what}_bucket:rate2m"
        found.append(_rule(counted, any_of(*(summed((*REVISION, "le"), tagged(expr)) for expr in exprs)), also=("le",)))
        for quantile in QUANTILES:
            # Without observations the quantile is NaN; the comparison removes it.
            expr = f"histogram_quantile({quantile}, dflash:revision_{counted}) >= 0"
            found.append(Rule(f"dflash:revision_{what}", expr, (*REVISION, "quantile"), {"quantile": quantile}))
    return found


def _total(what: str, expr: str) -> Rule:
    return Rule(f"dflash:deployment_{what}", expr, DEPLOYMENT)


def _deployments() -> list[Rule]:
    steps, accepted = (summed(DEPLOYMENT, f"dflash:revision_{what}:rate2m") for what in ("steps", "accepted_tokens"))
    stable = f'group by (namespace, deployment, revision) ({REVISION_INFO}{{role="stable"}})'
    summable = ("generated_tokens", "requests", "failed_requests")
    block = f"dflash:revision_block_size * on (namespace, deployment, revision) group_left () {stable}"
    return [
        _total("pods", summed(DEPLOYMENT, "dflash:revision_pods")),
        _total("block_size", f"max by ({listed(DEPLOYMENT)}) ({block})"),
        _total("acceptance_length", f"1 + {quotient(accepted, steps)}"),
        *(_total(f"{what}:rate2m", summed(DEPLOYMENT, f"dflash:revision_{what}:rate2m")) for what in summable),
        _total("error_ratio", quotient("dflash:deployment_failed_requests:rate2m", "dflash:deployment_requests:rate2m")),
        *(_total(what, summed(DEPLOYMENT, f"dflash:pod_{what}")) for what in ("requests_running", "requests_waiting")),
        _total("kv_cache_usage", f"avg by ({listed(DEPLOYMENT)}) (dflash:pod_kv_cache_usage)"),
    ]


def _objectives() -> list[Rule]:
    """Returns the number of measured requests and the number of slow ones. Ratios over hours use these, so pods that are gone still
    count."""
    found = []
    for measured, slow, buckets, bound in (
        ("first_tokens", "slow_first_tokens", "dflash:revision_ttft_seconds_bucket:rate2m", _TTFT_BOUND),
        ("timed_outputs", "slow_outputs", "dflash:revision_tpot_seconds_bucket:rate2m", _TPOT_BOUND),
    ):
        everything, kept = (summed(DEPLOYMENT, f"{buckets}{{le{match}}}") for match in ('="+Inf"', f"=~{bound}"))
        found += [_total(f"{measured}:rate2m", everything), _total(f"{slow}:rate2m", f"clamp_min({everything} - {kept}, 0)")]
    return found


def history_rules() -> list[Rule]:
    """Returns the rules over days and weeks. Prometheus need not keep more than a week of data."""
    steps, accepted = "dflash:revision_steps:rate2m", "dflash:revision_accepted_tokens:rate2m"
    means = (
        _rule(
            f"acceptance_length:mean{window}",
            f"1 + {quotient(f'sum_over_time({accepted}[{window}])', f'sum_over_time({steps}[{window}])')}",
        )
        for window in ("1d", "7d")
    )
    return [*means, _rule("acceptance_length:median7d", "quantile_over_time(0.5, dflash:revision_acceptance_length[7d])")]
