"""``bench NAME|FILE``: load on a deployment, and how fast it answers; or a look at an earlier run."""

from __future__ import annotations

import asyncio
import shlex
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dflash_controller.cli import failures, options, printing

if TYPE_CHECKING:
    from dflash_controller.cli.bench.files import Earlier
    from dflash_controller.cli.bench.report import Head
    from dflash_controller.cli.bench.rows import Plan
    from dflash_controller.cli.bench.run import Benchmark, Side, Unanswered
    from dflash_controller.cli.bench.subject import Subject
    from dflash_controller.cli.connection import Cluster
    from dflash_controller.cli.where import Where

_EXAMPLES = """
# Math, code and chat with 1, 8, 16 and 32 clients per replica; keep the numbers and a picture
kubectl dflash bench qwen --csv qwen.csv --plot qwen.png

# What speculation brings: the same load on a deployment with spec.blockSize 1
kubectl dflash bench qwen --baseline qwen-plain

# Before and after a change, and the two runs compared later, without a cluster
kubectl dflash bench qwen --csv before.csv
kubectl dflash bench qwen --csv after.csv --compare before.csv
kubectl dflash bench after.csv --compare before.csv --plot both.png

# Where pods cannot be reached from here
kubectl port-forward pod/qwen-r24bnv7i-6d4b9 30000:30000
kubectl dflash bench qwen --url http://127.0.0.1:30000

# A short look, in a pipeline: status 1 if requests failed or the deployment changed meanwhile
kubectl dflash bench qwen --workload chat --concurrency 8 --seconds 10 --yes -o json
"""
_NOT_FOR_FILES = ("urls", "baseline", "baseline_urls", "concurrency", "workloads", "seconds", "requests", "max_tokens", "csv", "api_key")
_KEY = "KUBECTL_DFLASH_API_KEY"


def _whole_numbers(context: click.Context, parameter: click.Parameter, text: str) -> tuple[int, ...]:
    """Reads ``1,8,16``."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and 1 <= int(part[:9]) <= 10_000 for part in parts):
        raise click.BadParameter(f"{text!r} is no list of whole numbers from 1 to 10000, such as 1,8,16,32")
    return tuple(dict.fromkeys(map(int, parts)))


def _workloads(context: click.Context, parameter: click.Parameter, text: str) -> tuple[str, ...]:
    from dflash_controller.cli.bench.prompts import WORKLOADS

    parts = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if unknown := [part for part in parts if part not in WORKLOADS]:
        raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(WORKLOADS)}")
    return parts


@options.command("bench", _EXAMPLES)
@click.argument("name_or_file", metavar="NAME|FILE.csv", shell_complete=options.names)
@click.option(
    "--concurrency", default="1,8,16,32", show_default=True, metavar="N,…", callback=_whole_numbers, help="Clients for each replica."
)
@click.option(
    "--workload",
    "workloads",
    default="math,code,chat",
    show_default=True,
    metavar="NAME,…",
    callback=_workloads,
    help="Kinds of questions.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=1, max=86_400),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Shortest time of each measurement.",
)
@click.option(
    "--requests", type=click.IntRange(min=1), metavar="N", help="Fewest answers of each measurement; by default one for each client."
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=2, max=100_000),
    default=512,
    show_default=True,
    metavar="N",
    help="Longest answer; models end shorter ones by themselves.",
)
@click.option("--baseline", metavar="NAME", help="Another deployment of the namespace, to compare with.")
@click.option("--compare", metavar="FILE.csv", type=click.Path(dir_okay=False), help="An earlier run, to compare with.")
@click.option("--url", "urls", multiple=True, metavar="URL", help="Send here and not to the pods' addresses. Can be repeated.")
@click.option("--baseline-url", "baseline_urls", multiple=True, metavar="URL", help="The same for --baseline.")
@click.option("--api-key", envvar=_KEY, metavar="KEY", help=f"Key that the engines ask clients for; better in {_KEY}.")
@click.option(
    "--csv", metavar="FILE.csv", type=click.Path(dir_okay=False), help="Write the rows; acceptance lengths go to FILE_accept.csv."
)
@click.option("--plot", metavar="FILE.png", type=click.Path(dir_okay=False), help="Draw throughput by concurrency.")
@options.yes
@click.option("--dry-run", is_flag=True, help="Say what would be measured, and send nothing.")
@options.output
@options.cluster
@click.pass_context
def command(
    context: click.Context,
    name_or_file: str,
    concurrency: tuple[int, ...],
    workloads: tuple[str, ...],
    seconds: float,
    requests: int | None,
    max_tokens: int,
    baseline: str | None,
    compare: str | None,
    urls: tuple[str, ...],
    baseline_urls: tuple[str, ...],
    api_key: str | None,
    csv: str | None,
    plot: str | None,
    yes: bool,
    dry_run: bool,
    output: str,
    where: Where,
) -> int:
    """Measure how fast a deployment answers: tokens per second, speed-up, acceptance length, time to the first token (TTFT) and for each
    further one (TPOT), errors.

    NAME gets load from clients that each send the next question when they have an answer (a closed loop): streamed chat completions with
    greedy decoding, to the replicas of the active revision, the least busy first. Its users notice that, so it is said and asked before.
    Each measurement begins when every client has had an answer. Concurrency counts clients per replica, as the tuner does. TTFT and TPOT
    are the median and the 95th percentile. The acceptance length is that of the engines' own counters.

    FILE.csv is an earlier run: it is shown, drawn and compared without a cluster. Speed-up is over --baseline, --compare, or the rows of
    the same file without speculation, always per replica. Ctrl-C ends with what was measured so far. The status is 1 if requests failed, or
    if the deployment changed during a measurement, which is then not counted.
    """
    from dflash_controller.cli import plots
    from dflash_controller.cli.bench import files

    other = files.read(compare) if compare else None
    if plot:
        plots.drawable(plot)
    if _is_file(name_or_file):
        _refuse_options(context)
        return _show_file(files.read(name_or_file), other, plot, output)
    from dflash_controller.cli.bench.rows import Plan

    if baseline and compare:
        raise failures.Failure("--baseline and --compare exclude each other: a row has one speed-up")
    if baseline == name_or_file:
        raise failures.Failure(f"--baseline {baseline} is the deployment itself", "Name another one, for example with spec.blockSize 1")
    if baseline_urls and not baseline:
        raise failures.Failure("--baseline-url needs --baseline")
    for file in filter(None, (csv, csv and files.accept_file(csv), plot)):
        files.writable(file)
    plan = Plan(workloads, concurrency, seconds, requests, max_tokens)
    return _Run(plan, where, api_key, csv, plot, output, other).measure(name_or_file, urls, baseline, baseline_urls, yes, dry_run)


def _is_file(text: str) -> bool:
    return "/" in text or text.endswith(".csv") or Path(text).is_file()


def _refuse_options(context: click.Context) -> None:
    for name in _NOT_FOR_FILES:
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            [option] = [parameter.opts[0] for parameter in context.command.params if parameter.name == name]
            raise failures.Failure(f"{option} does not apply to FILE.csv, an earlier run: nothing is sent")


def _show_file(run: Earlier, other: Earlier | None, plot: str | None, output: str) -> int:
    from dflash_controller.cli import plots
    from dflash_controller.cli.bench import report

    if other is not None and (said := other.unlike(speed.model for speed in run.speeds)):
        click.echo(said, err=True)
    if output == "table":
        _print(*report.file_table(run, other))
    else:
        printing.data(report.file_json(run, other), output)
    if plot:
        title = f"{run.file} compared with {other.file}" if other else run.file
        plots.benchmark(report.file_curves(run, other), title, plot)
        click.echo(f"{plot} written", err=True)
    return failures.OK


def _print(head: Head, lines: Sequence[Sequence[str]]) -> None:
    table = printing.table(*(title for title, _ in head), right=[title for title, number in head if number])
    for line in lines:
        table.add_row(*line)
    printing.show(table)


class _Run:
    """One run on a cluster, from what is said before it to its files."""

    def __init__(
        self, plan: Plan, where: Where, api_key: str | None, csv: str | None, plot: str | None, output: str, other: Earlier | None
    ) -> None:
        self._plan = plan
        self._where = where
        self._api_key = api_key
        self._csv = csv
        self._plot = plot
        self._output = output
        self._other = other

    def measure(self, name: str, urls: Sequence[str], baseline: str | None, baseline_urls: Sequence[str], agreed: bool, dry: bool) -> int:
        from dflash_controller.cli.bench.console import progress
        from dflash_controller.cli.bench.report import intentions
        from dflash_controller.cli.bench.run import Benchmark
        from dflash_controller.cli.connection import Cluster

        with Cluster(self._where) as cluster:
            side = _side(cluster, name, urls)
            sides = [*([_side(cluster, baseline, baseline_urls)] if baseline else []), side]
            for sentence in intentions(self._plan, side.subject, sides[0].subject if baseline else None, side.urls):
                click.echo(f"{sentence}.", err=True)
            if self._other is not None and (said := self._other.unlike([side.subject.model])):
                click.echo(f"{said}.", err=True)
            if dry:
                return failures.OK
            if not agreed:
                options.agree("--dry-run to see what would be measured")
            began = datetime.now(UTC)
            with progress(len(sides) * sum(1 for _ in self._plan.cells())) as (measured, advance):
                benchmark = Benchmark(self._plan, sides, api_key=self._api_key, measured=measured, progress=advance)
                self._load(benchmark)
        return self._report(benchmark, [side.first for side in reversed(sides)], began)

    def _load(self, benchmark: Benchmark) -> None:
        from dflash_controller.cli.bench.console import interruptible
        from dflash_controller.cli.bench.run import Unanswered

        with asyncio.Runner() as runner:
            try:
                runner.run(interruptible(benchmark))
            except Unanswered as error:
                raise self._unanswered(error) from error

    def _unanswered(self, error: Unanswered) -> failures.Failure:
        """Returns what to tell of an engine that did not answer the first question."""
        subject, url = error.side.subject, error.url
        if error.status in (401, 403):
            return failures.Failure(
                f"{url} asks for a key ({error.reason})", f"Give it with --api-key, or in {_KEY}", status=failures.CLUSTER
            )
        if error.status is not None:
            said = f": {error.message}" if error.message else ""
            remedy = f"See kubectl dflash status {subject.name}, and the log of the engine"
            return failures.Failure(f"{url} refuses a chat completion ({error.reason}{said})", remedy, status=failures.CLUSTER)
        remedy = (
            "Forward a port to a replica, and leave that running; then name it:" if not error.side.urls else "Does its port-forward run?"
        )
        lines = "".join(f"\n  {line}" for line in _forwarding(self._where, subject))
        return failures.Failure(
            f"{url} of {subject.name} cannot be reached from here ({error.reason})", f"{remedy}{lines}", status=failures.CLUSTER
        )

    def _report(self, benchmark: Benchmark, subjects: Sequence[Subject], began: datetime) -> int:
        """Prints and writes what was measured. ``subjects``: the deployment and its baseline."""
        from dflash_controller.cli import plots
        from dflash_controller.cli.bench import files, report
        from dflash_controller.cli.bench.rows import against, speedups

        rows, subject, baseline, other = benchmark.rows, subjects[0], subjects[1] if len(subjects) > 1 else None, self._other
        if not rows:
            raise failures.Failure("interrupted before anything was measured", status=failures.INTERRUPTED)
        found: Mapping[int, float] = {}
        if baseline is not None:
            found = speedups(rows, against(rows, baseline.name))
        elif other is not None:
            found = speedups(rows, other.reference)
        if self._csv:
            for file in files.write(self._csv, rows, found, subject.name, report.about(self._plan, began.strftime("%Y-%m-%d"))):
                click.echo(f"{file} written", err=True)
        if self._output == "table":
            notes = report.Notes()
            _print(*report.table(rows, found, notes))
            printing.show(*notes.lines())
        else:
            printing.data(report.to_json(self._plan, rows, found, subjects, other, began, benchmark.interrupted), self._output)
        if self._plot:
            title = f"{subject.namespace}/{subject.name}: {subject.model}, {subject.engine}, {subject.speculation}, {subject.accelerators}"
            plots.benchmark(report.curves(rows, self._plan.workloads, baseline.name if baseline else None, other), title, self._plot)
            click.echo(f"{self._plot} written", err=True)
        if benchmark.interrupted:
            return failures.INTERRUPTED
        return failures.OK if all(each.sound and not each.errors for each in rows) else failures.NEGATIVE


def _side(cluster: Cluster, name: str, urls: Sequence[str]) -> Side:
    from dflash_controller.cli.bench.run import Side
    from dflash_controller.cli.bench.subject import checked_url, look, serving

    looking = threading.Lock()

    def locked() -> Subject:
        with looking:
            return look(cluster, name)

    now = serving(look(cluster, name))
    return Side(now, lambda: asyncio.to_thread(locked), now, tuple(dict.fromkeys(map(checked_url, urls))))


def _forwarding(where: Where, subject: Subject) -> Iterator[str]:
    """Yields the two commands with which engines can be measured whose pods cannot be reached."""
    given = (("--kubeconfig", where.kubeconfig), ("--context", where.context), ("--namespace", subject.namespace))
    cluster = [word for option, value in given if value for word in (option, value)]
    port = subject.revision.resolved.port
    yield shlex.join(["kubectl", "port-forward", *cluster, f"pod/{subject.replicas[0].pod}", f"{port}:{port}"])
    yield shlex.join(["kubectl", "dflash", "bench", subject.name, *cluster, "--url", f"http://127.0.0.1:{port}"])
