"""Names of models, patterns, manifests: without a disk."""

from __future__ import annotations

import json

import pytest

from dflash_controller.fetch.selection import File, Manifest, Patterns, Wanted, is_safe, parse_manifest, parse_wanted
from dflash_controller.model.fetch_report import EXIT_CODES, FetchReason, FetchReport, parse

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def names(patterns: Patterns, *paths: str) -> list[str]:
    return [file.path for file in patterns.select([File(path, 1) for path in paths])]


def test_formats_that_engines_do_not_load_are_left_out_where_safetensors_exist() -> None:
    kept = ["a.py", "config.json", "model-1.safetensors", "tokenizer.model"]
    left = ["original/x.pth", "metal/model.bin", "pytorch_model-1.bin", "consolidated.00.pth", "tf_model.h5", "onnx/model.onnx", "q4.gguf"]
    assert names(Patterns(), *kept, *left) == kept
    assert names(Patterns(), "config.json", "pytorch_model.bin") == ["config.json", "pytorch_model.bin"], "the only weights"
    assert names(Patterns(), "vae/x.safetensors", "pytorch_model.bin") == ["pytorch_model.bin", "vae/x.safetensors"]


def test_written_patterns_replace_the_default() -> None:
    assert names(Patterns(ignore=()), "original/x", "a.safetensors") == ["a.safetensors", "original/x"]
    assert names(Patterns(allow=("*.json",)), "a.json", "b/c.json", "d.txt") == ["a.json", "b/c.json"]
    assert names(Patterns(ignore=("b/",)), "a.json", "b/c.json") == ["a.json"]


@pytest.mark.parametrize(
    "text", ["a/b", "a/b@main", f"a@{COMMIT}", f"a/b/c@{COMMIT}", f"../b@{COMMIT}", f"a/b@{COMMIT[:-1]}", f"a--b/c@{COMMIT}"]
)
def test_only_a_model_at_a_full_commit_is_taken(text: str) -> None:
    with pytest.raises(ValueError, match=r"OWNER/NAME@COMMIT|full commit"):
        parse_wanted(text)
    assert parse_wanted(f"Qwen/Qwen3.5-9B@{COMMIT}") == Wanted("Qwen/Qwen3.5-9B", COMMIT)


def test_a_path_stays_below_its_directory() -> None:
    assert [path for path in ("a", "a/b", "..a") if not is_safe(path)] == []
    assert [path for path in ("/a", "../a", "a/../b", "a//b", "./a", "a\\b", "a\0") if is_safe(path)] == []


def test_a_manifest_survives_its_file_and_a_cut_one_is_none() -> None:
    manifest = Manifest("a/b", COMMIT, (File("x", 3, sha256="0"), File("y", 1, blob="1")), Patterns(("x",), ("y",)))
    text = manifest.to_json()
    assert parse_manifest(text) == manifest
    assert [parse_manifest(text[:at]) for at in (0, 1, len(text) // 2, len(text) - 3)] == [None] * 4


def test_a_report_fits_into_a_termination_message() -> None:
    report = FetchReport(FetchReason.NO_SPACE, "é" * 5000, 5, 1.5)
    line = report.to_json()
    assert len(line.encode()) <= 4096
    assert json.loads(line)["message"].startswith("éé")
    assert parse(FetchReport(FetchReason.GATED, "x").to_json()) == FetchReport(FetchReason.GATED, "x")
    assert [parse(text) for text in (None, "", "Traceback", "{}", "[]", "null", '{"reason": "Other", "message": ""}')] == [None] * 7


def test_every_reason_has_an_exit_code_of_its_own() -> None:
    assert set(EXIT_CODES) == set(FetchReason)
    assert len(set(EXIT_CODES.values())) == len(EXIT_CODES)
