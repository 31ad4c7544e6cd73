"""Reads the YAML tables that the package ships. Every start of a program reads them, so the parser in C is used where PyYAML has it."""

from __future__ import annotations

from importlib import resources
from typing import Any

import yaml

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(package: str, name: str) -> Any:
    """Returns the content of a file of a package, such as ``pairs.yaml`` of ``dflash_controller.catalog``."""
    return parse_yaml(resources.files(package).joinpath(name).read_text(encoding="utf-8"))


def parse_yaml(text: str) -> Any:
    """Returns the content of such a table."""
    return yaml.load(text, _LOADER)
