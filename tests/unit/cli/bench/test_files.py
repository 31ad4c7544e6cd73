"""The files of a run have the columns of the published tables, and everything that reads those reads them."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from benchmarks import tuner, tuner_priors
from benchmarks.tuner_tables import load
from dflash_controller.cli.bench.files import LENGTHS, SPEEDS, accept_file, read, writable, write
from dflash_controller.cli.bench.rows import Row, against, speedups
from dflash_controller.cli.failures import Failure
from testbed.simulator.table import Table
from tests.support.bench_world import row

ABOUT = "2026-11-30, questions v1, up to 512 tokens"
RUN = [
    row(concurrency=1, speed=200, deployment="plain", block=1),
    row(concurrency=1, speed=800),
    row(concurrency=8, speed=1500, deployment="plain", block=1),
    row(concurrency=8, speed=9000, replicas=2, errors={"HTTP 503": 3}, remarks=["interrupted"]),
    row(concurrency=16, speed=4000, changes=["pod dense-moe-0 restarted"]),
    row("chat", concurrency=1, speed=500, acceptance=4.0),
]


def written(tmp_path: Path, rows: list[Row], name: str = "run.csv") -> str:
    file = str(tmp_path / name)
    assert write(file, rows, speedups(rows, against(rows, "plain")), "qwen", ABOUT) == [file, accept_file(file)]
    return file


def table(file: str) -> list[dict[str, str]]:
    with Path(file).open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def test_the_columns_are_those_of_the_published_tables() -> None:
    for name, columns in zip(tuner.SEEDS, (SPEEDS, LENGTHS), strict=True):
        with (tuner_priors.DATA / name).open(newline="", encoding="utf-8") as lines:
            assert tuple(next(csv.reader(lines))) == columns


def test_rows_are_per_replica_the_deployment_itself_first(tmp_path: Path) -> None:
    file = written(tmp_path, RUN)
    found = [
        tuple(line[key] for key in ("workload", "concurrency", "block_size", "method", "tok_per_s", "speedup")) for line in table(file)
    ]
    assert found == [
        ("math", "1", "16", "DFlash", "800.0", "4.000"),
        ("math", "8", "16", "DFlash", "4500.0", "3.000"),
        ("math", "16", "16", "DFlash", "", ""),
        ("chat", "1", "16", "DFlash", "500.0", ""),
        ("math", "1", "1", "AR", "200.0", "1.000"),
        ("math", "8", "1", "AR", "1500.0", "1.000"),
    ]
    notes = [line["notes"] for line in table(file)]
    assert notes[1] == (
        "hybrid, replicas 2, 2026-11-30, questions v1, up to 512 tokens; seconds 10, answers 40, errors 3; ttft_ms p50 21.0 p95 48.0; "
        "tpot_ms p50 10.1 p95 12.3; accept 6.500; interrupted"
    )
    assert "not counted (tok_per_s 4000.0): pod dense-moe-0 restarted" in notes[2]
    assert [(line["workload"], line["block_size"], line["accept_len"]) for line in table(accept_file(file))] == [
        ("math", "16", "6.5000"),
        ("chat", "16", "4.0000"),
    ]


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    run = read(written(tmp_path, RUN))
    assert [(speed.workload, speed.concurrency, speed.block_size, speed.tokens_per_s) for speed in run.speeds] == [
        ("math", 1, 16, 800.0),
        ("math", 8, 16, 4500.0),
        ("chat", 1, 16, 500.0),
        ("math", 1, 1, 200.0),
        ("math", 8, 1, 1500.0),
    ]
    assert [run.length(speed) for speed in run.speeds] == [6.5, 6.5, 4.0, None, None]
    # Compared with the same block size, else with the first row of the cell.
    assert run.reference(row(concurrency=8)) == 4500
    assert run.reference(row(concurrency=8, block=1)) == 1500
    assert run.reference(row(concurrency=8, block=8)) == 4500
    assert run.reference(row(concurrency=32)) is None
    Path(accept_file(run.file)).unlink()
    assert read(run.file).lengths == {}


def test_a_file_that_cannot_be_used_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"No such file or directory; give a CSV file that can be read"):
        read(str(tmp_path / "absent.csv"))
    with pytest.raises(Failure, match="has no row of method DFlash or AR with tok_per_s"):
        read(written(tmp_path, [row(changes=["x"])]))
    file = written(tmp_path, RUN)
    Path(accept_file(file)).write_text("model\n")
    with pytest.raises(Failure, match=r"run_accept\.csv, line 1: has no column workload"):
        read(file)


def test_files_are_tried_before_the_load_and_left_as_they_were(tmp_path: Path) -> None:
    file = tmp_path / "run.csv"
    writable(str(file))
    assert not file.exists()
    file.write_text("kept")
    writable(str(file))
    assert file.read_text() == "kept"
    empty = tmp_path / "empty.csv"
    empty.touch()
    writable(str(empty))
    assert empty.exists()
    with pytest.raises(Failure, match="cannot be written: No such file or directory"):
        writable(str(tmp_path / "no" / "run.csv"))


def test_the_benchmark_of_the_tuner_reads_runs_of_two_block_sizes_as_one_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuner, "DRAWS", 2)
    runs = {}
    for block, length in ((16, 6.5), (8, 5.2)):
        step_s = {c: 0.008 * (1 + block * c / 200) for c in (1, 8, 32)}
        rows = [row(workload, c, c * length / step_s[c], block=block, acceptance=length) for workload in ("math", "code") for c in step_s]
        runs[block] = written(tmp_path, rows, f"block-{block}.csv")
    arguments = ["--tables", *runs.values(), "--accept", *map(accept_file, runs.values())]
    assert tuner.main(arguments) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0]["protocol"] == "cold_varied"
    assert lines[0]["cells"] == 6, "both block sizes at three loads of two workloads"
    assert lines[-1]["cells_without_acceptance"] == 0
    [machine] = {series.machine for series in load([Path(run) for run in runs.values()], [Path(accept_file(run)) for run in runs.values()])}
    assert (machine.engine, machine.kind) == ("sglang", "hybrid")
    with pytest.raises(SystemExit):
        tuner.main(["--tables", runs[16], "--accept", accept_file(runs[16])])
    assert "measure a second block size" in capsys.readouterr().err


def test_the_simulator_plays_a_run_back(tmp_path: Path) -> None:
    file = written(tmp_path, RUN)
    model = Table.load(Path(file), Path(accept_file(file))).match("Qwen/Qwen3.5-9B")
    assert model.workload("dflash-bench-chat") == "chat"
    assert 8 * 6.5 / model.step_time_s("math", 16, 8) == pytest.approx(4500)
