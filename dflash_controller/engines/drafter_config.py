"""What config.json says of a drafter and its target, and which of it rules a pair, a block size or an engine release out.

Everything is read with care: a field that is missing or has another type is unknown, and what is unknown rules nothing out. Files of
engines are named as in the wheels of SGLang 0.5.23 and vLLM 0.33.0.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dflash_controller.api.problem import Problem
from dflash_controller.engines.releases import TABLE, version

_WHOLE_MODELS = ("ForCausalLM", "ForConditionalGeneration")
"""Endings of architectures that generate text by themselves."""


_READ = frozenset(
    {
        "architectures",
        "block_size",
        "hidden_size",
        "mask_token_id",
        "num_hidden_layers",
        "target_hidden_size",
        "target_layer_ids",
        "vocab_size",
    }
)
_INNER = frozenset({"dflash_config", "text_config", "llm_config"})
_DFLASH = "dflash"
MOST_CHARACTERS = 4096
"""Of one field. Longer ones are no counts, names or layers."""


def relevant(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the part of config.json that is read here. The whole file of a quantised model may be a megabyte, and is kept in memory."""
    found = {name: value for name, value in config.items() if name in _READ and len(json.dumps(value)) <= MOST_CHARACTERS}
    found |= {name: relevant(config[name]) for name in _INNER if isinstance(config.get(name), Mapping)}
    return found | ({_DFLASH: True} if _DFLASH in json.dumps(config).lower() else {})


@dataclass(frozen=True, slots=True)
class TargetConfig:
    """The shape of a target. None: not known."""

    layers: int | None = None
    hidden_size: int | None = None
    vocabulary: int | None = None


@dataclass(frozen=True, slots=True)
class DrafterConfig:
    """What a drafter was made for. None or empty: not known."""

    architectures: tuple[str, ...] = ()
    dflash: bool = True
    """False if the file has no trace of DFlash, so that it belongs to another kind of model."""
    block_size: int | None = None
    """Block size of the training."""
    target_layers: tuple[int, ...] = ()
    """Layers of the target that the drafter reads, counted from 0."""
    target_hidden_size: int | None = None
    vocabulary: int | None = None
    mask_token: int | None = None


def read_target(config: Mapping[str, Any] | None) -> TargetConfig:
    """Returns the shape of the text model, which a model with a vision tower keeps in ``text_config``."""
    config = config or {}
    text = next((config[name] for name in ("text_config", "llm_config") if isinstance(config.get(name), Mapping)), config)
    return TargetConfig(
        layers=_count(text, "num_hidden_layers"),
        hidden_size=_count(text, "hidden_size"),
        vocabulary=_count(text, "vocab_size") or _count(config, "vocab_size"),
    )


def read_drafter(config: Mapping[str, Any] | None) -> DrafterConfig:
    """Returns what the drafter's file says.

    As SGLang reads it (srt/speculative/dflash_utils.py, parse_dflash_draft_config): ``dflash_config`` first, then the top level.
    """
    config = config or {}
    own = _object(config, "dflash_config")
    architectures = config.get("architectures")
    named = tuple(name for name in architectures if isinstance(name, str)) if isinstance(architectures, list) else ()
    block = _count(own, "block_size") or _count(config, "block_size")
    layers = own.get("target_layer_ids", config.get("target_layer_ids"))
    whole = bool(named) and all(name.endswith(_WHOLE_MODELS) for name in named)
    return DrafterConfig(
        architectures=named,
        dflash=not (whole and block is None and _DFLASH not in json.dumps(config).lower()),
        block_size=block,
        target_layers=tuple(layers) if isinstance(layers, list) and all(_is_count(layer) for layer in layers) else (),
        # vllm/model_executor/models/qwen3_dflash.py: a drafter may be narrower than its target.
        target_hidden_size=_count(config, "target_hidden_size") or _count(config, "hidden_size"),
        vocabulary=_count(config, "vocab_size"),
        mask_token=_first(_count(own, "mask_token_id"), _count(config, "mask_token_id")),
    )


def pair_problems(drafter_name: str, drafter: DrafterConfig, target_name: str, target: TargetConfig) -> Iterator[Problem]:
    """What shows that the drafter was trained for another target."""
    field = "spec.drafter.model"
    remedy = f"Use a drafter that was trained for {target_name}, or the target that {drafter_name} was trained for."
    if not drafter.dflash:
        named = ", ".join(drafter.architectures)
        yield Problem(field, f"{drafter_name} is no DFlash drafter: its config.json names {named}", remedy)
        return
    # srt/speculative/dflash_utils.py, resolve_target_layer_ids; vLLM: qwen3_dflash.py, combine_hidden_states.
    beyond = [layer for layer in drafter.target_layers if target.layers is not None and layer >= target.layers]
    if beyond:
        reads = ", ".join(str(layer) for layer in beyond)
        message = f"{drafter_name} reads layer {reads} of its target (target_layer_ids), and {target_name} has layers 0 to "
        yield Problem(field, f"{message}{(target.layers or 0) - 1}", remedy)
    # The drafter has neither embedding nor LM head: it uses those of its target.
    if _differ(drafter.target_hidden_size, target.hidden_size):
        message = f"{drafter_name} reads hidden states of {drafter.target_hidden_size} values, and {target_name} has {target.hidden_size}"
        yield Problem(field, f"{message} (hidden_size)", remedy)
    if _differ(drafter.vocabulary, target.vocabulary):
        message = f"{drafter_name} has a vocabulary of {drafter.vocabulary} tokens, and {target_name} one of {target.vocabulary}"
        yield Problem(field, f"{message} (vocab_size)", remedy)
    # srt/speculative/dflash_worker_v2.py, _resolve_mask_token_id.
    elif drafter.mask_token is not None and target.vocabulary is not None and drafter.mask_token >= target.vocabulary:
        message = f"the mask token of {drafter_name} is {drafter.mask_token}, beyond the {target.vocabulary} tokens of {target_name}"
        yield Problem(field, f"{message} (mask_token_id)", remedy)


def block_problems(drafter_name: str, drafter: DrafterConfig, written: int | None) -> Iterator[Problem]:
    """What contradicts ``spec.drafter.trainedBlockSize``, which is ``written``."""
    if written is not None and _differ(drafter.block_size, written):
        message = f"{drafter_name} was trained with block size {drafter.block_size} (block_size in its config.json), not {written}"
        yield Problem("spec.drafter.trainedBlockSize", message, f"Set it to {drafter.block_size}, or omit it.")


def release_problems(drafter_name: str, drafter: DrafterConfig, engine: str, release: str) -> Iterator[Problem]:
    """What this release of the engine cannot load. An architecture that the table does not have rules nothing out."""
    table = TABLE[engine]
    for name in drafter.architectures:
        first = table.drafters.get(name)
        if first is not None and version(release) < version(first):
            message = f"{table.engine} {release} does not know {name}, the architecture of {drafter_name}; {first} is the first that does"
            yield Problem("spec.engine.version", message, f"Set it to {first} or later, or use another drafter.")


def _differ(one: int | None, other: int | None) -> bool:
    return one is not None and other is not None and one != other


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _object(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = config.get(name)
    return found if isinstance(found, Mapping) else {}


def _count(config: Mapping[str, Any], name: str) -> int | None:
    found = config.get(name)
    return found if isinstance(found, int) and _is_count(found) else None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
