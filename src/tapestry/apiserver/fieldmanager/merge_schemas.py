"""Shapes: into which fields a value divides, by its schema, and what follows from it for comparing and merging.

A scalar is one field; so is a list or map that is atomic.  A struct or map has the fields of its keys, a list of type
`map` those of its items by their key fields, a list of type `set` its items.  What a schema leaves open is divided by
what is there: objects by their keys, anything else not at all.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from tapestry.apiserver.fieldmanager.fieldsets import (
    LEAF,
    SELF,
    FieldSet,
    children_of,
    is_member,
    list_item_key,
    path_element_text,
    set_item_key,
    with_self,
)
from tapestry.apiserver.resource_registry import ResourceInfo
from tapestry.apiserver.spec_cache import memoized
from tapestry.kube.objects import Object

OBJECT_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
ATOMIC_TYPES = ("io.k8s.apimachinery.pkg.runtime.RawExtension",)
PRESERVE_UNKNOWN_FIELDS, EMBEDDED_RESOURCE = "x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"
LIST_TYPE, LIST_KEYS, MAP_TYPE = "x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type"
PATCH_STRATEGY, PATCH_MERGE_KEY = "x-kubernetes-patch-strategy", "x-kubernetes-patch-merge-key"

ABSENT: Any = object()
"""In the place of a value that is not there: null is one that is."""

Comparison = tuple[FieldSet | None, FieldSet | None]
"""What is new or another value, and what is gone; None where that is nothing."""
NO_CHANGE: Comparison = (None, None)


class MergeSchema:
    """A value that is one field.  The other shapes redefine what they know better."""

    def all_fields(self, value: Any) -> FieldSet:  # noqa: ARG002
        """Every field in a value, also those that have fields themselves: what a writer takes who makes it."""
        return LEAF

    def applied_fields(self, value: Any) -> FieldSet | None:  # noqa: ARG002
        """The fields that somebody names who applies the value; None where it names none."""
        return LEAF

    def compare(self, old: Any, new: Any) -> Comparison:
        if old is ABSENT:
            return self.all_fields(new), None
        if new is ABSENT:
            return None, self.all_fields(old)
        return NO_CHANGE if old == new else (LEAF, None)

    def merge(self, old: Any, new: Any) -> Any:  # noqa: ARG002
        """`old` as one who applies `new` wants it."""
        return new

    def without_fields(self, value: Any, fields: FieldSet) -> Any:  # noqa: ARG002
        """The value without these fields; what they leave empty is there, and empty."""
        return value

    def with_named_members(self, fields: FieldSet) -> FieldSet:
        """The set with every declared field in it that has fields in it."""
        return fields

    def faults(self, value: Any) -> Iterator[tuple[str, str]]:  # noqa: ARG002
        """What nobody may apply: where, and why."""
        yield from ()

    def zero_value(self) -> Any:
        """What Go has in a field of this type that nobody set."""
        return None


ATOMIC = MergeSchema()


class MapSchema(MergeSchema):
    """A struct, a map, or both.  Its fields may be filled in after it was made: types refer to themselves."""

    def __init__(self, values: MergeSchema | None = None) -> None:
        """`values` is the shape of what is under a key that is not declared; None where there may be none."""
        self.values = values
        self.fields: dict[str, tuple[str, MergeSchema]] = {}
        self.zero_fields: dict[str, bool] = {}
        """Fields that Go has even where nobody set them, and whether as a struct rather than as null."""

    def declare(self, fields: Mapping[str, MergeSchema]) -> None:
        self.fields.update({name: (f"f:{name}", shape) for name, shape in fields.items()})

    def field_at(self, key: str) -> tuple[str, MergeSchema]:
        return self.fields.get(key) or (f"f:{key}", self.values or ATOMIC)

    def all_fields(self, value: Any) -> FieldSet:
        if not value or type(value) is not dict:
            return LEAF
        found = {SELF: LEAF}
        declared, at = self.fields.get, self.field_at
        for key, each in value.items():
            step, shape = declared(key) or at(key)
            found[step] = LEAF if shape is ATOMIC else shape.all_fields(each)
        return found

    def applied_fields(self, value: Any) -> FieldSet | None:
        if not value or type(value) is not dict:
            return LEAF
        found = {}
        for key, each in value.items():
            step, shape = self.field_at(key)
            node = LEAF if each is None else shape.applied_fields(each)
            if key not in self.fields:
                node = with_self(node)
            if node is not None:
                found[step] = node
        return found or None

    def compare(self, old: Any, new: Any) -> Comparison:
        if old is ABSENT or new is ABSENT or old == new:
            return super().compare(old, new)
        if not is_null_or_type(dict, old) or not is_null_or_type(dict, new):
            return self.all_fields(new), children_of(self.all_fields(old)) or None
        if not old and not new:
            return LEAF, None
        had, has = old or {}, new or {}
        if all(each is None for each in had.values()):
            return compare_with_zero_value(has, self, tuple(had))
        return self.compare_fields(had, has)

    def compare_fields(self, had: Object, has: Object) -> Comparison:
        changed: FieldSet = {}
        gone: FieldSet = {}
        declared = self.fields.get
        for key, new in has.items():
            old = had.get(key, ABSENT)
            if old is new:
                continue
            step, shape = declared(key) or self.field_at(key)
            if shape is ATOMIC:
                if old != new:
                    changed[step] = LEAF
                continue
            more, less = shape.compare(old, new)
            if more is not None:
                changed[step] = more
            if less is not None:
                gone[step] = less
        for key, old in had.items():
            if key not in has:
                step, shape = self.field_at(key)
                gone[step] = shape.all_fields(old)
        return changed or None, gone or None

    def merge(self, old: Any, new: Any) -> Any:
        if type(old) is not dict or not new or type(new) is not dict:
            return old if new == {} and type(old) is dict else new
        return {
            **old,
            **{key: self.field_at(key)[1].merge(old[key], each) if key in old else each for key, each in new.items()},
        }

    def without_fields(self, value: Any, fields: FieldSet) -> Any:
        if type(value) is not dict:
            return value
        found = {}
        for key, each in value.items():
            step, shape = self.field_at(key)
            node = fields.get(step)
            if node is None or not is_member(node):
                found[key] = each if node is None else shape.without_fields(each, node)
        return found

    def with_named_members(self, fields: FieldSet) -> FieldSet:
        found = {}
        for step, node in fields.items():
            key = step[2:]
            below = self.field_at(key)[1].with_named_members(node) if node else node
            found[step] = with_self(below) if key in self.fields and step != SELF else below
        return found

    def faults(self, value: Any) -> Iterator[tuple[str, str]]:
        if type(value) is not dict:
            return
        for key, each in value.items():
            if key not in self.fields and self.values is None:
                yield f".{key}", "field not declared in schema"
            else:
                yield from ((f".{key}{path}", why) for path, why in self.field_at(key)[1].faults(each))

    def zero_value(self) -> Any:
        found = {
            name: self.fields[name][1].zero_value() if inside else None for name, inside in self.zero_fields.items()
        }
        return found if self.fields else None


@memoized
def compare_with_zero_value(value: Object, schema: MapSchema, nulls: tuple[str, ...]) -> Comparison:
    """How a struct differs from one that nobody set: some fields are null in it."""
    return schema.compare_fields(dict.fromkeys(nulls), value)


class ListSchema(MergeSchema):
    """A list whose items are found by what is in them: `keys` of theirs, or all of them in a set."""

    def __init__(
        self, item: MergeSchema, keys: tuple[str, ...] = (), defaults: Mapping[str, Any] | None = None
    ) -> None:
        self.item = item
        self.keys = tuple(sorted(keys))
        self.defaults = dict(defaults or {})

    def path_element(self, item: Any) -> str:
        if not self.keys or type(item) is not dict:
            return set_item_key(item)
        if len(self.keys) == 1 and (value := item.get(self.keys[0])) is not None:  # nearly always
            return f'k:{{"{self.keys[0]}":{msgspec.json.encode(value).decode()}}}'
        found = {key: item.get(key, self.defaults.get(key)) for key in self.keys}
        return list_item_key({key: value for key, value in found.items() if value is not None})

    def items_by_path_element(self, items: Any) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        for each in items if type(items) is list else ():
            found.setdefault(self.path_element(each), []).append(each)
        return found

    def all_fields(self, value: Any) -> FieldSet:
        if not value or type(value) is not list:
            return LEAF
        found = {SELF: LEAF}
        for each in value:
            step = self.path_element(each)
            found[step] = LEAF if step in found else self.item.all_fields(each)
        return found

    def applied_fields(self, value: Any) -> FieldSet | None:
        if type(value) is not list:
            return LEAF
        return {
            step: with_self(self.item.applied_fields(same[0]))
            for step, same in self.items_by_path_element(value).items()
        } or None

    def compare(self, old: Any, new: Any) -> Comparison:
        if old is ABSENT or new is ABSENT or old == new:
            return super().compare(old, new)
        if not old and not new:
            return LEAF, None
        if not is_null_or_type(list, old) or not is_null_or_type(list, new):
            return self.all_fields(new), children_of(self.all_fields(old)) or None
        had, has = self.items_by_path_element(old), self.items_by_path_element(new)
        return compare_pairs(self.item_pair(step, had.get(step, []), has.get(step, [])) for step in {**had, **has})

    def item_pair(self, step: str, old: list[Any], new: list[Any]) -> tuple[str, MergeSchema, Any, Any]:
        """Items with the same key; several on one side are one field, as nobody could say which of them is meant."""
        if len(old) > 1 or len(new) > 1:
            return step, ATOMIC, old or ABSENT, new or ABSENT
        return step, self.item, *(each[0] if each else ABSENT for each in (old, new))

    def merge(self, old: Any, new: Any) -> Any:
        if type(old) is not list or not old or type(new) is not list:
            return new
        had, has = self.items_by_path_element(old), self.items_by_path_element(new)
        found = []
        for step, index in merged_order([self.path_element(each) for each in old], list(has)):
            if step not in has:
                found.append(old[index])
            else:
                same = had.get(step, ())
                found.append(self.item.merge(same[0], has[step][0]) if len(same) == 1 else has[step][0])
        return found

    def without_fields(self, value: Any, fields: FieldSet) -> Any:
        if type(value) is not list:
            return value
        found = []
        for each in value:
            node = fields.get(self.path_element(each))
            if node is None or not is_member(node):
                found.append(each if node is None else self.item.without_fields(each, node))
        return found

    def with_named_members(self, fields: FieldSet) -> FieldSet:
        return {step: self.item.with_named_members(node) if node else node for step, node in fields.items()}

    def faults(self, value: Any) -> Iterator[tuple[str, str]]:
        for step, same in self.items_by_path_element(value).items():
            where = path_element_text(step)
            if len(same) > 1:
                yield "", f"duplicate entries for key {where}"
            if step == "k:{}":
                listed = "[" + " ".join(f'"{key}"' for key in self.keys) + "]"
                why = f"associative list with keys has an element that omits all key fields {listed}"
                yield "", f"element {value.index(same[0])}: {why} (and doesn't have default values for any key fields)"
            yield from ((where + path, why) for path, why in self.item.faults(same[0]))


def is_null_or_type(kind: type, value: Any) -> bool:
    return value is None or type(value) is kind


def compare_pairs(pairs: Iterator[tuple[str, MergeSchema, Any, Any]]) -> Comparison:
    """What differs under the steps of one level."""
    changed: FieldSet = {}
    gone: FieldSet = {}
    for step, shape, old, new in pairs:
        if old is not new:
            more, less = shape.compare(old, new)
            if more is not None:
                changed[step] = more
            if less is not None:
                gone[step] = less
    return changed or None, gone or None


def merged_order(old: list[str], new: list[str]) -> Iterator[tuple[str, int]]:
    """The order of a merged list, with indices into `old` for what only it has.

    What both have comes in the order of `new`; what only `old` has stays behind what it was behind, as far as it can.
    """
    known, wanted = set(old), set(new)
    shared = deque(step for step in new if step in known)
    done: set[str] = set()
    here = there = 0
    while here < len(old) or there < len(new):
        step = old[here] if here < len(old) else ""
        if step and step not in wanted:
            yield step, here
            here += 1
        elif step and there < len(new) and step != new[there] and shared and shared[0] != step:
            here += 1  # it comes when its turn in `new` does
        else:
            here += bool(step) and (step in done or step == new[there])
            if there < len(new):
                if shared and shared[0] == new[there]:
                    shared.popleft()
                done.add(new[there])
                yield new[there], -1
                there += 1


SCHEMALESS = MapSchema()
SCHEMALESS.values = SCHEMALESS
"""What no schema describes."""


class MergeSchemas:
    """The shapes of kinds: of built-in ones by the published types, of custom ones by their own schemas."""

    def __init__(self, types: Mapping[str, Any]) -> None:
        self._types = types
        self._by_type_name: dict[str, MergeSchema] = {}
        self._custom: dict[str, tuple[Object, MergeSchema]] = {}
        self._empty_objects: dict[tuple[str, str], Object] = {}

    def schema_for(self, resource_info: ResourceInfo) -> MergeSchema:
        if not resource_info.is_custom:
            return self.type_schema(resource_info.schema_name)
        where = f"{resource_info.resource.name}/{resource_info.resource.version}"
        schema, shape = self._custom.get(where, (None, ATOMIC))
        if schema is not resource_info.schema:  # another definition than the last time
            shape = self.custom_schema(resource_info.schema)
            self._custom[where] = resource_info.schema, shape
        return shape

    def empty_object(self, resource_info: ResourceInfo) -> Object:
        """An object before anything is written into it: structs that Go always has are there."""
        where = resource_info.resource.name, resource_info.resource.version
        found = self._empty_objects.get(where)
        if found is None:
            kind = {"apiVersion": resource_info.resource.api_version, "kind": resource_info.resource.kind}
            found = self._empty_objects[where] = (
                kind if resource_info.is_custom else {**(self.schema_for(resource_info).zero_value() or {}), **kind}
            )
        return found

    def custom_schema(self, schema: Object) -> MergeSchema:
        found = self.build(schema)
        if isinstance(found, MapSchema):
            found.declare({"apiVersion": ATOMIC, "kind": ATOMIC, "metadata": self.type_schema(OBJECT_META)})
        return found

    def type_schema(self, name: str) -> MergeSchema:
        found = self._by_type_name.get(name)
        if found is None:
            schema = self._types[name]
            if name in ATOMIC_TYPES:
                return ATOMIC
            if "properties" not in schema:
                return self.build(schema)
            found = self._by_type_name[name] = self.new_object_schema(schema, preserve=False)
            self.declare_fields(found, schema, preserve=False)
        return found

    def build(self, schema: Object, *, preserve: bool = False) -> MergeSchema:
        preserve = preserve or bool(schema.get(PRESERVE_UNKNOWN_FIELDS))
        if schema.get(MAP_TYPE) == "atomic":
            return ATOMIC
        if schema.get(MAP_TYPE) == "granular" and "$ref" in schema:  # its type is atomic everywhere else
            return self.build({**self._types[schema["$ref"]], MAP_TYPE: ""}, preserve=preserve)
        if "$ref" in schema:
            return self.type_schema(schema["$ref"])
        if schema.get("type") == "array":
            return self.list_schema(schema, preserve=preserve)
        if schema.get("type", "object") != "object" or schema.get("x-kubernetes-int-or-string"):
            return ATOMIC
        found = self.new_object_schema(schema, preserve=preserve)
        self.declare_fields(found, schema, preserve=preserve)
        return found

    def new_object_schema(self, schema: Object, *, preserve: bool) -> MergeSchema:
        """An object's shape, before its fields are known."""
        values = schema.get("additionalProperties")
        if schema.get(MAP_TYPE) == "atomic":
            return ATOMIC
        if isinstance(values, dict):
            return MapSchema(self.build(values, preserve=preserve))
        is_open = values is True or (values is None and (preserve or not schema.get("properties")))
        return MapSchema(SCHEMALESS if is_open else None)

    def declare_fields(self, merge_schema: MergeSchema, schema: Object, *, preserve: bool) -> None:
        if not isinstance(merge_schema, MapSchema):
            return
        properties: Object = schema.get("properties", {})
        if schema.get(EMBEDDED_RESOURCE):
            properties = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {}, **properties}
        merge_schema.declare({name: self.build(each, preserve=preserve) for name, each in properties.items()})
        required = schema.get("required", ())
        structs = {name: each.get("default") == {} for name, each in properties.items()}
        merge_schema.zero_fields = {name: inside for name, inside in structs.items() if inside or name in required}

    def list_schema(self, schema: Object, *, preserve: bool) -> MergeSchema:
        keys = list_item_keys(schema)
        if keys is None:
            return ATOMIC
        items = schema.get("items", {})
        shown = self._types[items["$ref"]] if "$ref" in items else items
        fields = shown.get("properties", {})
        defaults = {key: fields[key]["default"] for key in keys if "default" in fields.get(key, {})}
        return ListSchema(self.build(items, preserve=preserve), keys, defaults)


def list_item_keys(schema: Object) -> tuple[str, ...] | None:
    """The key fields of a list's items, none for a set; None for a list that is one field."""
    match schema.get(LIST_TYPE):
        case "map":
            return tuple(schema.get(LIST_KEYS, ()))
        case "set":
            return ()
        case None if str(schema.get(PATCH_STRATEGY, "")).startswith("merge"):
            return (schema[PATCH_MERGE_KEY],) if PATCH_MERGE_KEY in schema else ()
    return None
