"""A probe run as text, short enough for an annotation of the revision that gave the answers."""

from __future__ import annotations

import json
import math
from typing import Any

from dflash_controller.model.counters import Answer, ProbeRun

LIMIT_BYTES = 16 * 1024
"""Maximum bytes of one run. All annotations of an object share 256 KiB, and the object is listed with every other revision."""
MAX_PROMPTS = 1024
"""Maximum of ``spec.rollout.probe.prompts``."""


def to_json(run: ProbeRun) -> str:
    """Returns the run in at most ``LIMIT_BYTES``.

    An answer is ``[tokens, steps, seconds, text, repeats]``, or null if there was none. If a run is too long, its first answers are kept
    and the others read back as not answered. The run still pairs by position with a run of the same prompts.
    """
    head = {"revision": run.revision, "prompts": run.prompts, "at": round(run.finished_at_s), "count": len(run.answers)}
    rows = [json.dumps(None if answer is None else _row(answer), separators=(",", ":")) for answer in run.answers]
    while rows and rows[-1] == "null":
        rows.pop()
    opening = json.dumps(head, separators=(",", ":"))[:-1] + ',"answers":['
    room = LIMIT_BYTES - len(opening) - len("]}")
    kept = 0
    for row in rows:
        room -= len(row) + (kept > 0)
        if room < 0:
            break
        kept += 1
    return opening + ",".join(rows[:kept]) + "]}"


def _row(answer: Answer) -> list[Any]:
    steps = answer.steps if answer.steps is None or answer.steps % 1 else int(answer.steps)
    repeats = None if answer.repeats is None else int(answer.repeats)
    return [answer.tokens, steps, round(answer.seconds, 4), answer.text, repeats]


def from_json(text: str) -> ProbeRun:
    """Returns the run that ``to_json`` wrote. Raises ValueError for anything else, because annotations can be edited by hand."""
    try:
        data = json.loads(text)
        rows, count = data["answers"], data["count"]
        if not isinstance(count, int) or not 0 <= len(rows) <= count <= MAX_PROMPTS:
            raise ValueError("the number of answers is wrong")
        answers = [None if row is None else _answer(*row) for row in rows]
        answers += [None] * (count - len(answers))
        return ProbeRun(str(data["revision"]), str(data["prompts"]), tuple(answers), float(data["at"]))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"not a probe run: {error}") from None


def _answer(tokens: Any, steps: Any, seconds: Any, text: Any, repeats: Any) -> Answer:
    numbers = [float(value) for value in (tokens, 0 if steps is None else steps, seconds)]
    if not all(math.isfinite(value) and value >= 0 for value in numbers):
        raise ValueError("a number is out of range")
    return Answer(
        int(tokens), None if steps is None else float(steps), float(seconds), str(text), None if repeats is None else bool(repeats)
    )
