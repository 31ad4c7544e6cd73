"""Which program of this machine runs in place of an engine's image, and what has to change in its command line for that.

The command line is the pod's own. Whatever differs is a `Change`, so that a report can name it.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed.process_node.container import ConfigError, Container, engine_of

IMPOSED = "imposed-acceptance.json"
"""File in the folder of a drafter without weights: how many of its tokens the engine is to accept."""
_ENTRYPOINTS: Mapping[str, tuple[str, ...]] = {"vllm": ("vllm", "serve")}
"""ENTRYPOINT of the engine's image, for pods that name arguments only."""
_MODULES: Mapping[str, str] = {"vllm": "vllm.entrypoints.cli.main", "sglang": "sglang.cli.main"}
"""Module behind a console script. The script need not be on PATH."""
_TAG_RELEASE = re.compile(r"v?(\d+\.\d+\.\d+)")
_NOT_PASSED_ON = re.compile(r"DFLASH_|PYTHON|KUBECONFIG$|POD_|VIRTUAL_ENV$")
"""Variables of the node agent that are none of the machine."""


def engine_environment(own: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of this machine without those of the test bed, and over them an engine's ``own``, as of an image."""
    return {name: value for name, value in os.environ.items() if not _NOT_PASSED_ON.match(name)} | dict(own)


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between the pod and the process: what, and why."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Program:
    """A process to start."""

    command: tuple[str, ...]
    env: Mapping[str, str]
    directory: Path
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True)
class Programs:
    """Where the engines of this machine are. ``pythons`` maps an engine to the interpreter of its environment."""

    pythons: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables for every engine, as an image would set them."""
    models: Path = Path("/")
    """Working directory of the engines: a model OWNER/NAME is the folder of this name below it, if there is one."""
    simulator: tuple[str, ...] | None = None
    """Options of the engine simulator, which then plays every engine."""

    def program(self, container: Container, address: str, gpus: Sequence[int]) -> Program:
        """Returns the process of a container. Raises ConfigError if this machine has no such engine."""
        engine = engine_of(container.image, container.command)
        env = engine_environment(self.env) | dict(container.env)
        if container.gpus:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
        words = list(container.command)
        if words and words[0].startswith("-"):
            words[:0] = _ENTRYPOINTS.get(engine, ())
        changes: list[Change] = []
        imposed = self._imposed(engine, words)
        if self.simulator is not None:
            return self._simulated(container, words, address, env, imposed)
        words = listening_on(words, address, changes)
        if imposed is not None:
            env |= impose(engine, words, imposed, changes)
        return Program(self._interpreted(engine, words), env, self.models, tuple(changes))

    def _interpreted(self, engine: str, words: Sequence[str]) -> tuple[str, ...]:
        python = self.pythons.get(engine)
        if python is None:
            raise ConfigError(f"this node has no Python environment with {engine}")
        if re.fullmatch(r"python3?", words[0]):
            return (python, *words[1:])
        if words[0] == engine:
            return (python, "-m", _MODULES[engine], *words[1:])
        raise ConfigError(f"command {words[0]!r} is not known here")

    def _simulated(
        self, container: Container, words: Sequence[str], address: str, env: dict[str, str], imposed: Mapping[str, Any] | None
    ) -> Program:
        tag = _TAG_RELEASE.search(container.image.rpartition(":")[2])
        env["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
        if tag and "DFLASH_SIM_RELEASE" not in env:
            env["DFLASH_SIM_RELEASE"] = tag[1]
        options = [f"--host={address}", *(self.simulator or ())]
        if imposed is not None:
            options.append(f"--faults={json.dumps({'acceptance': imposed['simulated']})}")
        command = (sys.executable, "-m", "testbed.simulator", "serve", *options, "--", *words)
        return Program(command, env, self.models, (Change("the engine simulator", "it plays the engine"),))

    def _imposed(self, engine: str, words: Sequence[str]) -> Mapping[str, Any] | None:
        drafter = drafter_of(engine, words)
        file = self.models / drafter / IMPOSED if drafter else None
        if file is None or not file.exists():
            return None
        found: Mapping[str, Any] = json.loads(file.read_text())
        return found


def option(words: Sequence[str], name: str) -> tuple[int, str] | None:
    """Returns index and value of an option written as ``--name=value`` or ``--name value``; the last one counts."""
    for index in range(len(words) - 1, -1, -1):
        if words[index].startswith(f"{name}="):
            return index, words[index].partition("=")[2]
        if words[index] == name and index + 1 < len(words):
            return index, words[index + 1]
    return None


def replaced(words: Sequence[str], name: str, value: str) -> list[str]:
    """Returns the words with another value of an option, written as it was."""
    found = option(words, name)
    if found is None:
        return [*words, f"{name}={value}"]
    index, _ = found
    if "=" in words[index]:
        return [*words[:index], f"{name}={value}", *words[index + 1 :]]
    return [*words[:index], name, value, *words[index + 2 :]]


def listening_on(words: Sequence[str], address: str, changes: list[Change]) -> list[str]:
    """Returns the words with the pod's address in place of all addresses. All pods share the network of the machine, and their ports."""
    found = option(words, "--host")
    changes.append(Change(f"--host={address} in place of {found[1] if found else 'the default'}", "pods share this machine's network"))
    return replaced(words, "--host", address)


def drafter_of(engine: str, words: Sequence[str]) -> str | None:
    """Returns the drafter that a command line names; None without speculation."""
    if engine == "sglang":
        found = option(words, "--speculative-draft-model-path")
        return found[1] if found else None
    config = option(words, "--speculative-config")
    return json.loads(config[1]).get("model") if config else None


def impose(engine: str, words: list[str], imposed: Mapping[str, Any], changes: list[Change]) -> dict[str, str]:
    """Makes the engine accept as many drafts as the drafter's file says. Changes the words; returns further variables.

    ``acceptance_rates`` are chances that all drafts up to a position are accepted, the first one first. vLLM: SpeculativeConfig,
    rejection_sample_method and synthetic_acceptance_rates. SGLang: SGLANG_SIMULATE_ACC_LEN, the mean number of tokens a step commits.
    """
    rates: Sequence[float] = imposed["acceptance_rates"]
    why = "the drafter has no weights, so its acceptance is imposed"
    if engine == "vllm":
        found = option(words, "--speculative-config")
        assert found is not None
        config = json.loads(found[1])
        config |= {
            "rejection_sample_method": "synthetic",
            "synthetic_acceptance_rates": list(rates[: config["num_speculative_tokens"]]),
        }
        words[:] = replaced(words, "--speculative-config", json.dumps(config))
        changes.append(Change("rejection_sample_method and synthetic_acceptance_rates in --speculative-config", why))
        return {}
    block = option(words, "--speculative-num-draft-tokens") or option(words, "--speculative-dflash-block-size")
    drafts = int(block[1]) - 1 if block else len(rates)
    length = f"{1 + sum(rates[:drafts]):.4f}"
    changes.append(Change(f"SGLANG_SIMULATE_ACC_LEN={length}", why))
    return {"SGLANG_SIMULATE_ACC_LEN": length}
