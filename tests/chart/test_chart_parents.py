"""Both charts as a part of another chart, and what tools between Helm and the cluster need of what they render."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.rendering import CHART, MONITORING, helm, of_kind, parsed, render

MODELS = CHART.parent / "dflash-models"
OPERATOR_KINDS = {"CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding", "Deployment", "ServiceAccount"}
MODEL = {"models": [{"model": "Qwen/Qwen3.5-9B"}]}
DEPENDENCIES = [
    {"name": "dflash-operator", "version": ">=0", "condition": "dflash-operator.enabled,global.serving", "tags": ["serving"]},
    {"name": "dflash-models", "version": ">=0", "condition": "dflash-models.enabled", "tags": ["serving"]},
    {"name": "dflash-models", "version": ">=0", "alias": "more", "condition": "more.enabled,platform.models.more"},
]


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chart with the operator once and models twice, all by condition."""
    chart = tmp_path_factory.mktemp("parent")
    for part in (CHART, MODELS):
        shutil.copytree(part, chart / "charts" / part.name)
    about = {"apiVersion": "v2", "name": "parent", "version": "1.0.0", "dependencies": DEPENDENCIES}
    (chart / "Chart.yaml").write_text(yaml.safe_dump(about), encoding="utf-8")
    return chart


@pytest.mark.parametrize(
    ("values", "operator", "models"),
    [
        pytest.param({"dflash-models": MODEL}, True, 1, id="nothing said"),
        pytest.param({"dflash-operator": {"enabled": True}, "dflash-models": {"enabled": True, **MODEL}}, True, 1, id="both enabled"),
        pytest.param({"dflash-operator": {"enabled": False}, "dflash-models": MODEL}, False, 1, id="operator disabled"),
        pytest.param({"dflash-models": {"enabled": False, **MODEL}}, True, 0, id="models disabled"),
        pytest.param({"global": {"serving": False}, "dflash-models": MODEL}, False, 1, id="condition in global"),
        pytest.param({"tags": {"serving": False}, "dflash-models": MODEL}, False, 0, id="tag off"),
        pytest.param({"tags": {"serving": False}, "dflash-operator": {"enabled": True}}, True, 0, id="condition before tag"),
        pytest.param({"dflash-models": MODEL, "more": {"models": [{"model": "openai/gpt-oss-20b"}]}}, True, 2, id="alias"),
        pytest.param({"platform": {"models": {"more": False}}, "more": MODEL}, True, 0, id="condition of an alias elsewhere"),
        pytest.param(
            {
                "global": {"storageClass": "fast", "team": {"name": "a", "quota": 3}, "imagePullSecrets": [{"name": "a"}, "b"]},
                "more": MODEL,
            },
            True,
            1,
            id="global of others",
        ),
        pytest.param({"dflash-operator": {"global": None}, "dflash-models": MODEL}, True, 1, id="global of the part null"),
        pytest.param({"dflash-operator": {"enabled": None}, "dflash-models": MODEL}, True, 1, id="enabled null"),
        pytest.param({"global": None, "dflash-models": MODEL}, True, 1, id="global null"),
        pytest.param({"dflash-operator": {"global": {"imageRegistry": "registry.example"}}}, True, 0, id="global of the part"),
    ],
)
def test_a_parent_chart_switches_parts_on_and_off(parent: Path, values: dict[str, Any], operator: bool, models: int) -> None:
    done = render(values, chart=parent)
    assert done.returncode == 0, done.stderr
    found = parsed(done.stdout)
    assert len(of_kind(found, "DFlashDeployment")) == models
    assert OPERATOR_KINDS.intersection(item["kind"] for item in found) == (OPERATOR_KINDS if operator else set())


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"dflash-operator": {"enabled": True, "replicacount": 3}}, "replicacount"),
        ({"dflash-operator": {"enable": True}}, "enable"),
        ({"dflash-operator": {"enabled": "yes"}}, "enabled"),
        ({"more": {"enabled": True, "model": []}}, "model"),
        ({"dflash-models": {"tags": {"serving": True}}}, "tags"),
    ],
)
def test_a_typo_is_refused_in_a_parent_chart_too(parent: Path, values: dict[str, Any], word: str) -> None:
    done = render(values, chart=parent)
    assert done.returncode != 0
    assert word in done.stderr


@pytest.mark.parametrize("chart", [CHART, MODELS], ids=["operator", "models"])
def test_switching_a_chart_off_that_is_in_no_parent_is_refused(chart: Path) -> None:
    done = render({"enabled": False}, chart=chart)
    assert done.returncode != 0
    assert "only a parent chart reads enabled" in done.stderr
    assert render({"enabled": True}, chart=chart).returncode == 0


@pytest.mark.parametrize("end", ["", "/"])
def test_an_image_of_a_parent_chart_comes_from_its_registry(parent: Path, end: str) -> None:
    done = render({"global": {"imageRegistry": f"registry.example/mirror{end}", "imagePullSecrets": ["shared"]}}, chart=parent)
    [deployment] = of_kind(parsed(done.stdout), "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    assert all(container["image"].startswith("registry.example/mirror/dflash-operator") for container in pod["containers"])
    assert pod["imagePullSecrets"] == [{"name": "shared"}]


class _Strict(yaml.CSafeLoader):
    """Refuses a key that is written twice, as kustomize and the post-renderers built on it do."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        assert len(set(keys)) == len(keys), f"a key is written twice, line {node.start_mark.line + 1}: {keys}"
        return super().construct_mapping(node, deep)


_Strict.add_constructor("tag:yaml.org,2002:map", lambda loader, node: loader.construct_mapping(node, deep=True))


@pytest.mark.parametrize("apis", [(), MONITORING], ids=["plain", "monitoring"])
def test_what_a_post_renderer_gets_is_the_same_each_time_and_has_every_key_and_object_once(parent: Path, apis: tuple[str, ...]) -> None:
    values = {"dflash-models": MODEL, "more": {"models": [{"model": "openai/gpt-oss-20b"}]}}
    text = render(values, chart=parent, apis=apis).stdout
    assert render(values, chart=parent, apis=apis).stdout == text
    found = [item for item in yaml.load_all(text, _Strict) if item]
    ids = [(item["apiVersion"], item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"]) for item in found]
    assert len(set(ids)) == len(ids)


def test_helm_lints_a_parent_chart(parent: Path) -> None:
    done = helm("lint", str(parent), "--with-subcharts", "--strict")
    assert "0 chart(s) failed" in done.stdout, done.stdout
