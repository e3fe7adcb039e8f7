"""Tests of structural schemas generated from Structs."""

import re
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct, defstruct

from tapestry.kube.api_types import AS_SET, IMMUTABLE, ApiStruct, Conditions, Duration, QuantityText, as_map, cel_rule
from tapestry.kube.schemas import SchemaError, schema_of
from tapestry.kube.times import parse_duration

REQUIRED: Any = object()


def struct_with(hint: Any, default: Any = REQUIRED) -> type[Struct]:
    """Return a Struct named Spec with one field, `it`."""
    return defstruct("Spec", [("it", hint) if default is REQUIRED else ("it", hint, default)], frozen=True)


def schema_of_field(hint: Any, default: Any = REQUIRED) -> Any:
    return schema_of(struct_with(hint, default))["properties"]["it"]


class Item(ApiStruct):
    name: str
    size: int = 0
    hint: str | None = None
    tags: list[str] = msgspec.field(default_factory=list)


class Frozen(ApiStruct):
    name: Annotated[str, IMMUTABLE]


class Box(ApiStruct):
    size: int | None


class Circle(ApiStruct):
    arcs: list["Arc"]


class Arc(ApiStruct):
    circle: Circle | None = None


class Tagged(ApiStruct, tag="t"):
    name: str


class Mixed(Enum):
    A = "a"
    B = 1


def test_field_without_default_is_required() -> None:
    assert schema_of(Item)["required"] == ["name"]
    assert "required" not in schema_of(struct_with(int, 1))


def test_default_none_is_optional_not_nullable() -> None:
    assert schema_of(Item)["properties"]["hint"] == {"type": "string"}


def test_none_without_default_is_nullable() -> None:
    assert schema_of_field(str | None) == {"type": "string", "nullable": True}
    assert schema_of_field(str | None, "x") == {"type": "string", "nullable": True, "default": "x"}
    assert schema_of_field(dict[str, int | None])["additionalProperties"] == {"type": "integer", "nullable": True}


def test_optional_enum_is_not_nullable() -> None:
    assert schema_of_field(Literal["b", "a"] | None, None) == {"type": "string", "enum": ["b", "a"]}


def test_struct_default_omits_none_fields() -> None:
    assert schema_of_field(Item, Item("x"))["default"] == {"name": "x", "size": 0, "tags": []}


def test_field_description_overrides_struct_description() -> None:
    class Part(ApiStruct):
        """In general."""

    assert schema_of_field(Part) == {"type": "object", "description": "In general."}
    assert schema_of_field(Annotated[Part, Meta(description="Here.")])["description"] == "Here."


def test_struct_and_field_rules_are_combined() -> None:
    class Part(ApiStruct):
        n: int

        __rules__ = (cel_rule("self.n > 0"),)

    rules = schema_of_field(Annotated[Part, cel_rule("self.n < 9", "too big"), IMMUTABLE])["x-kubernetes-validations"]
    assert rules == [
        {"rule": "self.n > 0"},
        {"rule": "self.n < 9", "message": "too big"},
        {"rule": "self == oldSelf", "message": "may not change once it is set"},
    ]


def test_repeated_struct_is_inlined_twice() -> None:
    class Pair(ApiStruct):
        left: Item
        right: Item

    properties = schema_of(Pair)["properties"]
    assert properties["left"] == properties["right"] == schema_of(Item)


def test_map_items_may_be_immutable() -> None:
    items = schema_of_field(Annotated[list[Frozen], as_map("name")])["items"]
    assert "x-kubernetes-validations" in items["properties"]["name"]


def test_conditions_are_a_map_by_type() -> None:
    schema = schema_of_field(Conditions, ())
    assert (schema["x-kubernetes-list-type"], schema["x-kubernetes-list-map-keys"]) == ("map", ["type"])
    assert schema["items"]["required"] == ["type", "status", "reason", "message", "lastTransitionTime"]


@pytest.mark.parametrize(
    ("hint", "path", "message"),
    [
        (Item | Frozen, "Spec.it", "Item | Frozen has no structural schema"),
        (int | list[str] | None, "Spec.it", "int | list[str] has no structural schema"),
        (dict[int, str], "Spec.it", "any str, not int"),
        (dict[Literal["a"], str], "Spec.it", "any str, not typing.Literal['a']"),
        (list[dict[str, Decimal]], "Spec.it[][]", "Decimal has no structural schema"),
        (tuple[int, str], "Spec.it", "list[T] or tuple[T, ...]"),
        (tuple[int], "Spec.it", "list[T] or tuple[T, ...]"),
        (list, "Spec.it", "list[T] or tuple[T, ...]"),
        (timedelta, "Spec.it", "use Duration"),
        (None, "Spec.it", "NoneType has no structural schema"),
        (Circle, "Spec.it.arcs[].circle", "Circle contains itself"),
        (Tagged, "Spec.it", "Tagged is tagged or array_like"),
        (Mixed, "Spec.it", "all str or all int, not 'a', 1"),
        (Literal["a", None], "Spec.it", "all str or all int, not 'a', None"),
        (Literal["a"] | None, "Spec.it", "an enum cannot be null"),
        (frozenset[Item], "Spec.it", "the items of a set are scalars"),
        (frozenset[int | None], "Spec.it", "never null"),
        (Annotated[list[Item | None], as_map("name")], "Spec.it", "never null"),
        (Annotated[list[Box], as_map("size")], "Spec.it", "as_map('size'): the items have no such field"),
        (Annotated[str, AS_SET], "Spec.it", "only a list"),
        (Annotated[list[Item], as_map("nam")], "Spec.it", "as_map('nam'): the items have no such field"),
        (Annotated[list[Item], as_map("tags")], "Spec.it", "as_map('tags'): the items have no such field"),
        (Annotated[list[str], as_map("name")], "Spec.it", "as_map('name'): the items have no such field"),
        (Annotated[list[Item], as_map("name", "hint")], "Spec.it", "as_map('hint'): the key of a map is required"),
        (dict[str, list[Frozen]], "Spec.it[]", "annotate the list with as_map"),
        (Annotated[list[str], Meta(ge=1)], "Spec.it", "Can only set `ge` on a numeric type"),
        (Annotated[float, Meta(multiple_of=0.25)], "Spec.it", "multiple_of=0.25: Kubernetes truncates it to an int"),
        (Annotated[Any, cel_rule("self > 1")], "Spec.it", "a rule needs a typed value"),
        (Annotated[str, Meta(examples=["a"])], "Spec.it", "no examples"),
        (Annotated[str, Meta(extra_json_schema={"$ref": "#"})], "Spec.it", "may set only its arguments, format"),
    ],
)
def test_unsupported_type_is_rejected_with_path(hint: Any, path: str, message: str) -> None:
    with pytest.raises(SchemaError, match=f"^{re.escape(path)}: .*{re.escape(message)}"):
        schema_of(struct_with(hint))


@pytest.mark.parametrize(
    ("hint", "default", "message"),
    [
        (Annotated[str, Meta(pattern="^a")], "b", "the default 'b' is not valid: Expected `str` matching regex '^a'"),
        (list[Annotated[int, Meta(ge=1)]], (0,), "the default [0] is not valid: Expected `int` >= 1 - at `$[0]`"),
        (Literal["a", "b"], "c", "the default 'c' is not valid"),
        (QuantityText, "1 GB", "the default '1 GB' is not valid"),
        (Duration, Duration(seconds=-1), "is not valid: Expected a duration"),
        (Item, {"size": 1}, "the default {'size': 1} is not valid"),
    ],
)
def test_default_must_be_valid(hint: Any, default: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=f"^Spec.it: .*{re.escape(message)}"):
        schema_of(struct_with(hint, msgspec.field(default_factory=lambda: default)))


@pytest.mark.parametrize("default", [None, msgspec.UNSET])
def test_immutable_field_cannot_be_optional(default: Any) -> None:
    with pytest.raises(SchemaError, match=r"^Spec\.it: an immutable field must be required"):
        schema_of(struct_with(Annotated[str | msgspec.UnsetType | None, IMMUTABLE], default))


@given(low=st.integers(-9, 9), high=st.integers(-9, 9), exclusive=st.booleans(), default=st.integers(-12, 12))
def test_default_must_be_in_range(low: int, high: int, exclusive: bool, default: int) -> None:
    meta = Meta(gt=low, lt=high) if exclusive else Meta(ge=low, le=high)
    in_range = low < default < high if exclusive else low <= default <= high
    hint = Annotated[int, meta]
    if not in_range:
        with pytest.raises(SchemaError, match=f"the default {default} is not valid"):
            schema_of_field(hint, default)
        return
    bounds = {"minimum": low, "maximum": high}
    exclusives = {"exclusiveMinimum": True, "exclusiveMaximum": True} if exclusive else {}
    assert schema_of_field(hint, default) == {"type": "integer", **bounds, **exclusives, "default": default}


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=100_000)))
def test_duration_default_is_written_as_text(duration: timedelta) -> None:
    default = schema_of_field(Duration, Duration(microseconds=duration // timedelta(microseconds=1)))["default"]
    assert parse_duration(default) == duration
