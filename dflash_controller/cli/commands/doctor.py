"""``doctor``: is the cluster ready for DFlashDeployments."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from dflash_controller.cli import failures, options, printing

if TYPE_CHECKING:
    from dflash_controller.cli.connection import Cluster
    from dflash_controller.cli.readiness import Check
    from dflash_controller.cli.where import Where

_EXAMPLES = """
# Before the first deployment, and when something does not work
kubectl dflash doctor

# A Prometheus that the operator does not ask
kubectl dflash doctor --prometheus http://prometheus.monitoring:9090

# Whether pods of a namespace reach the model hub: one pod runs for some seconds
kubectl dflash doctor --from-pod -n dflash-system

# In a pipeline: status 1 if a check failed
kubectl dflash doctor -o json
"""
_COLORS = {"ok": "green", "advice": "yellow", "FAILED": "red", "unknown": "magenta", "not checked": "cyan"}
_RIGHTS = (
    ("patch", "serving.dflash.io", "dflashdeployments"),
    ("list", "apps", "controllerrevisions"),
    ("list", "apps", "deployments"),
    ("list", "", "pods"),
    ("list", "", "events"),
)
"""Verb, group and resource of what these commands do in a namespace."""
_RIGHTS_OF_A_POD = (("create", "", "pods"), ("get", "", "pods"), ("delete", "", "pods"))


@options.command("doctor", _EXAMPLES)
@click.option("--prometheus", metavar="URL", help="URL of Prometheus inside the cluster; by default the one that the operator asks.")
@click.option("--from-pod", is_flag=True, help="Start a pod that asks the model hub, and remove it.")
@click.option(
    "--timeout", type=click.FloatRange(min=1), default=120.0, metavar="SECONDS", help="With --from-pod: longest time for its answer (120)."
)
@options.output
@options.cluster
def command(prometheus: str | None, from_pod: bool, timeout: float, output: str, where: Where) -> int:
    """Check whether the cluster is ready: the release of Kubernetes, the CustomResourceDefinition, the operator, whether it can read the
    metrics of every DFlashDeployment, your rights, GPU labels, LeaderWorkerSet, PodMonitor, storage classes, every series that decisions
    need from Prometheus, and the model hub.

    Prometheus is asked through the API server's proxy of its Service. What you may not read is unknown, not wrong. Nothing is changed
    without --from-pod. With it, one pod in the namespace asks the hub in place of the operator, with its image, proxy and certificates, and
    is removed at its end, at the time limit and on Ctrl-C. It has no token, and meets the restricted Pod Security Standard. NetworkPolicies
    that select the operator's pods by their labels do not select this one.
    """
    from dflash_controller.cli.connection import Cluster
    from dflash_controller.cli.readiness import Result

    with Cluster(where) as cluster:
        found = list(_checks(cluster, prometheus, timeout if from_pod else None))
    if output == "table":
        _print(found)
    else:
        printing.data([check.to_json() for check in found], output)
    return failures.NEGATIVE if any(check.result is Result.FAILED for check in found) else failures.OK


def _checks(cluster: Cluster, url: str | None, pod_limit_s: float | None) -> Iterator[Check]:
    """Yields every check. ``pod_limit_s`` are the seconds that a pod may take; None: none is started."""
    from dflash_controller.cli import leases, readiness
    from dflash_controller.cluster import kinds
    from dflash_controller.cluster.kinds import Kind

    definitions = Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions")
    classes = Kind("storage.k8s.io/v1", "StorageClass", "storageclasses")
    yield readiness.kubernetes(json.loads(cluster.text("/version")))
    yield _read(
        "CustomResourceDefinition",
        lambda: cluster.find(definitions, "dflashdeployments.serving.dflash.io", None),
        readiness.definition,
    )
    operators: list[dict[str, Any]] = []

    def deployed() -> list[Mapping[str, Any]]:
        operators.extend(cluster.objects(kinds.DEPLOYMENT, None, selector=readiness.OPERATOR))
        return leases.read(cluster)

    def judged(found: Sequence[Mapping[str, Any]]) -> Check:
        now = datetime.now(UTC)
        return readiness.operators(operators, leases.leader(found, now), leases.abandoned(found, now))

    yield _read("operator", deployed, judged)
    yield _read("metrics", lambda: _deployments(cluster), readiness.metrics)
    yield _read("your rights", lambda: _refused(cluster, _RIGHTS), lambda refused: readiness.rights(refused, len(_RIGHTS)))
    yield _read("GPU nodes", lambda: cluster.objects(kinds.NODE, None), readiness.accelerators)
    yield _read("storage classes", lambda: cluster.objects(classes, None), readiness.storage)
    for kind, what_for, remedy in (
        (kinds.LEADER_WORKER_SET, "replicas over several nodes need it", "Install LeaderWorkerSet 0.9 or later if you need them."),
        (kinds.POD_MONITOR, "Prometheus needs another way to find the engines", "Add a scrape configuration, or the Prometheus operator."),
    ):
        yield readiness.served(kind.name, cluster.served(kind), what_for, remedy)
    yield from _prometheus(cluster, url or readiness.prometheus_url(operators), bool(operators))
    yield _hub(cluster, readiness.operator_of(operators, cluster.namespace), pod_limit_s)


def _deployments(cluster: Cluster) -> list[dict[str, Any]]:
    """Returns the DFlashDeployments of all namespaces; of the chosen one if those of all may not be read."""
    from dflash_controller.cluster.kinds import DFLASH_DEPLOYMENT

    try:
        return cluster.objects(DFLASH_DEPLOYMENT, None)
    except failures.Failure:
        return cluster.objects(DFLASH_DEPLOYMENT, cluster.namespace)


def _prometheus(cluster: Cluster, url: str | None, operator: bool) -> Iterator[Check]:
    """Yields what is found of Prometheus. ``url`` is None if nobody says where it is; ``operator``: whether the operator was asked."""
    from dflash_controller.cli import readiness
    from dflash_controller.cli.readiness import Check, Result
    from dflash_controller.engines import ENGINES

    if url is None and not operator:
        said = "no Deployment of an operator is found, so it is not known which one it asks, if any"
        yield Check("Prometheus", Result.UNKNOWN, said, "Name one with --prometheus.")
        return
    if url is None:
        yield Check(
            "Prometheus", Result.ADVICE, "the operator asks none and scrapes the engines itself", "Set prometheus.url of the chart."
        )
        return
    path = readiness.proxy_path(url)
    if path is None:
        yield Check("Prometheus", Result.UNKNOWN, f"{url} is not the URL of a Service", "Name one with --prometheus.")
        return
    for engine in ENGINES.values():
        schema, name = engine.metric_schema, f"Prometheus: {engine.name}"
        try:
            names = readiness.names_of(cluster.text(f"{path}/api/v1/query", query=readiness.names_query(schema)))
        except (failures.Failure, ValueError) as error:
            yield Check(name, Result.FAILED, f"{url} does not answer: {error}", "Check prometheus.url of the chart, and the Service.")
            return
        yield readiness.series(schema, names)


def _hub(cluster: Cluster, operator: Mapping[str, Any] | None, limit_s: float | None) -> Check:
    from dflash_controller.cli import hub_pod, pod_run
    from dflash_controller.cli.readiness import Check, Result

    if operator is None:
        said = f"no operator that serves namespace {cluster.namespace} is found, so its settings are not known"
        return Check(hub_pod.NAME, Result.UNKNOWN, said)
    question = hub_pod.question_of(operator, cluster.namespace)
    if limit_s is None or question.off:
        return hub_pod.not_checked(question)
    try:
        if refused := _refused(cluster, _RIGHTS_OF_A_POD):
            return hub_pod.no_rights(question, refused)
        pod = hub_pod.manifest(question, f"dflash-doctor-{secrets.token_hex(4)}", limit_s)
        click.echo(f"starts pod {pod['metadata']['name']} in namespace {cluster.namespace}, for at most {limit_s:g} s", err=True)
        return pod_run.run(cluster, pod, partial(hub_pod.judged, question), partial(hub_pod.late, question, limit_s=limit_s), limit_s)
    except pod_run.NotCreated as error:
        return hub_pod.not_created(question, str(error))
    except failures.Failure as error:
        return hub_pod.gone(question, str(error))


def _refused(cluster: Cluster, rights: Sequence[tuple[str, str, str]]) -> list[str]:
    """Returns which of the rights the caller does not have in the namespace."""
    from dflash_controller.cluster.kinds import Kind

    reviews = Kind("authorization.k8s.io/v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews")
    found = []
    for verb, group, resource in rights:
        attributes = {"namespace": cluster.namespace, "verb": verb, "group": group, "resource": resource}
        review = {
            "apiVersion": reviews.api_version,
            "kind": reviews.name,
            "metadata": {"namespace": None},
            "spec": {"resourceAttributes": attributes},
        }
        if not cluster.create(reviews, review)["status"].get("allowed"):
            found.append(f"{verb} {resource}")
    return found


def _read(name: str, read: Callable[[], Any], judge: Callable[[Any], Check]) -> Check:
    from dflash_controller.cli.readiness import Check, Result

    try:
        found = read()
    except failures.Failure as error:
        return Check(name, Result.UNKNOWN, str(error))
    return judge(found)


def _print(found: list[Check]) -> None:
    from rich.text import Text

    table = printing.grid(3)
    for check in found:
        text = f"{check.text}. {check.remedy}" if check.remedy else check.text
        table.add_row(Text(check.result, style=_COLORS[check.result]), Text(check.name), Text(text))
    printing.show(table)
