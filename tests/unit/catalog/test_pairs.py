"""The catalog: complete, sourced, and right about who belongs to whom."""

from __future__ import annotations

import pytest

from dflash_controller.catalog import Catalog, Pair

CATALOG = Catalog.load()
ACCELERATOR_BYTES = 180_000_000_000
README = {
    "moonshotai/Kimi-K2.5": "z-lab/Kimi-K2.5-DFlash",
    "Qwen/Qwen3.5-4B": "z-lab/Qwen3.5-4B-DFlash",
    "Qwen/Qwen3.5-9B": "z-lab/Qwen3.5-9B-DFlash",
    "Qwen/Qwen3.5-27B": "z-lab/Qwen3.5-27B-DFlash",
    "Qwen/Qwen3.5-35B-A3B": "z-lab/Qwen3.5-35B-A3B-DFlash",
    "Qwen/Qwen3-Coder-Next": "z-lab/Qwen3-Coder-Next-DFlash",
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": "z-lab/Qwen3-Coder-30B-A3B-DFlash",
    "openai/gpt-oss-20b": "z-lab/gpt-oss-20b-DFlash",
    "openai/gpt-oss-120b": "z-lab/gpt-oss-120b-DFlash",
    "Qwen/Qwen3-4B": "z-lab/Qwen3-4B-DFlash-b16",
    "Qwen/Qwen3-8B": "z-lab/Qwen3-8B-DFlash-b16",
    "meta-llama/Llama-3.1-8B-Instruct": "z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat",
    "Qwen/Qwen3.5-122B-A10B": "z-lab/Qwen3.5-122B-A10B-DFlash",
    "Qwen/Qwen3.5-397B-A17B": "z-lab/Qwen3.5-397B-A17B-DFlash",
    "zai-org/GLM-5.1": "z-lab/GLM-5.1-FP8-DFlash",
}


@pytest.mark.parametrize(("target", "drafter"), README.items())
def test_every_pair_of_the_readme_is_known(target: str, drafter: str) -> None:
    assert CATALOG.pair(target, drafter) is not None


@pytest.mark.parametrize("pair", CATALOG.pairs, ids=lambda pair: pair.target)
def test_every_fact_has_a_source_and_a_sensible_value(pair: Pair) -> None:
    facts = {"pair", "targetBytes", "drafterBytes", "tensor"}
    facts |= {"trainedBlockSize"} if pair.trained_block_size else set()
    facts |= {"flags"} if pair.flags else set()
    facts |= {"cache"} if pair.cache else set()
    assert set(pair.sources) == facts
    assert pair.trained_block_size in (None, 8, 10, 16)
    assert 0 < pair.drafter_bytes < pair.target_bytes
    assert set(pair.flags) <= {"sglang", "vllm"}
    assert all(
        token.startswith("--") or token.partition("=")[0].isupper() for engine in pair.flags for token in pair.recommended_args(engine)
    )
    assert pair.trained_block_size or "not published" in pair.note


@pytest.mark.parametrize("pair", CATALOG.pairs, ids=lambda pair: pair.target)
def test_recommended_accelerators_hold_the_weights(pair: Pair) -> None:
    weights = pair.target_bytes + pair.drafter_bytes
    assert weights <= 0.6 * pair.tensor * ACCELERATOR_BYTES
    if "smallest power of two" in pair.sources["tensor"] and pair.tensor > 1:
        assert weights > 0.6 * pair.tensor / 2 * ACCELERATOR_BYTES


def test_seed_models() -> None:
    expected = {"Qwen/Qwen3.5-9B": 1, "Qwen/Qwen3.5-27B": 1, "Qwen/Qwen3.5-35B-A3B": 1, "Qwen/Qwen3.5-397B-A17B": 8}
    for target, tensor in expected.items():
        pair = CATALOG.find(target)
        assert pair is not None
        assert (pair.tensor, pair.trained_block_size, pair.hybrid) == (tensor, 16, True)


def test_mirrors_are_the_same_drafter_and_case_does_not_matter() -> None:
    for drafter in ("z-lab", "modal-labs", "lmsys"):
        assert CATALOG.pair("qwen/qwen3.5-397b-a17b", f"{drafter}/Qwen3.5-397B-A17B-DFlash") is CATALOG.find("Qwen/Qwen3.5-397B-A17B")
    assert CATALOG.problem("Qwen/Qwen3.5-397B-A17B", "lmsys/Qwen3.5-397B-A17B-DFlash") is None


def test_a_drafter_of_another_target_is_refused_with_the_right_one() -> None:
    problem = CATALOG.problem("Qwen/Qwen3.5-9B", "modal-labs/Qwen3.5-27B-DFlash")
    assert problem is not None
    assert problem.field == "spec.drafter.model"
    assert "was trained for Qwen/Qwen3.5-27B" in problem.message
    assert "Use z-lab/Qwen3.5-9B-DFlash" in problem.remedy


@pytest.mark.parametrize(
    ("target", "drafter"),
    [
        ("Qwen/Qwen3.5-9B", "acme/retrained-9B-DFlash"),
        ("acme/Qwen3.5-27B-tuned-FP8", "z-lab/Qwen3.5-27B-DFlash"),
        ("acme/own", "acme/own-DFlash"),
        ("zai-org/GLM-5.1", "z-lab/GLM-5.1-FP8-DFlash"),
        ("zai-org/GLM-5.1-FP8", "z-lab/GLM-5.1-FP8-DFlash"),
    ],
)
def test_what_the_catalog_does_not_know_is_not_refused(target: str, drafter: str) -> None:
    assert CATALOG.problem(target, drafter) is None


def test_unknown_targets_and_drafters_are_not_found() -> None:
    assert CATALOG.find("acme/own") is None
    assert CATALOG.pair("Qwen/Qwen3.5-9B", "z-lab/Qwen3.5-27B-DFlash") is None
    assert CATALOG.by_drafter("acme/own-DFlash") is None


def test_a_target_listed_twice_is_an_error() -> None:
    pair = CATALOG.pairs[0]
    with pytest.raises(ValueError, match="listed twice"):
        Catalog([pair, pair])
