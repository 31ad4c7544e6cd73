"""Make torch report CUDA devices that are not there, and let missing GPU kernel packages import as empty. No kernel is ever launched.

``FAKE_GPU=9.0:81559:8`` is compute capability : MiB of memory : devices. ``FAKE_MODULES`` names the kernel packages.
Importing this module is enough; do so before importing an engine.
"""

from __future__ import annotations

import ctypes
import importlib.abc
import importlib.machinery
import os
import sys
import types
from pathlib import Path
from typing import Any

import torch

NAMES = {
    "8.0": "NVIDIA A100-SXM4-80GB",
    "8.9": "NVIDIA L40S",
    "9.0": "NVIDIA H100 80GB HBM3",
    "10.0": "NVIDIA B200",
    "10.3": "NVIDIA B300",
    "12.0": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    "12.1": "NVIDIA GB10",
}


class _AnyClass(type):
    """A class of which every attribute is another such class; calling one gives an inert object."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        body = {"__init__": lambda self, *a, **k: None, "__call__": lambda self, *a, **k: a[0] if a else None}
        return _AnyClass(name, (), body)


class _EmptyModule(types.ModuleType):
    __version__ = "99.0"
    __getattr__ = _AnyClass.__getattr__


class _EmptyModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the packages named in FAKE_MODULES, and anything inside them."""

    names = frozenset(filter(None, os.environ.get("FAKE_MODULES", "").split(",")))

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name in self.names or name.split(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _EmptyModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


def _install() -> None:
    libcuda = Path(torch.__file__).parent / "lib" / "libcuda.so.1"
    if libcuda.exists():
        ctypes.CDLL(str(libcuda), ctypes.RTLD_GLOBAL)
    capability, mebibytes, devices = os.environ["FAKE_GPU"].split(":")
    major, minor = map(int, capability.split("."))
    memory, count = int(mebibytes) << 20, int(devices)
    properties = types.SimpleNamespace(
        name=NAMES[capability], major=major, minor=minor, total_memory=memory, multi_processor_count=132, warp_size=32
    )
    answers = {
        "is_available": True,
        "is_initialized": True,
        "_lazy_init": None,
        "device_count": count,
        "_device_count_nvml": count,
        "current_device": 0,
        "set_device": None,
        "synchronize": None,
        "empty_cache": None,
        "get_device_name": NAMES[capability],
        "get_device_capability": (major, minor),
        "get_device_properties": properties,
        "mem_get_info": (memory, memory),
    }
    for name, answer in answers.items():
        # one function object each: torch._dynamo keys on them
        setattr(torch.cuda, name, (lambda value: lambda *a, **k: value)(answer))
    sys.meta_path.insert(0, _EmptyModules())


_install()
