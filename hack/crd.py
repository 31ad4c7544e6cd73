"""``python -m hack.crd [FILE ...]`` prints the CustomResourceDefinition, or writes it to the given files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from dflash_controller.api.crd import render
from dflash_controller.engines import ENGINES


def definition() -> str:
    """Returns the CustomResourceDefinition of this release as YAML text."""
    return render({name: engine.owned_flags() for name, engine in ENGINES.items()})


def main(files: Sequence[str]) -> None:
    """Writes the definition to every file, or to standard output if no file is given."""
    text = definition()
    for file in files:
        Path(file).write_text(text, encoding="utf-8")
    if not files:
        sys.stdout.write(text)


if __name__ == "__main__":
    main(sys.argv[1:])
