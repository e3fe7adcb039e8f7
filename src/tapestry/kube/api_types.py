"""Building blocks of custom kinds: the Struct base class, field types and schema annotations.

    class AtSpec(ApiStruct):
        \"""Command to run and time to run it.\"""

        schedule: datetime
        command: Annotated[str, Meta(min_length=1, description="A shell command.")]
        retries: Annotated[int, Meta(ge=0, le=10)] = 3
        host: str | None = None

A field without a default is required. A field with the default None is optional. The server fills in any other
default. A docstring describes its Struct, and `Meta(description=...)` describes a field. The server and our decoder
both enforce the constraints of `Meta`. Annotations for checks that only a server can do are `cel_rule(...)`,
`IMMUTABLE`, `AS_SET` and `as_map(...)`. Rules that involve several fields are listed in the Struct as `__rules__`.
"""

import re
from datetime import datetime, timedelta
from typing import Annotated, Any, ClassVar, Literal, dataclass_transform

from msgspec import Meta, Struct, field

from tapestry.kube.times import MICROSECOND, parse_duration

VALIDATIONS = "x-kubernetes-validations"
LIST_TYPE = "x-kubernetes-list-type"
LIST_MAP_KEYS = "x-kubernetes-list-map-keys"

DURATION_PATTERN = r"^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$"
QUANTITY_PATTERN = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$"


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class ApiStruct(Struct, frozen=True, rename="camel"):
    """Base of specs, statuses and their parts: frozen, `snake_case` in Python and `camelCase` in JSON.

    Irregular names are given explicitly: `cluster_id: str = field(name="clusterID")`.
    """

    __rules__: ClassVar[tuple[Meta, ...]] = ()


def cel_rule(
    expression: str,
    message: str = "",
    *,
    message_expression: str = "",
    field_path: str = "",
    reason: Literal["FieldValueInvalid", "FieldValueForbidden", "FieldValueRequired", "FieldValueDuplicate", ""] = "",
) -> Meta:
    """Return a CEL rule for the annotated field, or for the whole Struct if listed in `__rules__`.

    Kubernetes rejects a rule whose estimated cost is too high. Set a `max_length` on all strings, lists and dicts that
    the rule reads or is part of.
    """
    rule = {
        "rule": expression,
        "message": message,
        "messageExpression": message_expression,
        "fieldPath": field_path,
        "reason": reason,
    }
    return Meta(extra_json_schema={VALIDATIONS: [{key: value for key, value in rule.items() if value}]})


def as_map(*keys: str) -> Meta:
    """Return an annotation that makes a list of Structs a map, keyed by `keys` (JSON names)."""
    return Meta(extra_json_schema={LIST_TYPE: "map", LIST_MAP_KEYS: list(keys)})


# List of unique items that is merged item by item. `frozenset[T]` is the same without an order.
AS_SET = Meta(extra_json_schema={LIST_TYPE: "set"})

# Field that cannot change after creation while its parent object exists.
IMMUTABLE = cel_rule("self == oldSelf", "may not change once it is set")

# Field that may be null. `T | None = None` alone only makes a field optional.
NULLABLE = Meta(extra_json_schema={"nullable": True})

IntOrString = int | str
QuantityText = int | Annotated[str, Meta(pattern=QUANTITY_PATTERN)]  # for `parse_quantity`
EmbeddedResource = Annotated[dict[str, Any], Meta(extra_json_schema={"x-kubernetes-embedded-resource": True})]


class Duration(timedelta):
    """Duration that is written in JSON as in Kubernetes: `1h30m`, `1.5s`. It is never negative."""


def decode_hook(target_type: type, value: Any) -> Any:
    """Decode the types that msgspec does not support: use it as `dec_hook`."""
    if target_type is not Duration or not isinstance(value, str):
        raise ValueError(f"Expected `{target_type.__name__.lower()}`, got `{type(value).__name__}`")
    if not re.fullmatch(DURATION_PATTERN, value):
        raise ValueError("Expected a duration like `1h30m`")
    return Duration(microseconds=parse_duration(value) // MICROSECOND)


class Condition(ApiStruct):
    """One aspect of the last observed state."""

    type: Annotated[str, Meta(max_length=316, pattern=r"^([a-z0-9.-]+/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")]
    status: Literal["True", "False", "Unknown"]
    reason: Annotated[
        str,
        Meta(
            description="Machine-readable reason for the last change of status.",
            min_length=1,
            max_length=1024,
            pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
        ),
    ]
    message: Annotated[str, Meta(max_length=32768, description="Human-readable explanation of the status.")]
    last_transition_time: Annotated[datetime, Meta(description="Time of the last change of status.")]
    observed_generation: (
        Annotated[int, Meta(ge=0, description="metadata.generation that the condition refers to.")] | None
    ) = None


Conditions = Annotated[tuple[Condition, ...], as_map("type")]
