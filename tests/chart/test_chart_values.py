"""A wrong value is refused, in words that name it; README and schema say what values.yaml says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dflash_controller import __version__
from dflash_controller.runtime.settings import Settings, SettingsError
from hack.chart_reference import REFINED, ChartError, Value, renewed, values
from tests.chart.rendering import CHART, MONITORING, ROOT, manifests, render
from tests.support.releases import floor_release

DEFAULTS = Settings()
DOCUMENTED = values((CHART / "values.yaml").read_text(encoding="utf-8"))
SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))

SGLANG, VLLM = floor_release("sglang"), floor_release("vllm")


def before(release: str) -> str:
    """A release that is older by one."""
    major, minor, patch = map(int, release.split("."))
    return f"{major}.{minor}.{patch - 1}" if patch else f"{major}.{minor - 1}.9"


# Where the message points to, and words that say what is wrong.
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "misspelt value": ({"replicas": 2}, "at ''", "additional properties 'replicas' not allowed"),
    "value of an older release": ({"operator": {"enabled": True}}, "at ''", "additional properties 'operator' not allowed"),
    "misspelt inner value": ({"image": {"repo": "x"}}, "at '/image'", "additional properties 'repo' not allowed"),
    "unknown pull policy": ({"image": {"pullPolicy": "Sometimes"}}, "at '/image/pullPolicy'", "must be one of 'Always'"),
    "digest without its kind": ({"image": {"digest": "a" * 64}}, "at '/image/digest'", "does not match pattern"),
    "tag in the repository": ({"image": {"repository": "dflash:1"}}, "at '/image/repository'", "does not match pattern"),
    "too few replicas": ({"replicaCount": -1}, "at '/replicaCount'", "minimum: got -1, want 0"),
    "replicas in words": ({"replicaCount": "two"}, "at '/replicaCount'", "got string, want integer"),
    "unknown setting": ({"settings": {"misspelt": 1}}, "at '/settings'", "additional properties 'misspelt' not allowed"),
    "setting out of range": ({"settings": {"workers": 100}}, "at '/settings/workers'", "maximum: got 100, want 64"),
    "setting of another type": ({"settings": {"resyncSeconds": "5m"}}, "at '/settings/resyncSeconds'", "got string, want number"),
    "unknown log level": ({"settings": {"logLevel": "LOUD"}}, "at '/settings/logLevel'", "must be one of 'DEBUG'"),
    "namespaces as text": ({"watchNamespaces": "a,b"}, "at '/watchNamespaces'", "got string, want array"),
    "namespace that cannot be": ({"watchNamespaces": ["Team_A"]}, "at '/watchNamespaces/0'", "does not match pattern"),
    "namespace twice": ({"watchNamespaces": ["a", "a"]}, "at '/watchNamespaces'", "items at 0 and 1 are equal"),
    "URL without scheme": ({"prometheus": {"url": "prometheus:9090"}}, "at '/prometheus/url'", "does not match pattern"),
    "label no series can have": ({"prometheus": {"matcher": {"a-b": "c"}}}, "at '/prometheus/matcher'", "'a-b' not allowed"),
    "privileged port": ({"metrics": {"port": 80}}, "at '/metrics/port'", "minimum: got 80, want 1,024"),
    "interval without unit": ({"metrics": {"serviceMonitor": {"interval": "30"}}}, "serviceMonitor/interval'", "does not match pattern"),
    "misspelt field of a toleration": ({"tolerations": [{"kee": "a"}]}, "at '/tolerations/0'", "additional properties 'kee' not allowed"),
    "misspelt field of a volume": ({"extraVolumes": [{"name": "a", "secrets": {}}]}, "at '/extraVolumes/0'", "'secrets' not allowed"),
    "number as environment": ({"extraEnv": [{"name": "A", "value": 1}]}, "at '/extraEnv/0/value'", "got number, want string"),
    "annotation that is no text": ({"podAnnotations": {"a": True}}, "at '/podAnnotations/a'", "got boolean, want string"),
    "label that cannot be": ({"podLabels": {"a": "b c"}}, "at '/podLabels/a'", "does not match pattern"),
    "grace period too short": ({"terminationGracePeriodSeconds": 5}, "at '/terminationGracePeriodSeconds'", "minimum: got 5, want 35"),
    "image for all releases": ({"settings": {"sglangImage": "a:b"}}, "at '/settings/sglangImage'", "does not match pattern"),
    "release that is none": ({"settings": {"vllmVersion": "latest"}}, "at '/settings/vllmVersion'", "does not match pattern"),
    "relative host path": ({"settings": {"allowedHostPaths": ["models"]}}, "at '/settings/allowedHostPaths/0'", "does not match pattern"),
    "alert that does not exist": ({"prometheusRule": {"disabledAlerts": ["None"]}}, "disabledAlerts/0'", "must be one of 'DFlash"),
    "documentation without scheme": ({"docsUrl": "git.example/docs"}, "at '/docsUrl'", "does not match pattern"),
    "section without fields": ({"prometheus": None}, "at ''", "missing property 'prometheus'"),
    "inner section without fields": ({"metrics": {"serviceMonitor": None}}, "at '/metrics'", "missing property 'serviceMonitor'"),
    "policy that does nothing": ({"admissionPolicy": {"validationActions": []}}, "validationActions'", "minItems: got 0, want 1"),
    "policy with an unknown action": ({"admissionPolicy": {"validationActions": ["Refuse"]}}, "validationActions/0'", "one of 'Deny'"),
    "pull secret as text": ({"imagePullSecrets": ["a"]}, "at '/imagePullSecrets/0'", "got string, want object"),
}

# What a schema cannot say is refused by the templates, with the remedy.
CONTRADICTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "Prometheus without URL": ({"prometheus": {"tenant": "a"}}, "prometheus.url is needed"),
    "two kinds of authorization": (
        {"prometheus": {"url": "http://a", "bearerToken": {"secretName": "a"}, "basicAuth": {"secretName": "b"}}},
        "exclude each other",
    ),
    "two tokens": ({"prometheus": {"url": "http://a", "bearerToken": {"secretName": "a", "serviceAccount": True}}}, "exclude each other"),
    "two authorities": ({"prometheus": {"url": "http://a", "tls": {"caSecretName": "a", "caConfigMapName": "b"}}}, "exclude each other"),
    "refusing and warning": ({"admissionPolicy": {"validationActions": ["Deny", "Warn"]}}, "Deny and Warn exclude each other"),
    "many leaders": ({"settings": {"leaderElection": False}}, "set replicaCount=1"),
    "setting as variable": ({"extraEnv": [{"name": "DFLASH_WORKERS", "value": "1"}]}, "belongs into settings"),
    "variable of the chart": ({"extraEnv": [{"name": "POD_NAME", "value": "a"}]}, "extraEnv: the chart sets POD_NAME itself"),
    "volume of the chart": ({"extraVolumes": [{"name": "tmp", "emptyDir": {}}]}, "extraVolumes: the chart has a volume tmp of its own"),
    "files of Prometheus": ({"extraVolumes": [{"name": "prometheus", "emptyDir": {}}]}, "the chart has a volume prometheus of its own"),
    "SGLang before the oldest": ({"settings": {"sglangVersion": before(SGLANG)}}, f"is older than {SGLANG}"),
    "vLLM before the oldest": ({"settings": {"vllmVersion": before(VLLM)}}, f"is older than {VLLM}"),
    "candidate of the oldest": ({"settings": {"vllmVersion": f"v{VLLM}rc1"}}, f"is older than {VLLM}"),
    "PodMonitor that nobody knows": ({"metrics": {"enginePodMonitor": {"enabled": True}}}, f"--api-versions {MONITORING[1]}"),
    "ServiceAccount without name": ({"serviceAccount": {"create": False}}, "serviceAccount.name is needed"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_value_is_refused_by_name(case: str) -> None:
    wrong, where, what = REFUSED[case]
    done = render(wrong)
    assert done.returncode != 0
    assert "values don't meet the specifications of the schema" in done.stderr
    assert where in done.stderr
    assert what in done.stderr
    complaints = [line for line in done.stderr.splitlines() if line.startswith("- ")]
    assert len(complaints) == 1, "one mistake, one complaint"


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_values_that_contradict_each_other_are_refused(case: str) -> None:
    wrong, what = CONTRADICTIONS[case]
    done = render(wrong)
    assert done.returncode != 0
    assert what in done.stderr


@pytest.mark.parametrize(
    ("settings", "taken"),
    [
        ({"leaseDurationSeconds": DEFAULTS.renew_deadline_seconds}, False),
        ({"leaseDurationSeconds": DEFAULTS.renew_deadline_seconds + 0.5}, True),
        ({"renewDeadlineSeconds": DEFAULTS.lease_duration_seconds}, False),
        ({"renewDeadlineSeconds": DEFAULTS.lease_duration_seconds - 0.5}, True),
        ({"renewDeadlineSeconds": DEFAULTS.retry_period_seconds}, False),
        ({"retryPeriodSeconds": DEFAULTS.renew_deadline_seconds}, False),
        ({"retryPeriodSeconds": DEFAULTS.renew_deadline_seconds - 0.5}, True),
        ({"sglangVersion": SGLANG, "vllmVersion": f"{VLLM}.post1"}, True),
    ],
)
def test_times_and_releases_that_the_operator_would_refuse(settings: dict[str, Any], taken: bool) -> None:
    """Its own defaults stand for what is not set."""
    done = render({"settings": settings})
    assert (done.returncode == 0) == taken, done.stderr
    assert taken or "must be more than" in done.stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(
            ("allowed_host_paths", path)
            for path in ("/", "/a", "/a/", "/a.b/..c/...", "//a", "/./a", "/.a", "a", "./a", "/..", "/a/../b", "/a/..")
        ),
        *(
            ("sglang_version", text)
            for text in ("0.5.23", "v0.5.23", "0.5.23.post1", "0.5.23rc2", "0.5.23+cu130", "0.5", "latest", "0.5.23-1")
        ),
        *(("vllm_image", text) for text in ("a:{version}", "a:v{version}-cu130", "a:1", "a:{release}")),
    ],
)
def test_a_pattern_refuses_what_the_operator_refuses(name: str, value: str) -> None:
    pattern = REFINED[name].get("pattern") or REFINED[name]["items"]["pattern"]
    try:
        Settings.from_environment({f"DFLASH_{name.upper()}": value})
        taken = True
    except SettingsError:
        taken = False
    assert bool(re.search(pattern, value)) == taken


def nulls(chosen: list[Value]) -> dict[str, Any]:
    """Values in which these are null, as a value is whose lines are all comments."""
    found: dict[str, Any] = {}
    for value in chosen:
        node = found
        for key in value.path[:-1]:
            node = node.setdefault(key, {})
        node[value.path[-1]] = None
    return found


def test_null_is_taken_for_what_is_empty_by_default() -> None:
    empty = nulls([value for value in DOCUMENTED if not value.default])
    assert manifests(empty, apis=MONITORING) == manifests(apis=MONITORING)


def test_null_removes_a_map_that_has_a_default() -> None:
    chosen = [value for value in DOCUMENTED if isinstance(value.default, dict) and value.default]
    [deployment] = [one for one in manifests(nulls(chosen)) if one["kind"] == "Deployment"]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert not {"resources", "securityContext"} & set(container)
    assert {value.path[0] for value in chosen} >= {"resources", "securityContext", "livenessProbe", "dashboards"}


def test_null_is_refused_for_a_section_and_for_what_is_not_empty() -> None:
    chosen = [value for value in DOCUMENTED if value.default and not isinstance(value.default, dict)]
    for wrong in (nulls(chosen), {value.path[0]: None for value in chosen}):
        done = render(wrong)
        assert done.returncode != 0
        missing = re.findall(r"missing propert(?:y|ies) (.*)", done.stderr)
        expected = {value.path[-1] for value in chosen} if wrong["image"] else set(wrong)
        assert expected <= {name for line in missing for name in re.findall(r"'(\w+)'", line)}


def objects(node: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object of the schema that lists its properties."""
    if isinstance(node, dict):
        if "properties" in node and "object" in node.get("type", ""):
            yield path, node
        for key, inner in node.items():
            yield from objects(inner, f"{path}/{key}")


def test_every_object_is_closed() -> None:
    """But ``global``, in which parent charts keep what they like."""
    assert [path for path, node in objects(SCHEMA) if node.get("additionalProperties") is not False] == ["/properties/global"]


def test_every_value_is_in_the_schema_and_nothing_else() -> None:
    def compare(node: Any, schema: dict[str, Any], path: str) -> None:
        if "properties" in schema and path != "settings":
            assert set(node) == set(schema["properties"]), path
            for key, inner in node.items():
                compare(inner, schema["properties"][key], f"{path}.{key}".lstrip("."))

    defaults = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    probes = {key: defaults.pop(key) for key in ("livenessProbe", "readinessProbe")}
    # A parent chart's condition has no default.
    left_out = {*probes, "enabled"}
    schema = {**SCHEMA, "properties": {key: node for key, node in SCHEMA["properties"].items() if key not in left_out}}
    compare(defaults, schema, "")


def test_readme_and_schema_are_what_the_values_say() -> None:
    for file, text in renewed(CHART).items():
        assert file.read_text(encoding="utf-8") == text, f"{file.name} is out of date: run make chart"


def test_a_value_without_explanation_is_a_mistake() -> None:
    assert [value.path for value in values("## A\n\na:\n  # -- One.\n  b: 1\n# -- Two,\n# long.\nc: {}\n")] == [("a", "b"), ("c",)]
    with pytest.raises(ChartError, match=r"a\.b has no comment"):
        values("a:\n  b: 1\n")


def test_the_app_version_is_the_operators() -> None:
    assert yaml.safe_load(Path(CHART, "Chart.yaml").read_text(encoding="utf-8"))["appVersion"] == __version__


@pytest.mark.parametrize(
    "page",
    [
        "docs/how-to/install.md",
        "docs/how-to/one-namespace.md",
        "docs/how-to/prometheus.md",
        "docs/reference/operator.md",
        "charts/dflash-operator/README.md",
    ],
)
def test_every_value_that_a_page_sets_exists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assignments = {
        one for options in re.findall(r"--set[= ]['\"]?([a-z][^\s`]+)", text) for one in re.sub(r"\{.*?\}", "", options).split(",")
    }
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    named = re.findall(r"`((?:crds|rbac|prometheus|metrics|dashboards|networkPolicy|image|settings|prometheusRule)\.[a-zA-Z.]+)[=:`]", text)
    paths = {one.partition("=")[0] for one in assignments} | set(named) | {path for block in blocks for path in leaves(block)}
    assert [path for path in sorted(paths) if not is_a_value(path)] == []
    assert paths


def leaves(node: Any, path: str = "") -> Iterator[str]:
    if isinstance(node, dict):
        for key, inner in node.items():
            yield from leaves(inner, f"{path}.{key}".lstrip("."))
    else:
        yield path


def is_a_value(path: str) -> bool:
    node = SCHEMA
    for key in path.split("."):
        if "properties" not in node:  # a map whose keys are the user's, or a type of Kubernetes
            return True
        if key not in node["properties"]:
            return False
        node = node["properties"][key]
    return True
