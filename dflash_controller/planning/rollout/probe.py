"""Decides which pods the probe asks, and which of its answers may be compared."""

from __future__ import annotations

from dflash_controller.api.defaults import RolloutPolicy
from dflash_controller.model.counters import ProbeRun
from dflash_controller.model.probe import Endpoint, ProbeRequest, prompts_name
from dflash_controller.planning.replicas.count import engines
from dflash_controller.planning.revisions.revision import Revision
from dflash_controller.planning.state.reconcile_state import ReconcileState


def paired_runs(policy: RolloutPolicy, stable: Revision, candidate: Revision, *, concurrent: bool) -> tuple[ProbeRun, ProbeRun] | None:
    """Returns the candidate's and the stable answers to compare, or None. If both revisions serve, only answers of the same run count."""
    wanted = prompts_name(policy.probe.prompts, policy.probe.max_tokens)
    tried, reference = candidate.probe, stable.probe
    if not policy.probe.enabled or tried is None or reference is None or not tried.prompts == reference.prompts == wanted:
        return None
    if concurrent and tried.finished_at_s != reference.finished_at_s:
        return None
    return tried, reference


def probe_pending(policy: RolloutPolicy, stable: Revision, candidate: Revision, *, concurrent: bool) -> bool:
    """Returns whether the texts can still be compared: stable answers exist or will exist, and the comparison is not done yet."""
    comparable = concurrent or stable.probe is not None
    return policy.probe.enabled and comparable and paired_runs(policy, stable, candidate, concurrent=concurrent) is None


def probe_needed(
    state: ReconcileState, policy: RolloutPolicy, stable: Revision, candidate: Revision, *, concurrent: bool
) -> ProbeRequest | None:
    """Returns the request for a candidate that is warm, with stable beside it if both serve.

    Returns None if all prompts have been answered, or if no pod can be asked now.
    """
    if not policy.probe.enabled or paired_runs(policy, stable, candidate, concurrent=concurrent):
        return None
    context = state.context
    warm = [
        pod
        for pod in engines(state.snapshot.pods)
        if pod.revision == candidate.hash
        and pod.serving
        and pod.ready_since is not None
        and (context.now - pod.ready_since).total_seconds() >= context.warm_up_s
    ]
    asked = _endpoint(state, candidate, [pod.name for pod in warm])
    reference = _endpoint(state, stable)
    if asked is None or (concurrent and reference is None):
        return None
    if not concurrent and stable.probe is None:
        return None
    return _request(state, policy, candidate=asked, reference=reference if concurrent else None)


def reference_needed(state: ReconcileState, policy: RolloutPolicy, stable: Revision) -> ProbeRequest | None:
    """Returns the request for stable's answers, which are stored for a candidate that cannot serve beside it.

    Returns None if the answers exist or cannot be obtained.
    """
    wanted = prompts_name(policy.probe.prompts, policy.probe.max_tokens)
    known = stable.probe is not None and stable.probe.prompts == wanted
    asked = _endpoint(state, stable)
    if not policy.probe.enabled or known or asked is None or state.context.probe_error:
        return None
    return _request(state, policy, candidate=None, reference=asked)


def _request(state: ReconcileState, policy: RolloutPolicy, *, candidate: Endpoint | None, reference: Endpoint | None) -> ProbeRequest:
    probe = policy.probe
    return ProbeRequest(
        key=state.snapshot.key,
        candidate=candidate,
        reference=reference,
        prompts=probe.prompts,
        max_tokens=probe.max_tokens,
        prompts_per_minute=probe.prompts_per_minute,
        timeout_s=probe.timeout_s,
    )


def _endpoint(state: ReconcileState, record: Revision, among: list[str] | None = None) -> Endpoint | None:
    """Returns the first serving pod by name, so every evaluation asks the same pod. None if no pod serves."""
    for pod in sorted(engines(state.snapshot.pods), key=lambda pod: pod.name):
        if pod.revision == record.hash and pod.serving and pod.ip and (among is None or pod.name in among):
            resolved = record.resolved
            return Endpoint(record.hash, pod.uid, pod.ip, resolved.port, resolved.engine, resolved.served_model_name)
    return None
