"""The chart as the real Helm renders it. Nothing here needs a cluster."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from testbed import binaries

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "dflash-operator"
NAMESPACE = "dflash-system"
KUBERNETES = ("1.33", "1.34", "1.35")
MONITORING = (
    "monitoring.coreos.com/v1/ServiceMonitor",
    "monitoring.coreos.com/v1/PodMonitor",
    "monitoring.coreos.com/v1/PrometheusRule",
    "grafana.integreatly.org/v1beta1/GrafanaDashboard",
)
"""What Helm is told that the cluster serves, where a test wants a cluster with Prometheus Operator and grafana-operator."""

Manifest = dict[str, Any]


def helm(*arguments: str, input: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run Helm; the caller looks at the return code. It ends before garbage is worth collecting."""
    command, environment = [binaries.path_of("helm"), *arguments], {**os.environ, "GOGC": "off"}
    return subprocess.run(command, env=environment, input=input, capture_output=True, text=True, check=False, timeout=120)


def render(
    values: Mapping[str, Any],
    *,
    apis: Sequence[str] = (),
    version: str = KUBERNETES[-1],
    chart: Path = CHART,
    release: str = "dflash-operator",
) -> subprocess.CompletedProcess[str]:
    """``helm template`` with these values, for a cluster of this version that serves these kinds besides Kubernetes' own."""
    options = [f"--api-versions={api}" for api in apis]
    head = ("template", release, str(chart), "--namespace", NAMESPACE, "--kube-version", version)
    return helm(*head, *options, "--values", "-", input=yaml.safe_dump(dict(values)))


def manifests(values: Mapping[str, Any] | None = None, *, apis: Sequence[str] = (), version: str = KUBERNETES[-1]) -> list[Manifest]:
    """The objects it renders to."""
    return [dict(manifest) for manifest in _manifests(yaml.safe_dump(dict(values or {})), tuple(apis), version)]


@cache
def _manifests(values: str, apis: tuple[str, ...], version: str) -> list[Manifest]:
    done = render(yaml.safe_load(values), apis=apis, version=version)
    assert done.returncode == 0, done.stderr
    return parsed(done.stdout)


def parsed(text: str) -> list[Manifest]:
    """The objects of a stream of YAML documents. The definition is long, and PyYAML's own loader slow."""
    return [manifest for manifest in yaml.load_all(text, yaml.CSafeLoader) if manifest]


def of_kind(found: Sequence[Manifest], kind: str) -> list[Manifest]:
    """Those of one kind."""
    return [manifest for manifest in found if manifest["kind"] == kind]


def installer_role() -> Manifest:
    """The Role of docs/how-to/one-namespace.md for a user who installs with no rights outside a namespace: what ``admin`` lacks there."""
    found = re.search(
        r"<<EOF\n(.*?kind: Role\n.*?)^EOF$",
        (ROOT / "docs" / "how-to" / "one-namespace.md").read_text(encoding="utf-8"),
        re.DOTALL | re.MULTILINE,
    )
    assert found
    role: Manifest = yaml.safe_load(found[1])
    return role


def operator_pod(values: Mapping[str, Any] | None = None, *, apis: Sequence[str] = ()) -> Manifest:
    """The pod template of the operator's Deployment."""
    [deployment] = of_kind(manifests(values, apis=apis), "Deployment")
    template: Manifest = deployment["spec"]["template"]
    return template
