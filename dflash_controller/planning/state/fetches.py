"""Reports how far the init containers are that fetch a revision's weights."""

from __future__ import annotations

from dflash_controller.api import names
from dflash_controller.model.snapshot import Pod
from dflash_controller.planning.state.reconcile_state import ReconcileState


def told(state: ReconcileState, revision: str) -> str | None:
    """Returns one or two sentences on the engine pods of a revision that fetch weights; None if none does.

    They change at most once a minute. Of several pods the one that is the least far is told.
    """
    pods = _fetching(state, revision)
    if not pods:
        return None
    what = f"Pods like {pods[0].name} fetch" if len(pods) > 1 else f"Pod {pods[0].name} fetches"
    readings = [state.context.fetching[pod.name] for pod in pods if pod.name in state.context.fetching]
    if not readings:
        return f"{what} the weights"
    slowest = min(readings, key=lambda reading: reading.share)
    return f"{what} the weights. {'The slowest' if len(pods) > 1 else 'It'} has {slowest.sentence()}"


def arriving(state: ReconcileState, revision: str) -> bool:
    """Returns whether bytes arrive at an engine pod of the revision."""
    return any(arrives(state, pod) for pod in _fetching(state, revision))


def arrives(state: ReconcileState, pod: Pod) -> bool:
    """Returns whether the pod fetches weights and bytes arrive. A pod that cannot be asked says nothing."""
    reading = state.context.fetching.get(pod.name)
    return pod.fetching and reading is not None and reading.rate > 0


def _fetching(state: ReconcileState, revision: str) -> list[Pod]:
    served = (names.ROLE_ENGINE, names.ROLE_WORKER)
    found = [pod for pod in state.snapshot.pods if pod.role in served and pod.revision == revision and pod.fetching and not pod.terminating]
    return sorted(found, key=lambda pod: pod.name)
