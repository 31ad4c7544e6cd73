"""The GPU generation of a product label (``gpus.yaml``), and whether a target uses multi-head latent attention."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from dflash_controller.engines.protocol import LaunchRequest
from dflash_controller.model.data_files import read_yaml

_GIB = 2**30
_PROFILE = re.compile(r"-MIG-\d+g\.(\d+)gb", re.IGNORECASE)
_SIZE = re.compile(r"(?<![0-9])(\d+)GB(?![0-9A-Z])", re.IGNORECASE)
_USABLE = 0.98
"""Of a size in a product's name: the driver reports 79.6 GiB for 80GB."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One generation of ``gpus.yaml``."""

    sm: int
    """Compute capability without the dot, for instance 103."""
    name: str
    products: tuple[tuple[str, ...], ...]
    """Each product as its words in capitals."""
    memory: Mapping[tuple[str, ...], int]
    """Bytes of memory by product, where the product has one size."""

    def __str__(self) -> str:
        return self.name


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in re.split(r"[^A-Z0-9]+", text.upper()) if word)


def _table() -> tuple[Generation, ...]:
    entries = read_yaml("dflash_controller.engines", "gpus.yaml")
    return tuple(
        Generation(
            entry["sm"],
            entry["name"],
            tuple(_words(product) for product in entry["products"]),
            {_words(product): size * _GIB for product, size in entry["memoryGiB"].items()},
        )
        for entry in entries
    )


GENERATIONS = _table()
DATACENTER_BLACKWELL = frozenset({100, 103})
"""What SGLang calls SM100: major compute capability 10 (``is_sm100_supported``)."""


@lru_cache(maxsize=256)
def generation(gpu_product: str) -> Generation | None:
    """Returns the generation of a ``nvidia.com/gpu.product`` label such as ``NVIDIA-H100-80GB-HBM3`` or ``NVIDIA-B200-MIG-1g.23gb``.

    None if the product is in no generation of the table, or in two.
    """
    label = _words(gpu_product)
    found = [each for each in GENERATIONS if any(_contains(label, product) for product in each.products)]
    return found[0] if len(found) == 1 else None


def accelerator_bytes(gpu_product: str) -> int | None:
    """Returns the memory of one accelerator of a ``nvidia.com/gpu.product`` label, in bytes; None if neither table nor label tells.

    The table goes before a size in the name: the 480GB of a GH200 are memory of its processor.
    """
    if profile := _PROFILE.search(gpu_product):
        return int(int(profile[1]) * _GIB * _USABLE)
    label, found = _words(gpu_product), generation(gpu_product)
    sizes = [(len(product), size) for product, size in (found.memory if found else {}).items() if _contains(label, product)]
    if sizes:
        return max(sizes)[1]
    written = _SIZE.search(gpu_product)
    return int(int(written[1]) * _GIB * _USABLE) if written else None


def _contains(label: Sequence[str], product: Sequence[str]) -> bool:
    return any(tuple(label[i : i + len(product)]) == tuple(product) for i in range(len(label)))


def gpu_name(request: LaunchRequest) -> str:
    """Returns the generation as messages write it; without one, the product."""
    return str(generation(request.gpu_product) or request.gpu_product)


# Multi-head latent attention has back ends of its own; the engine's default is the right one for these families.
_LATENT_ATTENTION = re.compile(r"deepseek-?(v[234]|r1)|kimi-?(k|linear)|glm-?5", re.IGNORECASE)


def latent_attention(request: LaunchRequest) -> bool:
    """Whether the target is of a family known to use multi-head latent attention (MLA). Its path may hide it; its served name does not."""
    return any(_LATENT_ATTENTION.search(name) for name in (request.target.model, request.served_model_name))
