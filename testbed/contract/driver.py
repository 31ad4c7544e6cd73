"""Runs a real engine's parser in a separate process: importing an engine takes seconds, a verdict almost no time."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from testbed.contract.environments import DRIVERS, Environments, Release


class DriverError(Exception):
    """A real parser could not be asked. The environment is incomplete, and this must not count as a verdict."""


def ask(
    environments: Environments, release: Release, gpu: str, lines: Sequence[tuple[Sequence[str], Mapping[str, str]]]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns the release's option table, and one verdict for each line (arguments and variables). ``gpu`` is as in ``environ``.

    Raises DriverError if the process fails or a verdict is missing.
    """
    asked = "".join(json.dumps({"args": list(args), "env": dict(env)}) + "\n" for args, env in lines)
    result = subprocess.run(
        [str(environments.python), str(DRIVERS / f"{release.engine}_driver.py")],
        env=environments.environ(release, gpu),
        input=asked,
        capture_output=True,
        text=True,
        check=False,
    )
    answers = [json.loads(text) for text in result.stdout.splitlines()]
    if result.returncode or len(answers) != len(lines) + 1:
        where = f"line {len(answers)}" if answers else "its start"
        raise DriverError(f"{release}: the real parser broke at {where} (exit status {result.returncode})\n{result.stderr[-3000:]}")
    return answers[0], answers[1:]
