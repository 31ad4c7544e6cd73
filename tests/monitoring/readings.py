"""What the recording rules make of the engines' series: the same metrics of either engine, whatever its traps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.monitoring.engines import DEPLOYMENT, REVISION, sglang, target, vllm
from tests.monitoring.story import Series, counter, gauge, label_set

POD = {"namespace": "team", "pod": "a", "deployment": "qwen", "revision": "r1", "block_size": "16"}


def reading(name: str, series: Series, wanted: Mapping[str, Mapping[str, float]], at: str = "9m") -> dict[str, Any]:
    """``wanted``: query, and the values by label set (without the metric's name)."""
    looks = [
        {"expr": query, "eval_time": at, "exp_samples": [{"labels": labels, "value": value} for labels, value in found.items()]}
        for query, found in wanted.items()
    ]
    inputs = [{"series": one, "values": values} for one, values in series.items()]
    return {"name": name, "interval": "1m", "input_series": inputs, "promql_expr_test": looks}


def metric_values(engine: str) -> dict[str, dict[str, float]]:
    """600 steps a minute that commit five tokens each, at block size 16."""
    pod, revision = label_set(**POD, engine=engine), label_set(**REVISION, engine=engine)
    deployment = label_set(**DEPLOYMENT)
    return {
        "dflash:pod_info": {f"dflash:pod_info{pod}": 1},
        "dflash:pod_block_size": {f"dflash:pod_block_size{pod}": 16},
        "dflash:pod_steps:rate2m": {f"dflash:pod_steps:rate2m{pod}": 10},
        "dflash:pod_drafted_tokens:rate2m": {f"dflash:pod_drafted_tokens:rate2m{pod}": 150},
        "dflash:pod_accepted_tokens:rate2m": {f"dflash:pod_accepted_tokens:rate2m{pod}": 40},
        "dflash:pod_wasted_tokens:rate2m": {f"dflash:pod_wasted_tokens:rate2m{pod}": 110},
        "dflash:revision_acceptance_length": {f"dflash:revision_acceptance_length{revision}": 5},
        "dflash:revision_block_size_used": {f"dflash:revision_block_size_used{revision}": 16},
        "dflash:deployment_acceptance_length": {f"dflash:deployment_acceptance_length{deployment}": 5},
        "dflash:deployment_pods": {f"dflash:deployment_pods{deployment}": 1},
    }


def again(series: Series) -> Series:
    """As a second scrape job sees them."""
    return series | {name.replace('job="engines"', 'job="annotations"'): values for name, values in series.items()}


def _latency(engine: str, metric: str, **labels: str) -> Series:
    """Half of 60 requests a minute within 2 s (vLLM: 2.5 s), all within 4 s (5 s)."""
    bounds = {"sglang": ("2.0", "4.0"), "vllm": ("2.5", "5.0")}[engine]
    name = f"{engine}:{metric}_bucket"
    counts = dict(zip((*bounds, "+Inf"), (30, 60, 60), strict=True))
    return {f"{name}{label_set(le=bound, **labels, **target('a'))}": counter((count, 10)) for bound, count in counts.items()}


def _presence(engine: str, block_size: str = "16") -> Series:
    metric = {"sglang": "sglang:max_total_num_tokens", "vllm": "vllm:generation_tokens_total"}[engine]
    return {f"{metric}{label_set(**target('a', block_size=block_size))}": gauge((5, 11))}


def _streaming() -> dict[str, Any]:
    series = (
        _presence("sglang")
        | _latency("sglang", "time_to_first_token_seconds", is_streaming="true")
        | {
            f"sglang:time_to_first_token_seconds_bucket{label_set(le=bound, is_streaming='false', **target('a'))}": counter((count, 10))
            for bound, count in (("2.0", 0), ("4.0", 0), ("+Inf", 600))
        }
    )
    deployment = label_set(**DEPLOYMENT)
    return reading(
        "SGLang: the time to first token of requests that do not stream is their whole latency",
        series,
        {
            "dflash:deployment_first_tokens:rate2m": {f"dflash:deployment_first_tokens:rate2m{deployment}": 1},
            "dflash:deployment_slow_first_tokens:rate2m": {f"dflash:deployment_slow_first_tokens:rate2m{deployment}": 0.5},
            'dflash:revision_ttft_seconds{quantile="0.5"}': {
                f"dflash:revision_ttft_seconds{label_set(quantile='0.5', engine='sglang', **REVISION)}": 2
            },
        },
    )


def _ranks() -> dict[str, Any]:
    series: dict[str, str] = dict(_presence("sglang"))
    for rank in ("0", "1"):
        labels = label_set(dp_rank=rank, priority="", **target("a"))
        series |= {
            f"sglang:num_queue_reqs{labels}": gauge((3, 11)),
            f"sglang:num_running_reqs{labels}": gauge((8, 11)),
            f"sglang:cuda_graph_passes_total{label_set(mode='decode_cuda_graph', dp_rank=rank, **target('a'))}": counter((600, 5), (0, 5)),
        }
    series[f"sglang:num_queue_reqs{label_set(dp_rank='0', priority='1', **target('a'))}"] = gauge((3, 11))
    pod = label_set(**POD, engine="sglang")
    return reading(
        "SGLang: ranks of data parallelism are summed, a priority's part is not added, and a gauge that stays while idle is 0",
        series,
        {
            "dflash:pod_requests_waiting": {f"dflash:pod_requests_waiting{pod}": 6},
            "dflash:pod_requests_running": {f"dflash:pod_requests_running{pod}": 0},
            "dflash:pod_requests_running offset 5m": {f"dflash:pod_requests_running{pod}": 16},
        },
    )


def _vllm_ranks() -> dict[str, Any]:
    series: dict[str, str] = {}
    for rank in ("0", "1"):
        labels = label_set(engine=rank, **target("a"))
        series |= {
            f"vllm:generation_tokens_total{labels}": counter((300, 10)),
            f"vllm:num_requests_waiting{labels}": gauge((2, 11)),
            f"vllm:iteration_tokens_total_count{labels}": counter((60, 10)),
            f"vllm:inter_token_latency_seconds_count{labels}": counter((240, 10)),
            f"vllm:inter_token_latency_seconds_sum{labels}": counter((12, 10)),
        }
    pod = label_set(**POD, engine="vllm")
    return reading(
        "vLLM: ranks of data parallelism step together and each serve requests of their own",
        series,
        {
            "dflash:pod_generated_tokens:rate2m": {f"dflash:pod_generated_tokens:rate2m{pod}": 10},
            "dflash:pod_requests_waiting": {f"dflash:pod_requests_waiting{pod}": 4},
            "dflash:pod_concurrency": {f"dflash:pod_concurrency{pod}": 8},
            "dflash:pod_step_seconds": {f"dflash:pod_step_seconds{pod}": 0.05},
        },
    )


def _failures() -> dict[str, Any]:
    labels = target("a")
    series = {
        **_presence("vllm"),
        f"vllm:request_success_total{label_set(finished_reason='stop', engine='0', **labels)}": counter((60, 10)),
        f"vllm:request_success_total{label_set(finished_reason='error', engine='0', **labels)}": counter((6, 10)),
        f"http_requests_total{label_set(handler='/v1/completions', status='5xx', **labels)}": counter((12, 10)),
        f"http_requests_total{label_set(handler='/metrics', status='5xx', **labels)}": counter((600, 10)),
    }
    deployment = label_set(**DEPLOYMENT)
    return reading(
        "vLLM: a request that ends by an error and is answered by 5xx fails once",
        series,
        {
            "dflash:deployment_failed_requests:rate2m": {f"dflash:deployment_failed_requests:rate2m{deployment}": 0.2},
            "dflash:deployment_requests:rate2m": {f"dflash:deployment_requests:rate2m{deployment}": 1.2},
        },
    )


def _off() -> dict[str, Any]:
    labels = target("a", block_size="off")
    series = {
        **_presence("sglang", "off"),
        f"sglang:generation_tokens_total{label_set(**labels)}": counter((660, 10)),
        f"sglang:num_requests_total{label_set(**labels)}": counter((60, 10)),
        f"sglang:realtime_tokens_total{label_set(mode='decode', **labels)}": counter((600, 10)),
        f"sglang:cuda_graph_passes_total{label_set(mode='decode_cuda_graph', **labels)}": counter((150, 10)),
        f"sglang:e2e_request_latency_seconds_sum{label_set(**labels)}": counter((9, 10)),
        f"sglang:queue_time_seconds_sum{label_set(**labels)}": counter((1, 10)),
        f"sglang:per_stage_req_latency_seconds_sum{label_set(stage='prefill_forward', **labels)}": counter((2, 10)),
    }
    pod = label_set(**POD | {"block_size": "off"}, engine="sglang")
    return reading(
        "speculation off: no figures of drafts, and a step for every token after the first",
        series,
        {
            "dflash:pod_block_size": {f"dflash:pod_block_size{pod}": 1},
            "dflash:pod_acceptance_length": {},
            "dflash:pod_drafted_tokens:rate2m": {},
            "dflash:pod_concurrency": {f"dflash:pod_concurrency{pod}": 4},
            "dflash:pod_step_seconds": {f"dflash:pod_step_seconds{pod}": 0.01},
        },
    )


def _namespaces() -> dict[str, Any]:
    scraped = {"namespace": "dflash-system", "job": "annotations", "exported_namespace": "team"}
    honoured = {"namespace": "team", "job": "dflash-operator"}
    said = {
        "revision_info": {"deployment": "qwen", "revision": "r1", "role": "stable"},
        "rollout_info": {"deployment": "qwen", "revision": "r2", "origin": "Tuner"},
    }
    series = {
        f"dflash_{what}{label_set(**scrape, **labels)}": gauge((1, 11)) for what, labels in said.items() for scrape in (scraped, honoured)
    }
    wanted = {f"dflash:{what}": {f"dflash:{what}{label_set(namespace='team', **labels)}": 1.0} for what, labels in said.items()}
    return reading("the operator's series are those of the deployment's namespace", series, wanted)


def groups() -> list[dict[str, Any]]:
    """Test groups of promtool."""
    foreign = {name.replace("serving_dflash_io_deployment", "app"): values for name, values in vllm("x", (600, 4, 10)).items()}
    return [
        reading("vLLM", again(vllm("a", (600, 4, 10))) | foreign, metric_values("vllm")),
        reading("SGLang", again(sglang("a", (600, 4, 10))) | foreign, metric_values("sglang")),
        _streaming(),
        _ranks(),
        _vllm_ranks(),
        _failures(),
        _off(),
        _namespaces(),
    ]
