"""``explain``: the same curves and decision as the operator's, from a log line and from what a cluster stores."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dflash_controller.api.parse import parse_spec
from dflash_controller.api.speculation import Fixed
from dflash_controller.api.types import Spec
from dflash_controller.cli import explanation, plots
from dflash_controller.cli.commands import explain
from dflash_controller.cli.explanation import Picture
from dflash_controller.cli.failures import NEGATIVE, OK, USAGE
from dflash_controller.cli.program import run
from dflash_controller.planning.revisions.revision import RevisionState
from dflash_controller.planning.revisions.roles import read_stored
from dflash_controller.tuner.policy import decide
from tests.support.stored_revisions import stored
from tests.support.tuner_inputs import tuner_inputs
from tests.unit.cli.test_replay import LEARNED, entry


def picture(**inputs: Any) -> Picture:
    decision = decide(tuner_inputs(surge=True, **inputs), LEARNED)
    line = {"namespace": "default", "deployment": "qwen", **decision.to_json(), "inputs": json.loads(json.dumps(decision.inputs))}
    return explanation.of_log(line, decision.message, "2026-11-28T03:00:00Z")


def test_the_gain_at_the_load_of_the_decision_is_the_decisions_own() -> None:
    found = picture()
    assert found.current == 16
    assert found.concurrency == 32.0
    assert found.gains(32.0)[8] == pytest.approx(float(found.said.numbers["gainPercent8"]), abs=0.01)
    assert found.gains(32.0)[16] == 0.0


def test_the_loss_is_how_much_slower_the_active_block_size_is_than_the_best() -> None:
    found = picture()
    gain = found.gains(32.0)[8]
    assert gain > 0
    assert found.loss() == (8, pytest.approx(100 * gain / (100 + gain)))
    assert picture(speculation=Fixed(8)).loss() == (8, 0.0)


def test_what_is_printed_says_loss_in_plain_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "operator.log"
    log.write_text(json.dumps(entry()), encoding="utf-8")
    assert run(["explain", str(log)]) == OK
    out = capsys.readouterr().out
    assert re.search(r"Slower than the best block size: by about \d+\.\d %; block 8 is expected to be the fastest at this load", out)
    assert "and not switching has cost " in out
    assert "regret" not in out.replace("regretSeconds", "")


def test_acceptance_says_what_is_measured_and_what_is_inferred() -> None:
    assert [(line.block, line.measured) for line in picture().acceptance_lines()] == [(8, False), (16, True)]


def test_the_load_at_which_another_block_wins_is_the_crossover_of_the_decision() -> None:
    found = picture()
    at = float(found.said.numbers["crossoverConcurrency"])
    assert any(f"fewer than {at:.1f} requests per replica (now 32.0), block 16" in line for line in found.changes())
    assert max(found.gains(at * 0.9).items(), key=lambda item: item[1])[0] == 16
    assert max(found.gains(at * 1.1).items(), key=lambda item: item[1])[0] == 8


def test_an_acceptance_that_turns_the_decision_is_named() -> None:
    assert any(line.startswith("acceptance: below about ") and "speculation off" in line for line in picture().changes())


def test_advise_is_what_keeps_a_worthwhile_change() -> None:
    inputs = tuner_inputs(surge=True)
    advised = picture(policy=replace(inputs.policy, mode="Advise"))
    assert "spec.tuning.mode Auto: it is Advise, so the recommendation is only shown" in advised.changes()


def test_what_is_not_known_is_said_before_the_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    blind = replace(picture(), unmeasured=("2026-11-29T06:07:46Z", "PrometheusError"), unseen="generation 7, seen 6")
    explain._print(blind)
    out = capsys.readouterr().out
    assert "The operator has not seen this spec (generation 7, seen 6)" in out
    assert "Traffic is not known since 2026-11-29T06:07:46Z: PrometheusError." in out
    assert "no traffic" not in out
    told = blind.to_json()
    assert (told["notMeasuredSince"], told["notSeen"]) == ("2026-11-29T06:07:46Z", "generation 7, seen 6")


def test_a_deployment_that_is_not_measured_is_not_idle() -> None:
    spec = {"target": {"model": "Qwen/Qwen3.5-9B"}}
    records = read_stored([stored("raaaaaaa", 1, RevisionState.STABLE, spec)])
    parsed = parse_spec({"spec": spec})
    assert isinstance(parsed, Spec)
    assert records.stable is not None
    health = {"type": "MetricsAvailable", "reason": "PrometheusError", "lastTransitionTime": "2026-11-29T06:07:46Z"}
    metrics = {"tokensPerSecond": 0.0, "measuredAt": "2026-11-29T06:00:00Z"}

    def live(available: str) -> Picture:
        status = {"metrics": metrics, "conditions": [{**health, "status": available}]}
        return explanation.of_live("default/qwen", parsed, status, records, records.stable, [], 0.0)

    assert (live("False").idle_since, live("False").unmeasured) == ("", ("2026-11-29T06:07:46Z", "PrometheusError"))
    assert (live("True").idle_since, live("True").unmeasured) == ("2026-11-29T06:07:46Z", None)


def test_a_plot_is_a_png_and_nothing_learned_is_no_plot(tmp_path: Path) -> None:
    file = tmp_path / "qwen.png"
    plots.explanation(picture(), str(file))
    assert file.read_bytes().startswith(b"\x89PNG")


def test_a_log_is_replayed_and_its_last_decision_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "operator.log"
    log.write_text("".join(json.dumps(line) + "\n" for line in (entry(at="03:00:00"), entry("other", "04:00:00"))), encoding="utf-8")
    assert run(["explain", str(log), "--deployment", "default/qwen"]) == OK
    out = capsys.readouterr().out
    assert "the same again" in out
    assert "1 decisions, 0 of them different" in out
    assert "default/qwen: block size 16, 32.0 requests per replica" in out
    assert run(["explain", str(log), "-o", "json"]) == OK
    assert json.loads(capsys.readouterr().out)["deployment"] == "default/other", "the newest of the log"


def test_a_decision_that_comes_out_differently_is_a_negative_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = entry()
    line["decision"]["recommendation"] = "4"
    log = tmp_path / "operator.log"
    log.write_text(json.dumps(line), encoding="utf-8")
    assert run(["explain", str(log)]) == NEGATIVE
    assert "recommendation was 4 and is now 8" in capsys.readouterr().out


@pytest.mark.parametrize(("text", "why"), [("", "the input is empty"), ("no JSON here\n", "Is this the operator's log?")])
def test_a_log_without_decisions_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, why: str) -> None:
    log = tmp_path / "operator.log"
    log.write_text(text, encoding="utf-8")
    assert run(["explain", str(log)]) == USAGE
    assert why in capsys.readouterr().err
