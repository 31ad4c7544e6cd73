"""Who may administer SGLang: holders of the pod's own key, and no client.

SGLang has endpoints that replace weights, drop caches, write profiles and abort requests. With ``--admin-api-key`` they take that key and
no other, and clients need none for the rest. Two things keep the option alone from closing anything:

* ``/server_info`` needs no admin key, and its answer contains the key (every release up to 0.5.23, srt/utils/auth.py and
  srt/entrypoints/http_server.py).
* With several tokenizer processes no key is checked at all.

So the pod starts SGLang through ``START``, which makes what shows the key, and a few endpoints that SGLang leaves to everybody, ask for it.
A release that checks keys in another way than those tested starts all the same, and says in its log that it is open: an engine that serves
is worth more than one that is closed.
The key is the UID of the pod. Whoever may read pods in the namespace knows it; clients do not. It needs no Secret and ends with the pod.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from dflash_controller.engines.flags import Flag, index, integer, parsed
from dflash_controller.engines.protocol import LaunchRequest
from dflash_controller.engines.sglang.names import OPTIONS

KEY = "--admin-api-key"
API_KEY = "--api-key"
GRPC_PORT = "--grpc-port"
TOKENIZERS = "--tokenizer-worker-num"
KEY_VARIABLE = "DFLASH_ADMIN_KEY"
"""Variable with the key. The user's own replaces it, also with a Secret's value; an empty one leaves everything open."""
KEY_FIELD = "metadata.uid"
_FROM_VARIABLE = f"$({KEY_VARIABLE})"
CLOSED = (
    "/close_session",
    "/get_server_info",
    "/load_lora_adapter_from_tensors",
    "/open_session",
    "/server_info",
    "/set_trace_level",
)
"""Endpoints that SGLang leaves to everybody, or did in a release, and that are no client's: they show the key, hold cache beyond a request,
load weights, or change what is logged."""
OPEN_START = ("python3", "-m", "sglang.launch_server")
START = (
    "python3",
    "-c",
    f"""\
# Starts SGLang with more of its endpoints under --admin-api-key. Without this, /server_info would show that key to every client.
import runpy, sys

try:
    from sglang.srt.utils import auth

    add = auth.add_api_key_middleware
    under_key = auth.auth_level(auth.AuthLevel.ADMIN_OPTIONAL)
except Exception as error:
    print("Clients can administer this engine, because its SGLang checks keys in another way:", repr(error), file=sys.stderr)
else:

    def close(app, *words, **keys):
        for route in app.routes:
            if getattr(route, "path", None) in {json.dumps(CLOSED)}:
                under_key(route.endpoint)
        add(app, *words, **keys)

    auth.add_api_key_middleware = close

runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)
""",
)


def flag(extra: Sequence[Flag], request: LaunchRequest) -> list[Flag]:
    """Returns the flag with the pod's key, where SGLang checks keys; ``extra`` are the user's flags, of which an own key comes first."""
    return [] if _unchecked(extra, request) else [Flag(KEY, _FROM_VARIABLE)]


def command(extra: Sequence[Flag], request: LaunchRequest) -> tuple[str, ...]:
    """Returns the words before the flags."""
    return OPEN_START if _unchecked(extra, request) else START


def fields(extra: Sequence[Flag], request: LaunchRequest) -> dict[str, str]:
    """Returns variables whose value is a field of the pod."""
    given = _written(extra, request).get(KEY)
    return {} if given is not None or _unchecked(extra, request) else {KEY_VARIABLE: KEY_FIELD}


def opened_by(words: Sequence[str], variables: Mapping[str, str | None]) -> str:
    """Returns why clients of an engine that was started so reach these endpoints; an empty text if they do not."""
    written = index(parsed(words))
    if reason := _no_key_with(written):
        return reason
    key = written.get(KEY)
    if not key or (key == _FROM_VARIABLE and variables.get(KEY_VARIABLE) == ""):
        return f"SGLang has no {KEY}"
    # Another release of the operator may start SGLang by another program to the same end.
    closes = len(words) > 2 and words[1] == START[1] and "/server_info" in words[2]
    return "" if closes else f"/server_info shows the value of {KEY}"


def _unchecked(extra: Sequence[Flag], request: LaunchRequest) -> str:
    return _no_key_with(_written(extra, request))


def _no_key_with(written: Mapping[str, str]) -> str:
    if (integer(written.get(TOKENIZERS, "")) or 1) > 1:
        return f"With {TOKENIZERS} above 1 SGLang checks no key"
    return f"SGLang takes no key with {GRPC_PORT}" if GRPC_PORT in written else ""


def _written(extra: Sequence[Flag], request: LaunchRequest) -> dict[str, str]:
    return {OPTIONS.meaning(flag.name, request.release).option: flag.value or "" for flag in extra}
