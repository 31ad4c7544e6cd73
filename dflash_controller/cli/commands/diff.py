"""``diff FILE|NAME``: what a spec would change against what runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from dflash_controller.cli import failures, manifests, options, printing
from dflash_controller.cli.resolution import operator_defaults

if TYPE_CHECKING:
    from dflash_controller.cli.comparison import Difference
    from dflash_controller.cli.where import Where

_EXAMPLES = """
# What would happen if the deployment was replaced by this file
kubectl dflash diff qwen.yaml

# Whether a deployment runs what its spec asks for, and nobody else changed its workload
kubectl dflash diff qwen

# In a pipeline: status 0 if nothing differs, 1 if something does
kubectl dflash diff qwen.yaml -o json
"""


@options.command("diff", _EXAMPLES)
@click.argument("file_or_name", metavar="FILE|NAME", shell_complete=options.names)
@click.option("--name", help="Of several DFlashDeployments in FILE, this one.")
@options.setting
@options.output
@options.cluster
def command(file_or_name: str, name: str | None, settings: Sequence[str], output: str, where: Where) -> int:
    """Compare what a spec asks for with what runs in the cluster.

    Says which fields change, whether engines are replaced, by which revision, whether that is on trial already, what is compared in its
    rollout, and prints the difference of the workloads. With NAME the spec is the one in the cluster; then it also says what somebody else
    changed in the workload. With FILE its spec counts as the whole one, as with kubectl replace. kubectl apply keeps fields that the file
    leaves out and somebody else has set, by a patch for example: see them with kubectl diff -f FILE.
    Nothing is changed. The model hub is not asked: a branch that the active revision has resolved counts as unmoved.
    """
    from dflash_controller.cli.comparison import Difference, compare
    from dflash_controller.cli.connection import Cluster
    from dflash_controller.cli.deployments import Live

    document = manifests.deployment(file_or_name, name) if manifests.is_file(file_or_name) else None
    if document is not None and where.namespace is None and document.namespace:
        where = replace(where, namespace=document.namespace)
    with Cluster(where) as cluster:
        live = Live.of(cluster, document.name if document else file_or_name)
        found = compare(live, document.manifest if document else live.obj, operator_defaults(settings))
    if not isinstance(found, Difference):
        raise failures.Failure(f"{file_or_name} is invalid: {'; '.join(map(str, found))}", status=failures.NEGATIVE)
    if output == "table":
        _print(live.name, found, document is not None)
    else:
        printing.data(_json(live.name, found), output)
    return failures.NEGATIVE if found.any else failures.OK


def _print(name: str, found: Difference, file: bool) -> None:
    printing.show(f"{name}{', if it was replaced by this file' if file else ''}: {found.summary()}")
    fields = found.fields() if found.differs else []
    for title, lines in (("Changes that need a new revision", fields), ("Applied in place", found.policy)):
        if lines:
            printing.show("", title, *(f"  {line}" for line in lines))
    for line in found.drift:
        printing.show("", line)
    if found.differs and (text := found.manifests()):
        click.echo()
        for line in text.splitlines():
            click.secho(line, fg={"+": "green", "-": "red", "@": "cyan"}.get(line[:1]))


def _json(name: str, found: Difference) -> dict[str, object]:
    return {
        "name": name,
        "differs": found.any,
        "restarts": found.restarts,
        "running": found.before.name if found.before else None,
        "askedFor": found.after.name,
        "new": found.new,
        "summary": found.summary(),
        "fields": found.fields() if found.differs else [],
        "appliedInPlace": list(found.policy),
        "drift": list(found.drift),
        "compared": list(found.judged()),
        "diff": found.manifests() if found.differs else "",
    }
