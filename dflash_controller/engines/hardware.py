"""Which attention kernels a GPU can run, told from its product label."""

from __future__ import annotations

import re
from enum import Enum

from dflash_controller.engines.protocol import LaunchRequest


class Generation(Enum):
    """GPU generations whose attention back ends differ."""

    HOPPER = "Hopper (SM90)"
    BLACKWELL = "Blackwell (SM100)"
    OTHER = "this GPU"


_HOPPER = {"H100", "H200", "H800", "H20", "GH200"}
# RTX PRO 6000 Blackwell and its kin are SM120 and lack the TensorRT-LLM kernels: they are OTHER
_BLACKWELL = {"B100", "B200", "B300", "GB200", "GB300"}


def generation(gpu_product: str) -> Generation:
    """The generation of a ``nvidia.com/gpu.product`` label such as ``NVIDIA-H100-80GB-HBM3`` or ``NVIDIA-B200``."""
    words = set(re.split(r"[^A-Z0-9]+", gpu_product.upper()))
    if words & _BLACKWELL:
        return Generation.BLACKWELL
    return Generation.HOPPER if words & _HOPPER else Generation.OTHER


# Multi-head latent attention has back ends of its own; the engine's default is the right one for these families.
_LATENT_ATTENTION = re.compile(r"deepseek-?(v[234]|r1)|kimi-?(k|linear)|glm-?5", re.IGNORECASE)


def latent_attention(request: LaunchRequest) -> bool:
    """Whether the target is of a family known to use multi-head latent attention (MLA). Its path may hide it; its served name does not."""
    return any(_LATENT_ATTENTION.search(name) for name in (request.target.model, request.served_model_name))
