"""The words in which a kind is written: Structs, the types of their fields, and what a server is to hold them to.

    class AtSpec(Fields):
        \"""What to run, and when.\"""

        schedule: datetime
        command: Annotated[str, Meta(min_length=1, description="A shell command.")]
        retries: Annotated[int, Meta(ge=0, le=10)] = 3
        host: str | None = None

A field without a default is required, one whose default is None may be left out, and any other default is filled in by
the server.  A docstring describes its Struct, `Meta(description=...)` a field, and the constraints of `Meta` hold in
the server and when we decode.  What only a server can check stands beside them as a value: `rule(...)`, `IMMUTABLE`,
`AS_SET`, `as_map(...)`.  Rules about several fields are listed in the Struct as `__rules__`.
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
    """Base of specs, statuses and their parts: frozen, `snake_case` here and `camelCase` in JSON.

    A name that camelCase does not give is written out: `cluster_id: str = field(name="clusterID")`.
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
    """A CEL rule for the field that it annotates, or for the whole Struct when listed in `__rules__`.

    Kubernetes refuses a rule that could cost too much: the strings, lists and dicts that it reads, and those that it
    stands in, need a `max_length`.
    """
    said = {
        "rule": expression,
        "message": message,
        "messageExpression": message_expression,
        "fieldPath": field_path,
        "reason": reason,
    }
    return Meta(extra_json_schema={VALIDATIONS: [{key: value for key, value in said.items() if value}]})


def as_map(*keys: str) -> Meta:
    """Makes a list of Structs a map for merging: no two items agree in all of `keys` (as JSON names them)."""
    return Meta(extra_json_schema={LIST_TYPE: "map", LIST_MAP_KEYS: list(keys)})


# No item twice, merged item by item; `frozenset[T]` says the same and forgets the order.
AS_SET = Meta(extra_json_schema={LIST_TYPE: "set"})

# Set on creation and never again, for as long as the object around the field stays.
IMMUTABLE = cel_rule("self == oldSelf", "may not change once it is set")

# With a default of None, `T | None` only says that the field may be left out; with this it may also be null.
NULLABLE = Meta(extra_json_schema={"nullable": True})

IntOrString = int | str
QuantityText = int | Annotated[str, Meta(pattern=QUANTITY_PATTERN)]  # for `quantity.parse`
EmbeddedResource = Annotated[dict[str, Any], Meta(extra_json_schema={"x-kubernetes-embedded-resource": True})]


class Duration(timedelta):
    """A time span that JSON has as Kubernetes writes it: `1h30m`, `1.5s`.  Not negative."""


def decode_hook(target_type: type, value: Any) -> Any:
    """How msgspec reads the types that it does not know itself: its `dec_hook`."""
    if target_type is not Duration or not isinstance(value, str):
        raise ValueError(f"Expected `{target_type.__name__.lower()}`, got `{type(value).__name__}`")
    if not re.fullmatch(DURATION_PATTERN, value):
        raise ValueError("Expected a duration like `1h30m`")
    return Duration(microseconds=parse_duration(value) // MICROSECOND)


class Condition(ApiStruct):
    """One aspect of the state, as it was observed last."""

    type: Annotated[str, Meta(max_length=316, pattern=r"^([a-z0-9.-]+/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")]
    status: Literal["True", "False", "Unknown"]
    reason: Annotated[
        str,
        Meta(
            description="Why the status changed last, as one word for programs.",
            min_length=1,
            max_length=1024,
            pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
        ),
    ]
    message: Annotated[str, Meta(max_length=32768, description="The same for people.")]
    last_transition_time: Annotated[datetime, Meta(description="When the status changed last.")]
    observed_generation: Annotated[int, Meta(ge=0, description="The metadata.generation it speaks of.")] | None = None


Conditions = Annotated[tuple[Condition, ...], as_map("type")]
