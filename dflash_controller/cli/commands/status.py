"""``status [NAME]``: one screen about a deployment, or one line for each."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from dflash_controller.cli import failures, options, printing
from dflash_controller.cli.times import ago

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dflash_controller.cli.connection import Cluster
    from dflash_controller.cli.where import Where
    from dflash_controller.planning.revisions.revision import Revision

_EXAMPLES = """
# All deployments of the namespace, or of all namespaces
kubectl dflash status
kubectl dflash status --all-namespaces

# One deployment: what it runs and measures, its rollout with verdicts, the last decisions
kubectl dflash status qwen

# Follow a rollout
kubectl dflash status qwen --watch
"""
_COLORS = {"Successful": "green", "Failed": "red", "Inconclusive": "yellow", "Error": "magenta"}


@options.command("status", _EXAMPLES)
@click.argument("name", required=False, shell_complete=options.names)
@click.option("-A", "--all-namespaces", is_flag=True, help="Deployments of all namespaces.")
@click.option("-w", "--watch", is_flag=True, help="Show it again whenever something changes, until Ctrl-C.")
@click.option("--interval", type=click.FloatRange(min=0.5), default=2.0, show_default=True, help="With --watch: seconds between two looks.")
@options.output
@options.cluster
def command(name: str | None, all_namespaces: bool, watch: bool, interval: float, output: str, where: Where) -> int:
    """Show what deployments run and measure, how their rollouts stand, and what was decided last.

    The bar of a verdict is the loss that the limit allows: it is full where the candidate has used it up. READY Unknown with the reason
    NotSeen means that the operator has not seen the present spec; what else is shown is of the one before. Measured values are - where
    there is no traffic, or the operator cannot measure it. If nobody renews the operator's Lease and you may list Leases, NAME says since
    when. -o json and -o yaml print the objects as they are.
    """
    from dflash_controller.cli.connection import Cluster

    if name and all_namespaces:
        raise failures.Failure("NAME and --all-namespaces exclude each other")
    if watch and output != "table":
        raise failures.Failure("--watch shows a screen; use kubectl get dfd --watch -o json for a stream of objects")
    with Cluster(where) as cluster:
        if watch:
            _watch(cluster, name, all_namespaces, interval)
        elif output != "table":
            printing.data(_objects(cluster, name, all_namespaces), output)
        else:
            printing.show(*_screen(cluster, name, all_namespaces))
    return failures.OK


def _objects(cluster: Cluster, name: str | None, everywhere: bool) -> Any:
    from dflash_controller.cluster.kinds import DFLASH_DEPLOYMENT

    if name:
        return cluster.deployment(name)
    items = cluster.objects(DFLASH_DEPLOYMENT, None if everywhere else cluster.namespace)
    if not items and not everywhere and cluster.no_namespace():
        raise failures.Failure(f"there is no namespace {cluster.namespace}", "See kubectl get namespaces", status=failures.CLUSTER)
    return {"apiVersion": "v1", "kind": "List", "items": items}


def _screen(cluster: Cluster, name: str | None, everywhere: bool) -> list[RenderableType]:
    from dflash_controller.cli import leases, screen
    from dflash_controller.cli.deployments import Live

    if name:
        live = Live.of(cluster, name)
        now = datetime.now(UTC)
        left = screen.outlived(live.obj, leases.abandoned(leases.read(cluster), now))
        return one(live.obj, live.events, now, live.active, left)
    items = _objects(cluster, None, everywhere)["items"]
    if not items:
        place = "the cluster" if everywhere else f"namespace {cluster.namespace}"
        return [f"No DFlashDeployment in {place}."]
    first = ["namespace"] if everywhere else []
    table = printing.table(*first, "name", "ready", "replicas", "block", "accepted", "tokens/s", "phase", "reason")
    for item in items:
        table.add_row(*([item["metadata"]["namespace"]] if everywhere else []), *screen.row(item))
    return [table]


def one(
    obj: dict[str, Any], events: list[dict[str, Any]], now: datetime, stable: Revision | None, left: tuple[str, str] | None = None
) -> list[RenderableType]:
    """Returns the screen of one deployment.

    ``stable`` is its active revision; None if it is not known. ``left`` is the Lease of an operator that nobody renews, and since when;
    None if somebody does, or it may not be read.
    """
    from rich.text import Text

    from dflash_controller.cli import screen

    state, message = screen.headline(obj)
    metadata = obj["metadata"]
    parts: list[RenderableType] = [Text(f"{metadata['name']} in {metadata['namespace']}: {state}", style="bold")]
    if message:
        parts.append(Text(message))
    if left:
        parts.append(
            Text(f"Does the operator run? Nobody has renewed its Lease {left[0]} since {left[1]} ({ago(left[1], now)})", style="bold")
        )
    grid = printing.grid(2)
    for title, value in screen.facts(obj, now, stable, left[1] if left else ""):
        grid.add_row(Text(title, style="cyan"), Text(value))
    parts += [Text(""), grid]
    if rollout := screen.rollout(obj, now):
        parts += [Text(""), Text("Rollout", style="bold"), Text(rollout)]
    if lines := screen.verdicts(obj):
        narrow = printing.narrow()
        verdicts = printing.grid(3 if narrow else 4)
        for line in lines:
            color = _COLORS.get(line.verdict, "")
            shown = line.verdict if line.judged else f"{line.verdict} (not judged)"
            cells = [Text(line.metric), Text(shown, style=color), Text(line.bar, style=color)]
            verdicts.add_row(*cells, *([] if narrow else [Text(line.text)]))
        parts.append(verdicts)
        if narrow:
            parts += [Text(f"{line.metric}: {line.text}") for line in lines]
    if found := screen.notices(obj):
        parts += [Text(""), Text("Notices", style="bold"), *map(Text, found)]
    if last := list(screen.decisions(events, now)):
        table = printing.grid(3)
        for when, reason, text in last:
            table.add_row(Text(when), Text(reason), Text(text))
        parts += [Text(""), Text("Last decisions", style="bold"), table]
    return parts


def _watch(cluster: Cluster, name: str | None, everywhere: bool, interval: float) -> None:
    from rich.console import Group
    from rich.live import Live as Display

    if sys.stdout.isatty():
        with Display(Group(*_screen(cluster, name, everywhere)), console=printing.console(), screen=True, auto_refresh=False) as display:
            while True:
                time.sleep(interval)
                display.update(Group(*_screen(cluster, name, everywhere)), refresh=True)
    seen = ""
    while True:
        found = _objects(cluster, name, everywhere)
        versions = str([item["metadata"]["resourceVersion"] for item in found.get("items", [found])])
        if versions != seen:
            if seen:
                click.echo("---")
            seen = versions
            printing.show(*_screen(cluster, name, everywhere))
            sys.stdout.flush()
        time.sleep(interval)
