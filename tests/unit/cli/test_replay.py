"""The command that makes the tuner's decisions again from a log: what it prints, what it skips, and what it says where there is nothing."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from dflash_controller.cli.replay import FIGURES, decisions, differences, main
from dflash_controller.tuner.learned import Learned, Past, Seen
from dflash_controller.tuner.points import StepPoint
from dflash_controller.tuner.policy import decide, replay
from dflash_controller.tuner.recommend import ObservedLoad
from tests.support.tuner_inputs import tuner_inputs

ROOT = Path(__file__).parents[3]
TUNING = (ROOT / "docs" / "how-to" / "explain-a-tuner-decision.md").read_text(encoding="utf-8")
NOISE = {"timestamp": "2026-11-28T02:59:00.000Z", "severity": "INFO", "message": "leading"}
LEARNED = Learned(
    points=tuple(StepPoint(16, load, 0.008 * (1 + 16 * load / 200), 50.0) for load in (1.0, 4.0, 16.0, 32.0)),
    loads=(ObservedLoad(32.0),),
    acceptance=(Seen(16, 1e5, 4.5e5),),
    load_samples=20,
    past=Past(regrets=((8, 900.0),), favoured=8, favoured_s=600.0, stays=((8, (3600.0, 7200.0)),)),
    speeds=((16, 1000.0),),
)


def entry(name: str = "qwen", at: str = "03:00:00", frozen: str = "") -> dict[str, Any]:
    """A line as the operator writes it."""
    decision = decide(tuner_inputs(surge=True, frozen=frozen), LEARNED)
    told = {"namespace": "default", "deployment": name, **decision.to_json(), "inputs": decision.inputs}
    message = f"default/{name}: tuner: {decision.message}"
    return {"timestamp": f"2026-11-28T{at}.000Z", "severity": "INFO", "logger": "x", "message": message, "decision": told}


def run(*lines: Any, argv: tuple[str, ...] = ()) -> tuple[int, str, str]:
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    out, err = io.StringIO(), io.StringIO()
    return main(argv, io.StringIO(text), out, err), out.getvalue(), err.getvalue()


def test_a_decision_is_told_with_its_time_its_words_and_its_figures() -> None:
    code, out, err = run(NOISE, "noise", entry())
    assert (code, err) == (0, "")
    head, message, metric_values, gains, verdict, total = out.splitlines()
    assert head == "2026-11-28T03:00:00.000Z default/qwen: Tuning, Tuned, recommends 8, changes to 8"
    assert message.startswith("    block 8 is expected to give ")
    assert [part.split()[0] for part in metric_values.split(",")] == list(FIGURES)
    assert metric_values.startswith("    block 16, concurrency 32.0, acceptance 4.5, gainPercent ")
    assert re.fullmatch(r"    block 8: gain \+\d+\.\d % ± \d+\.\d %, inferred", gains)
    assert (verdict, total) == ("    the same again", "1 decisions, 0 of them different")


def test_a_decision_without_figures_has_none() -> None:
    code, out, _ = run(entry(frozen="spec.suspend is true"))
    assert code == 0
    assert out.splitlines()[1:3] == ["    Tuning is paused: spec.suspend is true", "    the same again"]


def test_one_that_comes_out_differently_and_one_that_cannot_be_read_are_errors() -> None:
    other, damaged = entry(at="03:01:00"), entry(at="03:02:00")
    other["decision"]["reason"] = "Dwelling"
    del damaged["decision"]["inputs"]["learned"]
    code, out, _ = run(entry(), other, damaged)
    assert code == 1
    assert "    reason was Dwelling and is now Tuned\n" in out
    assert "    the inputs cannot be read: KeyError('learned')\n" in out
    assert out.endswith("3 decisions, 2 of them different\n")


def test_what_stands_before_the_object_is_skipped_and_pods_are_put_in_order() -> None:
    lines = [f"[pod/dflash-operator-{pod}/operator] {json.dumps(entry(at=at))}" for pod, at in (("a", "04:00:00"), ("b", "03:00:00"))]
    code, out, _ = run(*lines)
    assert code == 0
    assert re.findall(r"^\d\S+", out, re.MULTILINE)[:2] == ["2026-11-28T03:00:00.000Z", "2026-11-28T04:00:00.000Z"]
    assert [differences(decision) for decision in decisions(lines)] == [{}, {}]


def test_one_deployment_may_be_asked_for() -> None:
    lines, argv = (entry("qwen"), entry("llama")), ("--deployment", "default/llama")
    code, out, _ = run(*lines, argv=argv)
    assert code == 0
    assert re.findall(r"default/\w+", out) == ["default/llama"]
    code, out, err = run(lines[0], argv=argv)
    assert (code, out) == (2, "0 decisions, 0 of them different\n")
    assert err == "No decision: none of default/llama; the log has decisions of default/qwen.\n"


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ((), "input is empty"),
        (("2026-11-28 03:00:00,000 INFO    x: default/qwen: tuner: block 8 …",), "settings.logFormat=text"),
        (({**NOISE, "severity": "WARNING"},), "settings.logLevel"),
        ((NOISE,), "a standby's"),
    ],
)
def test_why_there_is_no_decision_is_told(lines: tuple[Any, ...], why: str) -> None:
    code, out, err = run(*lines)
    assert (code, out) == (2, "0 decisions, 0 of them different\n")
    assert why in err


def test_a_file_is_read_in_place_of_standard_input(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text(json.dumps(entry()), encoding="utf-8")
    assert run(argv=(str(file),))[:2] == run(entry())[:2]


@pytest.mark.parametrize("argv", [("/no/such/file",), ("--deployment", "qwen"), ("--deployment", "/qwen"), ("--nonsense",)])
def test_arguments_that_cannot_be_used_are_refused(argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(argv=argv)
    assert ended.value.code == 2
    assert "usage: replay" in capsys.readouterr().err


class Terminal(io.StringIO):
    """Closed, so that reading from it is an error."""

    def __init__(self) -> None:
        super().__init__()
        self.close()

    def isatty(self) -> bool:
        return True


def test_help_and_a_terminal_say_what_is_expected_and_read_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(("--help",), Terminal())
    assert ended.value.code == 0
    assert "kubectl -n dflash-system logs -l app.kubernetes.io/name=dflash-operator --tail=-1" in capsys.readouterr().out
    err = io.StringIO()
    assert main((), Terminal(), io.StringIO(), err) == 2
    assert "log is expected" in err.getvalue()


def test_every_number_of_a_decision_is_documented() -> None:
    [body] = re.findall(r"^\| Name \| Unit \| Meaning \|\n\| ---.*\n((?:\|.*\n)+)", TUNING, re.MULTILINE)
    rows = {name.replace("N", r"\d+") for row in body.splitlines() for name in re.findall(r"`(\w+)`", row.split(" | ")[0])}
    numbers = replay(next(iter(decisions([json.dumps(entry())])))["inputs"]).numbers
    assert set(FIGURES) <= numbers.keys()
    assert [name for name in numbers if not any(re.fullmatch(row, name) for row in rows)] == []
    assert [row for row in rows if not any(re.fullmatch(row, name) for name in numbers)] == []


def test_the_label_of_the_documented_command_is_the_charts_and_the_module_is_in_the_image() -> None:
    chart = (ROOT / "charts/dflash-operator/Chart.yaml").read_text(encoding="utf-8")
    labels = (ROOT / "charts/dflash-operator/templates/_helpers.tpl").read_text(encoding="utf-8")
    image = (ROOT / "images/operator.Dockerfile").read_text(encoding="utf-8")
    assert "\nname: dflash-operator\n" in chart
    assert 'app.kubernetes.io/name: {{ include "dflash-operator.name" . }}' in labels
    assert "COPY dflash_controller /opt/dflash/lib/dflash_controller" in image
    assert "PYTHONPATH=/opt/dflash/lib" in image
    for page in (TUNING, (ROOT / "docs" / "how-to" / "troubleshoot.md").read_text(encoding="utf-8")):
        assert "logs -l app.kubernetes.io/name=dflash-operator" in page
        assert "logs deploy/" not in page
