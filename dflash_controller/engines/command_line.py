"""Rules over the whole merged command line: what the operator, the drafter's card and the user ask for together.

An engine checks combinations. Which part a user wrote does not matter to it, so a rule reads the merged line; the problem then names the
user's flag that takes part in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dflash_controller.api.problem import Problem
from dflash_controller.api.speculation import Off
from dflash_controller.engines.flags import EXTRA_ARGS, Flag, integer, parsed
from dflash_controller.engines.hardware import generation
from dflash_controller.engines.options import Options
from dflash_controller.engines.protocol import LaunchRequest
from dflash_controller.engines.releases import Version, version

OFF = ("false", "0")


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A merged command line, read by option as the engine's parser does."""

    request: LaunchRequest
    release: Version
    values: Mapping[str, str]
    """By option, the last value winning; a switch has the value '', one turned off 'false'."""
    written: Mapping[str, tuple[int, Flag]]
    """The flags of extraArgs by option, with their position there."""

    @property
    def speculates(self) -> bool:
        """Whether the engine drafts."""
        return not isinstance(self.request.speculation, Off)

    @property
    def block(self) -> int:
        """Largest number of tokens verified per step and request."""
        return self.request.speculation.max_block_size

    @property
    def sm(self) -> int | None:
        """Compute capability of the GPU, for instance 103; None if unknown."""
        gpu = generation(self.request.gpu_product)
        return gpu.sm if gpu else None

    def on(self, name: str) -> bool:
        """Whether a switch is on, or an option has any value but ``false``."""
        return name in self.values and self.values[name].lower() not in OFF

    def get(self, name: str, default: str = "") -> str:
        """Returns an option's value in lower case."""
        return self.values.get(name, default).lower()

    def number(self, name: str) -> int | None:
        """Returns an option's value as a whole number; None if it is absent or none."""
        return integer(self.values.get(name, ""))

    def at_least(self, release: str) -> bool:
        """Whether the engine is this release or newer."""
        return self.release >= version(release)


@dataclass(frozen=True, slots=True)
class Broken:
    """A combination that the engine refuses. ``flags`` take part in it, by option, the first to blame first.

    With one flag alone, that flag's value is wrong whatever else is set.
    """

    flags: tuple[str, ...]
    message: str
    remedy: str
    """An imperative without its full stop."""


Rule = Callable[[CommandLine], Iterator[Broken]]


def read(request: LaunchRequest, merged: Iterable[str], options: Options) -> CommandLine:
    """Returns the merged arguments as rules read them: by the first name of each option, whichever name was written."""
    written: dict[str, tuple[int, Flag]] = {}
    for i, token in enumerate(request.extra_args):
        for flag in parsed([token]):
            written[options.meaning(flag.name, request.release).option] = (i, flag)
    values: dict[str, str] = {}
    for flag in parsed(merged):
        meaning = options.meaning(flag.name, request.release)
        values[meaning.option] = "false" if meaning.off else flag.value or ""
    return CommandLine(request, version(request.release), values, written)


def problems(line: CommandLine, rules: Sequence[Rule], known: Sequence[Problem] = ()) -> list[Problem]:
    """Returns ``known``, then one problem per broken rule, at the user's flag that takes part in it.

    A flag that has a known problem gets no second one, and a flag whose value is wrong by itself gets that problem alone: the combinations
    that it breaks have the same cause.
    """
    fields = {problem.field for problem in known}
    broken = [found for rule in rules for found in rule(line)]
    wrong: dict[str, Broken] = {}
    for found in broken:
        if len(found.flags) == 1:
            wrong.setdefault(found.flags[0], found)
    apart = [found for found in broken if wrong.get(found.flags[0]) is found or not wrong.keys() & {*found.flags}]
    return [*known, *(problem for found in apart if (problem := _problem(line, found)).field not in fields)]


def compatible(
    recommended: Sequence[Flag], line: Callable[[Sequence[Flag]], CommandLine], rules: Sequence[Rule], options: Options
) -> list[Flag]:
    """Returns the recommended flags that break no rule on the merged line, which ``line`` makes from them.

    The author of a drafter's card knows neither the GPU nor the user's flags, so a flag that does not fit is left out.
    """
    kept = list(recommended)
    while True:
        merged = line(kept)
        broken = {name for rule in rules for found in rule(merged) for name in found.flags if name not in merged.written}
        fitting = [flag for flag in kept if options.meaning(flag.name, merged.request.release).option not in broken]
        if len(fitting) == len(kept):
            return kept
        kept = fitting


def _problem(line: CommandLine, broken: Broken) -> Problem:
    for name in broken.flags:
        if name in line.written:
            i, flag = line.written[name]
            spelled = (text.replace(name, flag.name) for text in (broken.message, broken.remedy))
            return Problem(f"{EXTRA_ARGS}[{i}]", next(spelled), f"{next(spelled)}.")
    return Problem(EXTRA_ARGS, broken.message, f"{broken.remedy}.")
