"""From what the user wrote to what runs: catalog and operator defaults filled in, once per revision."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dflash_controller.api import defaults as api
from dflash_controller.api import validation
from dflash_controller.api.problem import Problem
from dflash_controller.api.quantity import parse_quantity
from dflash_controller.api.types import Spec
from dflash_controller.catalog import Catalog, Pair
from dflash_controller.engines import ENGINES
from dflash_controller.engines.protocol import ModelRef
from dflash_controller.engines.resolved import OperatorDefaults, Resolved
from dflash_controller.model.fetch_progress import in_units

__all__ = ["OperatorDefaults", "Resolved", "resolve", "spec_problems"]


@dataclass(frozen=True, slots=True)
class Published:
    """What the models' own repositories say, for what neither spec nor catalog do. None: not known."""

    trained_block_size: int | None = None
    target_bytes: int | None = None
    drafter_bytes: int | None = None


DRAFTER_BYTES = 7_000_000_000
"""Upper end of the drafter family (3.5 billion parameters, BF16), for a drafter of unknown size."""


def spec_problems(spec: Spec, catalog: Catalog, defaults: OperatorDefaults) -> list[Problem]:
    """Returns the problems of the spec by itself, given what the catalog knows about its models."""
    known = catalog.find(spec.target.model)
    drafter = spec.drafter.model or (known.drafter if known else None)
    pair = catalog.pair(spec.target.model, drafter) if drafter else None
    return validation.problems(
        spec,
        owned_flags=ENGINES[api.engine_name(spec)].owned_flags(),
        host_path_roots=defaults.host_path_roots,
        trained_block_size=pair.trained_block_size if pair else None,
    )


def resolve(
    spec: Spec,
    name: str,
    namespace: str,
    catalog: Catalog,
    defaults: OperatorDefaults,
    carried: Resolved | None = None,
    published: Published | None = None,
) -> Resolved | list[Problem]:
    """Everything an engine process is made of, or all that keeps it from being known.

    The spec must have passed ``validation.problems``. What it says wins over the catalog, and the catalog over the operator's
    defaults. ``carried`` is the active revision when the user changed something else than ``restartId``: its operator defaults and
    recommended flags stay, so that one edit changes one thing; the families of the pod network are a fact of today's cluster.
    ``published`` is what the repositories say: of the trained block size before the catalog, because it is of this very commit; of the
    weights' sizes after it.
    Combinations that a release cannot do are not looked at: they depend on the speculation (``Engine.problems``).
    """
    published = published or Published()
    if carried is not None:
        defaults = replace(carried.defaults, pod_ip_families=defaults.pod_ip_families)
    engine = ENGINES[api.engine_name(spec)]
    version = spec.engine.version or defaults.versions[engine.name]
    dialect = engine.dialect(version)
    known = catalog.find(spec.target.model)
    drafter = _drafter(spec, catalog, known)
    pair = None if isinstance(drafter, Problem) else catalog.pair(spec.target.model, drafter)
    trained = _trained_block_size(spec, pair, drafter, published)
    target_bytes, drafter_bytes = _known_bytes(spec, known, pair, published)
    small = _too_small(spec, (target_bytes or 0) + (drafter_bytes or 0))
    problems = [found for found in (dialect, drafter, trained, small) if isinstance(found, Problem)]
    if isinstance(dialect, Problem) or isinstance(drafter, Problem) or not isinstance(trained, int) or problems:
        return problems
    tensor = api.tensor_parallel(spec, known.tensor if known else None)
    weights = target_bytes + (drafter_bytes or DRAFTER_BYTES) if target_bytes else None
    # A drafter serves copies of its target only (quantised, fine-tuned), which have its shape.
    shape = known or catalog.by_drafter(drafter)
    target_ref, drafter_ref = ModelRef(spec.target.model, spec.target.revision), ModelRef(drafter, spec.drafter.revision)
    return Resolved(
        engine=engine.name,
        version=version,
        image=spec.engine.image or defaults.images[engine.name].replace("{version}", version),
        dialect=dialect.release,
        tested=dialect.tested,
        target=target_ref,
        drafter=drafter_ref,
        served_model_name=spec.target.model,
        trained_block_size=trained,
        weight_bytes=weights or tensor * defaults.gpu_bytes,
        load_bytes_per_s=defaults.load_bytes_per_s,
        hybrid=_given(spec.target.hybrid, shape is not None and shape.hybrid),
        mixture_of_experts=_given(spec.target.mixture_of_experts, shape is not None and shape.moe),
        recommended_args=_recommended_args(engine.name, spec.target.model, drafter, pair, carried),
        extra_args=spec.engine.extra_args,
        port=spec.service.port or engine.default_port,
        tensor_parallel=tensor,
        nodes=api.nodes(spec),
        max_concurrency=api.max_concurrency(spec),
        gpu_product=spec.accelerator.product or defaults.gpu_product,
        gpu_resource=spec.accelerator.resource or defaults.gpu_resource,
        grace_period_s=api.termination_grace_period_s(spec),
        metric_labels={"dflash_deployment": name, "dflash_namespace": namespace},
        defaults=replace(defaults, host_path_roots=()),
        cache=shape.cache if shape else None,
        weights_known=weights is not None,
        fetch_image=fetch_image(spec, target_ref, drafter_ref, defaults),
    )


def fetch_image(spec: Spec, target: ModelRef, drafter: ModelRef, defaults: OperatorDefaults) -> str | None:
    """Returns the image that fetches the weights; None if the engine downloads them by itself.

    Weights are fetched into storage that pods may write, and at commits only: a branch would give two pods different files.
    """
    writable = spec.storage is not None and api.weights_there(spec) is None
    return defaults.fetch_image or None if writable and target.pinned and drafter.pinned else None


def _drafter(spec: Spec, catalog: Catalog, known: Pair | None) -> str | Problem:
    if spec.drafter.model:
        return catalog.problem(spec.target.model, spec.drafter.model) or spec.drafter.model
    if known:
        return known.drafter
    near = catalog.nearest(spec.target.model)
    return Problem(
        "spec.drafter.model",
        f"the catalog knows no drafter for {spec.target.model}{f' (did you mean {near}?)' if near else ''}",
        "Name a drafter trained for this target, and its trainedBlockSize.",
    )


def _trained_block_size(spec: Spec, pair: Pair | None, drafter: str | Problem, published: Published) -> int | Problem | None:
    """None where the drafter itself is the problem."""
    trained = spec.drafter.trained_block_size or published.trained_block_size or (pair.trained_block_size if pair else None)
    if trained or isinstance(drafter, Problem):
        return trained
    return Problem(
        "spec.drafter.trainedBlockSize",
        f"the catalog does not know the block size {drafter} was trained with",
        "Set it to block_size from the drafter's config.json.",
    )


def _recommended_args(engine: str, target: str, drafter: str, pair: Pair | None, carried: Resolved | None) -> tuple[str, ...]:
    if carried is not None and (carried.engine, carried.target.model, carried.drafter.model) == (engine, target, drafter):
        return carried.recommended_args
    return pair.recommended_args(engine) if pair else ()


def _known_bytes(spec: Spec, known: Pair | None, pair: Pair | None, published: Published) -> tuple[int | None, int | None]:
    """Returns the bytes of target and drafter; None where nobody knows them."""
    target = _bytes(spec.target.weight_size) or (known.target_bytes if known else published.target_bytes)
    return target, _bytes(spec.drafter.weight_size) or (pair.drafter_bytes if pair else published.drafter_bytes)


def _too_small(spec: Spec, weights: int) -> Problem | None:
    """Returns the problem of an emptyDir that cannot hold the weights: the kubelet would evict each pod in the middle of its download."""
    limit = api.scratch_limit(spec)
    if limit is None or weights <= limit[1]:
        return None
    message = f"{in_units(limit[1])} cannot hold the {in_units(weights)} of target and drafter"
    return Problem(limit[0], message, "Raise it, with room for compile caches, or remove it.")


def _bytes(quantity: int | str | None) -> int | None:
    return None if quantity is None else int(parse_quantity(quantity))


def _given(written: bool | None, otherwise: bool) -> bool:
    return otherwise if written is None else written
