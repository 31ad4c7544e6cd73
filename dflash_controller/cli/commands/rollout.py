"""``rollout VERB NAME``: follow a rollout and steer it. Every verb says what it is about to do before it does it."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from dflash_controller.cli import failures, options, printing

if TYPE_CHECKING:
    from dflash_controller.cli.connection import Cluster
    from dflash_controller.cli.deployments import Live
    from dflash_controller.cli.steering import Action, Situation
    from dflash_controller.cli.where import Where
    from dflash_controller.engines.protocol import ModelRef

_STANDING_SECONDS = 30.0
"""How long an operator may take to see that an annotation of an earlier trial is gone."""
dry_run = click.option("--dry-run", is_flag=True, help="Say what would be done and print the patch, and do nothing.")


@click.group("rollout", context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
def command() -> None:
    """Follow and steer rollouts.

    Each verb that changes something says first what is about to happen, and asks where engines are replaced; --yes answers, --dry-run
    prints the patch only. What is changed is a field of the spec or an annotation, so it can also be done with kubectl.
    """


def _situation(live: Live) -> Situation:
    from dflash_controller.cli.steering import Situation

    return Situation(live.obj, live.spec, live.stored)


def _carry_out(where: Where, name: str, decide: Callable[[Situation], Action], agreed: bool, dry: bool) -> int:
    from dflash_controller.cli.connection import Cluster
    from dflash_controller.cli.deployments import Live
    from dflash_controller.cluster.kinds import DFLASH_DEPLOYMENT

    with Cluster(where) as cluster:
        live = Live.of(cluster, name)
        action = decide(_situation(live))
        for sentence in action.says:
            click.echo(f"{sentence}.")
        if dry:
            printing.data(dict(action.patch), "yaml")
            return failures.OK
        if action.asks and not agreed:
            options.agree("--dry-run to see the patch")
        if action.first is not None:
            cluster.patch(DFLASH_DEPLOYMENT, name, action.first)
            _wait_until_forgotten(cluster, name, action)
        cluster.patch(DFLASH_DEPLOYMENT, name, action.patch)
        click.echo(f"{name}: done. Follow it with: kubectl dflash status {name} --watch")
    return failures.OK


def _wait_until_forgotten(cluster: Cluster, name: str, action: Action) -> None:
    """Waits until the operator has seen that the annotation of an earlier trial is gone. Raises Failure if it does not."""
    from dflash_controller.cli.deployments import Live
    from dflash_controller.planning.revisions.operations import OPERATIONS

    [key] = action.patch["metadata"]["annotations"]
    operation = next(known for known, annotation in OPERATIONS.items() if annotation == key)
    end = time.monotonic() + _STANDING_SECONDS
    while time.monotonic() < end:
        stored = Live.of(cluster, name).stored
        record = stored.candidate or stored.stable
        if record is None or operation not in record.trial.disregards:
            return
        time.sleep(0.5)
    raise failures.Failure(
        f"the operator did not see within {_STANDING_SECONDS:.0f} s that the annotation of an earlier trial is gone",
        "Does it run? Then run the same again",
        status=failures.CLUSTER,
    )


# Steering


def _pause(name: str, dry_run: bool, where: Where) -> int:
    """Let no rollout begin, and promote none, until it is resumed."""
    from dflash_controller.cli import steering

    return _carry_out(where, name, steering.pause, True, dry_run)


def _resume(name: str, dry_run: bool, where: Where) -> int:
    """Go on after a pause."""
    from dflash_controller.cli import steering

    return _carry_out(where, name, steering.resume, True, dry_run)


def _promote(name: str, yes: bool, dry_run: bool, where: Where) -> int:
    """Make the candidate the active revision now, whatever the analysis says."""
    from dflash_controller.cli import steering

    return _carry_out(where, name, steering.promote, yes, dry_run)


def _abort(name: str, yes: bool, dry_run: bool, where: Where) -> int:
    """Fail the candidate, or the revision that is replacing the others."""
    from dflash_controller.cli import steering

    return _carry_out(where, name, steering.abort, yes, dry_run)


def _undo(name: str, to_revision: str | None, yes: bool, dry_run: bool, where: Where) -> int:
    """Set the spec back to what a revision was made from; by default the active one, or if the spec asks for that, the one before it."""
    from dflash_controller.cli import steering

    return _carry_out(where, name, lambda now: steering.undo(now, to_revision), yes, dry_run)


def _pin(name: str, revision: str | None, off: bool, yes: bool, dry_run: bool, where: Where) -> int:
    """Run a revision that is kept, at once and whatever the spec says; --off takes the pin away."""
    from dflash_controller.cli import steering

    if off == bool(revision):
        raise failures.Failure("pin needs a REVISION, or --off", f"See kubectl dflash rollout history {name}")
    decide = steering.unpin if off else lambda now: steering.pin_to(now, revision or "")
    return _carry_out(where, name, decide, yes, dry_run)


def _restart(name: str, yes: bool, dry_run: bool, where: Where) -> int:
    """Replace all engines, within the budget of a rollout; also tries a failed revision again."""
    from dflash_controller.cli import steering

    return _carry_out(where, name, lambda now: steering.restart(now, datetime.now(UTC)), yes, dry_run)


# Looking


def _status(name: str, wait: bool, timeout: float, output: str, where: Where) -> int:
    """Show how the rollout stands.

    Status 1 if it is held or rolled back, if it was superseded and the deployment is not Ready, if the deployment is Stalled, or if the
    operator has not seen the spec yet. --wait waits until it has seen it. Of what makes a deployment Stalled, --wait waits only for what
    the operator or Kubernetes tries again, such as a model hub that does not answer or a quota that is used up.
    """
    from dflash_controller.cli import screen, standing
    from dflash_controller.cli.connection import Cluster
    from dflash_controller.cli.deployments import Live

    end, said = time.monotonic() + timeout, ""
    with Cluster(where) as cluster:
        while True:
            live = Live.of(cluster, name)
            stands = standing.of(live.obj)
            line = screen.rollout(live.obj, datetime.now(UTC)) or "no rollout yet"
            if output == "table" and wait and not stands.ended and (now := stands.text or line.partition(",")[0]) != said:
                said = now
                click.echo(f"waits, because this can end by itself: {now}" if stands.text else line)
            if stands.ended or not wait:
                break
            if time.monotonic() > end:
                phase = live.rollout.get("phase") or "not begun"
                raise failures.Failure(
                    f"{name} after {timeout:.0f} s: {stands.text or f'the rollout is {phase}'}", status=failures.NEGATIVE
                )
            time.sleep(1)
        if stands.text:
            # The object that programs read is the rollout, which is another one.
            click.echo(f"{name}: {stands.text}", err=output != "table")
        if output == "table":
            click.echo(f"Last rollout: {line}" if stands.text and live.rollout else line)
            for verdict in screen.verdicts(live.obj):
                click.echo(f"  {verdict.metric:<22} {verdict.verdict:<13} {verdict.bar}  {verdict.text}")
        else:
            printing.data(dict(live.rollout), output)
    return failures.OK if stands.good else failures.NEGATIVE


def _history(name: str, revision: str | None, output: str, where: Where) -> int:
    """Show the revisions that are kept: what they were made from, who asked for them, and how they ended."""
    from dflash_controller.cli.connection import Cluster
    from dflash_controller.cli.deployments import Live
    from dflash_controller.cli.printing import distinct_length
    from dflash_controller.cli.steering import history

    with Cluster(where) as cluster:
        live = Live.of(cluster, name)
        records = [live.revision(revision)] if revision else sorted(live.stored.records, key=lambda record: record.number)
        changes = [entry for entry in history(live.stored) if revision is None or entry["revision"] == records[0].name]
        verdicts = list(live.rollout.get("analysis") or ()) if revision in (None, live.rollout.get("revision")) else []
    if output != "table":
        found = [
            {
                "name": record.name,
                "number": record.number,
                "state": str(record.state),
                "engine": f"{record.resolved.engine} {record.resolved.version}",
                "blockSize": record.speculation.label(),
                "inputs": dict(record.inputs),
                "resolved": {
                    "target": _model(record.resolved.target),
                    "drafter": _model(record.resolved.drafter),
                    "image": record.resolved.image,
                },
            }
            for record in records
        ]
        printing.data({"revisions": found, "history": changes, "analysis": verdicts}, output)
        return failures.OK
    table = printing.table("no", "revision", "state", "block", "engine", "target", "drafter", right=("no",))
    length = distinct_length(model.revision for record in records for model in (record.resolved.target, record.resolved.drafter))
    for record in records:
        resolved = record.resolved
        engine = f"{resolved.engine} {resolved.version}"
        models = [_model(resolved.target, length), _model(resolved.drafter, length)]
        table.add_row(str(record.number), record.name, str(record.state), record.speculation.label(), engine, *models)
    printing.show(table, "")
    events = printing.table("at", "revision", "became", "asked by", "reason")
    for entry in changes:
        events.add_row(entry["at"], entry["revision"], entry["state"], entry["askedBy"], entry["reason"])
    printing.show(events)
    if verdicts:
        from dflash_controller.cli import screen

        printing.show("", f"Verdicts on {live.rollout.get('revision')}")
        for verdict in screen.verdicts(live.obj):
            printing.show(f"  {verdict.metric:<22} {verdict.verdict:<13} {verdict.text}")
    if revision:
        printing.show("", "Made from", printing.as_yaml(dict(records[0].inputs)).rstrip())
    return failures.OK


def _diff(name: str, revision: str | None, other: str | None, output: str, where: Where) -> int:
    """Compare two revisions that are kept.

    By default the active one with the candidate, or if there is none, the last one that served before the active one with that. One
    revision alone is compared with the active one.
    """
    from dflash_controller.cli.comparison import between, pair
    from dflash_controller.cli.connection import Cluster
    from dflash_controller.cli.deployments import Live

    with Cluster(where) as cluster:
        live = Live.of(cluster, name)
        before, after = pair(live, live.revision(revision), live.revision(other) if other else None)
        found = between(before, after, live.stored)
    if output == "table":
        click.echo("\n".join(found.fields()) or "the inputs are the same")
        click.echo(found.manifests() or "the workloads are the same")
    else:
        printing.data({"before": before.name, "after": after.name, "fields": found.fields(), "diff": found.manifests()}, output)
    return failures.NEGATIVE if found.differs else failures.OK


def _model(model: ModelRef, letters: int | None = None) -> str:
    """Returns a model with the first letters of its commit; None: all of them."""
    return f"{model.model}@{model.revision[:letters]}" if model.revision else model.model


_CHANGES = (dry_run, options.cluster)
_ASKS = (options.yes, dry_run, options.cluster)
_to_revision = click.option("--to-revision", metavar="REVISION", help="Revision to go back to; see rollout history.")
_wait = click.option("-w", "--wait", is_flag=True, help="Wait until the rollout has ended, or waits for a decision.")
_timeout = click.option(
    "--timeout", type=click.FloatRange(min=0), default=10_800.0, metavar="SECONDS", help="With --wait: longest time (3 h)."
)
_off = click.option("--off", is_flag=True, help="Take the pin away.")
_revision = click.option("--revision", metavar="REVISION", help="This revision alone, with the inputs it was made from.")
_one = click.argument("revision", required=False)
_two = click.argument("other", required=False)
_VERBS: tuple[tuple[str, Callable[..., int], tuple[Any, ...], str], ...] = (
    ("status", _status, (_wait, _timeout, options.output, options.cluster), "kubectl dflash rollout status qwen --wait --timeout 7200"),
    (
        "history",
        _history,
        (_revision, options.output, options.cluster),
        "kubectl dflash rollout history qwen\nkubectl dflash rollout history qwen --revision qwen-r24bnv7i",
    ),
    (
        "diff",
        _diff,
        (_one, _two, options.output, options.cluster),
        "kubectl dflash rollout diff qwen\nkubectl dflash rollout diff qwen r24bnv7i rs4l6otp",
    ),
    ("pause", _pause, _CHANGES, "kubectl dflash rollout pause qwen"),
    ("resume", _resume, _CHANGES, "kubectl dflash rollout resume qwen"),
    ("promote", _promote, _ASKS, "kubectl dflash rollout promote qwen\nkubectl dflash rollout promote qwen --yes"),
    ("abort", _abort, _ASKS, "kubectl dflash rollout abort qwen"),
    (
        "undo",
        _undo,
        (_to_revision, *_ASKS),
        "kubectl dflash rollout undo qwen\nkubectl dflash rollout undo qwen --to-revision qwen-r24bnv7i",
    ),
    ("pin", _pin, (_one, _off, *_ASKS), "kubectl dflash rollout pin qwen qwen-r24bnv7i\nkubectl dflash rollout pin qwen --off"),
    ("restart", _restart, _ASKS, "kubectl dflash rollout restart qwen --dry-run"),
)
"""Name, function, parameters besides NAME, and examples of each verb."""

for _name, _function, _parameters, _examples in _VERBS:
    for _parameter in reversed(_parameters):
        _function = _parameter(_function)
    command.add_command(options.command(_name, _examples)(options.name(_function)))
