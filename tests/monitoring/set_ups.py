"""How Prometheus is set up: the same engine must read the same through each of them.

Each story is (kind of set-up, test group of promtool); ``KINDS`` are counted in the output of the tests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from tests.monitoring.engines import DEPLOYMENT, sglang, target, vllm
from tests.monitoring.readings import POD, again, metric_values, reading
from tests.monitoring.story import Series, counter, gauge, label_set

_ENGINES: Mapping[str, Callable[[], Series]] = {
    "vllm": lambda: vllm("a", (600, 4, 10)),
    "sglang": lambda: sglang("a", (600, 4, 10)),
}
_FEDERATING = {"namespace": "monitoring", "pod": "prometheus-0", "job": "prometheus", "instance": "10.0.0.9:9090", "endpoint": "web"}


def _labelled(series: Series, **labels: str) -> Series:
    """With further labels."""
    more = label_set(**labels)[1:-1]
    return {name[:-1] + f",{more}}}": values for name, values in series.items()}


def _pair(series: Series) -> Series:
    """Two Prometheus replicas write to one store that does not deduplicate. The second scraped half a minute later."""
    return _labelled(series, prometheus="monitoring/k8s", prometheus_replica="a") | _labelled(
        series, prometheus="monitoring/k8s", prometheus_replica="b"
    )


def _second_endpoint(series: Series) -> Series:
    """A PodMonitor with two endpoints for one port: job and instance are the same."""
    return _labelled(series, endpoint="http", container="engine") | _labelled(series, endpoint="8000", container="engine")


def _federated(series: Series) -> Series:
    """Federated without honor_labels, by a ServiceMonitor: all labels that the target has too are renamed."""
    return {
        re.sub(r'([{,])(namespace|pod|job|instance|endpoint)="', r'\1exported_\2="', name)[:-1]
        + f",{label_set(**_FEDERATING)[1:-1]}}}": values
        for name, values in series.items()
    }


def _federated_with_labels_honoured(series: Series) -> Series:
    """By both replicas of a pair. An instance that the engine's series lack is that of the federated Prometheus."""
    return _labelled(series, instance="10.0.0.9:9090") | _labelled(series, instance="10.0.0.8:9090")


def _relabelled_namespace(series: Series) -> Series:
    """The target's namespace is not the engine's, whose own was renamed; the pod's name stayed."""
    return {
        name.replace('{namespace="', '{exported_namespace="').replace(',namespace="', ',exported_namespace="')[:-1]
        + ',namespace="monitoring"}': values
        for name, values in series.items()
    }


def _beside_its_worker(series: Series) -> Series:
    """A worker of a replica over several nodes has a page too, with the counts of the same engine."""
    worker = {
        name.replace('pod="a"', 'pod="a-1"').replace('serving_dflash_io_role="engine"', 'serving_dflash_io_role="worker"'): values
        for name, values in series.items()
    }
    assert not worker.keys() & series.keys()
    return series | worker


_SET_UPS: Mapping[str, Callable[[Series], Series]] = {
    "HA pair": _pair,
    "second scrape": again,
    "second endpoint of a monitor": _second_endpoint,
    "federation": _federated,
    "federation, labels honoured": _federated_with_labels_honoured,
    "relabelled namespace": _relabelled_namespace,
    "worker of several nodes": _beside_its_worker,
}


def _ranks(name: str, group_of: Callable[[int], str], all_export: bool) -> dict[str, Any]:
    """Eight schedulers. 24 tokens a pass in all at acceptance length 3: concurrency 8. ``group_of``: dp_rank, empty without."""
    groups = {group_of(rank) for rank in range(8)}
    series: dict[str, str] = {}
    labels = target("a")
    front = label_set(model_name="m", is_streaming="true", **labels)
    series[f"sglang:generation_tokens_total{front}"] = counter((1440, 10))
    series[f"sglang:spec_verify_calls_total{label_set(model_name='m', **labels)}"] = counter((480, 10))
    series[f"sglang:e2e_request_latency_seconds_sum{front}"] = counter((60, 10))
    for rank in range(8):
        group = {"dp_rank": group_of(rank)} if group_of(rank) else {}
        own = {"tp_rank": str(rank), "pp_rank": "0", "moe_ep_rank": str(rank), **group, **labels}
        first = all(group_of(other) != group_of(rank) for other in range(rank))
        if first or all_export:
            series[f"sglang:realtime_tokens_total{label_set(mode='decode', **own)}"] = counter((1440 / len(groups), 10))
            series[f"sglang:num_queue_reqs{label_set(**own)}"] = gauge((2, 11))
            series[f"sglang:max_total_num_tokens{label_set(**own)}"] = gauge((290790, 11))
            series[f"sglang:spec_num_draft_tokens{label_set(**own)}"] = gauge((16, 11))
        series[f"sglang:cuda_graph_passes_total{label_set(mode='decode_cuda_graph', **own)}"] = counter((60, 10))
        series[f"sglang:queue_time_seconds_sum{label_set(**own)}"] = counter((6 / len(groups), 10))
        series[f"sglang:per_stage_req_latency_seconds_sum{label_set(stage='prefill_forward', **own)}"] = counter((6 / len(groups), 10))
    pod = label_set(**POD, engine="sglang")
    return reading(
        f"SGLang: {name}",
        series,
        {
            "dflash:pod_info": {f"dflash:pod_info{pod}": 1},
            "dflash:pod_concurrency": {f"dflash:pod_concurrency{pod}": 8},
            "dflash:pod_generated_tokens:rate2m": {f"dflash:pod_generated_tokens:rate2m{pod}": 24},
            "dflash:pod_step_seconds": {f"dflash:pod_step_seconds{pod}": 0.1},
            "dflash:pod_requests_waiting": {f"dflash:pod_requests_waiting{pod}": 2 * len(groups)},
            "dflash:deployment_pods": {f"dflash:deployment_pods{label_set(**DEPLOYMENT)}": 1},
        },
    )


def _answers() -> dict[str, Any]:
    """A PodMonitor sets ``endpoint``, so that SGLang's own label of that name is renamed."""
    labels = label_set(endpoint="http", exported_endpoint="/v1/completions", status_code="500", method="POST", **target("a"))
    series = {
        f"sglang:max_total_num_tokens{label_set(endpoint='http', **target('a'))}": gauge((290790, 11)),
        f"sglang:http_responses_total{labels}": counter((6, 10)),
    }
    pod = label_set(**POD, engine="sglang")
    wanted = {"dflash:pod_failed_requests:rate2m": {f"dflash:pod_failed_requests:rate2m{pod}": 0.1}}
    return reading("SGLang: answers are found under the name that a PodMonitor leaves them", series, wanted)


def stories() -> list[tuple[str, dict[str, Any]]]:
    """Test groups of promtool by kind of set-up."""
    found = [
        (kind, reading(f"{engine} through {kind}", through(series()), metric_values(engine)))
        for kind, through in _SET_UPS.items()
        for engine, series in _ENGINES.items()
    ]
    found.append(("relabelled label of the engine", _answers()))
    for name, group_of in (
        ("tensor parallel 8", lambda _: ""),
        ("DP attention, 2 groups of 4", lambda rank: str(rank // 4)),
        ("DP attention, 8 groups", str),
    ):
        found.append((f"8 ranks, {name}", _ranks(f"{name}, all ranks export", group_of, all_export=True)))
        found.append((f"8 ranks, {name}", _ranks(f"{name}, the first of each group exports", group_of, all_export=False)))
    return found
