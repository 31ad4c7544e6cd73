"""A table that cannot be used is refused in one line that names file, line, column and remedy, by every command that reads one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import traces, tuner
from dflash_controller.model.measured_tables import Length, Speed, TableError, read_lengths, read_speeds
from testbed.simulator import __main__ as simulator

SPEEDS = "model,workload,concurrency,block_size,method,tok_per_s\n"
LENGTHS = "model,workload,block_size,method,accept_len\n"


@pytest.fixture
def table(tmp_path: Path) -> Callable[[str | bytes], Path]:
    def write(text: str | bytes) -> Path:
        path = tmp_path / "T.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


BROKEN: list[tuple[str | bytes, str]] = [
    ("", "T.csv, line 1: has no column model, workload, concurrency, block_size, method, tok_per_s; begin with a line that names"),
    ("model,workload,concurrency,method,tok_per_s\nm,w,1,DFlash,10\n", "line 1: has no column block_size; begin with a line that names"),
    (SPEEDS + "m,w,1,8,DFlash,10\nm,w,2,,DFlash,10\n", "line 3, column block_size: is empty; fill it in, or remove the row"),
    (SPEEDS + "m,w,1,eight,DFlash,10\n", "line 2, column block_size: is 'eight'; write a whole number from 2"),
    (SPEEDS + "m,w,1,-8,DFlash,10\n", "line 2, column block_size: is '-8'; write a whole number from 2"),
    (SPEEDS + "m,w,1,8.5,DFlash,10\n", "line 2, column block_size: is '8.5'"),
    (SPEEDS + "m,w,1,1,DFlash,10\n", "line 2, column block_size: is '1'"),
    (SPEEDS + "m,w,0,8,DFlash,10\n", "line 2, column concurrency: is '0'; write a whole number from 1"),
    (
        SPEEDS + "m,w,1,8,DFlash,-10\n",
        "line 2, column tok_per_s: is '-10'; write a number from 0.001 to 1000000000, with a point and no unit",
    ),
    (SPEEDS + "m,w,1,8,DFlash,10 tok/s\n", "line 2, column tok_per_s: is '10 tok/s'"),
    (SPEEDS + 'm,w,1,8,DFlash,"1,5"\n', "line 2, column tok_per_s: is '1,5'"),
    (SPEEDS + "m,w,1,8,DFlash,nan\n", "line 2, column tok_per_s: is 'nan'"),
    (SPEEDS + "m,w,1,8,DFlash,1e-310\n", "line 2, column tok_per_s: is '1e-310'"),
    (SPEEDS + "m,w,1,8,DFlash,1e300\n", "line 2, column tok_per_s: is '1e300'"),
    (SPEEDS + "m,w,1,8,DFlash,1_000\n", "line 2, column tok_per_s: is '1_000'"),
    (SPEEDS + ",w,1,8,DFlash,10\n", "line 2, column model: is empty"),
    (SPEEDS + "m,w,1,8,,10\n", "line 2, column method: is empty"),
    (SPEEDS + "m,w,1,8,DFlash\n", "line 2: has 5 cells, and the header 6; put a cell with a comma into quotation marks"),
    (SPEEDS + "m,w,1,8,DFlash,1,5\n", "line 2: has 7 cells, and the header 6"),
    (SPEEDS.replace("workload", "model"), "has no column workload"),
    (SPEEDS.replace("\n", ",model\n"), "line 1, column model: is there twice; remove one"),
    (SPEEDS + "m,w,1,8,MTP,10\n", "T.csv: has no row of method DFlash or AR with tok_per_s; add what was measured"),
    (SPEEDS + 'm,"w,1,8,DFlash,10\n', "T.csv, after line 1: unexpected end of data; save it as CSV"),
    (SPEEDS.encode("utf-16"), "T.csv: is not UTF-8 text (byte 0); save it as CSV in UTF-8"),
]


@pytest.mark.parametrize(("text", "words"), BROKEN)
def test_a_table_of_speeds_that_cannot_be_used_is_refused_with_its_place(
    table: Callable[[str | bytes], Path], text: str | bytes, words: str
) -> None:
    with pytest.raises(TableError) as refusal:
        read_speeds(table(text))
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("m,w,,DFlash,4\n", "line 2, column block_size: is empty"),
        ("m,w,8,DFlash,x\n", "line 2, column accept_len: is 'x'"),
        ("m,w,8,DFlash,9\n", "line 2, column accept_len: is 9; an acceptance length is between 1 and the block size, here 8"),
        ("m,w,8,DFlash,0.5\n", "line 2, column accept_len: is 0.5"),
    ],
)
def test_a_table_of_acceptance_lengths_that_cannot_be_used_is_refused_with_its_place(
    table: Callable[[str | bytes], Path], row: str, words: str
) -> None:
    with pytest.raises(TableError) as refusal:
        read_lengths(table(LENGTHS + row))
    assert words in str(refusal.value)


def test_a_file_that_is_not_there_or_is_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"T.csv: No such file or directory; give a CSV file that can be read"):
        read_speeds(tmp_path / "T.csv")
    with pytest.raises(TableError, match="Is a directory; give a CSV file"):
        read_lengths(tmp_path)


def test_spaces_a_byte_order_mark_empty_lines_and_cells_that_were_not_measured_are_taken(table: Callable[[str | bytes], Path]) -> None:
    text = "\ufeff" + SPEEDS + "\nm, w ,1, 8,DFlash, 10\nm,w,2,8,DFlash,\nm,w,1,,AR,4\n"
    assert read_speeds(table(text)) == [Speed("", "m", "w", 1, 8, 10.0), Speed("", "m", "w", 1, 1, 4.0)]
    assert read_lengths(table("source," + LENGTHS + "s,m,w,8,DFlash,4.5\ns,m,w,16,DFlash,\ns,m,w,8,MTP,4\n")) == [
        Length("s", "m", "w", 8, 4.5)
    ]


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "python -m benchmarks.tuner": tuner.main,
    "python -m benchmarks.traces": traces.main,
    "python -m testbed.simulator": lambda arguments: simulator.main(["serve", *arguments, "--", "vllm", "serve", "m"]),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("option", ["--tables", "--accept"])
def test_a_command_says_it_in_one_line_and_exits_with_2(
    table: Callable[[str | bytes], Path], capsys: pytest.CaptureFixture[str], command: str, option: str
) -> None:
    path = table(SPEEDS + "m,w,1,,DFlash,10\n" if option == "--tables" else LENGTHS + "m,w,,DFlash,4\n")
    with pytest.raises(SystemExit) as ended:
        COMMANDS[command]([option, str(path)])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"{command}: {path}, line 2, column block_size: is empty; fill it in, or remove the row\n"


def test_a_table_with_one_block_size_is_told_what_is_missing(
    table: Callable[[str | bytes], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(table(SPEEDS + "m,w,1,8,DFlash,10\nm,w,2,8,DFlash,18\n"))
    for main in (tuner.main, traces.main):
        with pytest.raises(SystemExit) as ended:
            main(["--tables", path])
        assert ended.value.code == 2
        assert "measure a second block size" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--days", "0"], ["--cells", "-1"], ["--cells", "two"], ["--trace", "none-such"]])
def test_arguments_that_mean_nothing_are_refused_by_name(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        traces.main(arguments)
    assert ended.value.code == 2
    assert arguments[0] in capsys.readouterr().err
