"""Option tables taken from the engines' own parsers: ``python -m testbed.contract.tables``.

``testbed/simulator/flags`` has everything that the simulator's strict parser needs, one table per release. ``options.json`` in the operator
has the names, and which options take no value, every release in one file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testbed.contract.driver import ask
from testbed.contract.environments import RELEASES, Release, ready

ROOT = Path(__file__).resolve().parents[2]
FLAGS = ROOT / "testbed" / "simulator" / "flags"
OPTIONS = ROOT / "dflash_controller" / "engines" / "options.json"
_ANY_GPU = "10.0:183359:8"


def table_text(table: Mapping[str, Any]) -> str:
    """Returns the text of a table: JSON with one fact or option per line."""
    facts = [f"{json.dumps(key)}:{_compact(value)}" for key, value in table.items() if key != "options"]
    options = ",\n".join(_compact(option) for option in table["options"])
    return "{" + ",\n".join([*facts, f'"options":[\n{options}\n]']) + "}\n"


def table_path(release: Release) -> Path:
    """Returns the path from which the simulator reads a release's table."""
    return FLAGS / f"{release.engine}-{release.version}.json"


def options_text(tables: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Returns the text of ``options.json``. ``tables``: by engine and release, ascending. One line per option, newest release first.

    An option goes by its first name in the newest release that has it. An option of an older release is the same one if they share a name.
    """
    engines = []
    for engine, releases in tables.items():
        lines: dict[str, list[str]] = {}
        names: dict[str, str] = {}
        for release, table in reversed(list(releases.items())):
            for option in table["options"]:
                if not option["names"]:
                    continue
                known = next((names[name] for name in option["names"] if name in names), option["names"][0])
                names |= dict.fromkeys(option["names"], known)
                off = {"off": option["off"]} if option.get("off") else {}
                switch = {"switch": True} if option.get("nargs") == 0 else {}
                line = _compact({"option": known, "names": option["names"], **off, **switch})
                lines.setdefault(line, []).insert(0, release)
        texts = (line.removesuffix("}") + f',"releases":{_compact(found)}}}' for line, found in lines.items())
        engines.append(f"{json.dumps(engine)}:[\n" + ",\n".join(texts) + "\n]")
    return "{" + ",\n".join(engines) + "}\n"


def written_tables() -> dict[str, dict[str, dict[str, Any]]]:
    """Returns the simulator's tables by engine and release, ascending."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for release in RELEASES:
        found.setdefault(release.engine, {})[release.version] = json.loads(table_path(release).read_text())
    return found


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def main() -> None:
    """Rewrites every table."""
    environments = ready()
    for release in RELEASES:
        table, _ = ask(environments, release, _ANY_GPU, [])
        table_path(release).write_text(table_text(table))
        print(table_path(release).name, flush=True)
    OPTIONS.write_text(options_text(written_tables()))
    print(OPTIONS.name, flush=True)


if __name__ == "__main__":
    main()
