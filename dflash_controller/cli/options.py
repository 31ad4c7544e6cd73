"""Options that several commands have, and parts of their help."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import click

from dflash_controller.cli.failures import Failure
from dflash_controller.cli.printing import FORMATS
from dflash_controller.cli.where import Where

F = TypeVar("F", bound=Callable[..., Any])


class Command(click.Command):
    """Prints its examples below the options, as they are written."""

    examples = ""

    def format_epilog(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Examples"):
            for line in self.examples.strip().splitlines():
                formatter.write(f"  {line}\n" if line else "\n")


def command(name: str, examples: str, **attributes: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """Makes a command with examples."""

    def make(function: Callable[..., Any]) -> click.Command:
        settings = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
        made = click.command(name, cls=Command, context_settings=settings, **attributes)(function)
        made.examples = examples
        return made

    return make


output = click.option("-o", "--output", type=click.Choice(FORMATS), default="table", show_default=True, help="Format of the result.")
setting = click.option(
    "--setting",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of your operator that differs from the default, such as DFLASH_ALLOWED_HOST_PATHS=/mnt/models. Can be repeated.",
)

yes = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


def agree(otherwise: str) -> None:
    """Asks whether to go on. Raises Abort if not, Failure if nobody can be asked; ``otherwise`` is the remedy besides --yes."""
    if not sys.stdin.isatty():
        raise Failure("nobody can be asked, because standard input is no terminal", f"Add --yes to do it, or {otherwise}")
    if not click.confirm("Go on?", err=True):
        raise click.Abort


def cluster(function: F) -> F:
    """Adds kubectl's options for the cluster. The command receives them as ``where``."""

    @click.option("--kubeconfig", type=click.Path(), metavar="FILE", help="Kubeconfig to use instead of KUBECONFIG and ~/.kube/config.")
    @click.option("--context", metavar="NAME", help="Context of the kubeconfig to use.")
    @click.option("-n", "--namespace", metavar="NAME", help="Namespace; by default that of the context.")
    @click.option("--request-timeout", type=click.FloatRange(min=1), default=30.0, metavar="SECONDS", help="Time limit of a request (30).")
    @wraps(function)
    def wrapped(
        *arguments: Any, kubeconfig: str | None, context: str | None, namespace: str | None, request_timeout: float, **others: Any
    ) -> Any:
        return function(*arguments, where=Where(kubeconfig, context, namespace, request_timeout), **others)

    return wrapped  # type: ignore[return-value]


def names(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Completes names of DFlashDeployments. Whatever goes wrong, there is just nothing to complete."""
    from dflash_controller.cli.connection import Cluster
    from dflash_controller.cluster.kinds import DFLASH_DEPLOYMENT

    given = context.params
    try:
        with Cluster(Where(given.get("kubeconfig"), given.get("context"), given.get("namespace"), timeout_s=3.0)) as cluster:
            found = cluster.objects(DFLASH_DEPLOYMENT, cluster.namespace)
    except Failure:
        return []
    return sorted(item["metadata"]["name"] for item in found if item["metadata"]["name"].startswith(begun))


name = click.argument("name", shell_complete=names)
