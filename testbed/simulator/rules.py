"""Rules that assign faults to engines before they start, for instance to every pod of one drafter revision."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from testbed.simulator.faults import Faults
from testbed.simulator.settings import EngineSettings

_MATCHED = ("engine", "release", "target", "served_model_name", "block_size", "drafter", "drafter_revision")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. ``match`` maps fields of EngineSettings, or ``namespace`` and ``pod``, to shell patterns; all must match."""

    match: Mapping[str, str]
    faults: Mapping[str, Any]

    def fits(self, settings: EngineSettings, namespace: str, pod: str) -> bool:
        values = {name: str(getattr(settings, name) or "") for name in _MATCHED} | {"namespace": namespace, "pod": pod}
        return all(fnmatchcase(values[name], pattern) for name, pattern in self.match.items())


def parse_rules(data: Any) -> tuple[Rule, ...]:
    """Reads ``[{"match": {...}, "faults": {...}}]``. Raises ValueError with the error."""
    if not isinstance(data, list):
        raise ValueError("rules must be a list")
    rules = []
    for entry in data:
        if not isinstance(entry, dict) or not isinstance(entry.get("match"), dict) or not isinstance(entry.get("faults"), dict):
            raise ValueError("a rule has the objects match and faults")
        unknown = set(entry["match"]) - {*_MATCHED, "namespace", "pod"}
        if unknown:
            raise ValueError(f"cannot match on {', '.join(sorted(unknown))}")
        Faults().patched(entry["faults"])
        rules.append(Rule({name: str(pattern) for name, pattern in entry["match"].items()}, entry["faults"]))
    return tuple(rules)


def faults_for(rules: Iterable[Rule], settings: EngineSettings, namespace: str, pod: str) -> Faults:
    """Returns the faults of all matching rules. Later rules override earlier ones."""
    faults = Faults()
    for rule in rules:
        if rule.fits(settings, namespace, pod):
            faults = faults.patched(rule.faults)
    return faults
