"""Renders the mounts of an engine pod: shared memory, storage for weights, and the Hugging Face token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from dflash_controller.api.pod_types import HuggingFace, Storage
from dflash_controller.api.types import Spec
from dflash_controller.engines import ENGINES
from dflash_controller.engines.protocol import ModelRef
from dflash_controller.engines.resolved import DRAFTER_PATH, TARGET_PATH, Resolved
from dflash_controller.model.hub import ENGINE_CACHE, directory_of
from dflash_controller.render.compact import as_manifest

SHM_SIZE = "32Gi"
"""Upper limit of /dev/shm, as in SGLang's own container instructions; NCCL and the engine's processes share tensors there."""
STORAGE_PATH = "/var/lib/dflash"
CACHE_PATH = f"{STORAGE_PATH}/cache"
TOKEN_DIRECTORY = "/var/run/secrets/dflash/hugging-face"
HOME_PATH = "/var/lib/dflash-home"
"""Home directory of an engine that may not write to its image. A path of our own, so that no file of the image is hidden."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A volume, its mount path, and the environment variables by which the engine finds it."""

    name: str
    path: str
    source: dict[str, Any]
    env: dict[str, str]
    read_only: bool = False
    sub_path: str | None = None
    """The part of the volume that is mounted; None: all of it."""

    def volume(self) -> dict[str, Any]:
        return {"name": self.name, **self.source}

    def volume_mount(self) -> dict[str, Any]:
        return {"name": self.name, "mountPath": self.path, "subPath": self.sub_path, "readOnly": self.read_only or None}


_SCRATCH = (Mount("tmp", "/tmp", {"emptyDir": {}}, {}), Mount("home", HOME_PATH, {"emptyDir": {}}, {"HOME": HOME_PATH}))
"""Where engines and their libraries write beside shared memory and storage: sockets and compiled code in /tmp; the caches of Hugging Face,
Triton, FlashInfer, DeepGEMM, CUDA and the engine below the home directory."""


def mounts(spec: Spec, resolved: Resolved, namespace: str, host_path_roots: Sequence[str] = ()) -> list[Mount]:
    """Returns the mounts of an engine container, in a fixed order. ``host_path_roots`` are the directories that hostPath allows.

    An engine that loads fetched weights sees them at fixed paths, read-only, and needs no token. Of the rest of the storage it sees the
    caches of its namespace: it may run code of a model, and others load the same weights.
    """
    found = [Mount("shm", "/dev/shm", {"emptyDir": {"medium": "Memory", "sizeLimit": SHM_SIZE}}, {})]
    if spec.storage is not None:
        storage = _storage(spec.storage, resolved, host_path_roots)
        found.append(_cache(storage, resolved, namespace) if resolved.writes_cache_only else storage)
        if resolved.fetch_image:
            found += [_weights(storage, resolved.target, TARGET_PATH), _weights(storage, resolved.drafter, DRAFTER_PATH)]
    if spec.hugging_face is not None and not resolved.fetch_image:
        found.append(_token(spec.hugging_face))
    if spec.pod_template.read_only_root_filesystem:
        found += _SCRATCH
    return found


def fetch_mounts(spec: Spec, resolved: Resolved, host_path_roots: Sequence[str] = ()) -> list[Mount]:
    """Returns the mounts of a container that fetches weights: the storage and the token."""
    found = [] if spec.storage is None else [_storage(spec.storage, resolved, host_path_roots)]
    return found if spec.hugging_face is None else [*found, _token(spec.hugging_face)]


def volumes(*mounted: Sequence[Mount]) -> list[dict[str, Any]]:
    """Returns the volumes behind the mounts of a pod's containers, each once."""
    return list({mount.name: mount.volume() for mounts in mounted for mount in mounts}.values())


def _weights(storage: Mount, model: ModelRef, path: str) -> Mount:
    """Returns the mount of one model at its commit: what ``dflash-fetch`` publishes below the storage."""
    below = f"models/{directory_of(model.model)}/{model.revision}"
    return Mount(storage.name, path, storage.source, {"HF_HUB_OFFLINE": "1"}, True, _below(storage, below))


def _cache(storage: Mount, resolved: Resolved, namespace: str) -> Mount:
    """Returns the mount of what engines write: compiled kernels, and the modules of ``--trust-remote-code`` in HF_HOME.

    Each namespace has its own, because they are run as code, and a directory of a node or an export serves several namespaces.
    """
    env = {"HF_HOME": f"{CACHE_PATH}/huggingface", **_cache_env(resolved)}
    return Mount(storage.name, CACHE_PATH, storage.source, env, False, _below(storage, f"{ENGINE_CACHE}/{namespace}"))


def _below(storage: Mount, path: str) -> str:
    return f"{storage.sub_path}/{path}" if storage.sub_path else path


def _storage(storage: Storage, resolved: Resolved, host_path_roots: Sequence[str]) -> Mount:
    """Returns the volume for weights and compile caches. A read-only claim or an image must hold the weights already."""
    source: dict[str, Any]
    read_only, sub_path = False, None
    if storage.image:
        read_only, source = True, {"image": as_manifest(storage.image)}
    elif claim := storage.persistent_volume_claim:
        read_only = bool(claim.read_only)
        source = {"persistentVolumeClaim": {"claimName": claim.claim_name, "readOnly": read_only or None}}
    elif host := storage.host_path:
        directory, sub_path = _below_root(host.path, host_path_roots)
        source = {"hostPath": {"path": directory, "type": "DirectoryOrCreate"}}
    else:
        # Without a size limit the source is empty, and a volume without a source is an emptyDir.
        limit = storage.empty_dir and storage.empty_dir.size_limit
        source = {"emptyDir": {"sizeLimit": None if limit is None else str(limit)}}
    env = {"HF_HOME": f"{STORAGE_PATH}/huggingface"}
    env |= {"HF_HUB_OFFLINE": "1"} if read_only else _cache_env(resolved)
    return Mount("storage", STORAGE_PATH, source, env, read_only, sub_path)


def _below_root(path: str, roots: Sequence[str]) -> tuple[str, str | None]:
    """Returns the allowed directory that contains the path, and the rest as a path in that volume.

    Pods write below the allowed directory, also symbolic links. The kubelet follows a link in a hostPath wherever it leads, but refuses a
    subPath that leads out of its volume. Without such a directory (a pinned revision whose directory is no longer allowed) the path stays.
    """
    wanted = PurePosixPath(path)
    containing = [PurePosixPath(root) for root in roots if wanted.is_relative_to(root)]
    if not containing:
        return path, None
    root = max(containing, key=lambda found: len(found.parts))
    rest = str(wanted.relative_to(root))
    return str(root), None if rest == "." else rest


def _cache_env(resolved: Resolved) -> dict[str, str]:
    """Returns the variables of the caches of compiled kernels, one directory per engine release. They save minutes at the next start."""
    cache = f"{CACHE_PATH}/{resolved.engine}-{resolved.version}"
    env = {
        "FLASHINFER_WORKSPACE_BASE": cache,
        "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
        "TRITON_CACHE_DIR": f"{cache}/triton",
    }
    return {**env, **ENGINES[resolved.engine].cache_environment(cache)}


def _token(access: HuggingFace) -> Mount:
    secret = access.token_secret_ref
    source = {"secret": {"secretName": secret.name, "items": [{"key": secret.key, "path": "token"}]}}
    return Mount("hugging-face-token", TOKEN_DIRECTORY, source, {"HF_TOKEN_PATH": f"{TOKEN_DIRECTORY}/token"}, read_only=True)
