"""The programs ``kubectl-dflash`` and ``dflash``: the commands, and the place where every failure becomes one sentence.

A command's module is imported when the command runs, so that ``validate`` and ``render`` do not wait for a client of the API server.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module

import click
from click.shell_completion import ShellComplete

from dflash_controller import __version__
from dflash_controller.cli import failures

TRACEBACK = "KUBECTL_DFLASH_TRACEBACK"
"""Environment variable: with any value, a defect shows where it happened."""
COMMANDS: Mapping[str, tuple[str, str]] = {
    "validate": ("validate", "Check files as the API server and the operator would, without a cluster."),
    "render": ("render", "Show command lines and objects, with the source of each argument."),
    "diff": ("diff", "Compare what a spec asks for with what runs."),
    "status": ("status", "Show what deployments run and measure, their rollouts, the last decisions."),
    "explain": ("explain", "Explain a block size: curves, expected gain, what would change it."),
    "bench": ("bench", "Measure how fast a deployment answers, or compare two runs."),
    "rollout": ("rollout", "Follow and steer rollouts: status, history, promote, abort, undo, pin, …"),
    "catalog": ("catalog", "List known pairs of target and drafter, and where they fit."),
    "doctor": ("doctor", "Check whether the cluster is ready."),
    "diagnose": ("diagnose", "Collect what a bug report needs, without secrets."),
}
"""Module below ``commands`` and help in one line, by name."""
_OBJECTS = 100_000
"""New objects after which Python looks for cycles of garbage."""
_NO_FILES, _FILES = 4, 0
_MISSING = "python -m pip install 'dflash-controller[cli]'"


class Commands(click.Group):
    """Imports a command when it is used."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = import_module(f"dflash_controller.cli.commands.{COMMANDS[name][0]}")
        found: click.Command = module.command
        return found

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def format_epilog(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Exit status"):
            formatter.write_dl([(str(status), meaning) for status, meaning in failures.MEANINGS.items()])


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="kubectl-dflash")
def root() -> None:
    """Operate DFlashDeployments: check and render them, follow and steer their rollouts, explain their block sizes, measure their speed.

    Context and namespace are those of kubectl. 'kubectl dflash COMMAND --help' has examples.
    """


def run(arguments: Sequence[str], program: str = "kubectl dflash") -> int:
    """Runs one command line and returns the exit status. Failures are printed to standard error."""
    try:
        status = root.main(list(arguments), prog_name=program, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return failures.USAGE
    except (click.Abort, KeyboardInterrupt):
        return failures.INTERRUPTED
    except failures.Failure as error:
        return _failed(str(error), error.status)
    except BrokenPipeError:
        # The reader of a pipe, such as head, has ended. Python would complain once more when it closes standard output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return failures.OK
    except ModuleNotFoundError as error:
        return _failed(f"the Python package {error.name} is not installed. Install it with {_MISSING}", failures.USAGE)
    except Exception as error:
        if os.environ.get(TRACEBACK):
            traceback.print_exc()
        return _failed(f"defect: {type(error).__name__}: {error}. Please report it, with {TRACEBACK}=1 set", failures.DEFECT)
    return status if isinstance(status, int) else failures.OK


def _failed(message: str, status: int) -> int:
    click.echo(f"error: {message}", err=True)
    return status


def console() -> None:
    """Entry point of ``kubectl-dflash`` and ``dflash``."""
    # Most of a short run makes modules and classes, which stay. The default would look through them for garbage dozens of times.
    gc.set_threshold(_OBJECTS)
    name = os.path.basename(sys.argv[0])
    sys.exit(run(sys.argv[1:], "kubectl dflash" if name.startswith("kubectl") else "dflash"))


def complete() -> None:
    """Entry point of ``kubectl_complete-dflash``, which kubectl runs to complete its arguments: one value a line, then a directive."""
    words = sys.argv[1:]
    asked, begun = words[:-1], words[-1] if words else ""
    found = ShellComplete(root, {}, "kubectl dflash", "").get_completions(asked, begun)
    for item in found:
        if item.type == "plain":
            click.echo(f"{item.value}\t{item.help}" if item.help else item.value)
    click.echo(f":{_FILES if any(item.type != 'plain' for item in found) else _NO_FILES}")


if __name__ == "__main__":
    console()
