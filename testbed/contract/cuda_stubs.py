"""Do-nothing CUDA libraries, so that CUDA builds of torch and vLLM can be imported on a machine without a GPU.

Every symbol that the libraries of torch and vLLM need from CUDA, NCCL and NVSHMEM is defined as "return 0"; ``cudaGetDeviceCount`` answers
"no device". Symbol versions are kept, because the loader aborts on an unversioned library if a version is requested.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

_VENDOR = re.compile(r"_*(lib)?(cu|CU|nv|nccl|fatbin)")
_TAG = b"do-nothing stub"


def write_stubs(site_packages: Path, more: Sequence[Path] = ()) -> list[Path]:
    """Writes the libraries beside torch's own and returns their paths. ``more`` are other folders with extensions that need them."""
    lib = site_packages / "torch" / "lib"
    files = [f for folder in (lib, site_packages / "vllm", *more) for f in sorted(folder.glob("*.so*")) if not _is_stub(f)]
    needed: set[str] = set()
    undefined: dict[str, str] = {}
    defined: set[str] = set()
    for file in files:
        needed |= set(re.findall(r"\(NEEDED\).*\[(.+?)\]", _output("readelf", "-dW", str(file))))
        for line in _output("nm", "-D", "--with-symbol-versions", str(file)).splitlines():
            kind, symbol = line.split()[-2:]
            name, _, version = symbol.partition("@")
            if kind in "Uw":
                undefined[name] = version.strip("@")
            else:
                defined.add(name)
    todo = {name: version for name, version in undefined.items() if name not in defined and _VENDOR.match(name)}
    return [_compile(lib, name, todo) for name in sorted(needed) if _VENDOR.match(name) and lib / name not in files]


def _compile(lib: Path, soname: str, todo: dict[str, str]) -> Path:
    own = [name for name, version in todo.items() if _belongs(version, soname)]
    node = todo[own[0]] if own else ""
    code = f'const char tag[] __attribute__((used)) = "{_TAG.decode()}";\n'
    for name in own:
        body = "*p = 0; return 100;" if name == "cudaGetDeviceCount" else "return 0;"
        code += f"long {name}(int *p) {{ {body} }}\n"
    target = lib / soname
    with tempfile.NamedTemporaryFile("w", suffix=".map") as script:
        script.write(f"{node} {{ global: *; }};\n")
        script.flush()
        versions = [f"-Wl,--version-script={script.name}"] if node else []
        command = ["gcc", "-w", "-shared", "-fPIC", "-x", "c", "-", f"-Wl,-soname,{soname}", "-o", str(target), *versions]
        subprocess.run(command, input=code, text=True, check=True)
    return target


def _belongs(version: str, soname: str) -> bool:
    """Decides whether a symbol belongs to a library. Versioned symbols belong to the library of that name; others are looked up globally,
    so one library holds them all."""
    if ".so" in version:
        return version == soname
    return soname.startswith("lib" + version.lower()) if version else soname.startswith("libnccl")


def _is_stub(path: Path) -> bool:
    return path.stat().st_size < 60_000 and _TAG in path.read_bytes()


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
