"""Recording rules ``dflash:*``: one set of names for both engines. Pure.

Names have the form ``dflash:<level>_<what>``, with ``:rate2m`` for values per second over the last two minutes. Levels and their labels:

* ``pod``: namespace, pod, deployment, revision, block_size, engine.
* ``revision``: namespace, deployment, revision, block_size, engine.
* ``deployment``: namespace, deployment.

``block_size`` is the pods' label: ``16``, ``schedule-16`` or ``off``. ``engine`` is ``sglang`` or ``vllm``. A join with
``dflash:revision_info`` (namespace, deployment, revision, role) separates candidate and stable::

    dflash:revision_acceptance_length
      * on (namespace, deployment, revision) group_left (role) dflash:revision_info

Acceptance and related values come from counters only, because gauges of speculation freeze while an engine is idle. While its denominator
does not move, a quotient has no value; rates and levels are then 0. SGLang credits verify steps and generated tokens when a request ends.

Prometheus must scrape engine pods with the labels ``namespace`` and ``pod`` and with the pods' own labels
(``serving_dflash_io_deployment``, ``…_revision``, ``…_block_size``, ``…_role``). The operator's PodMonitor does so, and so does the usual
``labelmap`` of annotated pods. Pods without these labels are left out. Where Prometheus holds several clusters, all levels have the label
of the cluster in addition (value ``metrics.groupLabels`` of the chart).
"""

from __future__ import annotations

from typing import Any

from monitoring import operator_rules, pod_rules, revision_rules
from monitoring.rule import Rule, group

_GROUPS = {
    "dflash.operator": operator_rules.rules,
    "dflash.pods": pod_rules.rules,
    "dflash.revisions": revision_rules.rules,
    "dflash.deployments": revision_rules.deployment_rules,
    "dflash.history": revision_rules.history_rules,
}
_INTERVALS = {"dflash.history": "2m"}
"""Evaluation interval of groups that need not use Prometheus' own. It is shorter than the 5 min for which Prometheus finds a sample."""

MEANINGS = {
    # Pods
    "dflash:pod_info": "Always 1: an engine pod that answers scrapes.",
    "dflash:pod_block_size": "Block size B as configured, the largest of a schedule; 1: speculation off.",
    "dflash:pod_steps:rate2m": "Verify steps of requests. Absent with speculation off, as all figures of drafts.",
    "dflash:pod_drafted_tokens:rate2m": "Draft tokens, K = B - 1 a step.",
    "dflash:pod_accepted_tokens:rate2m": "Draft tokens that the target accepted.",
    "dflash:pod_wasted_tokens:rate2m": "Draft tokens that it refused.",
    "dflash:pod_acceptance_length": "Tokens per verify step, 1 + accepted / steps.",
    "dflash:pod_acceptance_ratio": "Accepted / drafted, 0 to 1.",
    "dflash:pod_acceptance_at_position": "Share of steps that accepted the draft at this position (0: the first). vLLM only.",
    "dflash:pod_generated_tokens:rate2m": "Generated tokens.",
    "dflash:pod_prompt_tokens:rate2m": "Tokens of prompts.",
    "dflash:pod_decode_seconds:rate2m": "Time that requests spent decoding: about the number of requests that decode.",
    "dflash:pod_decode_steps:rate2m": "Decode steps of requests, with speculation or without.",
    "dflash:pod_step_seconds": "Time of one decode step of a request.",
    "dflash:pod_concurrency": "Requests in one step, from counters; 0 while idle. More to be believed than requests_running.",
    "dflash:pod_requests_running": "The engine's own gauge; 0 while no step runs. SGLang's is up to 40 steps old, and too low.",
    "dflash:pod_requests_waiting": "Requests in the engine's queue.",
    "dflash:pod_kv_cache_usage": "Part of the KV cache in use, 0 to 1.",
    "dflash:pod_startup_seconds": "Time of a stage of the start (load_weight, kv_cache_allocation, …). SGLang 0.5.17 and later only.",
    "dflash:pod_failed_requests:rate2m": "Requests that were answered by 5xx or ended by an error.",
    "dflash:pod_requests:rate2m": "Requests that ended, failed ones included.",
    # Revisions
    "dflash:revision_pods": "Pods that answer scrapes.",
    "dflash:revision_block_size": "As of the pods.",
    "dflash:revision_steps:rate2m": "As of the pods, summed; so are all rates.",
    "dflash:revision_drafted_tokens:rate2m": "",
    "dflash:revision_accepted_tokens:rate2m": "",
    "dflash:revision_wasted_tokens:rate2m": "",
    "dflash:revision_block_size_used": "1 + drafted / steps: under a schedule it moves with the load.",
    "dflash:revision_acceptance_length": "As of the pods, weighed by steps.",
    "dflash:revision_acceptance_ratio": "",
    "dflash:revision_acceptance_at_position": "",
    "dflash:revision_generated_tokens:rate2m": "",
    "dflash:revision_prompt_tokens:rate2m": "",
    "dflash:revision_requests:rate2m": "",
    "dflash:revision_failed_requests:rate2m": "",
    "dflash:revision_decode_seconds:rate2m": "",
    "dflash:revision_decode_steps:rate2m": "",
    "dflash:revision_error_ratio": "Failed / all requests, 0 to 1.",
    "dflash:revision_concurrency": "Mean over the pods that are not idle.",
    "dflash:revision_step_seconds": "As of the pods, weighed by steps.",
    "dflash:revision_tpot_seconds_mean": "Mean time per output token of a request: step time / acceptance length.",
    "dflash:revision_replica_speed": "Tokens per second of one replica while it is busy: what the tuner predicts by block size.",
    "dflash:revision_ttft_seconds_bucket:rate2m": "Histogram of the time to first token. SGLang: of streaming requests.",
    "dflash:revision_ttft_seconds": "Its quantiles.",
    "dflash:revision_tpot_seconds_bucket:rate2m": "Histogram of the time per output token. SGLang: of streaming requests.",
    "dflash:revision_tpot_seconds": "Its quantiles.",
    "dflash:revision_request_seconds_bucket:rate2m": "Histogram of the time of whole requests.",
    "dflash:revision_request_seconds": "Its quantiles.",
    "dflash:revision_acceptance_length:mean1d": "Over the last day, weighed by steps.",
    "dflash:revision_acceptance_length:mean7d": "Over the last week, weighed by steps.",
    "dflash:revision_acceptance_length:median7d": "Median of the last week, by time with traffic.",
    # Deployments
    "dflash:deployment_pods": "Pods of all revisions; so are all sums below.",
    "dflash:deployment_block_size": "Of the stable revision.",
    "dflash:deployment_acceptance_length": "Of all pods.",
    "dflash:deployment_generated_tokens:rate2m": "",
    "dflash:deployment_requests:rate2m": "",
    "dflash:deployment_failed_requests:rate2m": "",
    "dflash:deployment_error_ratio": "",
    "dflash:deployment_requests_running": "",
    "dflash:deployment_requests_waiting": "",
    "dflash:deployment_kv_cache_usage": "Mean of the pods.",
    "dflash:deployment_first_tokens:rate2m": "Requests whose time to first token was measured.",
    "dflash:deployment_slow_first_tokens:rate2m": "Those of them that waited longer than the objective.",
    "dflash:deployment_timed_outputs:rate2m": "Requests whose time per output token was measured.",
    "dflash:deployment_slow_outputs:rate2m": "Those of them slower than the objective.",
    # What the operator exports, in the deployment's own namespace
    "dflash:revision_info": "Always 1: what a revision is (role: stable, candidate, failed, superseded, retired).",
    "dflash:rollout_phase": "Always 1: the phase a rollout is in.",
    "dflash:rollout_info": "Always 1: the revision of the newest rollout, and who asked for it (origin: User, Tuner, Rollback).",
    "dflash:rollout_verdict": "Always 1: the last verdict on a metric.",
    "dflash:rollout_metric": "What it compared (side: candidate, stable, limit), in the metric's unit.",
    "dflash:tuner_state": "Always 1: what the tuner does, and why.",
    "dflash:tuner_recommended_block_size": "Block size it would choose; 1: speculation off.",
    "dflash:tuner_predicted_tokens_per_second": "Of one replica at the load seen, by block size.",
    "dflash:tuner_measured_tokens_per_second": "The same as measured over the tuner's window.",
    "dflash:tuner_crossover_concurrency": "Requests per replica at which the two fastest block sizes change places, as predicted.",
    "dflash:condition_since_timestamp_seconds": "When a condition got its status.",
    "dflash:condition_seconds": "For how long it has had it.",
    "dflash:notice": "Always 1: a notice of the status.",
    "dflash:replicas_desired": "Replicas that the deployment should have.",
    "dflash:replicas_serving": "Replicas that serve.",
    "dflash:max_concurrency": "Requests one replica serves at once (limit: asked, effective as its engine says).",
    "dflash:startup_budget_seconds": "How long an engine may take from the start of its container to Ready.",
    "dflash:startup_seconds": "The longest that a serving pod took from being made to Ready.",
    "dflash:tuner_input": "A number that its last decision rests on.",
}
"""Meaning of every rule; empty: the same as one level below. ``:rate2m`` is per second."""


def rules() -> list[Rule]:
    """Returns all rules, with the labels of their series (``Rule.keys``)."""
    return [rule for rules_of in _GROUPS.values() for rule in rules_of()]


def groups() -> list[dict[str, Any]]:
    """Returns the groups of a Prometheus rule file. Later groups read earlier ones, which are at most one evaluation old."""
    return [group(name, rules_of(), _INTERVALS.get(name)) for name, rules_of in _GROUPS.items()]
