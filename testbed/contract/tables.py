"""Option tables of the simulator's strict parser, taken from the engines' own parsers: ``python -m testbed.contract.tables``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testbed.contract.driver import ask
from testbed.contract.environments import RELEASES, Release, ready

FLAGS = Path(__file__).resolve().parents[1] / "simulator" / "flags"
_ANY_GPU = "10.0:183359:8"


def table_text(table: Mapping[str, Any]) -> str:
    """Returns the text of a table: JSON with one fact or option per line."""
    facts = [f"{json.dumps(key)}:{_compact(value)}" for key, value in table.items() if key != "options"]
    options = ",\n".join(_compact(option) for option in table["options"])
    return "{" + ",\n".join([*facts, f'"options":[\n{options}\n]']) + "}\n"


def table_path(release: Release) -> Path:
    """Returns the path from which the simulator reads a release's table."""
    return FLAGS / f"{release.engine}-{release.version}.json"


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def main() -> None:
    """Rewrites every table."""
    environments = ready()
    for release in RELEASES:
        table, _ = ask(environments, release, _ANY_GPU, [])
        table_path(release).write_text(table_text(table))
        print(table_path(release).name, flush=True)


if __name__ == "__main__":
    main()
