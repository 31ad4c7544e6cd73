"""What is said before a run, its table, notes and curves, and two runs compared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dflash_controller.cli.bench import report
from dflash_controller.cli.bench.files import read, write
from dflash_controller.cli.bench.rows import Plan, against, speedups
from tests.support.bench_world import row, subject

PLAN = Plan(("math", "chat"), (1, 32), 30.0, None, 512)
URL = "http://10.0.0.1:30000"


def test_what_is_about_to_happen_is_said_first() -> None:
    now = subject(URL, "http://10.0.0.2:30000")
    assert list(report.intentions(PLAN, now, None, ())) == [
        "qwen in namespace default gets load: Qwen/Qwen3.5-9B on sglang 0.5.23, block size 16, 2 replicas of 1x NVIDIA-B200",
        "Questions of math, chat from 1, 32 clients per replica, greedy answers of up to 512 tokens",
        "4 measurements of at least 30 s, each after a warm-up: more than 2 min",
        "Users notice it: their requests share the engines with those of the benchmark, and their load disturbs what is measured",
    ]


def test_a_baseline_and_what_may_disturb_the_run_are_named() -> None:
    now = replace(subject(URL), candidate="qwen-rccccccc", phase="Analyzing", tuned=True)
    plain = subject(URL, name="plain", target={"model": "Qwen/Qwen3.5-4B"}, blockSize=1)
    plan = replace(PLAN, concurrencies=(100,), requests=7, seconds=5)
    said = list(report.intentions(plan, now, plain, ["http://127.0.0.1:1"]))
    assert said[0].endswith("block size 16, by http://127.0.0.1:1")
    assert said[2] == "4 measurements of at least 5 s and 7 answers, each after a warm-up: more than 20 s"
    assert said[3] == (
        "The baseline plain gets the same load before each of them: Qwen/Qwen3.5-4B on sglang 0.5.23, speculation off, "
        "1 replica of 1x NVIDIA-B200"
    )
    assert said[4] == "The two serve different targets: Qwen/Qwen3.5-4B and Qwen/Qwen3.5-9B"
    assert said[6:] == [
        "qwen has a rollout (Analyzing): only replicas of qwen-raaaaaaa are measured",
        "The tuner of qwen may act on this load. To prevent that: kubectl dflash rollout pause qwen",
        "qwen serves 32 requests per replica at once (spec.engine.maxConcurrency): further clients wait",
        "plain serves 32 requests per replica at once (spec.engine.maxConcurrency): further clients wait",
    ]


def test_the_table_has_a_line_for_each_row_and_notes_below() -> None:
    rows = [
        row(concurrency=1, speed=200, deployment="plain", block=1),
        row(concurrency=1, speed=800),
        row(concurrency=8, speed=9000, replicas=2, errors={"HTTP 503": 3}, remarks=["interrupted"]),
        row(concurrency=32, speed=9000, changes=["pod p restarted"], remarks=["interrupted"]),
    ]
    notes = report.Notes()
    head, lines = report.table(rows, speedups(rows, against(rows, "plain")), notes)
    titles = [title for title, _ in head]
    assert titles[:7] == ["deployment", "workload", "block", "clients", "tokens/s", "per replica", "per client"]
    assert lines[0] == ["plain", "math", "off", "1", "200", "200", "200.0", "1.00x", "-", "21 / 48", "10.1 / 12.3", "40", "0", ""]
    assert lines[1] == ["qwen", "math", "16", "1", "800", "800", "800.0", "4.00x", "6.50", "21 / 48", "10.1 / 12.3", "40", "0", ""]
    assert lines[2][3:8] == ["16", "9,000", "4,500", "562.5", "-"]
    assert (lines[2][-2:], lines[3][-2:]) == (["3", "(1,2)"], ["0", "(2,3)"])
    assert notes.lines() == ["(1) errors: 3 x HTTP 503", "(2) interrupted", "(3) changed meanwhile, so it is not counted: pod p restarted"]
    head, lines = report.table([row()], {}, report.Notes())
    assert [title for title, _ in head][:4] == ["workload", "block", "clients", "tokens/s"]
    assert len(lines[0]) == len(head)


def test_progress_is_one_line() -> None:
    assert report.short(row(concurrency=1, speed=1234)) == "qwen, math, 1 client: 1,234 tokens/s, 6.50 accepted"
    disturbed = row(acceptance=None, changes=["pod p restarted"], errors={"HTTP 503": 1})
    assert report.short(disturbed) == "qwen, math, 8 clients: 800 tokens/s, 1 error, changed meanwhile"


def test_two_runs_are_compared_without_a_cluster(tmp_path: Path) -> None:
    runs = []
    for name, speed in (("before.csv", 800.0), ("after.csv", 1000.0)):
        file = str(tmp_path / name)
        rows = [row(concurrency=8, speed=speed), row(concurrency=8, speed=speed / 4, deployment="plain", block=1), row("chat", speed=speed)]
        write(file, rows, {}, "qwen", "")
        runs.append(read(file))
    before, after = runs
    head, lines = report.file_table(after, before)
    assert [title for title, _ in head] == [
        *("model", "workload", "block", "clients", "tokens/s", "compared", "per client", "speed-up", "accepted"),
    ]
    assert lines == [
        ["Qwen3.5-9B", "math", "16", "8", "1,000", "800", "125.0", "1.25x", "6.50"],
        ["Qwen3.5-9B", "chat", "16", "8", "1,000", "800", "125.0", "1.25x", "6.50"],
        ["Qwen3.5-9B", "math", "off", "8", "250", "200", "31.2", "1.25x", "-"],
    ]
    # Alone, it is compared with itself without speculation.
    _, lines = report.file_table(after, None)
    assert [line[-2] for line in lines] == ["4.00x", "-", "1.00x"]
    assert [(curve.label, curve.reference) for curve in report.file_curves(after, None)] == [
        ("math, block 16", False),
        ("chat, block 16", False),
        ("math, off", True),
    ]
    assert [(curve.label, curve.reference) for curve in report.file_curves(after, before)] == [
        ("math, block 16, after.csv", False),
        ("chat, block 16, after.csv", False),
        ("math, block 16, before.csv", True),
        ("chat, block 16, before.csv", True),
    ]
    told = report.file_json(after, before)["rows"][0]
    assert (told["comparedWith"], told["speedup"]) == (800.0, 1.25)


def test_curves_are_of_sound_rows_by_workload(tmp_path: Path) -> None:
    rows = [row(concurrency=c, speed=100 * c, deployment=name, replicas=2) for name in ("plain", "qwen") for c in (8, 1)]
    rows += [row("chat", 32, 900), row("chat", 8, 700, changes=["pod p restarted"])]
    plain, chat = report.curves(rows, ("math", "chat"), "plain", None)[-1], report.curves(rows, ("math", "chat"), "plain", None)[1]
    assert (plain.label, plain.reference, plain.color, plain.points) == ("math (plain)", True, 0, ((1, 50.0), (8, 400.0)))
    assert (chat.label, chat.points) == ("chat (qwen)", ((32, 900.0),))
    file = str(tmp_path / "before.csv")
    write(file, [row(speed=555)], {}, "qwen", "")
    [now, before, chat] = report.curves([row(speed=777)], ("math", "chat"), None, read(file))
    assert (now.label, now.points, before.points, before.reference, chat.points) == ("math", ((8, 777.0),), ((8, 555.0),), True, ())
