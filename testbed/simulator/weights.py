"""Tells which weights a pod loads whose command line names paths: the mounts say so, as a real engine would read it from the files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from testbed.simulator.launch import ENGINE_CONTAINER
from testbed.simulator.settings import EngineSettings

_PUBLISHED = re.compile(r"(?:^|/)models/([^/]+)--([^/]+)/([0-9a-f]{40})$")
"""The directory that dflash-fetch makes for a model at a commit."""


def with_mounted_weights(settings: EngineSettings, pod: Mapping[str, Any]) -> EngineSettings:
    """Returns the settings with the models' names and the drafter's commit in place of mounted paths."""
    [container] = [item for item in pod["spec"]["containers"] if item["name"] == ENGINE_CONTAINER]
    found = {mount["mountPath"]: _PUBLISHED.search(mount.get("subPath", "")) for mount in container.get("volumeMounts", ())}
    target, drafter = found.get(settings.target), found.get(settings.drafter or "")
    if target:
        settings = replace(settings, target=f"{target[1]}/{target[2]}")
    if drafter:
        settings = replace(settings, drafter=f"{drafter[1]}/{drafter[2]}", drafter_revision=drafter[3])
    return settings
