"""Runs the program with which a pod starts SGLang (``python3 -c PROGRAM``) against stand-ins of SGLang's modules: what does it change?"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from types import ModuleType, SimpleNamespace
from typing import Any

_SERVER = "sglang.launch_server"


class AuthLevel(StrEnum):
    """srt/utils/auth.py."""

    NORMAL = "normal"
    ADMIN_OPTIONAL = "admin_optional"
    ADMIN_FORCE = "admin_force"


class StartError(Exception):
    """The program fails, or does not start SGLang's server; the message is what the container would print."""


@functools.lru_cache(maxsize=64)
def guarded_by(program: str, open_paths: tuple[str, ...], admin_paths: tuple[str, ...]) -> frozenset[str]:
    """Returns the paths that ask for the admin key when the program has started SGLang. The other arguments say what they do by themselves.

    Raises StartError.
    """
    levels = dict.fromkeys(open_paths, AuthLevel.NORMAL) | dict.fromkeys(admin_paths, AuthLevel.ADMIN_OPTIONAL)
    routes = [SimpleNamespace(path=path, endpoint=SimpleNamespace(_auth_level=level)) for path, level in levels.items()]
    started: list[str] = []

    def run_module(name: str, *, run_name: str, alter_sys: bool) -> None:
        if (name, run_name, alter_sys) != (_SERVER, "__main__", True):
            raise StartError(f"{name} as {run_name} is not SGLang's server")
        started.append(name)
        auth.add_api_key_middleware(SimpleNamespace(routes=routes), api_key=None, admin_api_key="")

    auth = _module("auth", AuthLevel=AuthLevel, auth_level=_auth_level, add_api_key_middleware=lambda app, *, api_key, admin_api_key: None)
    modules = {"sglang.srt.utils.auth": auth, "runpy": _module("runpy", run_module=run_module)}
    modules["sglang.srt.utils"] = _module("sglang.srt.utils", auth=auth)
    modules |= {name: _module(name) for name in ("sglang", "sglang.srt")}
    try:
        with _imported(modules):
            exec(program, {"__name__": "__main__"})
    except Exception as error:
        raise StartError(f"{type(error).__name__}: {error}") from None
    if not started:
        raise StartError("the program ends without starting SGLang")
    return frozenset(route.path for route in routes if route.endpoint._auth_level is not AuthLevel.NORMAL)


def _auth_level(level: AuthLevel) -> Callable[[Any], Any]:
    def decorator(endpoint: Any) -> Any:
        endpoint._auth_level = level
        return endpoint

    return decorator


def _module(name: str, **members: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(members)
    return module


@contextmanager
def _imported(modules: Mapping[str, ModuleType]) -> Iterator[None]:
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
