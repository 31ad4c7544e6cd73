"""Rows of a benchmark: one workload at one concurrency, from the clients' log and the engines' counters. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dflash_controller.cli.bench.answers import Log, quantile, share
from dflash_controller.engines import ENGINES
from dflash_controller.model.measurement import Measurement, Value
from dflash_controller.observe.pipeline.metrics import revision_metrics
from dflash_controller.observe.pipeline.source import Round, Target

FOREIGN = 0.05
"""Share of the engines' tokens from which other clients are told of."""
BUSY = 0.9
"""Share of a core from which this program may be what limits the speed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be measured."""

    workloads: tuple[str, ...]
    concurrencies: tuple[int, ...]
    """Clients for each replica."""
    seconds: float
    """Least length of a window."""
    requests: int | None
    """Least number of answers in a window; None: one for each client."""
    max_tokens: int

    def cells(self) -> Iterator[tuple[str, int]]:
        """Yields workload and concurrency, in the order of the run."""
        return ((workload, concurrency) for workload in self.workloads for concurrency in self.concurrencies)


@dataclass(frozen=True, slots=True)
class Counted:
    """What the engines counted over a window. None: they do not say."""

    acceptance: float | None = None
    """Tokens committed per verify step."""
    steps: float = 0.0
    """Verify steps that it was made from."""
    block_size: int | None = None
    tokens: float | None = None
    """Generated tokens. SGLang counts those of a request when it ends."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What serves, in the words of measured tables. Runs with the same source are one table, whatever their deployment and day."""

    source: str
    model: str
    """Last part of the target's name."""
    kind: str
    """Kind of target: dense, hybrid, MoE."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What is measured: a workload of a deployment, with so many clients for each replica."""

    deployment: str
    machine: Machine
    workload: str
    concurrency: int
    block_size: int
    """The largest one; 1 is speculation off."""
    replicas: int
    max_tokens: int

    @property
    def clients(self) -> int:
        return self.concurrency * self.replicas


@dataclass(frozen=True, slots=True)
class Row:
    """One measured cell. Tokens per second are those of all replicas together unless the name says otherwise."""

    cell: Cell
    seconds: float
    answers: int
    """Answers that were complete in the window."""
    tokens: float
    """Generated tokens in the window; of requests that lie partly in it, that share."""
    counted: Counted
    first_token_s: Mapping[str, float | None]
    """p50 and p95 of the seconds from sending a request to its first token."""
    per_token_s: Mapping[str, float | None]
    """p50 and p95 of an answer's mean seconds for each token after the first."""
    errors: Mapping[str, int]
    changes: tuple[str, ...] = ()
    """What happened to the deployment meanwhile. Such a row is no measurement of one thing."""
    remarks: tuple[str, ...] = ()
    """What else has to be known to read it."""

    @property
    def block_size(self) -> int:
        """The block size in use; where a schedule mixes several, their mean."""
        return self.counted.block_size or self.cell.block_size

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def per_replica(self) -> float:
        return self.tokens_per_second / self.cell.replicas

    @property
    def per_user(self) -> float:
        return self.tokens_per_second / self.cell.clients

    @property
    def sound(self) -> bool:
        """Whether it measures one thing, and anything at all."""
        return not self.changes and self.tokens > 0

    def to_json(self, speedup: float | None) -> dict[str, Any]:
        """Returns the row with rounded numbers. ``speedup``: against whatever it is compared with."""
        return {
            "deployment": self.cell.deployment,
            "workload": self.cell.workload,
            "concurrency": self.cell.concurrency,
            "replicas": self.cell.replicas,
            "clients": self.cell.clients,
            "blockSize": self.block_size,
            "tokensPerSecond": _rounded(self.tokens_per_second, 1),
            "tokensPerSecondPerReplica": _rounded(self.per_replica, 1),
            "tokensPerSecondPerClient": _rounded(self.per_user, 1),
            "speedup": _rounded(speedup, 3),
            "acceptanceLength": _rounded(self.counted.acceptance, 3),
            "timeToFirstTokenSeconds": {name: _rounded(value, 4) for name, value in self.first_token_s.items()},
            "timePerOutputTokenSeconds": {name: _rounded(value, 5) for name, value in self.per_token_s.items()},
            "seconds": _rounded(self.seconds, 2),
            "answers": self.answers,
            "tokens": round(self.tokens),
            "engineTokens": None if self.counted.tokens is None else round(self.counted.tokens),
            "errors": dict(self.errors),
            "changes": list(self.changes),
            "remarks": list(self.remarks),
        }


@dataclass(frozen=True, slots=True)
class Window:
    """What surrounds the clients' log of a row. Times count as in the log."""

    start_s: float
    end_s: float
    counted: Counted = field(default_factory=Counted)
    cpu_share: float = 0.0
    """CPU time of this program, as a share of one core."""
    changes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def row(cell: Cell, log: Log, window: Window) -> Row:
    """Returns the row of a window. Failures count if they happened in it."""
    inside = log.finished_within(window.start_s, window.end_s)
    tokens, _ = share(log.completions, window.start_s, window.end_s)
    failed = Log([], [failure for failure in log.failures if window.start_s < failure.failed_s <= window.end_s])
    first = [one.first_token_s - one.started_s for one in inside if one.first_token_s is not None]
    per_token = [seconds for one in inside if (seconds := one.per_token_s) is not None]
    counted, foreign = _own(cell, window.counted, tokens)
    busy = (
        [f"this program used {100 * window.cpu_share:.0f} % of a core, so the engines may be faster than shown"]
        if window.cpu_share > BUSY
        else []
    )
    return Row(
        cell=cell,
        seconds=max(0.0, window.end_s - window.start_s),
        answers=len(inside),
        tokens=tokens,
        counted=counted,
        first_token_s=_percentiles(first),
        per_token_s=_percentiles(per_token),
        errors=dict(sorted(failed.errors.items())),
        changes=window.changes,
        remarks=(*window.remarks, *foreign, *busy),
    )


def _own(cell: Cell, counted: Counted, tokens: float) -> tuple[Counted, list[str]]:
    """Returns what the engines counted, and whether that is the clients' own work.

    Engines may credit a request's tokens when it ends, so the two may differ by what one request of each client has.
    """
    if counted.tokens is None:
        return counted, []
    slack = cell.clients * cell.max_tokens
    if (foreign := counted.tokens - tokens - slack) > FOREIGN * tokens:
        return counted, [f"other clients had about {100 * foreign / max(1.0, counted.tokens):.0f} % of the engines' tokens"]
    if tokens - counted.tokens - slack > FOREIGN * tokens:
        remark = (
            "the engine whose counters were read had only a part of the tokens, so they say nothing of the others (is the URL a proxy?)"
        )
        return Counted(), [remark]
    return counted, []


def counted(targets: Sequence[Target], first: Round, last: Round) -> Counted:
    """Returns what the engines counted between two rounds of one reader of metrics."""
    windows = [last.windows[target.uid] for target in targets if target.uid in last.windows]
    if not windows:
        return Counted()
    engine, speculation_on = targets[0].engine, targets[0].speculation_on
    found = revision_metrics(ENGINES[engine].metric_schema, windows, expected=len(targets), speculation_on=speculation_on)
    length, block = found.acceptance_length, _value(found.block_size)
    return Counted(
        acceptance=_value(length),
        steps=length.samples if isinstance(length, Value) else 0.0,
        block_size=None if block is None else max(1, round(block)),
        tokens=_generated(targets, first, last),
    )


def _generated(targets: Sequence[Target], first: Round, last: Round) -> float | None:
    total = 0.0
    for target in targets:
        before, after = (round_.readings.get(target.uid, ()) for round_ in (first, last))
        if not before or not after or target.uid not in last.windows:
            return None
        start, end = before[-1].generated_tokens, after[-1].generated_tokens
        if start is None or end is None:
            return None
        total += end - start
    return total


def speedups(rows: Iterable[Row], reference: Callable[[Row], float | None]) -> dict[int, float]:
    """Returns the speed-up of rows by their position, over what ``reference`` gives for them: tokens per second of one replica.

    A row without a reference has none, nor has one that measures nothing.
    """
    found = {}
    for position, each in enumerate(rows):
        before = reference(each)
        if each.sound and before:
            found[position] = each.per_replica / before
    return found


def against(rows: Sequence[Row], deployment: str) -> Callable[[Row], float | None]:
    """Returns the reference that the rows of one deployment are for the others."""
    known = {(each.cell.workload, each.cell.concurrency): each.per_replica for each in rows if _is_of(each, deployment)}
    return lambda each: known.get((each.cell.workload, each.cell.concurrency))


def _is_of(each: Row, deployment: str) -> bool:
    return each.sound and each.cell.deployment == deployment


def acceptance_lengths(rows: Iterable[Row]) -> dict[tuple[Machine, str, int], float]:
    """Returns the acceptance length by machine, workload and block size: of all verify steps of its rows together."""
    sums: dict[tuple[Machine, str, int], tuple[float, float]] = {}
    for each in rows:
        if each.sound and each.counted.acceptance is not None and each.block_size > 1:
            key = (each.cell.machine, each.cell.workload, each.block_size)
            tokens, steps = sums.get(key, (0.0, 0.0))
            sums[key] = (tokens + each.counted.acceptance * each.counted.steps, steps + each.counted.steps)
    return {key: tokens / steps for key, (tokens, steps) in sums.items() if steps > 0}


def _percentiles(values: Sequence[float]) -> dict[str, float | None]:
    return {"p50": quantile(values, 0.5), "p95": quantile(values, 0.95)}


def _value(measurement: Measurement) -> float | None:
    return measurement.value if isinstance(measurement, Value) else None


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
