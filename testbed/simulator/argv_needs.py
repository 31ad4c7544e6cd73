"""The engines' checks of options that need others (``needs.yaml``), over parsed values.

The engine contract compares them with the engines' own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_controller.engines.needs import NEEDS, Condition, Need
from dflash_controller.engines.releases import version

_OFF = ("", "auto", "none", "null", "off", "disabled")


def refusal(engine: str, release: str, values: Mapping[str, Any], facts: Mapping[str, Any]) -> str | None:
    """Returns the message with which an engine refuses an option without what it needs; None if it refuses none."""
    by_name = {name: values.get(option["dest"]) for option in facts["options"] for name in option["names"]}
    by_name["tensor"] = values["tp_size" if engine == "sglang" else "tensor_parallel_size"]
    now = version(release)
    for need in NEEDS[engine]:
        if need.since <= now < need.before and not need.later and (message := _refusal(need, by_name)):
            return message
    return None


def _refusal(need: Need, by_name: Mapping[str, Any]) -> str | None:
    value = by_name.get(need.flag)
    if need.least is not None:
        return f"{need.flag} must be >= {need.least}" if value is not None and int(value) < need.least else None
    if str(value).lower() not in need.values if need.values else not _set(value):
        return None
    if any(all(_holds(each, by_name.get(each.name)) for each in group) for group in need.alternatives):
        return None
    return f"{need.flag}={value} is not supported here"


def _holds(condition: Condition, value: Any) -> bool:
    if condition.relation == ">":
        return value is not None and int(value) > int(condition.value)
    return str(value).lower() == condition.value if condition.relation == "=" else _set(value)


def _set(value: Any) -> bool:
    return value is not None and value is not False and value not in _OFF
