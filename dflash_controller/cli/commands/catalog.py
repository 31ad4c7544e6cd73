"""``catalog [MODEL]``: which drafters there are, how large, and whether they fit on a kind of GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from dflash_controller.catalog import Catalog, Pair
from dflash_controller.cli import failures, options, printing
from dflash_controller.cli.judgement import judge
from dflash_controller.engines import ENGINES
from dflash_controller.engines.hardware import accelerator_bytes, generation
from dflash_controller.engines.memory import LEAST_CONTEXT
from dflash_controller.engines.resolve import OperatorDefaults

_EXAMPLES = """
# All pairs of target and drafter
kubectl dflash catalog

# One target: sizes, flags of the model card, sources, and on which GPUs it fits
kubectl dflash catalog Qwen/Qwen3.5-9B

# On a kind of GPU of your own; the name is that of the node label nvidia.com/gpu.product
kubectl dflash catalog Qwen/Qwen3.5-9B --gpu NVIDIA-L40S --tensor 2
"""
_GB = 1e9
GPUS = ("NVIDIA-B200", "NVIDIA-H200", "NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-80GB", "NVIDIA-L40S")


@dataclass(frozen=True, slots=True)
class Fits:
    """Whether a pair fits on accelerators of one kind. ``requests`` is None where that is not known; ``why`` then says why."""

    gpu: str
    engine: str
    accelerators: int
    requests: int | None
    asked: int
    why: str = ""

    def __str__(self) -> str:
        if self.requests is None:
            return self.why
        if self.requests == 0:
            return "does not fit"
        return (
            f"{self.requests} of {self.asked} requests of {LEAST_CONTEXT} tokens"
            if self.requests < self.asked
            else f"all {self.asked} requests"
        )


@options.command("catalog", _EXAMPLES)
@click.argument("model", required=False)
@click.option("--gpu", "gpus", multiple=True, metavar="PRODUCT", help="GPU product to check instead of some usual ones. Can be repeated.")
@click.option("--tensor", type=click.IntRange(min=1), help="Accelerators per replica; by default the recommended number.")
@options.output
def command(model: str | None, gpus: Sequence[str], tensor: int | None, output: str) -> int:
    """List the targets whose drafters are known, or describe one.

    MODEL is a target or drafter, or a part of its name. Whether it fits is an estimate, for the default concurrency and short requests.
    """
    found = [pair for pair in Catalog.load().pairs if model is None or _matches(pair, model)]
    if not found:
        raise failures.Failure(
            f"the catalog has no model like {model}",
            "See kubectl dflash catalog; another drafter can be named in spec.drafter.model, with its trainedBlockSize",
            status=failures.NEGATIVE,
        )
    unknown = [gpu for gpu in gpus if accelerator_bytes(gpu) is None]
    if unknown:
        raise failures.Failure(f"--gpu {unknown[0]}: the memory of this product is not known", f"Known are for instance {', '.join(GPUS)}")
    exact = [pair for pair in found if model and model.lower() in (pair.target.lower(), *(name.lower() for name in pair.drafters))]
    chosen = exact or found
    details = model is not None and len(chosen) == 1
    if output != "table":
        printing.data([_json(pair, gpus or GPUS, tensor) if details else _summary(pair) for pair in chosen], output)
    elif details:
        _describe(chosen[0], gpus or GPUS, tensor)
    else:
        _list(chosen)
    return failures.OK


def fits(pair: Pair, gpu: str, engine: str, tensor: int | None) -> Fits:
    """Returns whether a pair fits on a kind of GPU with an engine."""
    count = tensor or pair.tensor
    parallelism = {"tensor": count}
    spec: dict[str, Any] = {
        "target": {"model": pair.target},
        "engine": {"name": engine},
        "accelerator": {"product": gpu},
        "parallelism": parallelism,
    }
    judged = judge({"spec": spec}, "name", "default", OperatorDefaults())
    if (made := judged.made) is None:
        return Fits(gpu, engine, count, None, 0, "; ".join(f"{problem.field}: {problem.message}" for problem in judged.problems))
    fit = ENGINES[engine].fit(made.resolved.launch_request(made.speculation))
    if fit is None:
        return Fits(gpu, engine, count, None, made.resolved.max_concurrency, "not known: the catalog does not have the target's shape")
    return Fits(gpu, engine, count, fit.fitting, fit.asked)


def _matches(pair: Pair, model: str) -> bool:
    return any(model.lower() in name.lower() for name in (pair.target, *pair.drafters))


def _summary(pair: Pair) -> dict[str, Any]:
    return {
        "target": pair.target,
        "drafter": pair.drafter,
        "mirrors": list(pair.mirrors),
        "trainedBlockSize": pair.trained_block_size,
        "targetBytes": pair.target_bytes,
        "drafterBytes": pair.drafter_bytes,
        "accelerators": pair.tensor,
        "hybrid": pair.hybrid,
        "mixtureOfExperts": pair.moe,
    }


def _json(pair: Pair, gpus: Sequence[str], tensor: int | None) -> dict[str, Any]:
    found = [fits(pair, gpu, engine, tensor) for gpu in gpus for engine in ENGINES]
    return {
        **_summary(pair),
        "note": pair.note,
        "flags": {engine: list(pair.recommended_args(engine)) for engine in ENGINES},
        "sources": dict(pair.sources),
        "fits": [
            {"gpu": each.gpu, "engine": each.engine, "accelerators": each.accelerators, "requests": each.requests, "result": str(each)}
            for each in found
        ],
    }


def _list(pairs: Sequence[Pair]) -> None:
    table = printing.table("target", "drafter", "block", "gb", "gpus", "kind", right=("block", "gb", "gpus"))
    for pair in pairs:
        size = f"{(pair.target_bytes + pair.drafter_bytes) / _GB:.0f}"
        table.add_row(pair.target, pair.drafter, _block(pair), size, str(pair.tensor), _kind(pair))
    printing.show(table)


def _describe(pair: Pair, gpus: Sequence[str], tensor: int | None) -> None:
    rows = [
        ("target", f"{pair.target}, {pair.target_bytes / _GB:.1f} GB, {_kind(pair)}", "targetBytes"),
        ("drafter", f"{pair.drafter}, {pair.drafter_bytes / _GB:.1f} GB", "drafterBytes"),
        ("trained block size", _block(pair), "trainedBlockSize"),
        ("accelerators per replica", str(pair.tensor), "tensor"),
        *(("mirror", name, "pair") for name in pair.mirrors),
    ]
    table = printing.table("fact", "value", "source")
    for name, value, fact in rows:
        table.add_row(name, value, pair.sources.get(fact, ""))
    printing.show(table)
    if pair.note:
        printing.show("", pair.note)
    for engine in ENGINES:
        if flags := pair.recommended_args(engine):
            printing.show("", f"The model card recommends for {engine} ({pair.sources.get('flags', '')})", *(f"  {flag}" for flag in flags))
    fit = printing.table("gpu", "generation", "engine", "gpus", "fits", right=("gpus",))
    for gpu in gpus:
        known = generation(gpu)
        for engine in ENGINES:
            found = fits(pair, gpu, engine, tensor)
            fit.add_row(gpu, known.name if known else "", engine, str(found.accelerators), str(found))
    printing.show("", fit)


def _block(pair: Pair) -> str:
    return str(pair.trained_block_size) if pair.trained_block_size else "not published"


def _kind(pair: Pair) -> str:
    parts = (("hybrid", pair.hybrid), ("mixture of experts", pair.moe))
    return ", ".join(name for name, true in parts if true) or "dense"
