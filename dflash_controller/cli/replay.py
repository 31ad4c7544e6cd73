"""``python -m dflash_controller.cli.replay``: make the tuner's decisions again from the operator's log on standard input."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from dflash_controller.planning.tuner.policy import replay


def decisions(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The decisions in a log, those without inputs left out. Lines that are no JSON objects are not the operator's, and are skipped."""
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        decision = entry.get("decision") if isinstance(entry, dict) else None
        if isinstance(decision, dict) and decision.get("inputs"):
            yield decision


def differences(decision: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What was decided and what is decided now from the same inputs, where they differ. Raises ValueError for inputs that are not sound."""
    try:
        again = replay(decision["inputs"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"the inputs cannot be read: {error!r}") from error
    return {name: (decision.get(name), value) for name, value in again.to_json().items() if decision.get(name) != value}


def main(source: TextIO = sys.stdin, out: TextIO = sys.stdout) -> int:
    """One line for each decision. Exit status 1 where one comes out differently, 2 where there is none."""
    total = wrong = 0
    for decision in decisions(source):
        total += 1
        name = f"{decision.get('namespace')}/{decision.get('deployment')}"
        told = f"{name}: {decision.get('state')}, {decision.get('reason')}, recommends {decision.get('recommendation') or 'nothing'}"
        try:
            found = differences(decision)
        except ValueError as error:
            wrong += 1
            print(f"{told}: {error}", file=out)
            continue
        wrong += bool(found)
        said = "; ".join(f"{field} was {before} and is now {now}" for field, (before, now) in found.items())
        print(f"{told}: {said or 'the same again'}", file=out)
    print(f"{total} decisions, {wrong} of them different", file=out)
    return 2 if not total else 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
