"""Deletes the modules of the Kubernetes client library that the operator does not load: 70 MB, a class for every kind and every request.

The library loads each of them when its name is first used. The operator uses none, because it has objects as JSON. What a module of the
operator imports, directly or through another library, stays. Run by the build of the image, with the environment that it is for.
"""

from __future__ import annotations

import importlib
import pkgutil
import runpy
import sys
from pathlib import Path
from types import ModuleType

GENERATED = ("client/api", "client/models", "aio/client/api", "aio/client/models")


def load(package: ModuleType) -> None:
    """Imports every module of a package."""
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not found.name.endswith(".__main__"):
            importlib.import_module(found.name)


def trim(package: Path, loaded: set[Path]) -> int:
    """Deletes the generated modules that are not loaded. Returns their bytes."""
    deleted = 0
    for directory in GENERATED:
        for path in sorted((package / directory).glob("*.py")):
            if path.name != "__init__.py" and path not in loaded:
                deleted += path.stat().st_size
                path.unlink()
    return deleted


def main(operator: str) -> None:
    import kubernetes

    import dflash_controller

    load(dflash_controller)
    runpy.run_path(operator, run_name="loaded")
    loaded = {Path(file) for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))}
    deleted = trim(Path(kubernetes.__file__).parent, loaded)
    print(f"{deleted / 1e6:.0f} MB of the Kubernetes client library deleted")


if __name__ == "__main__":
    main(sys.argv[1])
