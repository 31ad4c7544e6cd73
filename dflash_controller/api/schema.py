"""How the API's types are written: naming on the wire, the class of each field, and the strings that occur in many of them.

A field's class says what a change to it does, and is part of its description in ``kubectl explain``:

* ``revision``: it defines the engine process, so a change starts a new revision;
* ``live``: it is applied in place;
* ``policy``: it steers the operator and never restarts an engine by itself.

The class of a leaf is that of the nearest field on its path that declares one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo

from dflash_controller.api import patterns

FieldClass = Literal["revision", "live", "policy"]

CLASS_KEY = "x-dflash-class"
"""Extra JSON schema key that carries a field's class; the CRD generator turns it into words."""
SERVER_DEFAULT_KEY = "x-dflash-server-default"
"""Extra JSON schema key of the few defaults that the API server itself must fill in."""

CLASS_TEXT: dict[FieldClass, str] = {
    "revision": "Changing it starts a new revision.",
    "live": "Applied in place.",
    "policy": "Policy: changing it restarts nothing.",
}

REVISION: Any = Field(json_schema_extra={CLASS_KEY: "revision"})
LIVE: Any = Field(json_schema_extra={CLASS_KEY: "live"})
POLICY: Any = Field(json_schema_extra={CLASS_KEY: "policy"})


class Model(BaseModel):
    """Base of all API types: camelCase on the wire, immutable, unknown fields refused."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="forbid")


ModelId = Annotated[str, StringConstraints(max_length=200, pattern=patterns.MODEL_ID)]
"""``owner/name`` of a Hugging Face repository."""
GitRevision = Annotated[str, StringConstraints(max_length=200, pattern=patterns.GIT_REVISION)]
ImageName = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=patterns.IMAGE)]
SubdomainName = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=patterns.DNS_SUBDOMAIN)]
QualifiedName = Annotated[str, StringConstraints(min_length=1, max_length=317, pattern=patterns.QUALIFIED_NAME)]
ResourceName = Annotated[str, StringConstraints(max_length=317, pattern=patterns.RESOURCE_NAME)]
"""An extended resource, which always has a domain."""
LabelValue = Annotated[str, StringConstraints(max_length=63, pattern=patterns.LABEL_VALUE)]
AnnotationValue = Annotated[str, StringConstraints(max_length=4096)]
DataKey = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=patterns.DATA_KEY)]
Duration = Annotated[str, StringConstraints(min_length=2, max_length=18, pattern=patterns.DURATION)]
"""Go's notation in whole hours, minutes and seconds, above zero: ``30m``, ``1h30m``, ``90s``."""
DurationOrZero = Annotated[str, StringConstraints(min_length=2, max_length=18, pattern=patterns.DURATION_OR_ZERO)]
AbsolutePath = Annotated[str, StringConstraints(min_length=2, max_length=1024, pattern=patterns.ABSOLUTE_PATH)]

_INT_OR_STRING = {"x-kubernetes-int-or-string": True}
Percent = Annotated[str, StringConstraints(max_length=4, pattern=patterns.PERCENT)]
IntOrPercent = Annotated[
    int | Percent, Field(json_schema_extra=_INT_OR_STRING | {"maxLength": 4, "pattern": patterns.PERCENT, "minimum": 0})
]
QuantityString = Annotated[str, StringConstraints(max_length=32, pattern=patterns.QUANTITY)]
Quantity = Annotated[
    int | QuantityString, Field(json_schema_extra=_INT_OR_STRING | {"maxLength": 32, "pattern": patterns.QUANTITY, "minimum": 0})
]


def list_map(*keys: str) -> dict[str, Any]:
    """Extra schema of a list whose items are told apart by ``keys``: server-side apply merges it item by item."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


def submodel(annotation: Any) -> type[Model] | None:
    """The API type inside an annotation (``X | None``, ``tuple[X, ...]``), if there is one."""
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return annotation
    return next((found for arg in get_args(annotation) if (found := submodel(arg))), None)


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) is tuple or any(_is_list(arg) for arg in get_args(annotation))


def field_class(field: FieldInfo) -> FieldClass | None:
    """The class a field itself declares."""
    extra = field.json_schema_extra
    value = extra.get(CLASS_KEY) if isinstance(extra, dict) else None
    return next((known for known in CLASS_TEXT if known == value), None)


def leaves(model: type[Model], prefix: str = "", inherited: FieldClass | None = None) -> Iterator[tuple[str, FieldClass | None]]:
    """Every leaf below ``model`` as (JSON path, class); items of a list are written ``path[]``."""
    for field in model.model_fields.values():
        path, own = f"{prefix}{field.alias}", field_class(field) or inherited
        inner = submodel(field.annotation)
        if inner is None:
            yield path, own
        else:
            many = _is_list(field.annotation)
            yield from leaves(inner, f"{path}{'[]' if many else ''}.", own)
