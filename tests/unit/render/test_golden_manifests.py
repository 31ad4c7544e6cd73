"""Every example, and variants that reach the rest of the renderer, as the manifests they become.

DFLASH_UPDATE_GOLDEN=1 writes the files anew; the diff is then to be read.
"""

from __future__ import annotations

import os
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from dflash_controller.api import validation
from dflash_controller.api.defaults import block_size, effective_tuning, engine_name, speculation_of
from dflash_controller.engines import ENGINES
from tests.support.render_inputs import CUSTOM_KINDS, EXAMPLES, INPUTS, example, parsed, pod_templates, rendered, resolved

GOLDEN = Path(__file__).parents[1] / "golden" / "manifests"
KUBERNETES = "1.35"


@pytest.mark.parametrize("case", INPUTS)
def test_manifests_are_the_golden_ones(case: str) -> None:
    text = yaml.safe_dump_all(rendered(INPUTS[case]), sort_keys=False, width=200)
    file = GOLDEN / f"{case}.yaml"
    if os.environ.get("DFLASH_UPDATE_GOLDEN") == "1":
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert text == file.read_text(), f"{file.name} differs"


@pytest.mark.parametrize("file", sorted(path.name for path in EXAMPLES.glob("*.yaml")))
def test_examples_are_valid(file: str) -> None:
    spec = parsed(example(file))
    owned = ENGINES[engine_name(spec)].owned_flags()
    assert validation.problems(spec, owned_flags=owned, trained_block_size=resolved(example(file)).trained_block_size) == []


def test_every_golden_file_belongs_to_an_input() -> None:
    assert {file.stem for file in GOLDEN.glob("*.yaml")} == set(INPUTS)


@pytest.mark.parametrize("case", INPUTS)
def test_kubernetes_accepts_every_manifest(case: str) -> None:
    for manifest in rendered(INPUTS[case]):
        if manifest["kind"] not in CUSTOM_KINDS:
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


@pytest.mark.parametrize("case", INPUTS)
def test_kubernetes_accepts_every_pod(case: str) -> None:
    """What the workload controllers make of the templates, custom workload kinds too."""
    templates = pod_templates(rendered(INPUTS[case])[-1])
    for template in templates.values():
        kubernetes_validate.validate({"apiVersion": "v1", "kind": "Pod", **template}, KUBERNETES, strict=True)


def test_validation_can_fail() -> None:
    [*_, manifest] = rendered(INPUTS["example-dflash"])
    manifest["spec"]["template"]["spec"]["containers"][0]["livenessProb"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


@pytest.mark.parametrize("file", sorted(path.name for path in EXAMPLES.glob("*.yaml")))
def test_the_concurrency_of_an_example_fits_at_every_block_it_may_get(file: str) -> None:
    obj = example(file)
    facts, tuning = resolved(obj), effective_tuning(parsed(obj), resolved(obj).trained_block_size)
    for block in {*tuning.block_sizes, block_size(parsed(obj), facts.trained_block_size)}:
        fit = ENGINES[facts.engine].fit(facts.launch_request(speculation_of(block)))
        assert fit is not None
        assert fit.fitting == fit.asked
