"""``bench`` without a cluster: earlier runs, and arguments that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dflash_controller.cli import failures
from dflash_controller.cli.bench.files import write
from dflash_controller.cli.program import run
from tests.support.bench_world import row


@pytest.fixture
def runs(tmp_path: Path) -> tuple[str, str]:
    """Files of two runs, the second one a quarter faster."""
    files = (str(tmp_path / "before.csv"), str(tmp_path / "after.csv"))
    for file, factor in zip(files, (1.0, 1.25), strict=True):
        write(file, [row(workload, c, factor * 100 * c) for workload in ("math", "chat") for c in (1, 8)], {}, "qwen", "")
    return files


def test_two_runs_are_compared_and_drawn(runs: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = runs
    picture = tmp_path / "both.png"
    assert run(["bench", after, "--compare", before, "--plot", str(picture)]) == failures.OK
    out, err = capsys.readouterr()
    assert [line.split() for line in out.splitlines()][:2] == [
        ["MODEL", "WORKLOAD", "BLOCK", "CLIENTS", "TOKENS/S", "COMPARED", "PER", "CLIENT", "SPEED-UP", "ACCEPTED"],
        ["Qwen3.5-9B", "math", "16", "1", "125", "100", "125.0", "1.25x", "6.50"],
    ]
    assert err == f"{picture} written\n"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert run(["bench", after, "-o", "json"]) == failures.OK
    assert [each["speedup"] for each in json.loads(capsys.readouterr().out)["rows"]] == [None] * 4


def test_another_model_is_compared_and_named(runs: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.csv"
    other.write_text(Path(runs[0]).read_text(encoding="utf-8").replace("Qwen3.5-9B", "Qwen3.5-4B"), encoding="utf-8")
    assert run(["bench", runs[1], "--compare", str(other)]) == failures.OK
    out, err = capsys.readouterr()
    assert "1.25x" in out
    assert err == f"{other} has no row of Qwen3.5-9B: compared with Qwen3.5-4B\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--concurrency", "1,x"], "'1,x' is no list of whole numbers from 1 to 10000, such as 1,8,16,32"),
        (["--concurrency", "0"], "'0' is no list of whole numbers"),
        (["--workload", "math,poems"], "'poems' is none of math, code, chat"),
        (["--baseline", "qwen"], "--baseline qwen is the deployment itself"),
        (["--baseline-url", "http://x"], "--baseline-url needs --baseline"),
        (["--csv", "/no/such/folder/x.csv"], "/no/such/folder/x.csv cannot be written: No such file or directory"),
        (["--plot", "x.doc"], "x.doc: a picture of kind doc cannot be drawn. Use a name that ends in .png"),
        (["--compare", "absent.csv"], "absent.csv: No such file or directory"),
        (["--seconds", "0"], "--seconds"),
    ],
)
def test_arguments_that_cannot_be_used_are_said_before_anything_is_sent(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", "qwen", *arguments]) == failures.USAGE
    assert said in capsys.readouterr().err


def test_options_for_load_do_not_apply_to_a_file(runs: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--url", "http://x"], ["--seconds", "3"], ["--baseline", "x"], ["--csv", "x.csv"]):
        assert run(["bench", runs[0], *arguments]) == failures.USAGE
        assert f"{arguments[0]} does not apply to FILE.csv, an earlier run: nothing is sent" in capsys.readouterr().err
    assert run(["bench", "qwen", "--baseline", "plain", "--compare", runs[0]]) == failures.USAGE
    assert "exclude each other" in capsys.readouterr().err
