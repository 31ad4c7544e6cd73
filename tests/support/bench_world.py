"""Deployments and rows of the benchmark for its tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dflash_controller.cli.bench.rows import Cell, Counted, Machine, Row
from dflash_controller.cli.bench.subject import Replica, Subject
from dflash_controller.planning.revisions.revision import RevisionState, read
from tests.support.stored_revisions import stored

SGLANG = Machine("kubectl dflash bench, sglang 0.5.23, 1x NVIDIA-B200", "Qwen3.5-9B", "hybrid")


def subject(*urls: str, name: str = "qwen", hash: str = "raaaaaaa", engine: str = "sglang", **spec: Any) -> Subject:
    """A deployment with one replica at each URL."""
    revision = read(stored(hash, 1, RevisionState.STABLE, {"target": {"model": "Qwen/Qwen3.5-9B"}, "engine": {"name": engine}, **spec}))
    assert revision is not None
    replicas = tuple(Replica(f"{name}-{number}", f"uid-{name}-{number}", url, 0) for number, url in enumerate(urls))
    return Subject("default", name, revision, None, "Completed", False, replicas)


def row(
    workload: str = "math",
    concurrency: int = 8,
    speed: float = 800.0,
    *,
    deployment: str = "qwen",
    block: int = 16,
    replicas: int = 1,
    acceptance: float | None = 6.5,
    steps: float = 1000.0,
    changes: Sequence[str] = (),
    errors: Mapping[str, int] | None = None,
    remarks: Sequence[str] = (),
    machine: Machine = SGLANG,
) -> Row:
    """A row of ten seconds; ``speed``: tokens per second of all replicas."""
    cell = Cell(deployment, machine, workload, concurrency, block, replicas, 512)
    counted = Counted(acceptance if block > 1 else None, steps, block if block > 1 else None, speed * 10)
    return Row(
        cell,
        10.0,
        40,
        speed * 10,
        counted,
        {"p50": 0.021, "p95": 0.048},
        {"p50": 0.0101, "p95": 0.0123},
        errors or {},
        tuple(changes),
        tuple(remarks),
    )


def restarted(before: Subject, number: int) -> Subject:
    """The deployment after one of its pods has restarted."""
    replicas = [replace(each, restarts=each.restarts + (place == number)) for place, each in enumerate(before.replicas)]
    return replace(before, replicas=tuple(replicas))
