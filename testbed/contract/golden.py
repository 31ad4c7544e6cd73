"""Golden command lines as text files: one variable, command word or argument per line, with ``\\n`` for a line break inside a word."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from dflash_controller.engines import ENGINES
from testbed.contract.examples import Example

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "unit" / "golden" / "argv"
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*=")


def rendered(example: Example) -> Mapping[str, str]:
    """Returns file name (below GOLDEN) -> text: the leader's command line, and the workers' if there are any."""
    launch = ENGINES[example.engine].launch(example.request)
    fields = {name: f"{{{path}}}" for name, path in launch.pod_fields.items()}
    variables = [f"{name}={value}" for name, value in sorted({**launch.env, **fields}.items())]
    files = {f"{example.name}.txt": _text([*variables, *launch.command, *launch.args])}
    if launch.worker_args:
        files[f"{example.name}.worker.txt"] = _text([*variables, *launch.command, *launch.worker_args])
    return files


def read(path: Path) -> tuple[dict[str, str], list[str]]:
    """Returns the variables and command line of a golden file."""
    lines = [line.replace("\\n", "\n") for line in path.read_text().splitlines()]
    variables = [line for line in lines if _VARIABLE.match(line)]
    return dict(line.split("=", 1) for line in variables), lines[len(variables) :]


def files() -> Iterator[tuple[str, str, Path]]:
    """Yields engine, release and path of every golden file."""
    for path in sorted(GOLDEN.glob("*/*.txt")):
        engine, _, release = path.parent.name.partition("-")
        yield engine, release, path


def _text(lines: Sequence[str]) -> str:
    return "".join(line.replace("\n", "\\n") + "\n" for line in lines)
