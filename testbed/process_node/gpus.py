"""The GPUs of this machine and which pod has which."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

_QUERY = ("index", "name", "memory.total", "compute_cap")


class NoGpuError(RuntimeError):
    """This machine has no NVIDIA GPU that can be used; the message is one line."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU: the index for CUDA_VISIBLE_DEVICES, the product as in the node label, memory in MiB, CUDA compute capability."""

    index: int
    product: str
    memory_mib: int = 0
    compute: str = ""


def find_gpus() -> list[Gpu]:
    """Returns the GPUs that nvidia-smi lists; of these those in ``CUDA_VISIBLE_DEVICES`` if it is set, by index. Raises NoGpuError."""
    command = ["nvidia-smi", f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    except FileNotFoundError:
        raise NoGpuError("an NVIDIA GPU and its driver are needed (there is no nvidia-smi)") from None
    except (subprocess.SubprocessError, OSError) as error:
        raise NoGpuError(f"an NVIDIA GPU and its driver are needed (nvidia-smi: {error})") from None
    gpus = parse_gpus(answer.stdout)
    if not gpus:
        raise NoGpuError("an NVIDIA GPU is needed (nvidia-smi lists none)")
    return visible(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))


def visible(gpus: Sequence[Gpu], devices: str | None) -> list[Gpu]:
    """Returns the GPUs that ``CUDA_VISIBLE_DEVICES`` leaves, in its order; all where it is not set. Raises NoGpuError.

    CUDA also takes UUIDs there. They are refused, because nothing else here knows them.
    """
    if devices is None:
        return list(gpus)
    by_index = {str(gpu.index): gpu for gpu in gpus}
    names = [name.strip() for name in devices.split(",") if name.strip()]
    if unknown := [name for name in names if name not in by_index]:
        raise NoGpuError(f"CUDA_VISIBLE_DEVICES names {', '.join(unknown)}; the indexes of the GPUs are {', '.join(by_index)}")
    if not names:
        raise NoGpuError("CUDA_VISIBLE_DEVICES is empty, which hides every GPU")
    return [by_index[name] for name in names]


def parse_gpus(listing: str) -> list[Gpu]:
    """Returns the GPUs of a listing of nvidia-smi, one a line: index, name, memory in MiB, compute capability."""
    gpus = []
    for line in listing.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == len(_QUERY) and parts[0].isdigit():
            index, name, memory, compute = parts
            # GPU feature discovery writes the name with dashes for spaces into the label nvidia.com/gpu.product.
            gpus.append(Gpu(int(index), "-".join(name.split()), int(float(memory)) if memory.replace(".", "").isdigit() else 0, compute))
    return gpus


class GpuShares:
    """Which pod has which GPU. Each GPU is offered ``share`` times, as with time slicing in NVIDIA's device plugin."""

    def __init__(self, gpus: Sequence[Gpu], share: int = 1) -> None:
        self._gpus = tuple(gpus)
        self._share = share
        self._held: dict[str, list[int]] = {}

    @property
    def capacity(self) -> int:
        """Returns how many GPUs the node offers."""
        return len(self._gpus) * self._share

    def take(self, holder: str, count: int) -> list[int] | None:
        """Returns the indexes of ``count`` different GPUs, the least used ones; None if there are not so many. The same holder gets the
        same ones."""
        if holder in self._held:
            return self._held[holder]
        used = Counter(index for held in self._held.values() for index in held)
        free = sorted((gpu.index for gpu in self._gpus if used[gpu.index] < self._share), key=lambda index: (used[index], index))
        if len(free) < count:
            return None
        self._held[holder] = sorted(free[:count])
        return self._held[holder]

    def release(self, holder: str) -> None:
        self._held.pop(holder, None)
