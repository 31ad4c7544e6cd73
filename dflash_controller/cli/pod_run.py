"""Runs one pod for some seconds, and removes it, whatever happens."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from dflash_controller.cli.connection import Cluster
from dflash_controller.cli.failures import Failure
from dflash_controller.cluster import kinds

PAUSE_S = 0.5
_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
T = TypeVar("T")


class NotCreated(Failure):
    """The API server has not made the pod."""


def run(
    cluster: Cluster,
    pod: Mapping[str, Any],
    decide: Callable[[Mapping[str, Any]], T | None],
    late: Callable[[Mapping[str, Any]], T],
    limit_s: float,
) -> T:
    """Returns what ``decide`` finds in the pod, or after ``limit_s`` seconds, what ``late`` makes of it.

    Raises NotCreated, and Failure if the pod cannot be read any more. A signal ends it as Ctrl-C does, after the pod is removed.
    """
    metadata = pod["metadata"]
    with _deferred_signals() as stopped:
        try:
            try:
                seen = cluster.create(kinds.POD, pod)
            except Failure as error:
                raise NotCreated(str(error), status=error.status) from error
            until = time.monotonic() + limit_s
            while (found := decide(seen)) is None:
                if stopped():
                    raise KeyboardInterrupt
                if time.monotonic() >= until:
                    return late(seen)
                time.sleep(PAUSE_S)
                seen = cluster.get(kinds.POD, metadata["name"], metadata["namespace"])
            return found
        finally:
            _remove(cluster, metadata["name"], metadata["namespace"])


def _remove(cluster: Cluster, name: str, namespace: str) -> None:
    """Deletes the pod by its name: without an answer to its creation, the name is all that is known of it."""
    try:
        if (pod := cluster.find(kinds.POD, name, namespace)) is not None:
            cluster.delete(kinds.POD, pod)
    except Failure as error:
        click.echo(f"warning: pod {name} may be left: {error}. Remove it: kubectl -n {namespace} delete pod {name}", err=True)


@contextmanager
def _deferred_signals() -> Iterator[Callable[[], bool]]:
    """Notes signals instead of raising them: a request that is broken off could leave a pod that nobody removes."""
    seen: list[int] = []
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    # What a parent has told this process to ignore (nohup) stays ignored; None is a handler that Python cannot set again.
    taken = [number for number, handler in before.items() if handler not in (signal.SIG_IGN, None)]
    for number in taken:
        signal.signal(number, lambda received, _: seen.append(received))
    try:
        yield lambda: bool(seen)
    finally:
        for number in taken:
            signal.signal(number, before[number])
