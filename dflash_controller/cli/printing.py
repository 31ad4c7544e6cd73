"""How results are printed: JSON and YAML for programs, tables for people. Without a terminal there is no colour and no line is cut."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import click
import yaml

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

NARROW = 120
"""Columns below which wide tables become lists."""
NOT_A_TERMINAL = 10_000
"""Columns where standard output is no terminal and COLUMNS is not set: no line is folded, so that grep and awk find what they look for."""
SHORT = 12
"""Letters of a commit in tables, where they tell commits apart."""
FORMATS = ("table", "json", "yaml")


class _Plain(yaml.SafeDumper):
    """Repeats equal parts instead of pointing at the first one; longer texts stand as blocks."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Plain.add_representer(str, _text)


def distinct_length(texts: Iterable[str | None]) -> int:
    """Returns how many letters of each text tell it from the others, and at least those of a short commit."""
    different = {text for text in texts if text}
    longest = max((SHORT, *map(len, different)))
    return next((length for length in range(SHORT, longest) if len({text[:length] for text in different}) == len(different)), longest)


def data(value: Any, output: str) -> None:
    """Prints a value as JSON or YAML."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str) if output == "json" else as_yaml(value).rstrip())


def as_yaml(value: Any) -> str:
    """Returns YAML with the keys in their order."""
    text: str = yaml.dump(value, Dumper=_Plain, sort_keys=False, allow_unicode=True, width=10_000)
    return text


def documents(values: Sequence[Any], output: str) -> None:
    """Prints objects as kubectl takes them: YAML documents, or a List in JSON."""
    if output == "json":
        data({"apiVersion": "v1", "kind": "List", "items": list(values)}, "json")
    else:
        click.echo("---\n".join(as_yaml(value) for value in values).rstrip())


@cache
def console() -> Console:
    """Returns the console of standard output."""
    from rich.console import Console

    width = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else NOT_A_TERMINAL
    return Console(width=width, highlight=False, soft_wrap=False, emoji=False)


def narrow() -> bool:
    """Returns whether a wide table would be folded until nobody can read it."""
    return console().width < NARROW


def table(*columns: str, right: Sequence[str] = ()) -> Table:
    """Returns a table without lines, as kubectl prints them. Cells are folded where the terminal is narrow."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column.upper(), justify="right" if column in right else "left", overflow="fold")
    return made


def grid(columns: int) -> Table:
    """Returns a table without head and lines, whose cells are folded."""
    from rich.table import Table

    made = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(columns):
        made.add_column(overflow="fold")
    return made


def show(*parts: Any) -> None:
    """Prints text or tables. Text is taken as it is, without mark-up. Where standard output is no terminal, no line ends in blanks."""
    out = console()
    if out.is_terminal:
        for part in parts:
            out.print(part, markup=False)
        return
    with out.capture() as printed:
        for part in parts:
            out.print(part, markup=False)
    click.echo("\n".join(line.rstrip(" ") for line in printed.get().split("\n")), nl=False)
