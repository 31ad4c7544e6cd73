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
from dflash_controller.engines.protocol import LaunchRequest
from dflash_controller.engines.releases import Version, version

OFF = ("false", "0")


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A merged command line, read by flag in its shortest common spelling."""

    request: LaunchRequest
    release: Version
    values: Mapping[str, str]
    """By canonical name, the last value winning; a switch has the value '', one turned off 'false'."""
    written: Mapping[str, tuple[int, Flag]]
    """The flags of extraArgs by canonical name, with their position there."""

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
    """A combination that the engine refuses. ``flags`` take part in it, by canonical name, the first to blame first."""

    flags: tuple[str, ...]
    message: str
    remedy: str
    """An imperative without its full stop."""


Rule = Callable[[CommandLine], Iterator[Broken]]


def read(request: LaunchRequest, merged: Iterable[str], canonical: Callable[[str], str] = str) -> CommandLine:
    """Returns the merged arguments as rules read them. ``canonical`` maps a flag's name to the one that rules use."""
    written: dict[str, tuple[int, Flag]] = {}
    for i, token in enumerate(request.extra_args):
        for flag in parsed([token]):
            written[_canonical(flag, canonical)[0]] = (i, flag)
    return CommandLine(request, version(request.release), dict(_canonical(flag, canonical) for flag in parsed(merged)), written)


def _canonical(flag: Flag, canonical: Callable[[str], str]) -> tuple[str, str]:
    name = canonical(flag.subject)
    off = flag.name != flag.subject or (flag.name.startswith("--disable-") and name.startswith("--enable-"))
    return name, "false" if off else flag.value or ""


def problems(line: CommandLine, rules: Sequence[Rule], known: Sequence[Problem] = ()) -> list[Problem]:
    """Returns ``known``, then one problem per broken rule, at the user's flag that takes part in it.

    A flag that has a known problem gets no second one.
    """
    fields = {problem.field for problem in known}
    found = [_problem(line, broken) for rule in rules for broken in rule(line)]
    return [*known, *(problem for problem in found if problem.field not in fields)]


def compatible(
    recommended: Sequence[Flag], line: Callable[[Sequence[Flag]], CommandLine], rules: Sequence[Rule], canonical: Callable[[str], str] = str
) -> list[Flag]:
    """Returns the recommended flags that break no rule on the merged line, which ``line`` makes from them.

    The author of a drafter's card knows neither the GPU nor the user's flags, so a flag that does not fit is left out.
    """
    kept = list(recommended)
    while True:
        merged = line(kept)
        broken = {name for rule in rules for found in rule(merged) for name in found.flags if name not in merged.written}
        fitting = [flag for flag in kept if canonical(flag.subject) not in broken]
        if len(fitting) == len(kept):
            return kept
        kept = fitting


def _problem(line: CommandLine, broken: Broken) -> Problem:
    for name in broken.flags:
        if name in line.written:
            i, flag = line.written[name]
            spelled = (text.replace(name, flag.subject) for text in (broken.message, broken.remedy))
            return Problem(f"{EXTRA_ARGS}[{i}]", next(spelled), f"{next(spelled)}.")
    return Problem(EXTRA_ARGS, broken.message, f"{broken.remedy}.")
