"""``validate FILE…``: what the API server, the operator and the engine's parser would say, without a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from dflash_controller.api.names import KIND
from dflash_controller.cli import failures, manifests, options, printing
from dflash_controller.cli.checks import Verdict, check
from dflash_controller.cli.manifests import Document
from dflash_controller.cli.resolution import operator_defaults

_EXAMPLES = """
# One file, or all files of a directory
kubectl dflash validate examples/dflash.yaml
kubectl dflash validate deploy/

# What a template engine renders
kustomize build deploy | kubectl dflash validate -

# An operator that allows hostPath below /mnt/models
kubectl dflash validate --setting DFLASH_ALLOWED_HOST_PATHS=/mnt/models qwen.yaml
"""


@options.command("validate", _EXAMPLES)
@click.argument("files", nargs=-1, required=True, type=click.Path(allow_dash=True), metavar="FILE...")
@options.setting
@click.option("--strict", is_flag=True, help="Advice counts as a problem too.")
@options.output
def command(files: Sequence[str], settings: Sequence[str], strict: bool, output: str) -> int:
    """Check DFlashDeployments in files, without a cluster.

    FILE is a YAML or JSON file, a directory, or - for standard input. Says what the API server refuses (fields, types, rules of the
    CustomResourceDefinition), what the operator would report as Stalled (catalog, engine releases, flags), and which flags of extraArgs the
    parser of the engine release does not know, with the nearest one that it knows, or takes without a value only. Where the API server
    refuses something, the rest is judged all the same, as far as it does not depend on that. A flag that only your own image or a release
    that was not tested may know is advice, and so is a commit that is the placeholder of the examples. Other kinds are skipped. The model
    hub is not asked, and admission webhooks of your cluster are not known here.
    """
    defaults = operator_defaults(settings)
    documents = manifests.read(files)
    found = [
        (document, check(document.manifest, document.name, document.namespace or "default", defaults))
        for document in documents
        if document.kind == KIND
    ]
    if not found:
        raise failures.Failure(f"no {KIND} in {', '.join(files)}")
    bad = sum(not _passes(verdict, strict) for _, verdict in found)
    if output != "table":
        printing.data([_json(document, verdict, strict) for document, verdict in found], output)
    else:
        for document, verdict in found:
            for line in _lines(document, verdict, strict):
                click.echo(line)
        if skipped := len(documents) - len(found):
            click.echo(f"{skipped} of other kinds skipped", err=True)
    return failures.NEGATIVE if bad else failures.OK


def _passes(verdict: Verdict, strict: bool) -> bool:
    return not verdict.problems and not (strict and verdict.advice)


def _lines(document: Document, verdict: Verdict, strict: bool) -> list[str]:
    name = f"{document.file}: {document.name or 'without a name'}"
    return [
        f"{name}: {'valid' if _passes(verdict, strict) else 'INVALID'}",
        *(f"  {problem.by}: {problem}" for problem in verdict.problems),
        *(f"  advice: {text}" for text in verdict.advice),
    ]


def _json(document: Document, verdict: Verdict, strict: bool) -> dict[str, Any]:
    return {
        "file": document.file,
        "name": document.name,
        "namespace": document.namespace,
        "valid": _passes(verdict, strict),
        "problems": [{"by": problem.by, "field": problem.field, "message": problem.message} for problem in verdict.problems],
        "advice": list(verdict.advice),
    }
