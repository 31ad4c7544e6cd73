"""Inference engines behind one protocol: command line per release, limits, endpoints, metrics, answers to the probe."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from dflash_controller.engines.protocol import Engine
from dflash_controller.engines.sglang.launch import SGLang
from dflash_controller.engines.vllm.launch import VLLM

ENGINES: Mapping[str, Engine] = MappingProxyType({engine.name: engine for engine in (SGLang(), VLLM())})
"""By the name a spec uses."""
