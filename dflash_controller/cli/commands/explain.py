"""``explain NAME|FILE``: why this block size, from a deployment or from the operator's log."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dflash_controller.cli import failures, options, printing
from dflash_controller.cli.times import ago

if TYPE_CHECKING:
    from dflash_controller.cli.explanation import Picture
    from dflash_controller.cli.where import Where

_EXAMPLES = """
# Why a deployment has its block size, by what is known now
kubectl dflash explain qwen
kubectl dflash explain qwen --plot qwen.png

# All decisions of last night, each made again, and the last one explained with everything it was made from
kubectl -n dflash-system logs -l app.kubernetes.io/name=dflash-operator --tail=-1 > operator.log
kubectl dflash explain operator.log --deployment default/qwen

# The same from a pipe
kubectl -n dflash-system logs -l app.kubernetes.io/name=dflash-operator --tail=-1 | kubectl dflash explain -
"""
_LOG = (".log", ".json", ".jsonl", ".txt")
_BAR = 24
_FROZEN = "Frozen"
"""The tuner's state while a rollout runs: it then says what it waits for, and no longer what it decided before."""


@options.command("explain", _EXAMPLES)
@click.argument("name_or_file", metavar="NAME|FILE", shell_complete=options.names)
@click.option("--deployment", metavar="NAMESPACE/NAME", help="With FILE: only the decisions of this one.")
@click.option("--plot", metavar="FILE.png", type=click.Path(dir_okay=False), help="Draw the curves into this file too.")
@options.output
@options.cluster
def command(name_or_file: str, deployment: str | None, plot: str | None, output: str, where: Where) -> int:
    """Explain a block size: where it comes from, what is on trial, the last decision, acceptance, step times with the points they were
    learned from, the expected gain by load, and what would change the decision.

    A block size is set in the spec, or that which the drafter was trained with, or chosen by the tuner. How much slower it is than the best
    one is said in percent of the best one's speed, as expected at the load of the moment.

    NAME reads a deployment: the curve stored with its active revision, load and acceptance of its status. FILE, or - for standard input, is
    the operator's log: every decision in it is listed and made again from what the line holds, and the last one is explained. The status is
    1 if a decision does not come out the same again.
    """
    if _is_log(name_or_file):
        picture, status = _of_log(name_or_file, deployment, output)
    elif deployment:
        raise failures.Failure("--deployment chooses from a log; a deployment is named by its NAME and --namespace")
    else:
        picture, status = _of_live(name_or_file, where), failures.OK
    if output == "table":
        _print(picture)
    else:
        printing.data(picture.to_json(), output)
    if plot:
        from dflash_controller.cli import plots

        plots.explanation(picture, plot)
        click.echo(f"{plot} written", err=True)
    return status


def _is_log(text: str) -> bool:
    return text == "-" or "/" in text or text.endswith(_LOG) or Path(text).is_file()


def _of_live(name: str, where: Where) -> Picture:
    from dflash_controller.cli.connection import Cluster
    from dflash_controller.cli.deployments import Live
    from dflash_controller.cli.explanation import of_live
    from dflash_controller.cli.standing import unseen

    with Cluster(where) as cluster:
        live = Live.of(cluster, name)
        name = f"{live.namespace}/{live.name}"
        made = of_live(name, live.spec, live.status, live.stored, live.revision(None), live.events, time.time())
        return replace(made, unseen=unseen(live.obj))


def _of_log(file: str, deployment: str | None, output: str) -> tuple[Picture, int]:
    from dflash_controller.cli.explanation import of_log
    from dflash_controller.cli.replay import Report, entries

    if deployment and deployment.count("/") != 1:
        raise failures.Failure(f"--deployment {deployment} is not of the form NAMESPACE/NAME")
    lines = _lines(file)
    report = Report(deployment)
    report.read(lines)
    if not report.total:
        raise failures.Failure(f"no decision: {report.why_none()}")
    if output == "table":
        for text in report.texts():
            click.echo(text)
        click.echo(f"{report.total} decisions, {report.wrong} of them different\n")
    found = [entry for entry in entries(lines) if (entry.get("decision") or {}).get("inputs")]
    chosen = [
        entry
        for entry in sorted(found, key=lambda entry: str(entry.get("timestamp") or ""))
        if deployment in (None, f"{entry['decision'].get('namespace')}/{entry['decision'].get('deployment')}")
    ]
    last = chosen[-1]
    try:
        picture = of_log(last["decision"], str(last.get("message") or ""), str(last.get("timestamp") or ""))
    except ValueError as error:
        raise failures.Failure(f"the last decision cannot be explained: {error}", "Use the release that wrote the log") from error
    return picture, failures.NEGATIVE if report.wrong else failures.OK


def _lines(file: str) -> list[str]:
    if file == "-":
        if sys.stdin.isatty():
            raise failures.Failure("the operator's log is expected on standard input")
        return sys.stdin.readlines()
    try:
        return Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise failures.Failure(f"{file} cannot be read: {error.strerror}") from error


def _print(picture: Picture) -> None:
    load = picture.concurrency
    head = f"{picture.name}: block size {picture.current}" if picture.current > 1 else f"{picture.name}: speculation is off"
    printing.show(head + (f", {load:.1f} requests per replica" if load is not None else ""))
    if picture.unseen:
        printing.show(
            f"The operator has not seen this spec ({picture.unseen}): decision, load and acceptance are those under the one before."
        )
    if picture.unmeasured:
        since, reason = picture.unmeasured
        printing.show(f"Traffic is not known since {since}: {reason}. Load and acceptance are those of before.")
    if picture.idle_since:
        printing.show(
            f"There has been no traffic since {picture.idle_since} or earlier: load and acceptance are those of the last traffic."
        )
    _print_background(picture)
    _print_decision(picture)
    _print_acceptance(picture)
    _print_steps(picture)
    _print_gains(picture)
    if changes := picture.changes():
        printing.show("", "What would change the decision", *(f"  {line}" for line in changes))


def _print_background(picture: Picture) -> None:
    if (found := picture.background) is None:
        return
    now, source = datetime.now(UTC), found.source
    since = f" (active since {source.since}, {ago(source.since, now)})" if source.since else ""
    printing.show(f"Where it comes from: {source.source}{since}: {source.text}.")
    if (trial := found.trial) is not None:
        asked = f" (since {trial.since}, {ago(trial.since, now)})" if trial.since else ""
        printing.show(f"On trial: block size {trial.block}, {trial.revision}{asked}: {trial.text}.")


def _print_decision(picture: Picture) -> None:
    said, last = picture.said, picture.background.last if picture.background else None
    when = f" (decided {said.at})" if said.at else ""
    if said.state == _FROZEN and last is not None:
        printing.show(f"Last decision ({last.at}, {ago(last.at, datetime.now(UTC))}): {last.reason}: {last.message}")
    if said.state:
        name = _FROZEN if said.state == _FROZEN else f"{said.state}, {said.reason}"
        printing.show(f"{'Tuner now' if said.state == _FROZEN else 'Decision'}: {name}{when}: {said.message}")
    else:
        printing.show("The tuner has not decided anything yet.")
    if (loss := picture.loss()) is None:
        return
    block, percent = loss
    if block == picture.current:
        printing.show("Slower than the best block size: by 0 %; the active one is expected to be the fastest at this load.")
    else:
        printing.show(
            f"Slower than the best block size: by about {percent:.1f} %; {_title(block)} is expected to be the fastest at this load."
        )


def _print_acceptance(picture: Picture) -> None:
    lines = picture.acceptance_lines()
    if not lines:
        printing.show("", "Acceptance: nothing measured yet.")
        return
    table = printing.table("block", "tokens per verify step", "error", "", "how", right=("block", "tokens per verify step", "error"))
    most = max(line.block for line in lines)
    for line in lines:
        bar = "█" * max(1, round(_BAR * line.length / most))
        how = "measured" if line.measured else "inferred from the measured one"
        table.add_row(str(line.block), f"{line.length:.2f}", f"± {100 * line.length_sigma:.0f} %", bar, how)
    printing.show("", "Acceptance", table)


def _print_steps(picture: Picture) -> None:
    if picture.steps is None:
        printing.show("", "Step times: nothing learned yet. They are learned from load; a deployment without traffic has none.")
        return
    columns = [_title(block) for block in picture.blocks]
    table = printing.table("requests", *columns, right=("requests", *columns))
    for load in picture.concurrencies():
        table.add_row(str(load), *(f"{picture.milliseconds(block, load) or 0:.1f}" for block in picture.blocks))
    printing.show("", "Step time by requests per replica, in ms", table)
    learned = printing.table("block", "requests", "ms", "expected", "samples", right=("block", "requests", "ms", "expected", "samples"))
    for point in picture.learned.points:
        expected = picture.milliseconds(point.block, point.concurrency) or 0
        samples = f"{point.weight:.0f}" + (" (earlier)" if point.prior else "")
        learned.add_row(str(point.block), f"{point.concurrency:.1f}", f"{1000 * point.seconds:.1f}", f"{expected:.1f}", samples)
    printing.show("", "Learned from", learned)


def _print_gains(picture: Picture) -> None:
    loads = [load for load in picture.concurrencies() if picture.gains(load)]
    if not loads:
        return
    columns = [_title(block) for block in picture.blocks]
    table = printing.table("requests", *columns, "fastest", right=("requests", *columns))
    for load in loads:
        gains = picture.gains(load)
        best = max(gains, key=lambda block: (gains[block], block == picture.current))
        cells = ["active" if block == picture.current else f"{gains[block]:+.1f} %" for block in picture.blocks]
        table.add_row(str(load), *cells, _title(best))
    printing.show("", "Expected gain in tokens per second over the active block size, by requests per replica", table)


def _title(block: int) -> str:
    return "off" if block <= 1 else f"block {block}"
