"""A benchmark for people: what is about to happen, lines of the table, notes below it, curves of the picture. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_controller.cli.bench.files import Earlier
from dflash_controller.cli.bench.prompts import PROMPT_SET
from dflash_controller.cli.bench.rows import Plan, Row
from dflash_controller.cli.plots import Curve
from dflash_controller.model.measured_tables import Speed

if TYPE_CHECKING:
    from dflash_controller.cli.bench.subject import Subject

NONE = "-"
Head = tuple[tuple[str, bool], ...]
"""Titles of a table's columns, each with whether it holds numbers."""


def intentions(plan: Plan, subject: Subject, baseline: Subject | None, urls: Sequence[str]) -> Iterator[str]:
    """Yields the sentences that are said before load is sent, without their full stop."""
    replicas = f"by {_listed(urls)}" if urls else _replicas(subject)
    yield f"{subject.name} in namespace {subject.namespace} gets load: {_what(subject)}, {replicas}"
    cells = len(plan.workloads) * len(plan.concurrencies)
    sides = 1 if baseline is None else 2
    load = f"Questions of {_listed(plan.workloads)} from {_listed(plan.concurrencies)} clients per replica"
    yield f"{load}, greedy answers of up to {plan.max_tokens} tokens"
    least = f" and {plan.requests} answers" if plan.requests else ""
    total_s = sides * cells * plan.seconds
    time = f"{total_s / 60:.0f} min" if total_s >= 120 else f"{total_s:.0f} s"
    yield f"{_number_of(sides * cells, 'measurement')} of at least {plan.seconds:g} s{least}, each after a warm-up: more than {time}"
    if baseline is not None:
        yield f"The baseline {baseline.name} gets the same load before each of them: {_what(baseline)}, {_replicas(baseline)}"
        if baseline.revision.resolved.target.model != subject.revision.resolved.target.model:
            yield f"The two serve different targets: {baseline.revision.resolved.target.model} and {subject.revision.resolved.target.model}"
    yield "Users notice it: their requests share the engines with those of the benchmark, and their load disturbs what is measured"
    for each in (subject, *([baseline] if baseline is not None else [])):
        yield from _warnings(plan, each)


def _warnings(plan: Plan, subject: Subject) -> Iterator[str]:
    if subject.candidate is not None:
        yield f"{subject.name} has a rollout ({subject.phase}): only replicas of {subject.revision.name} are measured"
    if subject.tuned:
        yield f"The tuner of {subject.name} may act on this load. To prevent that: kubectl dflash rollout pause {subject.name}"
    if (most := subject.revision.resolved.max_concurrency) < max(plan.concurrencies):
        yield f"{subject.name} serves {most} requests per replica at once (spec.engine.maxConcurrency): further clients wait"


def _what(subject: Subject) -> str:
    return f"{subject.revision.resolved.target.model} on {subject.engine}, {subject.speculation}"


def _replicas(subject: Subject) -> str:
    return f"{_number_of(len(subject.replicas), 'replica')} of {subject.accelerators}"


def _number_of(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


def about(plan: Plan, day: str) -> str:
    """Returns what all rows of a run have in common, for the notes of its file."""
    return f"{day}, questions {PROMPT_SET}, up to {plan.max_tokens} tokens"


@dataclass(slots=True)
class Notes:
    """Notes below a table, numbered in the order in which rows need them."""

    texts: list[str] = field(default_factory=list)

    def marks(self, texts: Iterable[str]) -> str:
        """Returns the numbers of these notes."""
        self.texts += [text for text in dict.fromkeys(texts) if text not in self.texts]
        return ",".join(str(number) for number in sorted({1 + self.texts.index(text) for text in texts}))

    def lines(self) -> list[str]:
        return [f"({number}) {text}" for number, text in enumerate(self.texts, 1)]


def table(rows: Sequence[Row], speedups: Mapping[int, float], notes: Notes) -> tuple[Head, list[list[str]]]:
    """Returns head and lines of the table of a run. ``notes`` is filled."""
    several = len({each.cell.deployment for each in rows}) > 1
    scaled = any(each.cell.replicas > 1 for each in rows)
    head: list[tuple[str, bool]] = [("deployment", False)] if several else []
    head += [("workload", False), ("block", True), ("clients", True), ("tokens/s", True)]
    head += [("per replica", True)] if scaled else []
    head += [("per client", True), ("speed-up", True), ("accepted", True), ("ttft ms", True), ("tpot ms", True), ("answers", True)]
    head += [("errors", True), ("", False)]
    lines = []
    for place, each in enumerate(rows):
        texts = [f"changed meanwhile, so it is not counted: {change}" for change in each.changes]
        texts += [f"errors: {number} x {kind}" for kind, number in each.errors.items()]
        texts += each.remarks
        marks = notes.marks(texts)
        line = [each.cell.deployment] if several else []
        line += [each.cell.workload, _block(each.block_size), str(each.cell.clients), f"{each.tokens_per_second:,.0f}"]
        line += [f"{each.per_replica:,.0f}"] if scaled else []
        line += [f"{each.per_user:,.1f}", _times(speedups.get(place)), _number(each.counted.acceptance)]
        line += [_milliseconds(each.first_token_s, 0), _milliseconds(each.per_token_s, 1), str(each.answers)]
        lines.append([*line, str(sum(each.errors.values())), f"({marks})" if marks else ""])
    return tuple(head), lines


def short(each: Row) -> str:
    """Returns a row in a few words, for the progress."""
    length = f", {each.counted.acceptance:.2f} accepted" if each.counted.acceptance is not None else ""
    failed = sum(each.errors.values())
    errors = f", {_number_of(failed, 'error')}" if failed else ""
    changed = ", changed meanwhile" if each.changes else ""
    name = f"{each.cell.deployment}, {each.cell.workload}, {_number_of(each.cell.clients, 'client')}"
    return f"{name}: {each.tokens_per_second:,.0f} tokens/s{length}{errors}{changed}"


def file_table(run: Earlier, other: Earlier | None) -> tuple[Head, list[list[str]]]:
    """Returns head and lines of an earlier run, compared with another one, or where it has no speculation with that."""
    head = [("model", False), ("workload", False), ("block", True), ("clients", True), ("tokens/s", True)]
    head += [("compared", True)] if other is not None else []
    head += [("per client", True), ("speed-up", True), ("accepted", True)]
    lines = []
    for speed in run.speeds:
        before = compared(run, other, speed)
        line = [speed.model, speed.workload, _block(speed.block_size), str(speed.concurrency), f"{speed.tokens_per_s:,.0f}"]
        line += [_number(before, 0)] if other is not None else []
        speedup = speed.tokens_per_s / before if before else None
        lines.append([*line, f"{speed.tokens_per_s / speed.concurrency:,.1f}", _times(speedup), _number(run.length(speed))])
    return tuple(head), lines


def file_json(run: Earlier, other: Earlier | None) -> dict[str, Any]:
    """Returns an earlier run for programs, compared as in its table."""
    rows = [
        {
            "source": speed.source,
            "model": speed.model,
            "workload": speed.workload,
            "concurrency": speed.concurrency,
            "blockSize": speed.block_size,
            "tokensPerSecondPerReplica": speed.tokens_per_s,
            "comparedWith": (before := compared(run, other, speed)),
            "speedup": round(speed.tokens_per_s / before, 3) if before else None,
            "acceptanceLength": run.length(speed),
            "notes": speed.notes,
        }
        for speed in run.speeds
    ]
    return {"file": run.file, "comparedWith": other.file if other else None, "rows": rows}


def compared(run: Earlier, other: Earlier | None, speed: Speed) -> float | None:
    """Returns what a cell of a run is compared with, in tokens per second: the same cell of the other run, else without speculation."""
    if other is not None:
        found = other.like(speed.workload, speed.concurrency, speed.block_size, speed.model)
    else:
        found = next((one for one in run.speeds if one.block_size == 1 and _place(one) == _place(speed)), None)
    return None if found is None else found.tokens_per_s


def _place(speed: Speed) -> tuple[str, str, str, int]:
    return speed.source, speed.model, speed.workload, speed.concurrency


def curves(rows: Sequence[Row], workloads: Sequence[str], baseline: str | None, earlier: Earlier | None) -> list[Curve]:
    """Returns the curves of a run: one for each workload, and a dashed one of what it is compared with."""
    found: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for each in rows:
        if each.sound:
            found.setdefault((each.cell.deployment, each.cell.workload), []).append((each.cell.concurrency, each.per_replica))
    made = [
        Curve(f"{workload} ({name})" if baseline else workload, workloads.index(workload), tuple(sorted(points)), name == baseline)
        for (name, workload), points in sorted(found.items(), key=lambda item: (item[0][0] == baseline, workloads.index(item[0][1])))
    ]
    if earlier is not None:
        cells = {(each.cell.workload, each.cell.concurrency, earlier.reference(each)) for each in rows}
        for workload in workloads:
            points = tuple(sorted((c, speed) for name, c, speed in cells if name == workload and speed is not None))
            made.append(Curve(f"{workload} ({Path(earlier.file).name})", workloads.index(workload), points, True))
    return made


def file_curves(run: Earlier, other: Earlier | None) -> list[Curve]:
    """Returns the curves of an earlier run: one for each workload and block size; dashed without speculation, or of the other run."""
    workloads = list(dict.fromkeys(speed.workload for each in (run, other) if each is not None for speed in each.speeds))
    files = [each.file for each in (run, other) if each is not None]
    names = {file: Path(file).name if len({Path(one).name for one in files}) == len(files) else file for file in files}
    made = []
    for each in (run, other) if other is not None else (run,):
        assert each is not None
        by_curve: dict[tuple[str, str, int], list[tuple[int, float]]] = {}
        for speed in each.speeds:
            by_curve.setdefault((speed.model, speed.workload, speed.block_size), []).append((speed.concurrency, speed.tokens_per_s))
        several = len({model for model, _, _ in by_curve}) > 1
        # Of two runs that both have speculation, only that is drawn.
        drawn = {key for key in by_curve if key[2] > 1} if other is not None else set(by_curve)
        for (model, workload, block), points in by_curve.items():
            if drawn and (model, workload, block) not in drawn:
                continue
            words = [workload, f"block {block}" if block > 1 else "off", *([model] if several else [])]
            words += [names[each.file]] if other is not None else []
            dashed = block == 1 if other is None else each is other
            made.append(Curve(", ".join(words), workloads.index(workload), tuple(sorted(points)), dashed))
    return made


def to_json(
    plan: Plan,
    rows: Sequence[Row],
    speedups: Mapping[int, float],
    subjects: Sequence[Subject],
    other: Earlier | None,
    began: datetime,
    interrupted: bool,
) -> dict[str, Any]:
    """Returns a run for programs. ``subjects``: the deployment and its baseline."""
    return {
        "deployment": subjects[0].to_json(),
        "baseline": subjects[1].to_json() if len(subjects) > 1 else None,
        "comparedWith": other.file if other else None,
        "began": began.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "interrupted": interrupted,
        "questions": PROMPT_SET,
        "workloads": list(plan.workloads),
        "concurrency": list(plan.concurrencies),
        "seconds": plan.seconds,
        "maxTokens": plan.max_tokens,
        "rows": [each.to_json(speedups.get(place)) for place, each in enumerate(rows)],
    }


def _block(block: int) -> str:
    return str(block) if block > 1 else "off"


def _number(value: float | None, digits: int = 2) -> str:
    return NONE if value is None else f"{value:,.{digits}f}"


def _times(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}x"


def _milliseconds(percentiles: Mapping[str, float | None], digits: int) -> str:
    values = [percentiles.get("p50"), percentiles.get("p95")]
    return NONE if None in values else " / ".join(f"{1000 * (value or 0):,.{digits}f}" for value in values)
