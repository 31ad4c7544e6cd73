"""From spec, catalog and operator defaults to what a revision stores."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from dflash_controller.api.problem import Problem
from dflash_controller.api.speculation import Fixed
from dflash_controller.catalog import Catalog
from dflash_controller.engines import ENGINES
from dflash_controller.engines.resolve import OperatorDefaults, Resolved, resolve
from tests.support.releases import default_release
from tests.support.render_inputs import NAMESPACE, deployment, parsed, resolved

UNKNOWN: dict[str, Any] = {"target": {"model": "acme/Private-70B"}}


def problems(obj: dict[str, Any]) -> list[Problem]:
    found = resolve(parsed(obj), "qwen", NAMESPACE, Catalog.load(), OperatorDefaults())
    assert isinstance(found, list), found
    return found


def test_the_catalog_fills_in_what_it_knows() -> None:
    facts = resolved(deployment(target={"model": "Qwen/Qwen3.5-397B-A17B"}))
    assert facts.drafter.model == "z-lab/Qwen3.5-397B-A17B-DFlash"
    assert (facts.trained_block_size, facts.tensor_parallel, facts.hybrid, facts.mixture_of_experts) == (16, 8, True, True)
    assert facts.weight_bytes > 700_000_000_000
    assert facts.recommended_args


def test_the_spec_wins_over_the_catalog() -> None:
    target = {"model": "Qwen/Qwen3.5-9B", "hybrid": False, "mixtureOfExperts": True, "weightSize": "10Gi"}
    drafter = {"model": "z-lab/Qwen3.5-9B-DFlash", "trainedBlockSize": 8, "weightSize": "1Gi"}
    facts = resolved(deployment(target=target, drafter=drafter, parallelism={"tensor": 2}))
    assert (facts.trained_block_size, facts.tensor_parallel, facts.hybrid, facts.mixture_of_experts) == (8, 2, False, True)
    assert facts.weight_bytes == 11 * 2**30


def test_the_operators_defaults_fill_in_the_rest() -> None:
    newest = default_release("sglang")
    facts = resolved(deployment())
    assert (facts.engine, facts.version, facts.image, facts.port) == ("sglang", newest, f"lmsysorg/sglang:v{newest}", 30000)
    assert (facts.gpu_product, facts.gpu_resource, facts.max_concurrency, facts.nodes) == ("NVIDIA-B200", "nvidia.com/gpu", 32, 1)
    own = OperatorDefaults(versions={"sglang": "0.5.19", "vllm": "0.26.0"}, images={"sglang": "mirror/sglang:{version}-cu129", "vllm": "x"})
    assert resolved(deployment(), own).image == "mirror/sglang:0.5.19-cu129"


def test_an_image_of_ones_own_keeps_the_version_that_decides_the_command_line() -> None:
    facts = resolved(deployment(engine={"name": "vllm", "version": "0.30.1", "image": "mine:latest"}))
    assert (facts.image, facts.version, facts.dialect, facts.tested) == ("mine:latest", "0.30.1", "0.26.0", False)


def test_an_unknown_target_needs_a_drafter() -> None:
    [problem] = problems(deployment(**UNKNOWN))
    assert problem.field == "spec.drafter.model"
    assert "acme/Private-70B" in problem.message


def test_an_unknown_drafter_needs_its_trained_block_size() -> None:
    [problem] = problems(deployment(**UNKNOWN, drafter={"model": "acme/Private-70B-DFlash"}))
    assert problem.field == "spec.drafter.trainedBlockSize"
    assert "config.json" in problem.remedy


def test_an_unknown_pair_works_with_its_facts_given() -> None:
    facts = resolved(deployment(**UNKNOWN, drafter={"model": "acme/Private-70B-DFlash", "trainedBlockSize": 8}, parallelism={"tensor": 4}))
    assert facts.recommended_args == ()
    assert facts.weight_bytes == 4 * OperatorDefaults().gpu_bytes, "unknown: what the accelerators can hold"


def test_the_drafter_of_another_target_is_refused_with_the_right_ones_name() -> None:
    [problem] = problems(deployment(drafter={"model": "z-lab/Qwen3.5-27B-DFlash"}))
    assert problem.field == "spec.drafter.model"
    assert "z-lab/Qwen3.5-9B-DFlash" in problem.remedy


def test_all_problems_are_told_at_once() -> None:
    obj = deployment(**UNKNOWN, engine={"version": "0.4.0"})
    assert {problem.field for problem in problems(obj)} == {"spec.engine.version", "spec.drafter.model"}


def test_what_is_stored_comes_back_the_same() -> None:
    obj = deployment(engine={"extraArgs": ["--mem-fraction-static=0.7"]}, target={"model": "Qwen/Qwen3.5-9B", "revision": "v1"})
    facts = resolved(obj, OperatorDefaults(host_path_roots=("/mnt",)))
    assert Resolved.from_json(json.loads(json.dumps(facts.to_json()))) == facts


def test_fields_of_a_newer_operator_are_ignored() -> None:
    stored = resolved(deployment()).to_json()
    stored["defaults"]["later"] = 1
    assert Resolved.from_json(stored | {"later": 1}) == resolved(deployment())


def test_a_revision_stored_before_families_were_known_can_be_read() -> None:
    stored = resolved(deployment()).to_json()
    del stored["defaults"]["pod_ip_families"]
    assert Resolved.from_json(json.loads(json.dumps(stored))) == resolved(deployment())


def test_an_edit_listens_on_the_families_of_today_s_cluster() -> None:
    before = resolved(deployment(), OperatorDefaults())
    after = resolve(parsed(deployment()), "qwen", NAMESPACE, Catalog.load(), OperatorDefaults(pod_ip_families=("IPv4",)), before)
    assert isinstance(after, Resolved)
    assert after.launch_request(Fixed(16)).pod_ip_families == ("IPv4",)
    assert Resolved.from_json(json.loads(json.dumps(after.to_json()))) == after


def test_another_edit_does_not_adopt_newer_defaults() -> None:
    old = OperatorDefaults(versions={"sglang": "0.5.19", "vllm": "0.26.0"})
    before = resolved(deployment(), old)
    edited = deployment(drafter={"revision": "c202236235762e1c871ad0ccb60c8ee5ba337b9a"})
    after = resolve(parsed(edited), "qwen", NAMESPACE, Catalog.load(), OperatorDefaults(), before)
    assert isinstance(after, Resolved)
    assert replace(after, drafter=before.drafter) == before


def test_a_version_taken_out_of_the_spec_gives_way_to_the_default() -> None:
    before = resolved(deployment(engine={"version": "0.5.17"}))
    after = resolve(parsed(deployment()), "qwen", NAMESPACE, Catalog.load(), OperatorDefaults(), before)
    assert isinstance(after, Resolved)
    assert after.version == default_release("sglang")


def test_recommended_flags_follow_the_drafter() -> None:
    before = replace(resolved(deployment()), recommended_args=("--old",))
    catalog, defaults = Catalog.load(), OperatorDefaults()
    same = resolve(parsed(deployment(blockSize=8)), "qwen", NAMESPACE, catalog, defaults, before)
    other = resolve(parsed(deployment(engine={"name": "vllm"})), "qwen", NAMESPACE, catalog, defaults, before)
    assert isinstance(same, Resolved)
    assert isinstance(other, Resolved)
    assert same.recommended_args == ("--old",)
    assert other.recommended_args == resolved(deployment(engine={"name": "vllm"})).recommended_args


def test_the_launch_request_carries_speculation_and_drain() -> None:
    facts = resolved(deployment())
    request = facts.launch_request(Fixed(8))
    assert request.speculation == Fixed(8)
    assert request.shutdown_timeout_s == facts.drain_s
    assert request.metric_labels == {"dflash_deployment": "qwen", "dflash_namespace": NAMESPACE}


def test_the_engine_is_asked_with_what_is_known_of_the_target_s_experts() -> None:
    extra = {"name": "vllm", "extraArgs": ["--enable-expert-parallel"]}
    dense = resolved(deployment(target={"model": "Qwen/Qwen3-8B"}, engine=extra)).launch_request(Fixed(16))
    assert dense.mixture_of_experts is False
    [problem] = ENGINES["vllm"].problems(dense)
    assert "spec.target.mixtureOfExperts" in problem.remedy
    said = resolved(deployment(target={"model": "Qwen/Qwen3-8B", "mixtureOfExperts": True}, engine=extra)).launch_request(Fixed(16))
    assert ENGINES["vllm"].problems(said) == []
