"""Flags of extraArgs that a release's own parser does not take, or not with a value, with what was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence

from dflash_controller.api.problem import Problem
from dflash_controller.engines.flags import EXTRA_ARGS, Guard, parsed

_ALIKE = 0.75
"""Least likeness of a flag that may have been meant, from 0 to 1."""
_NAMED = 3
"""Flags that an ambiguous abbreviation may stand for, as far as they are named."""


def unknown_flags(guard: Guard, tokens: Sequence[str], release: str, translated: Callable[[str], bool]) -> Iterator[Problem]:
    """Yields a problem for each flag that the nearest tested release does not know, takes for several, or takes without a value only.

    ``translated`` says of a name that the operator writes it otherwise, or leaves it out.
    """
    for place, token in enumerate(tokens):
        for flag in parsed([token]):
            head = flag.name.partition(".")[0]
            if not translated(head) and (found := _problem(guard, f"{EXTRA_ARGS}[{place}]", head, flag.value, release)):
                yield found


def _problem(guard: Guard, field: str, name: str, value: str | None, release: str) -> Problem | None:
    known = guard.options.known(release)
    begun = sorted(full for full in known if full.startswith(name))
    where = f"{guard.engine} {release}"
    if name in known or len({known[full] for full in begun}) == 1:
        taken = known[name if name in known else begun[0]]
        if value is None or not taken.switch:
            return None
        other = [full for full, meaning in known.items() if meaning.option == taken.option and meaning.off != taken.off]
        opposite = f", or {other[0]} for the opposite" if other else ", or remove it"
        return Problem(field, f"{where} takes {name} without a value, not with ={value}", f"Write {name} alone{opposite}.")
    if begun:
        more = f" and {len(begun) - _NAMED} more" if len(begun) > _NAMED else ""
        return Problem(field, f"{where} takes {name} for {', '.join(begun[:_NAMED])}{more}", "Write the one that is meant in full.")
    others = [tested for tested, names in guard.options.releases.items() if name in names]
    message = f"{where} has no flag {name}{f', which {others[-1]} has' if others else ''}"
    near = difflib.get_close_matches(name, [full for full in known if full.startswith("--")], n=1, cutoff=_ALIKE)
    if not near:
        return Problem(field, message, f"Remove {name}.")
    if reason := guard.reason(near[0]):
        return Problem(field, message, f"Remove {name}. If {near[0]} is meant: {reason}.")
    return Problem(field, message, f"Write {near[0]} if that is meant, or remove {name}.")
