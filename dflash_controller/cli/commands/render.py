"""``render FILE|NAME``: the exact command lines and objects, with the source of each argument."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from dflash_controller.cli import failures, manifests, options, printing
from dflash_controller.cli.checks import check
from dflash_controller.cli.resolution import operator_defaults
from dflash_controller.cli.shell import line

if TYPE_CHECKING:
    from dflash_controller.cli.rendered import Container, Rendered
    from dflash_controller.cli.where import Where

_EXAMPLES = """
# What the operator would create for a file, without a cluster
kubectl dflash render examples/dflash.yaml

# The objects, as YAML
kubectl dflash render examples/dflash.yaml -o yaml

# The command line alone, to try it on a GPU machine. The key is the UID of the pod elsewhere
kubectl dflash render examples/dflash.yaml --argv > engine.sh
DFLASH_ADMIN_KEY=$(openssl rand -hex 16) bash engine.sh

# What the active revision of a deployment runs, and another one that is kept
kubectl dflash render qwen
kubectl dflash render qwen --revision qwen-r24bnv7i
"""


@options.command("render", _EXAMPLES)
@click.argument("file_or_name", metavar="FILE|NAME", shell_complete=options.names)
@click.option("--name", help="Of several DFlashDeployments in FILE, this one.")
@click.option("--revision", metavar="REVISION", help="With NAME: a revision that is kept, instead of the active one.")
@click.option("--argv", is_flag=True, help="Print the command lines only, with their environment, ready for a shell.")
@options.setting
@options.output
@options.cluster
def command(
    file_or_name: str, name: str | None, revision: str | None, argv: bool, settings: Sequence[str], output: str, where: Where
) -> int:
    """Show what the operator makes of a DFlashDeployment: command lines, environment and objects.

    With FILE no cluster is needed: it shows the first revision, with the defaults of this release and of --setting. With NAME it shows what
    is stored with the active revision of that deployment, which is what its pods run. Each argument has its source: a field of the spec,
    the drafter's model card, the catalog, the tuner, or the operator. -o yaml and -o json print the objects. The PodMonitor is only
    created where the cluster serves that kind, and the Jobs that fetch weights are left out. --argv prints a line for a shell, with the
    environment variables of the engine in front. What only a pod has, such as its UID or a Secret, the line takes from variables of the
    shell, which are named on standard error. The line fails where one that the engine needs is not set.
    """
    if manifests.is_file(file_or_name):
        if revision:
            raise failures.Failure("--revision needs the NAME of a deployment in the cluster, not a file")
        found = _of_file(file_or_name, name, settings, where)
    else:
        found = _of_cluster(file_or_name, revision, where)
    if argv:
        _print_lines(found)
    elif output == "table":
        _print(found)
    elif output == "json":
        containers = [container.to_json() for container in found.containers]
        printing.data({"revision": found.revision, "containers": containers, "objects": list(found.objects)}, output)
    else:
        printing.documents(found.objects, output)
    return failures.OK


def _of_file(file: str, name: str | None, settings: Sequence[str], where: Where) -> Rendered:
    from dflash_controller.cli.rendered import of_spec

    document, defaults = manifests.deployment(file, name), operator_defaults(settings)
    namespace = where.namespace or document.namespace or "default"
    verdict = check(document.manifest, document.name, namespace, defaults)
    if verdict.made is None:
        listed = "\n  ".join(f"{problem.by}: {problem}" for problem in verdict.problems)
        raise failures.Failure(f"{file} is invalid:\n  {listed}", status=failures.NEGATIVE)
    for problem in verdict.problems:
        click.echo(f"warning: {problem.by}: {problem}", err=True)
    return of_spec(verdict.made, document.name, namespace, defaults)


def _of_cluster(name: str, revision: str | None, where: Where) -> Rendered:
    from dflash_controller.cli.connection import Cluster
    from dflash_controller.cli.deployments import Live
    from dflash_controller.cli.rendered import of_revision

    with Cluster(where) as cluster:
        live = Live.of(cluster, name)
        return of_revision(live.revision(revision), live.spec, live.name, live.namespace)


def _print_lines(found: Rendered) -> None:
    unset: dict[str, str] = {}
    for container in found.containers:
        if len(found.containers) > 1:
            click.echo(f"# {container.role}")
        made = line(container.argv, container.env)
        unset |= made.unset
        click.echo(made.text)
    for name, meaning in unset.items():
        click.echo(f"# export {name} first: {meaning}", err=True)


def _print(found: Rendered) -> None:
    printing.show(f"Revision {found.revision}: {found.engine}, block {found.block}")
    for container in found.containers:
        _print_container(container, several=len(found.containers) > 1)
    printing.show("", "Objects (-o yaml prints them)")
    for item in found.objects:
        printing.show(f"  {item['kind']}/{item['metadata']['name']}")


def _print_container(container: Container, *, several: bool) -> None:
    printing.show("", f"{f'{container.role}: ' if several else ''}{container.image}", f"{shlex.join(container.command)} …")
    rows: list[tuple[str, Any]] = [("argument", container.arguments), ("variable", container.variables), ("not used", container.left_out)]
    for title, explained in rows:
        if not explained:
            continue
        if printing.narrow():
            printing.show("", title.upper())
            for item in explained:
                printing.show(item.argument, f"    {item.source}: {item.reason}")
            continue
        table = printing.table(title, "source", "reason")
        for item in explained:
            table.add_row(item.argument, item.source, item.reason)
        printing.show("", table)
