"""``python -m dflash_controller.cli.replay``: what the tuner decided, and why, from the operator's log; each decision is made again."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, TextIO

from dflash_controller.tuner.decision import GAIN_ERROR, GAIN_MEASURED, TunerDecision
from dflash_controller.tuner.policy import replay

_LOGS = "kubectl -n dflash-system logs -l app.kubernetes.io/name=dflash-operator --tail=-1"
_HELP = f"""\
Reads the operator's log (JSON, one object a line) and prints for each decision of the tuner: when, for which deployment, what and why,
the figures it rests on, and whether the same comes out when it is made again from what the line holds. It needs no cluster:

  {_LOGS} | \\
    python3 -m dflash_controller.cli.replay --deployment default/qwen

The operator's image holds this module, so a clone is not needed:

  {_LOGS} | \\
    kubectl -n dflash-system exec -i deploy/dflash-operator -- python3 -m dflash_controller.cli.replay

Exit status: 0 all came out the same, 1 at least one did not, 2 there is no decision (standard error says why).
"""
FIGURES = (
    "block",
    "concurrency",
    "acceptance",
    "gainPercent",
    "confidence",
    "costSeconds",
    "regretSeconds",
    "neededSeconds",
    "staySeconds",
    "modelErrorPercent",
    "trialBlock",
    "trialValueSeconds",
    "trialCostSeconds",
    "trialChance",
    "lastingSeconds",
    "crossoverConcurrency",
)
"""Of ``TunerDecision.numbers``, those that are printed; docs/how-to/explain-a-tuner-decision.md has their meanings and units."""
_QUIET = frozenset({"WARNING", "ERROR", "CRITICAL"})


def entries(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The JSON objects of a log, one a line. What stands before one, as ``kubectl logs --prefix`` puts it there, is left out; lines without
    one are not the operator's, and are skipped."""
    for line in lines:
        try:
            entry = json.loads(line[line.index("{") :])
        except ValueError:
            continue
        if isinstance(entry, dict):
            yield entry


def decisions(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The decisions in a log, those without inputs left out."""
    return (decision for entry in entries(lines) if (decision := _decision(entry)) is not None)


def differences(decision: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What was decided and what is decided now from the same inputs, where they differ. Raises ValueError for inputs that are not sound."""
    return _compared(decision, _again(decision))


def _decision(entry: Mapping[str, Any]) -> dict[str, Any] | None:
    decision = entry.get("decision")
    return decision if isinstance(decision, dict) and decision.get("inputs") else None


def _again(decision: Mapping[str, Any]) -> TunerDecision:
    try:
        return replay(decision["inputs"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"the inputs cannot be read: {error!r}") from error


def _compared(decision: Mapping[str, Any], again: TunerDecision) -> dict[str, tuple[Any, Any]]:
    return {name: (decision.get(name), value) for name, value in again.to_json().items() if decision.get(name) != value}


class Report:
    """What is printed, and what was seen on the way; of a decision no more than its text is kept."""

    def __init__(self, deployment: str | None = None) -> None:
        """``deployment``: of this one alone, as NAMESPACE/NAME."""
        self._deployment = deployment
        self._reported: list[tuple[str, str]] = []
        self.lines = 0
        self.severities: Counter[str] = Counter()
        """Of the log's JSON lines."""
        self.others: set[str] = set()
        """Deployments that the log has decisions of, and that were not asked for."""
        self.wrong = 0

    def read(self, source: Iterable[str]) -> None:
        """Take in a whole log."""
        for entry in entries(self._counted(source)):
            self.severities[str(entry.get("severity"))] += 1
            decision = _decision(entry)
            if decision is None:
                continue
            name = f"{decision.get('namespace')}/{decision.get('deployment')}"
            if self._deployment in (None, name):
                self._reported.append((str(entry.get("timestamp") or ""), self._text(name, entry, decision)))
            else:
                self.others.add(name)

    def _counted(self, source: Iterable[str]) -> Iterator[str]:
        for line in source:
            self.lines += bool(line.strip())
            yield line

    def _text(self, name: str, entry: Mapping[str, Any], decision: Mapping[str, Any]) -> str:
        change = f", changes to {decision['change']}" if decision.get("change") else ""
        head = (
            f"{name}: {decision.get('state')}, {decision.get('reason')}, recommends {decision.get('recommendation') or 'nothing'}{change}"
        )
        message = str(entry.get("message") or "").removeprefix(f"{name}: tuner: ")
        try:
            again = _again(decision)
        except ValueError as error:
            self.wrong += 1
            return _block(entry, head, message, "", str(error))
        found = _compared(decision, again)
        self.wrong += bool(found)
        metric_values = ", ".join(f"{figure} {again.numbers[figure]}" for figure in FIGURES if figure in again.numbers)
        gains = "; ".join(_gains(again.numbers))
        said = "; ".join(f"{field} was {before} and is now {now}" for field, (before, now) in found.items())
        return _block(entry, head, message, metric_values, gains, said or "the same again")

    @property
    def total(self) -> int:
        """Decisions that were made again."""
        return len(self._reported)

    def texts(self) -> Iterator[str]:
        """Oldest first: the logs of several pods come one after the other."""
        yield from (text for _, text in sorted(self._reported, key=lambda told: told[0]))

    def why_none(self) -> str:
        """Why there is no decision to show, in words for who must find one."""
        if not self.lines:
            return "the input is empty; this reads the operator's log"
        if not self.severities:
            return (
                f"none of {self.lines} lines holds a JSON object. Is this the operator's log? With settings.logFormat=text "
                "(DFLASH_LOG_FORMAT) the decisions' inputs are not logged: set it to json"
            )
        if self.others:
            return f"none of {self._deployment}; the log has decisions of {', '.join(sorted(self.others))}"
        if self.severities.keys() <= _QUIET:
            return "the log has warnings and errors alone: decisions are logged at level INFO (settings.logLevel, DFLASH_LOG_LEVEL)"
        return (
            f"{self.severities.total()} lines of a log without a decision: it is a standby's (only the leader decides; read all pods: "
            f"{_LOGS}), or it does not reach back to a time at which a decision differed from the one before"
        )


def _gains(numbers: Mapping[str, float | str]) -> Iterator[str]:
    """What is believed of each other block size, by measurement or by inference, with one standard deviation."""
    for name, error in numbers.items():
        if name.startswith(GAIN_ERROR):
            block = name.removeprefix(GAIN_ERROR)
            how = "measured" if numbers.get(f"{GAIN_MEASURED}{block}") else "inferred"
            yield f"block {block}: gain {float(numbers[f'gainPercent{block}']):+.1f} % ± {error} %, {how}"


def _block(entry: Mapping[str, Any], head: str, *rest: str) -> str:
    return "\n    ".join((f"{entry.get('timestamp') or 'no time'} {head}", *(line for line in rest if line)))


def main(argv: Sequence[str] = (), source: TextIO | None = None, out: TextIO | None = None, err: TextIO | None = None) -> int:
    """A few lines for each decision; ``source`` is read where no file is named. Exit status 1 where one comes out differently, 2 where
    there is none. Raises SystemExit for arguments that cannot be used, and after ``--help``."""
    source, out, err = source or sys.stdin, out or sys.stdout, err or sys.stderr
    parser = argparse.ArgumentParser(
        "replay",
        description=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s [--deployment NAMESPACE/NAME] [FILE]",
    )
    parser.add_argument("file", nargs="?", metavar="FILE", help="a log (default, or -: standard input)")
    parser.add_argument("--deployment", metavar="NAMESPACE/NAME", type=_name, help="only the decisions of this one")
    asked = parser.parse_args(argv)
    named = asked.file not in (None, "-")
    if not named and source.isatty():
        print(
            f"The operator's log is expected on standard input, or as FILE:\n  {_LOGS} | python3 -m dflash_controller.cli.replay", file=err
        )
        return 2
    report = Report(asked.deployment)
    try:
        with open(asked.file, encoding="utf-8", errors="replace") if named else nullcontext(source) as log:
            report.read(log)
    except OSError as error:
        parser.error(f"{asked.file or 'standard input'} cannot be read: {error.strerror}")
    for text in report.texts():
        print(text, file=out)
    print(f"{report.total} decisions, {report.wrong} of them different", file=out)
    if not report.total:
        print(f"No decision: {report.why_none()}.", file=err)
        return 2
    return 1 if report.wrong else 0


def _name(text: str) -> str:
    if len([part for part in text.split("/") if part]) != 2 or text.count("/") != 1:
        raise argparse.ArgumentTypeError(f"{text} is not of the form NAMESPACE/NAME")
    return text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
