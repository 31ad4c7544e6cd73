"""The reference of ``kubectl dflash``, generated from its commands for ``hack.docs_tables``."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from dflash_controller.cli.failures import MEANINGS
from dflash_controller.cli.options import Command
from dflash_controller.cli.program import COMMANDS, root

_CLUSTER = frozenset({"kubeconfig", "context", "namespace", "request_timeout"})
"""Options that are described once, above the commands."""


def exit_statuses() -> list[tuple[str, str]]:
    """Returns exit status and meaning."""
    return [(str(status), meaning) for status, meaning in MEANINGS.items()]


def commands() -> str:
    """Returns a section for each command: what it does, its options, its examples."""
    return "\n".join(_section(words, made) for words, made in _every())


def _every() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(root)
    for name in COMMANDS:
        made = root.get_command(context, name)
        assert made is not None
        yield name, made
        if isinstance(made, click.Group):
            yield from ((f"{name} {verb}", inner) for verb, inner in made.commands.items())


def _section(words: str, made: click.Command) -> str:
    context = click.Context(made, info_name=words)
    text = " ".join(inspect.cleandoc(made.help or "").replace("\n\n", "\0").split()).replace("\0", "\n\n").replace("\n\n ", "\n\n")
    heading = "###" if " " not in words else "####"
    parts = [f"\n{heading} {words}\n", f"{text}\n"]
    if not isinstance(made, click.Group):
        usage = " ".join(["kubectl dflash", words, *made.collect_usage_pieces(context)])
        parts.append(f"```\n{usage}\n```\n")
    if rows := _options(made):
        parts.append("| Option | Meaning |\n| --- | --- |\n" + "".join(f"| {option} | {meaning} |\n" for option, meaning in rows))
    if isinstance(made, Command):
        parts.append(f"```sh\n{made.examples.strip()}\n```\n")
    return "\n".join(parts)


def _options(made: click.Command) -> list[tuple[str, str]]:
    found = []
    for option in made.params:
        if isinstance(option, click.Option) and option.name not in _CLUSTER:
            names = ", ".join(f"`{name}`" for name in option.opts)
            values = f" {option.metavar}" if option.metavar else ""
            choices = f" {', '.join(option.type.choices)}." if isinstance(option.type, click.Choice) else ""
            default = f" Default: {option.default}." if option.show_default else ""
            found.append((f"{names}{values}", f"{option.help or ''}{choices}{default}"))
    return found
