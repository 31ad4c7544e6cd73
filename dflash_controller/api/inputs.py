"""Which of the user's inputs define a revision, and when two such inputs are the same.

Block size and speculation are kept apart: they are the second key of a revision, and the tuner changes them too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from dflash_controller.api.quantity import canonical_quantity
from dflash_controller.api.schema import FieldClass, Model, field_class, submodel
from dflash_controller.api.types import Spec, as_written

_SPECULATION = "blockSize"
_VERBATIM = frozenset({"nodeSelector", "labels", "annotations", "matchLabels", "affinity", "labelSelector"})
"""Maps whose keys are the user's, and selectors, where an empty one means everything and an absent one nothing."""
_PRESENCE = frozenset({"emptyDir"})
"""Objects that say something by being there, even when empty."""
_QUANTITIES = frozenset({"cpu", "memory", "ephemeral-storage", "sizeLimit", "weightSize"})
_SETS = frozenset({"tolerations", "imagePullSecrets", "topologySpreadConstraints"})


def revision_inputs(spec: Spec) -> dict[str, Any]:
    """The inputs of class ``revision`` as written, camelCase, without the block size."""
    inputs = _select(Spec, as_written(spec), None)
    inputs.pop(_SPECULATION, None)
    return inputs


def canonical(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The canonical form of ``revision_inputs``: equal for two inputs that mean the same, and JSON-able.

    Left-out and empty fields are one; quantities have one spelling; lists whose order means nothing are sorted. Keys this
    release does not know (stored by a newer one) are kept. Strings are compared code point by code point, never normalised.
    """
    return {key: value for key in sorted(inputs) if (value := _canonical(key, inputs[key])) is not None}


def _select(model: type[Model], data: Mapping[str, Any], inherited: FieldClass | None) -> dict[str, Any]:
    selected: dict[str, Any] = {}
    for name, declared, inner in _fields(model):
        if name not in data:
            continue
        own = declared or inherited
        if own == "revision":
            selected[name] = data[name]
        elif inner is not None and (name in _PRESENCE or (part := _select(inner, data[name], own))):
            selected[name] = data[name] if name in _PRESENCE else part
    return selected


@cache
def _fields(model: type[Model]) -> tuple[tuple[str, FieldClass | None, type[Model] | None], ...]:
    """Name on the wire, declared class and inner type of each field. A fleet's specs are read all the time, and the types never change."""
    return tuple((str(field.alias), field_class(field), submodel(field.annotation)) for field in model.model_fields.values())


def _canonical(key: str, value: Any) -> Any:
    """None stands for "as if left out"."""
    if value is None:
        return None
    if key in _VERBATIM:
        return _sorted_keys(value) if value else None
    if key in _QUANTITIES:
        return _quantity(value)
    if isinstance(value, Mapping):
        inner = canonical(value)
        return inner if inner or key in _PRESENCE else None
    if isinstance(value, Sequence) and not isinstance(value, str):
        items = [canonical(item) if isinstance(item, Mapping) else item for item in value]
        return sorted(items, key=_json) if _order_means_nothing(key, items) else items or None
    return None if value == "" else value


def _quantity(value: Any) -> Any:
    """What a newer operator stored under this name may be no quantity; it is compared as it is."""
    try:
        return canonical_quantity(value)
    except ValueError:
        return value


def _order_means_nothing(key: str, items: Sequence[Any]) -> bool:
    rule: Callable[[], bool] | None = {
        # Kubernetes expands $(NAME) only of variables listed before.
        "env": lambda: not any("$(" in _json(item) for item in items),
        # A flag given twice: the last one wins, or both are kept, as the engine likes.
        "extraArgs": lambda: len({str(item).partition("=")[0] for item in items}) == len(items),
    }.get(key)
    return bool(items) and (key in _SETS or (rule is not None and rule()))


def _sorted_keys(value: Any) -> Any:
    return json.loads(_json(value))


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=True)
