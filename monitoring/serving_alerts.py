"""Alerts on the service that users get, and on the metrics that show it. Pure."""

from __future__ import annotations

from dflash_controller.api import names
from dflash_controller.catalog.catalog import Catalog
from dflash_controller.observe.sources.prometheus.reduction import of_its_pod
from monitoring.alert import DEPLOYMENT, Alert
from monitoring.pod_rules import DEPLOYMENT_LABEL, scraped_label
from monitoring.revision_rules import TPOT_OBJECTIVE_S, TTFT_OBJECTIVE_S
from monitoring.rule import summed

_ALLOWED = 0.01
"""Share of the requests that may be slow: the objectives apply to the 99th percentile."""
_BURNS = (("1h", "5m", 14.4), ("6h", "30m", 6.0))
"""Long window, short window, burn rate: 2 % of a month's error budget in one hour, 5 % in six (Site Reliability Workbook, chapter 5)."""
_SAMPLES = 100
"""Minimum requests, as for a rollout (minSamples of ttft and latency)."""
_BURN_SOURCE = (
    "Objectives: MLPerf Inference, Llama 2 70B, Server: 99 % within 2 s and 0.2 s. Burn rates 14.4 and 6: Site Reliability Workbook. At "
    "least 100 requests in the long window, as for a rollout, and not in the first half hour, when kernels are compiled."
)


FAILING = 0.05
"""Share of failed requests from which a deployment is failing."""
_BLIND = "MetricsMissing|MetricsIncomplete|MetricsStale|MetricsUnreachable|PrometheusRequired|PrometheusError"
"""Reasons of MetricsAvailable that are failures; NoPods is none."""


def latency() -> list[Alert]:
    return [
        _burn("TTFT", "first_tokens", "slow_first_tokens", f"waited more than {TTFT_OBJECTIVE_S:g} s for the first token", "ttft-slo-burn"),
        _burn("TPOT", "timed_outputs", "slow_outputs", f"took more than {TPOT_OBJECTIVE_S:g} s per output token", "tpot-slo-burn"),
    ]


def _burn(what: str, measured: str, slow: str, what_happened: str, page: str) -> Alert:
    total, late = f"dflash:deployment_{measured}:rate2m", f"dflash:deployment_{slow}:rate2m"

    def share(window: str) -> str:
        return f"sum_over_time({late}[{window}]) / sum_over_time({total}[{window}])"

    either = [f"({share(long)} > {factor * _ALLOWED:.3f} and {share(short)} > {factor * _ALLOWED:.3f})" for long, short, factor in _BURNS]
    return Alert(
        name=f"DFlash{what}SLOBurn",
        expr=f"({' or '.join(either)})\nand 3600 * avg_over_time({total}[1h]) >= {_SAMPLES}\nand {total} offset 30m >= 0",
        hold="2m",
        severity="critical",
        summary=f"{DEPLOYMENT}: {{{{ $value | humanizePercentage }}}} of requests {what_happened}",
        description=(
            "At this rate the error budget of a month (1 % of its requests) is used up in five days or less. SGLang measures it for "
            "streaming requests only."
        ),
        page=page,
        source=_BURN_SOURCE,
    )


def load() -> list[Alert]:
    failed, requests = "dflash:deployment_failed_requests:rate2m", "dflash:deployment_requests:rate2m"
    serving = summed(("namespace", "deployment"), "dflash:pod_concurrency")
    return [
        Alert(
            name="DFlashQueueSaturated",
            expr=(
                "dflash:deployment_requests_waiting > 0\nand (dflash:deployment_kv_cache_usage > 0.9 or "
                f"dflash:deployment_requests_waiting > {serving})"
            ),
            hold="10m",
            severity="critical",
            summary=f'{DEPLOYMENT}: {{{{ $value | printf "%.0f" }}}} requests wait in the engines\' queues',
            description=(
                "The KV cache is full, or more requests wait than are served, so latency grows with every request. Another block size "
                "helps little; raise spec.replicas."
            ),
            page="queue-saturated",
            source=(
                "10 min outlast a burst. From 90 % of the KV cache on engines preempt requests; if as many wait as are served, waiting "
                "doubles latency."
            ),
        ),
        Alert(
            name="DFlashRequestsFailing",
            expr=(
                f"sum_over_time({failed}[5m]) / sum_over_time({requests}[5m]) > {FAILING:g}\nand 300 * avg_over_time({requests}[5m]) >= 20"
            ),
            hold="5m",
            severity="critical",
            summary=f"{DEPLOYMENT}: {{{{ $value | humanizePercentage }}}} of requests fail",
            description="The engine answered them with a 5xx status, or its error cut the answer short.",
            page="requests-failing",
            source="Five times what a rollout forgives a candidate (1 point), of at least 20 requests, as many as its fast path asks for.",
        ),
    ]


def replicas() -> list[Alert]:
    engine = of_its_pod(f'up{{{scraped_label(names.LABEL_ROLE)}="{names.ROLE_ENGINE}"}}')
    up = f'max by (namespace, pod, deployment) (label_replace({engine}, "deployment", "$1", "{DEPLOYMENT_LABEL}", "(.*)"))'
    return [
        Alert(
            name="DFlashReplicaDown",
            expr=f"count by (namespace, deployment) ({up} == 0)",
            hold="1h",
            severity="critical",
            summary=f"{DEPLOYMENT}: engine pods without an answer for an hour: {{{{ $value }}}}",
            description=(
                "No start takes that long. Prometheus cannot scrape /metrics, which engines serve as soon as they serve requests."
            ),
            page="replica-down",
            source="The longest start-up budget of the catalog's models is some 50 min.",
        ),
        Alert(
            name="DFlashMetricsMissing",
            expr=(
                "max by (namespace, deployment) "
                f'(dflash:condition_seconds{{type="MetricsAvailable",status="False",reason=~"{_BLIND}"}})\n'
                "or\nmax by (namespace, deployment) (dflash:replicas_serving > 0)\n"
                "unless on (namespace, deployment) dflash:deployment_pods"
            ),
            hold="10m",
            severity="warning",
            summary=f"{DEPLOYMENT}: engines serve, but the operator or Prometheus gets no metrics from them",
            description=(
                "No candidate is promoted by its metrics, the tuner is held, and alerts on this deployment cannot fire. Serving is not "
                "affected."
            ),
            page="metrics-missing",
            source="The operator says so after three bad rounds (90 s); 10 min outlast a restart of Prometheus.",
        ),
        Alert(
            name="DFlashCacheDiskLow",
            expr=(
                f"{_claims()}\n* on (namespace, persistentvolumeclaim) group_left ()\n"
                "min by (namespace, persistentvolumeclaim) (kubelet_volume_stats_available_bytes)\n"
                f"< {2 * _largest_drafter():.0f}"
            ),
            hold="15m",
            severity="warning",
            summary=(
                f"{DEPLOYMENT}: only {{{{ $value | humanize1024 }}}}B free on claim {{{{ $labels.persistentvolumeclaim }}}}, which stores "
                "its weights"
            ),
            description=(
                "The next drafter may not fit: then its download fails and the rollout stays in phase Preparing. Serving is not affected. "
                "The alert needs kube-state-metrics and the kubelet's metrics; without them it cannot fire."
            ),
            page="cache-disk-low",
            source="Twice the largest drafter of the catalog: the next one, and as much again for an incomplete download.",
        ),
    ]


def _claims() -> str:
    """Returns the claims that engine pods may write to, by deployment."""
    mounted = "kube_pod_spec_volumes_persistentvolumeclaims_info"
    written = f"{mounted} unless on (namespace, pod, volume) kube_pod_spec_volumes_persistentvolumeclaims_readonly == 1"
    tagged = f"({written}) * on (namespace, pod) group_left (deployment) dflash:pod_info"
    return f"group by (namespace, deployment, persistentvolumeclaim) ({tagged})"


def _largest_drafter() -> int:
    return max(pair.drafter_bytes for pair in Catalog.load().pairs)
