"""What config.json rules out: a drafter of another target, another block size, a release that does not know the architecture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_controller.engines.drafter_config import (
    DrafterConfig,
    TargetConfig,
    block_problems,
    pair_problems,
    read_drafter,
    read_target,
    release_problems,
    relevant,
)
from dflash_controller.engines.releases import TABLE
from testbed.gpu_loop.shapes import SHAPES, make_models

TARGET = {"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 36, "hidden_size": 4096, "vocab_size": 151936}
DRAFTER = {
    "architectures": ["DFlashDraftModel"],
    "num_hidden_layers": 5,
    "num_target_layers": 36,
    "hidden_size": 4096,
    "vocab_size": 151936,
    "block_size": 16,
    "dflash_config": {"mask_token_id": 151935, "target_layer_ids": [1, 9, 17, 25, 33]},
}


def said(drafter: dict[str, Any], target: dict[str, Any] | None = None) -> list[str]:
    found = [*pair_problems("org/drafter", read_drafter(drafter), "org/target", read_target(target or TARGET))]
    assert all(problem.field == "spec.drafter.model" and "org/target" in problem.remedy for problem in found)
    return [problem.message for problem in found]


@pytest.mark.parametrize("kind", SHAPES)
def test_a_drafter_and_its_target_agree(kind: str, tmp_path: Path) -> None:
    shape = SHAPES[kind]
    make_models(tmp_path, shape)
    target, drafter = (json.loads((tmp_path / name / "config.json").read_text()) for name in (shape.target, shape.drafter))
    read = read_drafter(drafter)
    assert (read.block_size, read.vocabulary, read.mask_token) == (16, shape.vocabulary, shape.vocabulary - 1)
    assert len(read.target_layers) == shape.taps
    assert read_target(target).layers == shape.layers
    assert not [*pair_problems(shape.drafter, read, shape.target, read_target(target))]


def test_a_layer_beyond_the_target_is_named() -> None:
    assert said(DRAFTER, {**TARGET, "num_hidden_layers": 33}) == [
        "org/drafter reads layer 33 of its target (target_layer_ids), and org/target has layers 0 to 32"
    ]
    assert not said(DRAFTER, {**TARGET, "num_hidden_layers": 34})


def test_other_hidden_sizes_and_vocabularies_are_named() -> None:
    assert said(DRAFTER, {**TARGET, "hidden_size": 2048}) == [
        "org/drafter reads hidden states of 4096 values, and org/target has 2048 (hidden_size)"
    ]
    assert said(DRAFTER, {**TARGET, "vocab_size": 248320}) == [
        "org/drafter has a vocabulary of 151936 tokens, and org/target one of 248320 (vocab_size)"
    ]


def test_a_narrower_drafter_says_how_wide_its_target_is() -> None:
    assert not said({**DRAFTER, "hidden_size": 1024, "target_hidden_size": 4096})


def test_the_shape_of_a_target_with_a_vision_tower_is_in_its_text_config() -> None:
    assert read_target({"text_config": TARGET, "vision_config": {"hidden_size": 1152}}) == TargetConfig(36, 4096, 151936)


def test_a_mask_token_beyond_the_vocabulary_is_named() -> None:
    drafter = {**DRAFTER, "vocab_size": None, "dflash_config": {"mask_token_id": 151936}}
    assert said(drafter) == ["the mask token of org/drafter is 151936, beyond the 151936 tokens of org/target (mask_token_id)"]


def test_a_model_that_is_no_drafter_is_named() -> None:
    assert said(TARGET) == ["org/drafter is no DFlash drafter: its config.json names Qwen3ForCausalLM"]
    assert not said({**TARGET, "architectures": ["DFlashLagunaForCausalLM"]})
    assert not said({**TARGET, "block_size": 16}), "an architecture that nobody has looked up may be one"


def test_the_number_of_target_layers_rules_nothing_out() -> None:
    # SGLang warns of it only: srt/model_executor/model_runner_components/spec_aux_hidden_state.py.
    assert not said({**DRAFTER, "num_target_layers": 48})


def test_another_trained_block_size_than_written_is_refused() -> None:
    (problem,) = block_problems("org/drafter", read_drafter(DRAFTER), 10)
    assert str(problem) == (
        "spec.drafter.trainedBlockSize: org/drafter was trained with block size 16 (block_size in its config.json), not 10. "
        "Set it to 16, or omit it."
    )
    assert not [*block_problems("org/drafter", read_drafter(DRAFTER), 16)]
    assert not [*block_problems("org/drafter", read_drafter(DRAFTER), None)]


def test_the_block_size_of_dflash_config_comes_first() -> None:
    assert read_drafter({"block_size": 16, "dflash_config": {"block_size": 8}}).block_size == 8


@pytest.mark.parametrize(("engine", "before", "first"), [("sglang", "0.5.17", "0.5.19"), ("vllm", "0.26.0", "0.28.0")])
def test_an_architecture_is_refused_before_the_first_release_that_loads_it(engine: str, before: str, first: str) -> None:
    drafter = read_drafter({**DRAFTER, "architectures": ["DFlash2DraftModel"]})
    (problem,) = release_problems("org/drafter", drafter, engine, before)
    assert problem.field == "spec.engine.version"
    assert f"{first} or later" in problem.remedy
    assert not [*release_problems("org/drafter", drafter, engine, first)]
    assert not [*release_problems("org/drafter", read_drafter(DRAFTER), engine, TABLE[engine].floor)]


def test_an_architecture_that_the_table_does_not_have_rules_nothing_out() -> None:
    drafter = DrafterConfig(architectures=("DFlash7DraftModel",))
    assert not [*release_problems("org/drafter", drafter, "vllm", "0.24.0")]


def test_a_file_that_could_not_be_read_rules_nothing_out() -> None:
    unknown = read_drafter(None)
    assert not [*pair_problems("d", unknown, "t", read_target(TARGET))]
    assert not [*pair_problems("d", read_drafter(DRAFTER), "t", read_target(None))]
    assert not [*block_problems("d", unknown, 16)]
    assert not [*release_problems("d", unknown, "sglang", "0.5.14")]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = (*DRAFTER, "text_config", "target_hidden_size", "target_layer_ids", "mask_token_id", "llm_config")


def test_what_is_kept_of_a_file_reads_like_the_whole_and_stays_small() -> None:
    target = {"text_config": {**TARGET, "layer_types": ["full_attention"] * 36}, "quantization_config": {"ignore": ["x" * 40] * 20_000}}
    drafter = {**DRAFTER, "auto_map": {"AutoModel": "dflash.DFlashDraftModel"}, "layer_types": ["sliding_attention"] * 5}
    assert read_target(relevant(target)) == read_target(target) == TargetConfig(36, 4096, 151936)
    assert read_drafter(relevant(drafter)) == read_drafter(drafter)
    assert len(json.dumps(relevant(target))) < 300
    assert not relevant({"architectures": ["x"] * 10_000})


@given(st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=6))
def test_no_file_breaks_the_reader(config: dict[str, Any]) -> None:
    drafter, target = read_drafter(config), read_target(config)
    assert (read_drafter(relevant(config)), read_target(relevant(config))) == (drafter, target)
    [*pair_problems("d", drafter, "t", target)]
    [*block_problems("d", drafter, 16)]
    [*release_problems("d", drafter, "vllm", "0.33.0")]
