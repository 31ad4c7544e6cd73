"""Prints the software bill of materials of the Python that runs it: CycloneDX 1.6, one component per installed distribution.

The packages are those of ``requirements.lock`` that this platform needs: pip has checked their hashes. It needs the standard library only.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import Distribution, distributions


def component(found: Distribution) -> dict[str, object]:
    """Returns one distribution as a CycloneDX component. Its package URL is what vulnerability scanners look up."""
    name, version = found.metadata["Name"].lower().replace("_", "-"), found.version
    listed: dict[str, object] = {"type": "library", "name": name, "version": version, "purl": f"pkg:pypi/{name}@{version}"}
    if expression := found.metadata.get("License-Expression"):
        listed["licenses"] = [{"expression": expression}]
    return listed


def bill() -> dict[str, object]:
    """Returns the whole bill, components by name."""
    found = sorted(map(component, distributions()), key=lambda each: str(each["name"]))
    return {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "components": found}


if __name__ == "__main__":
    json.dump(bill(), sys.stdout, indent=1)
