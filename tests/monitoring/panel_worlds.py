"""Series for tests of all panels: worlds that tempt a query to split rows, to name two lines alike, or to divide too little by too little.

Series of the recording rules are given as recorded, with the labels that their rules declare.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from monitoring import operator_rules
from monitoring.recording_rules import rules
from tests.monitoring.recorded import Recorded

STEP_S = 30
SPAN_S = 1800
"""Length of a world's history."""
NAMESPACES = ("blue", "green")
DEPLOYMENTS = ("chat", "code")
REVISIONS: Mapping[str, Mapping[str, str]] = {
    "rold": {"block_size": "16", "engine": "sglang"},
    "rnew": {"block_size": "schedule-8", "engine": "vllm"},
}
"""Two revisions with another engine and block size each. Both namespaces have both deployments, with revisions and pods of equal names."""
PODS = ("0", "1")
SAID: Mapping[str, tuple[str, ...]] = {
    "role": ("stable", "candidate"),
    "phase": ("Preparing", "Completed"),
    "origin": ("User", "Tuner"),
    "verdict": ("Inconclusive", "Successful"),
    "metric": ("speed", "errors"),
    "side": ("candidate", "stable", "limit"),
    "limit": ("asked", "effective"),
    "state": ("Tuning", "Frozen"),
    "reason": ("Tuned", "Frozen"),
    "name": ("gainPercent", "confidence", "concurrency", "acceptance", "costSeconds", "modelErrorPercent"),
    "type": ("Ready", "Stalled"),
    "status": ("True", "False"),
    "le": ("1", "+Inf"),
    "quantile": ("0.5", "0.95", "0.99"),
    "position": ("0", "1", "11"),
    "stage": ("load_weight", "kv_cache_allocation"),
    "block_size": ("8", "16"),
}
"""Values of labels that a rule's series may have at once: two operators speak during a handover, and each of what it last knew."""
OPERATOR: Mapping[str, tuple[str, ...]] = {
    "dflash_leader": ("lease",),
    "dflash_build_info": ("version",),
    "dflash_workqueue_oldest_seconds": (),
    "dflash_workqueue_depth": (),
    "dflash_reconcile_total": ("result",),
    "dflash_reconcile_errors_total": ("error",),
    "dflash_reconcile_duration_seconds_bucket": ("le",),
    "dflash_workqueue_wait_seconds_bucket": ("le",),
    "dflash_api_requests_total": ("verb", "kind", "code"),
    "dflash_api_request_duration_seconds_bucket": ("verb", "le"),
    "dflash_last_event_timestamp_seconds": ("kind",),
    "dflash_last_resync_timestamp_seconds": (),
    "dflash_deployments": ("phase",),
    "dflash_rollout_phases_total": ("phase",),
    "process_cpu_seconds_total": (),
    "process_resident_memory_bytes": (),
    "scrape_samples_scraped": (),
}
"""What the operator's own dashboard asks of the operator, by its labels."""
OPERATORS = {
    "lease": ("dflash",),
    "version": ("1.0.0", "1.1.0"),
    "result": ("success", "error"),
    "error": ("KeyError",),
    "verb": ("get", "list"),
    "kind": ("Pod", "Service"),
    "code": ("200", "409"),
    **{label: SAID[label] for label in ("le", "phase")},
}
SAMPLES_PER_S = 5.0
KEYS = {rule.record: rule.keys for rule in rules()}
"""Labels of each rule's series."""


def crowd(end: float) -> Iterator[Recorded]:
    """Everything at once: names that are unique only with their namespace, two words for one state, two scrapes of one process."""
    for record, keys in KEYS.items():
        for labels in _labels(keys):
            # 15 drafts a step: block size 16.
            drafts = 15 if "drafted" in record else 1
            yield _level(record, labels, end, value=1.0 if record.endswith("_info") else SAMPLES_PER_S * drafts)
    for namespace, deployment, revision, pod in itertools.product(NAMESPACES, DEPLOYMENTS, REVISIONS, PODS):
        target = {"namespace": namespace, "pod": f"{deployment}-{pod}", "instance": f"10.0.0.{pod}:8000"}
        scraped = {"serving_dflash_io_deployment": deployment, "serving_dflash_io_revision": revision}
        for job, up in (("podmonitor", 1.0), ("annotations", 0.0)):
            yield _level("up", target | scraped | {"job": job}, end, value=up)
    yield from operators(end)


def operators(end: float, jobs: tuple[str, ...] = ("servicemonitor", "annotations")) -> Iterator[Recorded]:
    """Two processes of the operator, as these scrape jobs see them."""
    for metric, labels in OPERATOR.items():
        rising = metric.endswith(("_total", "_bucket"))
        for values in itertools.product(*(OPERATORS[label] for label in labels)):
            for pod, job in itertools.product(PODS, jobs):
                process = {"namespace": "dflash-system", "pod": f"operator-{pod}", "instance": f"10.0.1.{pod}:8080", "job": job}
                own = process | dict(zip(labels, values, strict=True))
                yield _rising(metric, own, end) if rising else _level(metric, own, end, value=1.0)


def newcomer(end: float) -> Iterator[Recorded]:
    """A stable revision with plenty of samples, one request in ten of which fails, and a candidate half a minute old: its failures have
    been counted twice and its finished requests once, so all its ratios are 1."""
    yield from _serving(end, "rold", "stable", SPAN_S, rate=SAMPLES_PER_S, failed=0.1, measured=0.1)
    yield from _serving(end, "rnew", "candidate", STEP_S, rate=SAMPLES_PER_S, failed=1.0, measured=1.0)


def ramp(end: float) -> Iterator[Recorded]:
    """The load of one deployment jumps half a minute ago, and the measured speed follows later; the load of the other is steady."""
    for deployment, now, measured in (("chat", 3600.0, 700.0), ("code", 600.0, 570.0)):
        own = {"namespace": NAMESPACES[0], "deployment": deployment}
        predicted = {at: now if at > end - STEP_S else 600.0 for at in _times(end, SPAN_S)}
        yield Recorded("dflash:tuner_predicted_tokens_per_second", own | {"block_size": "16"}, predicted)
        yield _level("dflash:tuner_measured_tokens_per_second", own | {"block_size": "16"}, end, value=measured)
        yield _level("dflash:deployment_block_size", own, end, value=16.0)


def uneven(end: float) -> Iterator[Recorded]:
    """A large deployment that is well, and a small one of which one request in five fails: 0.2 % of all requests."""
    yield from _serving(end, "rold", "stable", SPAN_S, rate=100 * SAMPLES_PER_S, failed=0.0, measured=1.0)
    yield from _serving(end, "rnew", "stable", SPAN_S, rate=SAMPLES_PER_S, failed=0.2, measured=1.0, deployment=DEPLOYMENTS[1])


def trial(end: float) -> Iterator[Recorded]:
    """A stable revision with 5 tokens per step, and a collapsed candidate with a tenth of the traffic."""
    yield from _serving(end, "rold", "stable", SPAN_S, rate=10 * SAMPLES_PER_S, failed=0.0, measured=1.0, accepted=4.0)
    yield from _serving(end, "rnew", "candidate", SPAN_S, rate=SAMPLES_PER_S, failed=0.0, measured=1.0, accepted=0.01)


def trickle(end: float) -> Iterator[Recorded]:
    """One request in two minutes, of one revision, for long. It failed."""
    yield from _serving(end, "rold", "stable", SPAN_S, rate=1 / 120, failed=1.0, measured=1.0)
    yield from _serving(end, "rnew", "candidate", SPAN_S, rate=1 / 120, failed=1.0, measured=1.0)


def _serving(
    end: float,
    revision: str,
    role: str,
    since_s: int,
    *,
    rate: float,
    failed: float,
    measured: float,
    accepted: float = 1.0,
    deployment: str = DEPLOYMENTS[0],
) -> Iterator[Recorded]:
    """One revision's series of the engines: rates of ``rate``, failures of which ``failed`` is the share, ``accepted`` drafts per step,
    ratios of ``measured``."""
    for record, keys in KEYS.items():
        if record in operator_rules.NORMALISED or record == "dflash:condition_seconds":
            continue
        part = failed if "failed" in record else accepted if "accepted_tokens" in record else 1.0
        value = rate * part if record.endswith(":rate2m") else 1.0 if record.endswith(("_pods", "_info")) else measured
        for labels in _labels(keys, namespaces=NAMESPACES[:1], deployments=(deployment,), revisions=(revision,)):
            if "revision" in labels or role == "stable":
                yield _level(record, labels, end, since_s, value)
    info = {"namespace": NAMESPACES[0], "deployment": deployment, "revision": revision, "role": role}
    yield _level("dflash:revision_info", info, end, since_s, 1.0)


def _labels(
    keys: tuple[str, ...],
    namespaces: tuple[str, ...] = NAMESPACES,
    deployments: tuple[str, ...] = DEPLOYMENTS,
    revisions: tuple[str, ...] = tuple(REVISIONS),
) -> Iterator[dict[str, str]]:
    """Every set of labels that a rule's series may have. A revision decides its engine, its block size and the names of its pods."""
    levels = {"namespace": namespaces, "deployment": deployments, "revision": revisions, "pod": PODS}
    chosen = [label for label in levels if label in keys]
    for found in itertools.product(*(levels[label] for label in chosen)):
        own = dict(zip(chosen, found, strict=True))
        if "pod" in own:
            own["pod"] = f"{own['deployment']}-{own['revision']}-{own['pod']}"
        if "engine" in keys:
            own |= REVISIONS[own["revision"]]
        others = [label for label in keys if label not in own]
        for values in itertools.product(*(SAID[label] for label in others)):
            yield own | dict(zip(others, values, strict=True))


def _level(metric: str, labels: Mapping[str, str], end: float, since_s: int = SPAN_S, value: float = 1.0) -> Recorded:
    return Recorded(metric, labels, dict.fromkeys(_times(end, since_s), value))


def _rising(metric: str, labels: Mapping[str, str], end: float) -> Recorded:
    return Recorded(metric, labels, {at: SAMPLES_PER_S * (at - end + SPAN_S) for at in _times(end, SPAN_S)})


def _times(end: float, since_s: int) -> list[float]:
    return [end - ago for ago in range(since_s, -1, -STEP_S)]
