"""SGLang's own parser and argument resolution: prints its option table, then a verdict for each line of arguments on stdin."""

from __future__ import annotations

import ast
import json
import os
import sys
from pathlib import Path
from typing import Any

out, sys.stdout = sys.stdout, sys.stderr  # the engine prints; verdicts stay clean
os.environ.update(HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="", FAKE_MODULES="sgl_kernel,flashinfer,triton")
import argparse  # noqa: E402

import fake_gpu  # noqa: E402, F401
from sglang.srt import server_args as arguments_module  # noqa: E402
from sglang.srt.server_args import ServerArgs, prepare_server_args  # noqa: E402
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm  # noqa: E402
from verdicts import judge, table  # noqa: E402

SHOWN = ("speculative_algorithm", "speculative_num_draft_tokens", "attention_backend", "speculative_draft_attention_backend")


def resolve(arguments: list[str]) -> dict[str, Any]:
    """All of SGLang's argument resolution (0.5.18 and older do it while the object is built), and the checks before its launch."""
    args = prepare_server_args(arguments)
    if hasattr(args, "resolve_once"):
        args.resolve_once()
    args.check_server_args()
    values = args.resolved_dict() if hasattr(args, "resolved_dict") else vars(args)
    return {name: values.get(name) for name in SHOWN}


def endpoints(folder: Path) -> dict[str, list[str]]:
    """Paths of SGLang's HTTP server, by whether ``--admin-api-key`` guards them. Read from the source: importing it needs a GPU."""
    guarded: dict[str, bool] = {}
    for file in ("http_server.py", "v1_loads.py", "elastic_ep.py"):
        if not (folder / file).exists():
            continue
        for function in ast.walk(ast.parse((folder / file).read_text())):
            if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            calls = [call for call in function.decorator_list if isinstance(call, ast.Call) and call.args]
            level = any(isinstance(call.func, ast.Name) and call.func.id == "auth_level" and "ADMIN" in ast.unparse(call) for call in calls)
            for call in calls:
                first = call.args[0]
                if isinstance(call.func, ast.Attribute) and isinstance(first, ast.Constant) and "{" not in str(first.value):
                    guarded[str(first.value)] = level
    return {
        f"{name}_paths": sorted(path for path in guarded if guarded[path] == level) for name, level in (("open", False), ("admin", True))
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="sglang serve")
    ServerArgs.add_cli_args(parser)
    facts = {"prog": parser.prog, "speculative_algorithms": sorted(SpeculativeAlgorithm.__members__)}
    facts |= endpoints(Path(arguments_module.__file__).parent / "entrypoints")
    print(json.dumps(facts | {"options": table(parser)}), file=out, flush=True)
    judge(out, resolve, lambda error: False)
