"""What Helm prints after an install: what is missing, and what to do next."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from dflash_controller.api.defaults import ACCELERATOR_PRODUCT
from tests.chart.rendering import CHART, MONITORING, of_kind, parsed, render

UNPUBLISHED = "no image of the operator is published"
NO_MONITORS = "The cluster does not serve ServiceMonitor"


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart with an object that holds its notes, which ``helm template`` does not print."""
    copy = tmp_path_factory.mktemp("notes") / "dflash-operator"
    shutil.copytree(CHART, copy)
    text = '{{ include (print $.Template.BasePath "/NOTES.txt") . | quote }}'
    (copy / "templates" / "printed.yaml").write_text(f"kind: Notes\ntext: {text}\n")
    return copy


def notes(chart: Path, values: dict[str, Any], apis: tuple[str, ...] = ()) -> str:
    done = render(values, apis=apis, chart=chart)
    assert done.returncode == 0, done.stderr
    [found] = of_kind(parsed(done.stdout), "Notes")
    return str(found["text"])


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({}, True),
        ({"image": {"tag": "next"}}, True),
        ({"image": {"repository": "registry.example/dflash-operator"}}, False),
        ({"image": {"registry": "registry.example"}}, False),
        ({"global": {"imageRegistry": "registry.example"}}, False),
    ],
)
def test_an_image_that_nobody_published_is_told(chart: Path, values: dict[str, Any], told: bool) -> None:
    assert (UNPUBLISHED in notes(chart, values)) == told


def test_the_nodes_that_engines_want_are_told(chart: Path) -> None:
    assert f"nvidia.com/gpu.product={ACCELERATOR_PRODUCT} unless spec.accelerator.product" in notes(chart, {})


def test_monitors_that_could_not_be_made_are_told(chart: Path) -> None:
    assert NO_MONITORS in notes(chart, {})
    assert NO_MONITORS not in notes(chart, {}, MONITORING)
    off = {"metrics": {"serviceMonitor": {"enabled": False}}, "prometheusRule": {"enabled": False}}
    assert NO_MONITORS not in notes(chart, off)


def test_without_a_deployment_the_rights_are_named(chart: Path) -> None:
    told = notes(chart, {"deployment": {"create": False}})
    assert "the rights of ServiceAccount\ndflash-system/dflash-operator" in told
    assert UNPUBLISHED not in told
