"""Model folders without weights: real shapes, word-level tokenizers, and an imposed acceptance for their drafters.

Engines start on them with ``--load-format=dummy``. Shapes are from the models' published config.json: Qwen3-8B (dense), Qwen3.5-9B (hybrid:
three of four layers are gated delta nets), Qwen3-Coder-30B-A3B (mixture of experts). Fewer layers start faster and step faster; the
drafter reads hidden states of layers spread over the target, as in its own config.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed.process_node.programs import IMPOSED

TRAINED_BLOCK = 16
COLLAPSED = "testbed/Collapsed-DFlash"
"""A drafter whose drafts the target refuses."""
_FIRST, _FALL = 0.88, 0.9925
"""Chance that draft 0 is accepted, and the factor from one position to the next, as measured for DFlash drafters on chat prompts."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A target, its drafter, and flags that its engine needs on a bare shape."""

    target: str
    drafter: str
    layers: int
    draft_layers: int
    taps: int
    """Layers of the target that the drafter reads."""
    vocabulary: int
    special: Mapping[int, str]
    target_config: Mapping[str, Any]
    draft_config: Mapping[str, Any]
    hybrid: bool = False
    extra_args: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


_QWEN3 = {
    "vocab_size": 151936,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
}
_QWEN3_SPECIAL = {151643: "<|endoftext|>", 151644: "<|im_start|>", 151645: "<|im_end|>"}
_DENSE = {**_QWEN3, "hidden_size": 4096, "intermediate_size": 12288}
_MOE = {**_QWEN3, "hidden_size": 2048, "intermediate_size": 6144, "num_key_value_heads": 4, "max_position_embeddings": 262144}
_EXPERTS = {
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "rope_theta": 1e7,
}
_HYBRID_TEXT = {
    "model_type": "qwen3_5_text",
    "vocab_size": 248320,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "dtype": "bfloat16",
    "attn_output_gate": True,
    "full_attention_interval": 4,
    "linear_num_value_heads": 32,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "mamba_ssm_dtype": "float32",
    "tie_word_embeddings": False,
    "eos_token_id": 248044,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    },
}
_VISION = {
    "model_type": "qwen3_5",
    "depth": 27,
    "hidden_size": 1152,
    "num_heads": 16,
    "intermediate_size": 4304,
    "out_hidden_size": 4096,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "num_position_embeddings": 2304,
    "deepstack_visual_indexes": [],
    "in_channels": 3,
    "hidden_act": "gelu_pytorch_tanh",
    "initializer_range": 0.02,
}
_HYBRID_SPECIAL = {
    248044: "<|endoftext|>",
    248045: "<|im_start|>",
    248046: "<|im_end|>",
    248053: "<|vision_start|>",
    248054: "<|vision_end|>",
    248056: "<|image_pad|>",
    248057: "<|video_pad|>",
}
_HYBRID_DRAFT = {
    "model_type": "qwen3",
    "vocab_size": 248320,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e7,
    "hidden_act": "silu",
    "dtype": "bfloat16",
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}

SHAPES: Mapping[str, Shape] = {
    "dense": Shape(
        "Qwen/Qwen3-8B",
        "z-lab/Qwen3-8B-DFlash-b16",
        layers=36,
        draft_layers=5,
        taps=5,
        vocabulary=151936,
        special=_QWEN3_SPECIAL,
        target_config={"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", **_DENSE},
        draft_config={"model_type": "qwen3", **_DENSE},
    ),
    "hybrid": Shape(
        "Qwen/Qwen3.5-9B",
        "z-lab/Qwen3.5-9B-DFlash",
        layers=32,
        draft_layers=6,
        taps=8,
        vocabulary=248320,
        special=_HYBRID_SPECIAL,
        target_config={
            "architectures": ["Qwen3_5ForConditionalGeneration"],
            "model_type": "qwen3_5",
            "dtype": "bfloat16",
            "image_token_id": 248056,
            "video_token_id": 248057,
            "vision_start_token_id": 248053,
            "vision_end_token_id": 248054,
            "tie_word_embeddings": False,
            "text_config": _HYBRID_TEXT,
            "vision_config": _VISION,
        },
        draft_config=_HYBRID_DRAFT,
        hybrid=True,
        # There is no picture in the traffic, and profiling the vision tower takes a minute of the start.
        extra_args={"vllm": ("--language-model-only",)},
    ),
    "moe": Shape(
        "Qwen/Qwen3-Coder-30B-A3B-Instruct",
        "z-lab/Qwen3-Coder-30B-A3B-DFlash",
        layers=48,
        draft_layers=8,
        taps=5,
        vocabulary=151936,
        special=_QWEN3_SPECIAL,
        target_config={"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", **_MOE, **_EXPERTS},
        draft_config={"model_type": "qwen3", **_MOE},
    ),
}


def acceptance_rates(drafts: int = TRAINED_BLOCK - 1, first: float = _FIRST, fall: float = _FALL) -> list[float]:
    """Returns the chances that all drafts up to position 0, 1, … are accepted; one plus their sum is the acceptance length."""
    rates, all_so_far = [], 1.0
    for position in range(drafts):
        all_so_far *= first * fall**position
        rates.append(round(all_so_far, 5))
    return rates


def make_models(root: Path, shape: Shape, layers: int | None = None) -> None:
    """Writes the target, its drafter and the collapsed drafter below ``root``. Raises ValueError for too few layers."""
    count = layers or shape.layers
    step = 4 if shape.hybrid else 1
    if count < shape.taps + 4 or count % step:
        raise ValueError(f"{shape.target} needs at least {shape.taps + 4} layers" + (", a multiple of 4" if shape.hybrid else ""))
    target = _with_layers(shape, count)
    _write(root / shape.target, {"config.json": target, **_texts(shape)})
    draft = {
        "architectures": ["DFlashDraftModel"],
        **shape.draft_config,
        "num_hidden_layers": shape.draft_layers,
        "layer_types": ["full_attention"] * shape.draft_layers,
        "block_size": TRAINED_BLOCK,
        "num_target_layers": count,
        "dflash_config": {"mask_token_id": shape.vocabulary - 1, "target_layer_ids": taps(count, shape.taps)},
    }
    sound = {"acceptance_rates": acceptance_rates(), "simulated": 1.0}
    # Almost nothing, not nothing: an engine may read a length of exactly 1 as "do not simulate".
    collapsed = {"acceptance_rates": acceptance_rates(first=0.02), "simulated": 0.0}
    for name, imposed in ((shape.drafter, sound), (COLLAPSED, collapsed)):
        _write(root / name, {"config.json": draft, IMPOSED: imposed})


def taps(layers: int, count: int) -> list[int]:
    """Returns the target's layers that a drafter reads: ``count`` of them, evenly from the second to the third from the end."""
    return [1 + (layers - 4) * index // (count - 1) for index in range(count)]


def _with_layers(shape: Shape, count: int) -> dict[str, Any]:
    config = dict(shape.target_config)
    if not shape.hybrid:
        return {**config, "num_hidden_layers": count}
    types = ["full_attention" if index % 4 == 3 else "linear_attention" for index in range(count)]
    config["text_config"] = {**config["text_config"], "num_hidden_layers": count, "layer_types": types}
    return config


def _texts(shape: Shape) -> dict[str, Any]:
    """Returns a tokenizer of words t0, t1, …, a generation config and, for a model with a vision tower, its preprocessors."""
    vocabulary = {shape.special.get(index, f"t{index}"): index for index in range(shape.vocabulary)}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added(index, text) for index, text in sorted(shape.special.items())],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "t0"},
    }
    seen = {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"}
    seen |= {"vision_bos_token": "<|vision_start|>", "vision_eos_token": "<|vision_end|>"}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "t0",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": 262144,
        "chat_template": "{% for m in messages %}{{ m.content }} {% endfor %}",
        **({**seen, "extra_special_tokens": seen, "processor_class": "Qwen3VLProcessor"} if shape.hybrid else {}),
    }
    files: dict[str, Any] = {"tokenizer.json": tokenizer, "tokenizer_config.json": settings}
    files["generation_config.json"] = {"eos_token_id": min(shape.special), "temperature": 1.0}
    if shape.hybrid:
        files |= _preprocessors()
    return files


def _added(index: int, text: str) -> dict[str, Any]:
    return {
        "id": index,
        "content": text,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }


def _preprocessors() -> dict[str, Any]:
    common = {
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "merge_size": 2,
        "patch_size": 16,
        "temporal_patch_size": 2,
        "rescale_factor": 1 / 255,
        "resample": 3,
        "processor_class": "Qwen3VLProcessor",
    }
    size = {"longest_edge": 16777216, "shortest_edge": 65536}
    video = {"longest_edge": 25165824, "shortest_edge": 4096}
    return {
        "preprocessor_config.json": {**common, "size": size, "image_processor_type": "Qwen2VLImageProcessorFast"},
        "video_preprocessor_config.json": {
            **common,
            "size": video,
            "video_processor_type": "Qwen3VLVideoProcessor",
            "fps": 2,
            "do_sample_frames": True,
        },
    }


def _write(folder: Path, files: Mapping[str, Mapping[str, Any] | Sequence[Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1 if name == "config.json" else None))
