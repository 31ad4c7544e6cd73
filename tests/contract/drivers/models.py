"""Write model folders that hold nothing but a config.json: a hybrid MoE target, a dense target, DFlash drafters for both.

The engines resolve their arguments from these alone; no weights and no tokenizer are read. Shapes follow Qwen3.5 MoE and Qwen3-8B.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

DENSE: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 4096,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
}
HYBRID_TEXT: dict[str, Any] = {
    "model_type": "qwen3_5_moe_text",
    "vocab_size": 248320,
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 256,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "dtype": "bfloat16",
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    },
    "linear_num_value_heads": 32,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "layer_types": ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(40)],
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
HYBRID: dict[str, Any] = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "model_type": "qwen3_5_moe",
    "dtype": "bfloat16",
    "image_token_id": 248056,
    "video_token_id": 248057,
    "vision_start_token_id": 248053,
    "vision_end_token_id": 248054,
    "text_config": HYBRID_TEXT,
    "vision_config": {
        "model_type": "qwen3_5_moe",
        "depth": 2,
        "hidden_size": 64,
        "num_heads": 4,
        "intermediate_size": 128,
        "out_hidden_size": 2048,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "num_position_embeddings": 2304,
        "deepstack_visual_indexes": [],
    },
}


def drafter(block_size: int, hidden_size: int, vocab_size: int) -> dict[str, Any]:
    """A five-layer DFlash drafter; vocabulary and hidden size must be its target's."""
    return DENSE | {
        "architectures": ["DFlashDraftModel"],
        "num_hidden_layers": 5,
        "hidden_size": hidden_size,
        "vocab_size": vocab_size,
        "block_size": block_size,
        "num_target_layers": 36,
        "dflash_config": {"mask_token_id": vocab_size - 1, "target_layer_ids": [1, 9, 17, 25, 33]},
    }


MODELS = {
    "hybrid": HYBRID,
    "hybrid-drafter": drafter(16, 2048, 248320),
    "dense": DENSE | {"architectures": ["Qwen3ForCausalLM"]},
    "dense-drafter": drafter(16, 4096, 151936),
}

if __name__ == "__main__":
    for name, config in MODELS.items():
        folder = Path(sys.argv[1]) / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config, indent=1))
