"""Is a cluster ready for DFlashDeployments: one check for each thing that they need. Pure, from objects as the API server returns them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from dflash_controller.api.conditions import Reason
from dflash_controller.api.crd import crd
from dflash_controller.cli.standing import condition
from dflash_controller.engines import ENGINES
from dflash_controller.engines.hardware import generation
from dflash_controller.model.metric_schema import MetricSchema, missing

PRODUCT = "nvidia.com/gpu.product"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
OPERATOR = "app.kubernetes.io/name=dflash-operator"
NAMESPACES_VARIABLE = "DFLASH_NAMESPACES"
PROMETHEUS_VARIABLE = "DFLASH_PROMETHEUS_URL"
OLDEST = (1, 30)


class Result(StrEnum):
    """What a check found."""

    OK = "ok"
    ADVICE = "advice"
    """Something is missing that not every deployment needs."""
    FAILED = "FAILED"
    UNKNOWN = "unknown"
    """It may not be read."""
    NOT_CHECKED = "not checked"
    """Only done when it is asked for."""


@dataclass(frozen=True, slots=True)
class Check:
    """One answer; ``remedy`` is an imperative sentence, empty where nothing is to be done."""

    name: str
    result: Result
    text: str
    remedy: str = ""

    def to_json(self) -> dict[str, str]:
        return {key: str(value) for key, value in asdict(self).items()}


def kubernetes(version: Mapping[str, Any]) -> Check:
    """Checks the release of the API server."""
    shown = str(version.get("gitVersion", "unknown"))
    digits = ["".join(filter(str.isdigit, str(version.get(part, "")))) for part in ("major", "minor")]
    if not all(digits):
        return Check("Kubernetes", Result.UNKNOWN, f"release {shown}")
    if tuple(map(int, digits)) < OLDEST:
        return Check("Kubernetes", Result.FAILED, f"release {shown}", f"Use {OLDEST[0]}.{OLDEST[1]} or later.")
    return Check("Kubernetes", Result.OK, f"release {shown}")


def definition(found: Mapping[str, Any] | None) -> Check:
    """Checks the CustomResourceDefinition against that of this release."""
    name, remedy = "CustomResourceDefinition", "Install the chart dflash-operator of the same release as this program."
    if found is None:
        return Check(name, Result.FAILED, "is not installed", remedy)
    conditions = {item["type"]: item["status"] for item in (found.get("status") or {}).get("conditions") or ()}
    if conditions.get("Established") != "True":
        return Check(name, Result.FAILED, "is not established", "Look at kubectl describe crd dflashdeployments.serving.dflash.io.")
    ours = crd({engine: each.owned_flags() for engine, each in ENGINES.items()})
    if difference := _lacks(found["spec"]["versions"], ours["spec"]["versions"], "versions"):
        return Check(name, Result.ADVICE, f"is of another release than this program: {difference} differs", remedy)
    return Check(name, Result.OK, "is installed, and of this program's release")


def operators(deployments: Sequence[Mapping[str, Any]], held: str = "", left: tuple[str, str] | None = None) -> Check:
    """Checks that an operator runs. ``held`` says which Lease of an operator has a holder, ``left`` which one has had none since when."""
    name, ran = "operator", f"the Lease {left[0]} says that an operator ran until {left[1]}: no holder since" if left else ""
    if not deployments and held:
        unknown = f"there is no Deployment with the label {OPERATOR}, so its settings are not known"
        return Check(name, Result.ADVICE, f"the Lease {held}, so one runs, but {unknown}")
    if not deployments and ran:
        text = f"{ran}, and there is no Deployment with the label {OPERATOR}"
        return Check(name, Result.FAILED, text, "Find out who stopped or removed it, and start it again.")
    if not deployments:
        return Check(name, Result.FAILED, f"there is no Deployment with the label {OPERATOR}", "Install the chart dflash-operator.")
    said, ready = [], True
    for each in deployments:
        wanted, serving = each["spec"].get("replicas", 1), (each.get("status") or {}).get("readyReplicas", 0)
        ready = ready and serving > 0
        image = operator_container(each).get("image", "")
        said.append(f"{each['metadata']['namespace']}/{each['metadata']['name']}: {serving} of {wanted} pods ready, {image}")
    text = "; ".join([*said, ran] if ran else said)
    if ready and not ran:
        return Check(name, Result.OK, text)
    # Its Lease may have another name, and the expired one be that of an operator before.
    return Check(name, Result.ADVICE if ready else Result.FAILED, text, "Look at its pods and their logs.")


def metrics(deployments: Sequence[Mapping[str, Any]]) -> Check:
    """Checks that the operator can read what the engines of every deployment measure."""
    name = "metrics"
    blind = [(each, found) for each in deployments if (found := condition(each, "MetricsAvailable")).get("status") == "False"]
    # Without pods there is nothing to measure, and nothing to repair.
    blind = [(each, found) for each, found in blind if found.get("reason") != Reason.NO_PODS]
    if not blind:
        return Check(name, Result.OK, f"no DFlashDeployment of {len(deployments)} has MetricsAvailable=False")
    said = [
        f"{each['metadata']['namespace']}/{each['metadata']['name']}: {found.get('reason')} since {found.get('lastTransitionTime')}"
        for each, found in blind
    ]
    text = f"the operator cannot read those of {len(blind)} of {len(deployments)} DFlashDeployments: {'; '.join(said)}"
    return Check(name, Result.ADVICE, text, "Load, verdicts and block sizes are not judged there; see condition MetricsAvailable.")


def rights(refused: Sequence[str], asked: int) -> Check:
    """Checks what the caller may do."""
    if refused:
        said = f"you may not {', '.join(refused)}"
        return Check("your rights", Result.ADVICE, said, "Ask for them if you need the commands that use them.")
    return Check("your rights", Result.OK, f"all {asked} that these commands use")


def accelerators(nodes: Sequence[Mapping[str, Any]]) -> Check:
    """Checks that nodes name their GPUs, and that their products are known."""
    name = "GPU nodes"
    products: Counter[str] = Counter()
    unlabelled = 0
    for node in nodes:
        count = _number((node.get("status") or {}).get("allocatable", {}).get("nvidia.com/gpu"))
        label = (node["metadata"].get("labels") or {}).get(PRODUCT)
        if label:
            products[label] += count
        elif count:
            unlabelled += 1
    if unlabelled:
        remedy = "Install NVIDIA's GPU feature discovery, which sets the label."
        return Check(name, Result.FAILED, f"{unlabelled} nodes have GPUs and not the label {PRODUCT}", remedy)
    if not products:
        return Check(
            name, Result.FAILED, f"no node has the label {PRODUCT}", "Add GPU nodes, with NVIDIA's device plugin and GPU feature discovery."
        )
    text = ", ".join(f"{count} × {product}" for product, count in sorted(products.items()))
    if idle := [product for product, count in products.items() if not count]:
        return Check(
            name, Result.FAILED, f"{text}; nodes with {', '.join(idle)} offer no nvidia.com/gpu", "Install NVIDIA's device plugin."
        )
    if strange := [product for product in products if generation(product) is None]:
        remedy = "The engine chooses its attention back end by itself there; set it in spec.engine.extraArgs if need be."
        return Check(name, Result.ADVICE, f"{text}; not known to this release: {', '.join(sorted(strange))}", remedy)
    return Check(name, Result.OK, text)


def served(name: str, serves: bool, what_for: str, remedy: str) -> Check:
    """Checks an optional kind."""
    if serves:
        return Check(name, Result.OK, "the API server serves it")
    return Check(name, Result.ADVICE, f"the API server does not serve it; {what_for}", remedy)


def storage(classes: Sequence[Mapping[str, Any]]) -> Check:
    """Checks the storage classes, for ``spec.storage.persistentVolumeClaim``."""
    if not classes:
        return Check(
            "storage classes", Result.ADVICE, "there is none; each new pod downloads its weights", "Add one, or use spec.storage.hostPath."
        )
    shown = [f"{item['metadata']['name']} ({item.get('provisioner')}{', default' if _is_default(item) else ''})" for item in classes]
    return Check("storage classes", Result.OK, ", ".join(shown))


def operator_of(deployments: Sequence[Mapping[str, Any]], namespace: str) -> Mapping[str, Any] | None:
    """Returns the Deployment of the operator that serves a namespace; None if there is none."""

    def serves(each: Mapping[str, Any]) -> bool:
        served = setting(each, NAMESPACES_VARIABLE)
        return served is None or namespace in map(str.strip, served.split(","))

    return next(filter(serves, deployments), None)


def operator_container(deployment: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the container of an operator's Deployment in which the operator runs."""
    containers: Sequence[Mapping[str, Any]] = deployment["spec"]["template"]["spec"]["containers"]
    return next((container for container in containers if container.get("name") == "operator"), containers[0])


def setting(deployment: Mapping[str, Any], variable: str) -> str | None:
    """Returns the value of a variable of an operator's Deployment; None if it is not set, or empty."""
    found = (item.get("value") for item in operator_container(deployment).get("env") or () if item.get("name") == variable)
    return next((str(value) for value in found if value), None)


def prometheus_url(deployments: Sequence[Mapping[str, Any]]) -> str | None:
    """Returns the URL that the operator asks; None if it scrapes the engines itself."""
    return next(filter(None, (setting(each, PROMETHEUS_VARIABLE) for each in deployments)), None)


def proxy_path(url: str) -> str | None:
    """Returns the path by which the API server passes requests on to a Service; None if the URL is not that of a Service."""
    parts = urlsplit(url)
    labels = (parts.hostname or "").split(".")
    if len(labels) < 2 or (len(labels) > 2 and labels[2] != "svc"):
        return None
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"/api/v1/namespaces/{labels[1]}/services/{parts.scheme}:{labels[0]}:{port}/proxy{parts.path.rstrip('/')}"


def names_query(schema: MetricSchema) -> str:
    """Returns the query for the names of an engine's metrics that Prometheus has."""
    metrics = {one.metric for one in (*schema.counters, *schema.histograms)}
    return f'group by (__name__) ({{__name__=~"{"|".join(sorted(metrics))}"}})'


def names_of(answer: str) -> frozenset[str]:
    """Returns the metrics in the answer to ``names_query``. Raises ValueError if it is none."""
    try:
        found = json.loads(answer)
        if found["status"] != "success":
            raise ValueError(str(found.get("error")))
        return frozenset(str(item["metric"]["__name__"]) for item in found["data"]["result"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"no answer of Prometheus: {answer[:100]}") from error


def series(schema: MetricSchema, names: Collection[str]) -> Check:
    """Checks that Prometheus has every series of an engine that decisions need."""
    name = f"Prometheus: {schema.engine}"
    if not names:
        return Check(
            name, Result.ADVICE, "it has no series of this engine: none serves yet, or none is scraped", "Check again when one serves."
        )
    if lost := missing(schema, names, speculation_on=True):
        remedy = "Keep these metrics in the scrape configuration, and let engines serve some requests."
        return Check(name, Result.FAILED, f"it has no {', '.join(lost)}", remedy)
    return Check(name, Result.OK, f"it has every series that has had cause to exist ({len(names)})")


def _lacks(theirs: Any, ours: Any, path: str) -> str:
    """Returns the first path at which the cluster's object differs from ours; what the API server added does not count."""
    if isinstance(ours, Mapping):
        if not isinstance(theirs, Mapping):
            return path
        return next((found for key, value in ours.items() if (found := _lacks(theirs.get(key), value, f"{path}.{key}"))), "")
    if isinstance(ours, list):
        if not isinstance(theirs, list) or len(theirs) != len(ours):
            return path
        pairs = enumerate(zip(theirs, ours, strict=True))
        return next((found for place, (one, other) in pairs if (found := _lacks(one, other, f"{path}[{place}]"))), "")
    return "" if theirs == ours or (theirs is None and not ours) else path


def _number(quantity: Any) -> int:
    try:
        return int(quantity or 0)
    except (TypeError, ValueError):
        return 0


def _is_default(item: Mapping[str, Any]) -> bool:
    return (item["metadata"].get("annotations") or {}).get(DEFAULT_CLASS) == "true"
