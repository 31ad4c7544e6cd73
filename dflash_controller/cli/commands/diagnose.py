"""``diagnose NAME -o FILE.tar.gz``: everything a bug report needs, without secrets."""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from dflash_controller import __version__
from dflash_controller.cli import failures, options, printing, redaction

if TYPE_CHECKING:
    from dflash_controller.cli.connection import Cluster
    from dflash_controller.cli.where import Where

_EXAMPLES = """
# Objects, events and logs of a deployment, and the operator's log
kubectl dflash diagnose qwen -o qwen.tar.gz

# Look at what is inside before it is sent
tar -xOzf qwen.tar.gz | less
"""
_DROPPED = ("managedFields", "kubectl.kubernetes.io/last-applied-configuration")
"""Keys that repeat what stands elsewhere."""


@options.command("diagnose", _EXAMPLES)
@options.name
@click.option("-o", "--output", "file", required=True, metavar="FILE.tar.gz", type=click.Path(dir_okay=False), help="Archive to write.")
@click.option("--lines", type=click.IntRange(min=1), default=2000, show_default=True, help="Last lines of each log.")
@options.cluster
def command(name: str, file: str, lines: int, where: Where) -> int:
    """Collect what a bug report needs: the deployment and what belongs to it, its events, the logs of its pods and of the operator.

    Secrets are not read. Tokens, keys and passwords are taken out of objects and logs: known forms, values of telling names, and the values
    of all environment variables but those of engines and operator. Prompts do not occur in the engines' logs unless you switched that on.
    Look through the archive before you send it. What may not be read is listed in the archive, and does not stop the rest.
    """
    from dflash_controller.cli.connection import Cluster

    with Cluster(where) as cluster:
        obj = cluster.deployment(name)
        files = dict(_collected(cluster, obj, lines))
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for path, text in files.items():
            body = text.encode("utf-8", errors="replace")
            entry = tarfile.TarInfo(f"{name}/{path}")
            entry.size, entry.mtime = len(body), int(time.time())
            archive.addfile(entry, io.BytesIO(body))
    try:
        with open(file, "wb") as out:
            out.write(content.getvalue())
    except OSError as error:
        raise failures.Failure(f"{file} cannot be written: {error.strerror}") from error
    for path in files:
        click.echo(path)
    click.echo(f"{file} written. Look through it before you send it.", err=True)
    return failures.OK


def _collected(cluster: Cluster, obj: dict[str, Any], lines: int) -> Iterator[tuple[str, str]]:
    """Yields path and redacted text of each file of the archive."""
    from dflash_controller.cli.readiness import OPERATOR
    from dflash_controller.cluster import kinds

    name, unread = obj["metadata"]["name"], []

    def read(what: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except failures.Failure as error:
            unread.append(f"{what}: {error}")
            return None

    yield "dflashdeployment.yaml", _yaml(obj)
    for kind in kinds.CHILDREN:
        if kind.optional and not read(kind.name, partial(cluster.served, kind)):
            continue
        if found := read(kind.name, partial(cluster.children, kind, name)):
            yield f"{kind.plural}.yaml", "---\n".join(map(_yaml, found))
    if found := read("events", lambda: cluster.objects(kinds.EVENT, cluster.namespace)):
        ours = [item for item in found if str(item.get("involvedObject", {}).get("name", "")).startswith(name)]
        yield "events.yaml", "---\n".join(map(_yaml, ours))
    for pod in read("pods", lambda: cluster.children(kinds.POD, name)) or ():
        yield from _logs(cluster, pod, lines, read)
    operators = read("the operator's pods", lambda: cluster.objects(kinds.POD, None, selector=OPERATOR))
    if operators == []:
        unread.append(f"the operator's log: no pod of any namespace has the label {OPERATOR}")
    for pod in operators or ():
        yield from _logs(cluster, pod, lines, read)
    version = read("the release of the API server", lambda: cluster.text("/version")) or ""
    yield "versions.txt", f"kubectl-dflash {__version__}\n{version}\n"
    if unread:
        yield "not-read.txt", "".join(f"{redaction.text(line)}\n" for line in unread)


def _logs(cluster: Cluster, pod: dict[str, Any], lines: int, read: Callable[[str, Callable[[], Any]], Any]) -> Iterator[tuple[str, str]]:
    metadata, spec = pod["metadata"], pod["spec"]
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/log"
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        for previous in ("false", "true"):
            if previous == "true" and not _restarted(pod, container["name"]):
                continue
            query = {"container": container["name"], "tailLines": lines, "previous": previous}
            log = read(f"log of {metadata['name']}/{container['name']}", partial(cluster.text, path, **query))
            if log:
                kind = "previous.log" if previous == "true" else "log"
                yield f"logs/{metadata['name']}.{container['name']}.{kind}", redaction.text(log)


def _restarted(pod: dict[str, Any], container: str) -> bool:
    status = pod.get("status") or {}
    found = (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ()))
    return any(item["name"] == container and item.get("restartCount") for item in found)


def _yaml(obj: dict[str, Any]) -> str:
    return printing.as_yaml(redaction.data(_without_repetitions(obj)))


def _without_repetitions(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_repetitions(item) for key, item in value.items() if key not in _DROPPED}
    return value
