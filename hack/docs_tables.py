"""``python -m hack.docs_tables FILE ...`` rewrites the generated tables of the documentation.

A table is between ``<!-- generated: NAME -->`` and ``<!-- end -->``; the text around it is written by hand. The tables come from the types,
the reasons and the settings themselves. A test fails if a file differs from the output of this command.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import dflash_controller
from dflash_controller.analysis.gates import applicable
from dflash_controller.api.conditions import REASONS, ConditionType, Reason
from dflash_controller.api.crd import crd
from dflash_controller.api.gates import GATE_SPECS
from dflash_controller.api.schema import CLASS_TEXT
from dflash_controller.api.status import Status
from dflash_controller.api.structural import Schema, structural
from dflash_controller.api.types import Spec, field_classes
from dflash_controller.engines.releases import TABLE
from dflash_controller.model.change import Change, Part
from dflash_controller.planning.revisions.diff import TEXT_STAYS
from dflash_controller.planning.state.pod_trouble_cases import CASES
from dflash_controller.runtime.settings import PREFIX, Settings
from hack import cli_reference

_BLOCK = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_SET_BY_THE_CHART = ("http_host", "http_port", "lease_namespace", "pod_ips", "pod_name")
_RESERVED = """## Reserved reasons

These are in the API so that alerts can be written for them. This release never uses them.

"""
Row = tuple[str, ...]


def renewed(text: str) -> str:
    """Returns the text with every generated block rewritten. Raises KeyError for an unknown block name."""
    return _BLOCK.sub(lambda match: f"{match[1]}{_GENERATORS[match[2]]()}{match[3]}", text)


def _table(head: Row, rows: Sequence[Row]) -> str:
    lines = [head, tuple("---" for _ in head), *(tuple(cell.replace("|", "\\|").replace("\n", " ") for cell in row) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


# Fields


def _spec() -> str:
    classes, schema = field_classes(), structural(Spec)
    parts: list[str] = []
    single: list[Row] = []
    for name, node in schema["properties"].items():
        rows = [(f"`{path}`", kind, str(classes.get(path) or ""), meaning) for path, kind, meaning in _leaves(node, name)]
        if "properties" in node:
            parts.append(f"\n### spec.{name}\n\n{node['description']}\n\n" + _table(("Field", "Type", "Class", "Meaning"), rows))
        else:
            single += rows
    return _table(("Field", "Type", "Class", "Meaning"), single) + "".join(parts)


def _status() -> str:
    rows = [(f"`{path}`", kind, meaning) for path, kind, meaning in _leaves(structural(Status), "")]
    return _table(("Field", "Type", "Meaning"), rows)


def _columns() -> str:
    [version] = crd({})["spec"]["versions"]
    rows = [
        (column["name"], f"`{column['jsonPath'].removeprefix('.')}`", "`-o wide`" if column["priority"] else "", column["description"])
        for column in version["additionalPrinterColumns"]
    ]
    return _table(("Column", "Shows", "Only with", "Meaning"), rows)


def _leaves(node: Schema, path: str) -> Iterator[tuple[str, str, str]]:
    """Yields path, type and meaning of every leaf. Objects in between have no row of their own."""
    many = node.get("type") == "array"
    inner: Mapping[str, Any] = node["items"] if many else node
    if "properties" not in inner:
        yield path, _type(node), _without_class(node.get("description", ""))
        return
    for name, child in inner["properties"].items():
        yield from _leaves(child, f"{path}{'[]' if many else ''}.{name}".removeprefix("."))


def _type(node: Schema) -> str:
    if "enum" in node:
        return ", ".join(f"`{value}`" for value in node["enum"])
    if "x-kubernetes-int-or-string" in node:
        return "number or percentage" if "%" in node["pattern"] else "quantity"
    if node.get("type") == "array":
        return f"list of {_type(node['items'])}"
    if node.get("type") == "object":
        return "map" if "additionalProperties" in node else "object"
    low, high = node.get("minimum"), node.get("maximum")
    bounds = f" {low}–{high}" if low is not None and high is not None else f" ≥ {low}" if low is not None else ""
    return f"{'time' if node.get('format') == 'date-time' else node.get('type', 'any')}{bounds}"


def _without_class(description: str) -> str:
    """Returns the description without its class, which has a column of its own."""
    for text in CLASS_TEXT.values():
        description = description.removesuffix(text)
    return description.strip()


# Conditions and reasons


def _conditions() -> str:
    docs = _attribute_docs(ConditionType)
    return _table(("Condition", "True means"), [(f"`{type}`", docs[type.name]) for type in ConditionType])


def _reasons_in_use() -> str:
    return _reason_table(_raised())


def _reasons_to_come() -> str:
    """Returns the section of the reasons that nothing raises yet, with its heading; nothing if there are none."""
    reserved = set(Reason) - _raised()
    return f"{_RESERVED}{_reason_table(reserved)}" if reserved else ""


def _reason_table(chosen: set[Reason]) -> str:
    rows = [(f"`{reason}`", doc.meaning, doc.remedy) for reason, doc in REASONS.items() if reason in chosen]
    return _table(("Reason", "Meaning", "What to do"), rows)


def _raised() -> set[Reason]:
    """Returns the reasons that the package's source uses."""
    package = Path(inspect.getfile(dflash_controller)).parent
    ours = (package / "api" / "conditions.py", Path(__file__))
    text = "\n".join(file.read_text(encoding="utf-8") for file in package.rglob("*.py") if file not in ours)
    return {reason for reason in Reason if re.search(rf"\b(Reason\.|REASON_){reason.name}\b", text)}


def _pod_troubles() -> str:
    names = {"pod": "POD", "container": "CONTAINER", "node": "NODE", "workload": "WORKLOAD", "revision": "HASH", "mounts": "…"}
    rows = [
        (case.seen, str(case.kind), f"`{case.reason}`", _sentence(case.says.format(**names)), _commands(case.look.format(**names)))
        for case in CASES
    ]
    return _table(("You see", "Kind", "Reason", "The message says", "Where to look"), rows)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"


def _commands(text: str) -> str:
    return re.sub(r"kubectl .*?(?=,? (?:and|or) kubectl|$)", lambda found: f"`{found[0]}`", text)


# Gates


def _compared() -> str:
    rows = []
    for part in Part:
        judged = applicable(Change(frozenset({part}), candidate_block=2, stable_block=2))
        rows.append((part, *("yes" if name in judged else "" for name in GATE_SPECS), "yes" if part in TEXT_STAYS else ""))
    return _table(("Changed", *GATE_SPECS, "text"), [*rows, ("nothing of these", *("" for _ in GATE_SPECS), "")])


def _gates() -> str:
    rows = []
    for name, spec in GATE_SPECS.items():
        gate, fields = spec.default, spec.fields
        window = f"{gate.window_s}s" if "window" in fields else ""
        failures = str(gate.failure_limit) if "failureLimit" in fields else ""
        limit, samples = f"{gate.limit:g} {spec.limit_unit}", f"{gate.min_samples} {spec.samples}"
        rows.append((name, spec.compared, limit, samples, window, f"{gate.interval_s}s", failures))
    return _table(("Metric", "Compared", "Default limit", "minSamples", "window", "interval", "failureLimit"), rows)


# Releases


def _releases() -> str:
    rows = [(each.engine, each.floor, each.floor_reason, ", ".join(each.tested), each.default) for each in TABLE.values()]
    return _table(("Engine", "Oldest release", "Why not older", "Contract-tested", "Default"), rows)


# Settings


def _settings() -> str:
    docs = _attribute_docs(Settings)
    rows = [
        (
            f"`{PREFIX}{name.upper()}`",
            _default(field.default),
            docs.get(name, "") + (" Set by the chart." if name in _SET_BY_THE_CHART else ""),
        )
        for name, field in Settings.model_fields.items()
    ]
    return _table(("Variable", "Default", "Meaning"), rows)


def _default(value: Any) -> str:
    if value in (None, (), {}, ""):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else f'{value:g}' if isinstance(value, float) else value}`"


def _attribute_docs(cls: type) -> dict[str, str]:
    """Returns the docstrings below the attributes of a class."""
    [definition] = ast.parse(inspect.getsource(cls)).body
    assert isinstance(definition, ast.ClassDef)
    found: dict[str, str] = {}
    name = ""
    for statement in definition.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            name = target.id if isinstance(target, ast.Name) else ""
        elif name and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            found[name] = inspect.cleandoc(str(statement.value.value)).replace("``", "`")
        else:
            name = ""
    return found


def _exit_statuses() -> str:
    return _table(("Status", "Meaning"), cli_reference.exit_statuses())


_GENERATORS: Mapping[str, Callable[[], str]] = {
    "spec": _spec,
    "status": _status,
    "columns": _columns,
    "conditions": _conditions,
    "reasons-in-use": _reasons_in_use,
    "reasons-to-come": _reasons_to_come,
    "pod-troubles": _pod_troubles,
    "settings": _settings,
    "compared": _compared,
    "gates": _gates,
    "releases": _releases,
    "commands": cli_reference.commands,
    "exit-statuses": _exit_statuses,
}


def main(files: Sequence[str]) -> None:
    """Rewrites each file."""
    for file in map(Path, files):
        file.write_text(renewed(file.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
