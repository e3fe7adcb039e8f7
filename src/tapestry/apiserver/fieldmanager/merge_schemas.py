"""Merge schemas: how a value divides into fields, for comparing and merging (structured-merge-diff).

A scalar is one field, and so is an atomic list or map. A struct or map has one field per key. A list of type `map` has
one field per item, identified by its key fields. A list of type `set` has one field per item. Values without a schema
are divided by content: objects by their keys, all other values not at all.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import msgspec

from tapestry.apiserver.core.resource_registry import ResourceInfo
from tapestry.apiserver.core.spec_cache import memoize
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
from tapestry.kube.objects import Object

OBJECT_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
ATOMIC_TYPES = ("io.k8s.apimachinery.pkg.runtime.RawExtension",)
PRESERVE_UNKNOWN_FIELDS, EMBEDDED_RESOURCE = "x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"
LIST_TYPE, LIST_KEYS, MAP_TYPE = "x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type"
PATCH_STRATEGY, PATCH_MERGE_KEY = "x-kubernetes-patch-strategy", "x-kubernetes-patch-merge-key"

ABSENT: Any = object()
"""Placeholder for a missing value. A null is not missing."""

Comparison = tuple[FieldSet | None, FieldSet | None]
"""Changed or added fields, and removed fields. None stands for an empty set."""
NO_CHANGE: Comparison = (None, None)


class MergeSchema:
    """Schema of an atomic value, which is one field. Subclasses override what differs."""

    def all_fields(self, value: Any) -> FieldSet:  # noqa: ARG002
        """Return all fields of a value, including fields with children: those that its creator owns."""
        return LEAF

    def applied_fields(self, value: Any) -> FieldSet | None:  # noqa: ARG002
        """Return the fields that an applier of the value owns; None if there are none."""
        return LEAF

    def compare(self, old: Any, new: Any) -> Comparison:
        if old is ABSENT:
            return self.all_fields(new), None
        if new is ABSENT:
            return None, self.all_fields(old)
        return NO_CHANGE if old == new else (LEAF, None)

    def merge(self, old: Any, new: Any) -> Any:  # noqa: ARG002
        """Return `old` with the applied configuration `new` merged into it."""
        return new

    def without_fields(self, value: Any, fields: FieldSet) -> Any:  # noqa: ARG002
        """Return the value without these fields. Containers that become empty stay."""
        return value

    def with_named_members(self, fields: FieldSet) -> FieldSet:
        """Add every declared field that has children in the set to the set."""
        return fields

    def faults(self, value: Any) -> Iterator[tuple[str, str]]:  # noqa: ARG002
        """Yield the path and the message of each error that forbids applying the value."""
        yield from ()

    def zero_value(self) -> Any:
        """Value that Go has in an unset field of this type."""
        return None


ATOMIC = MergeSchema()


class MapSchema(MergeSchema):
    """Schema of a struct, a map, or both. Fields can be declared later because types refer to themselves."""

    def __init__(self, values: MergeSchema | None = None) -> None:
        """`values` is the schema of undeclared keys; None forbids undeclared keys."""
        self.values = values
        self.fields: dict[str, tuple[str, MergeSchema]] = {}
        self.zero_fields: dict[str, bool] = {}
        """Fields that Go always has. The value is True for a struct and False for a null."""

    def declare(self, fields: Mapping[str, MergeSchema]) -> None:
        self.fields.update({name: (f"f:{name}", schema) for name, schema in fields.items()})

    def field_at(self, key: str) -> tuple[str, MergeSchema]:
        return self.fields.get(key) or (f"f:{key}", self.values or ATOMIC)

    def all_fields(self, value: Any) -> FieldSet:
        if not value or not isinstance(value, dict):
            return LEAF
        fields = {SELF: LEAF}
        declared, at = self.fields.get, self.field_at
        for key, each in value.items():
            element, schema = declared(key) or at(key)
            fields[element] = LEAF if schema is ATOMIC else schema.all_fields(each)
        return fields

    def applied_fields(self, value: Any) -> FieldSet | None:
        if not value or not isinstance(value, dict):
            return LEAF
        fields = {}
        for key, each in value.items():
            element, schema = self.field_at(key)
            node = LEAF if each is None else schema.applied_fields(each)
            if key not in self.fields:
                node = with_self(node)
            if node is not None:
                fields[element] = node
        return fields or None

    def compare(self, old: Any, new: Any) -> Comparison:
        if old is ABSENT or new is ABSENT or old == new:
            return super().compare(old, new)
        if not is_null_or_type(dict, old) or not is_null_or_type(dict, new):
            return self.all_fields(new), children_of(self.all_fields(old)) or None
        if not old and not new:
            return LEAF, None
        old_fields, new_fields = old or {}, new or {}
        if all(each is None for each in old_fields.values()):
            key = self, *old_fields  # a struct is often compared with its zero value
            return memoize(new_fields, key, lambda: self.compare_fields(old_fields, new_fields))
        return self.compare_fields(old_fields, new_fields)

    def compare_fields(self, before: Object, after: Object) -> Comparison:
        changed: FieldSet = {}
        removed: FieldSet = {}
        declared = self.fields.get
        for key, new in after.items():
            old = before.get(key, ABSENT)
            if old is new:
                continue
            element, schema = declared(key) or self.field_at(key)
            if schema is ATOMIC:
                if old != new:
                    changed[element] = LEAF
                continue
            field_changed, field_removed = schema.compare(old, new)
            if field_changed is not None:
                changed[element] = field_changed
            if field_removed is not None:
                removed[element] = field_removed
        for key, old in before.items():
            if key not in after:
                element, schema = self.field_at(key)
                removed[element] = schema.all_fields(old)
        return changed or None, removed or None

    def merge(self, old: Any, new: Any) -> Any:
        if not isinstance(old, dict) or not new or not isinstance(new, dict):
            return old if new == {} and isinstance(old, dict) else new
        return {
            **old,
            **{key: self.field_at(key)[1].merge(old[key], each) if key in old else each for key, each in new.items()},
        }

    def without_fields(self, value: Any, fields: FieldSet) -> Any:
        if not isinstance(value, dict):
            return value
        remaining = {}
        for key, each in value.items():
            element, schema = self.field_at(key)
            node = fields.get(element)
            if node is None or not is_member(node):
                remaining[key] = each if node is None else schema.without_fields(each, node)
        return remaining

    def with_named_members(self, fields: FieldSet) -> FieldSet:
        members = {}
        for element, node in fields.items():
            key = element[2:]
            children = self.field_at(key)[1].with_named_members(node) if node else node
            members[element] = with_self(children) if key in self.fields and element != SELF else children
        return members

    def faults(self, value: Any) -> Iterator[tuple[str, str]]:
        if not isinstance(value, dict):
            return
        for key, each in value.items():
            if key not in self.fields and self.values is None:
                yield f".{key}", "field not declared in schema"
            else:
                yield from ((f".{key}{path}", message) for path, message in self.field_at(key)[1].faults(each))

    def zero_value(self) -> Any:
        zero = {
            name: self.fields[name][1].zero_value() if struct else None for name, struct in self.zero_fields.items()
        }
        return zero if self.fields else None


class ListSchema(MergeSchema):
    """Schema of a list whose items are identified by `keys`, or by their value if it is a set."""

    def __init__(
        self, item: MergeSchema, keys: tuple[str, ...] = (), defaults: Mapping[str, Any] | None = None
    ) -> None:
        self.item = item
        self.keys = tuple(sorted(keys))
        self.defaults = dict(defaults or {})

    def path_element(self, item: Any) -> str:
        if not self.keys or not isinstance(item, dict):
            return set_item_key(item)
        if len(self.keys) == 1 and (value := item.get(self.keys[0])) is not None:  # the most common case
            return f'k:{{"{self.keys[0]}":{msgspec.json.encode(value).decode()}}}'
        key_values = {key: item.get(key, self.defaults.get(key)) for key in self.keys}
        return list_item_key({key: value for key, value in key_values.items() if value is not None})

    def items_by_path_element(self, items: Any) -> dict[str, list[Any]]:
        by_element: dict[str, list[Any]] = {}
        for each in items if type(items) is list else ():
            by_element.setdefault(self.path_element(each), []).append(each)
        return by_element

    def all_fields(self, value: Any) -> FieldSet:
        if not value or type(value) is not list:
            return LEAF
        fields = {SELF: LEAF}
        for each in value:
            element = self.path_element(each)
            fields[element] = LEAF if element in fields else self.item.all_fields(each)
        return fields

    def applied_fields(self, value: Any) -> FieldSet | None:
        if type(value) is not list:
            return LEAF
        return {
            element: with_self(self.item.applied_fields(duplicates[0]))
            for element, duplicates in self.items_by_path_element(value).items()
        } or None

    def compare(self, old: Any, new: Any) -> Comparison:
        if old is ABSENT or new is ABSENT or old == new:
            return super().compare(old, new)
        if not old and not new:
            return LEAF, None
        if not is_null_or_type(list, old) or not is_null_or_type(list, new):
            return self.all_fields(new), children_of(self.all_fields(old)) or None
        before, after = self.items_by_path_element(old), self.items_by_path_element(new)
        return compare_pairs(
            self.item_pair(element, before.get(element, []), after.get(element, [])) for element in {**before, **after}
        )

    def item_pair(self, element: str, old: list[Any], new: list[Any]) -> tuple[str, MergeSchema, Any, Any]:
        """Return the items with one key for comparison. Duplicates are compared as one atomic field."""
        if len(old) > 1 or len(new) > 1:
            return element, ATOMIC, old or ABSENT, new or ABSENT
        return element, self.item, *(each[0] if each else ABSENT for each in (old, new))

    def merge(self, old: Any, new: Any) -> Any:
        if type(old) is not list or not old or type(new) is not list:
            return new
        before, after = self.items_by_path_element(old), self.items_by_path_element(new)
        merged = []
        for element, index in merged_order([self.path_element(each) for each in old], list(after)):
            if element not in after:
                merged.append(old[index])
            else:
                existing = before.get(element, ())
                merged.append(
                    self.item.merge(existing[0], after[element][0]) if len(existing) == 1 else after[element][0]
                )
        return merged

    def without_fields(self, value: Any, fields: FieldSet) -> Any:
        if type(value) is not list:
            return value
        remaining = []
        for each in value:
            node = fields.get(self.path_element(each))
            if node is None or not is_member(node):
                remaining.append(each if node is None else self.item.without_fields(each, node))
        return remaining

    def with_named_members(self, fields: FieldSet) -> FieldSet:
        return {element: self.item.with_named_members(node) if node else node for element, node in fields.items()}

    def faults(self, value: Any) -> Iterator[tuple[str, str]]:
        for element, items in self.items_by_path_element(value).items():
            element_text = path_element_text(element)
            if len(items) > 1:
                yield "", f"duplicate entries for key {element_text}"
            if element == "k:{}":
                key_list = "[" + " ".join(f'"{key}"' for key in self.keys) + "]"
                message = f"associative list with keys has an element that omits all key fields {key_list}"
                yield (
                    "",
                    f"element {value.index(items[0])}: {message} (and doesn't have default values for any key fields)",
                )
            yield from ((element_text + path, message) for path, message in self.item.faults(items[0]))


def is_null_or_type(kind: type, value: Any) -> bool:
    return value is None or isinstance(value, kind)


def compare_pairs(pairs: Iterator[tuple[str, MergeSchema, Any, Any]]) -> Comparison:
    """Compare pairs of values and collect the results by path element."""
    changed: FieldSet = {}
    removed: FieldSet = {}
    for element, schema, old, new in pairs:
        if old is not new:
            field_changed, field_removed = schema.compare(old, new)
            if field_changed is not None:
                changed[element] = field_changed
            if field_removed is not None:
                removed[element] = field_removed
    return changed or None, removed or None


def merged_order(old: list[str], new: list[str]) -> Iterator[tuple[str, int]]:
    """Yield the items of a merged list in order, with an index into `old` for items that only `old` has.

    Items in both lists come in the order of `new`. Items only in `old` stay after their predecessor where possible.
    """
    old_elements, new_elements = set(old), set(new)
    shared = deque(element for element in new if element in old_elements)
    yielded: set[str] = set()
    old_index = new_index = 0
    while old_index < len(old) or new_index < len(new):
        element = old[old_index] if old_index < len(old) else ""
        if element and element not in new_elements:
            yield element, old_index
            old_index += 1
        elif element and new_index < len(new) and element != new[new_index] and shared and shared[0] != element:
            old_index += 1  # yielded later, in the order of `new`
        else:
            old_index += bool(element) and (element in yielded or element == new[new_index])
            if new_index < len(new):
                if shared and shared[0] == new[new_index]:
                    shared.popleft()
                yielded.add(new[new_index])
                yield new[new_index], -1
                new_index += 1


SCHEMALESS = MapSchema()
SCHEMALESS.values = SCHEMALESS
"""Schema of values that no schema describes."""


@cache
def published_merge_schemas() -> dict[str, MergeSchema]:
    """Return the merge schemas of the published types, which all servers of a process share and complete."""
    return {}


class MergeSchemas:
    """Merge schemas of all kinds: from the published types for built-in kinds, from the CRD for custom resources."""

    def __init__(self, types: Mapping[str, Any], by_type_name: dict[str, MergeSchema] | None = None) -> None:
        self._types = types
        self._by_type_name = by_type_name if by_type_name is not None else {}
        """Schemas of published types; several servers may share them."""
        self._custom: dict[str, tuple[Object, MergeSchema]] = {}
        self._empty_objects: dict[tuple[str, str], Object] = {}

    def schema_for(self, resource_info: ResourceInfo) -> MergeSchema:
        if not resource_info.is_custom:
            return self.type_schema(resource_info.schema_name)
        key = f"{resource_info.resource.name}/{resource_info.resource.version}"
        schema, built = self._custom.get(key, (None, ATOMIC))
        if schema is not resource_info.schema:  # the definition changed
            built = self.custom_schema(resource_info.schema)
            self._custom[key] = resource_info.schema, built
        return built

    def empty_object(self, resource_info: ResourceInfo) -> Object:
        """Return an object before any write. It contains the structs that are never nil in Go."""
        key = resource_info.resource.name, resource_info.resource.version
        empty = self._empty_objects.get(key)
        if empty is None:
            meta = {"apiVersion": resource_info.resource.api_version, "kind": resource_info.resource.kind}
            empty = self._empty_objects[key] = (
                meta if resource_info.is_custom else {**(self.schema_for(resource_info).zero_value() or {}), **meta}
            )
        return empty

    def custom_schema(self, schema: Object) -> MergeSchema:
        built = self.build(schema)
        if isinstance(built, MapSchema):
            built.declare({"apiVersion": ATOMIC, "kind": ATOMIC, "metadata": self.type_schema(OBJECT_META)})
        return built

    def type_schema(self, name: str) -> MergeSchema:
        built = self._by_type_name.get(name)
        if built is None:
            schema = self._types[name]
            if name in ATOMIC_TYPES:
                return ATOMIC
            if "properties" not in schema:
                return self.build(schema)
            built = self._by_type_name[name] = self.new_object_schema(schema, preserve=False)
            self.declare_fields(built, schema, preserve=False)
        return built

    def build(self, schema: Object, *, preserve: bool = False) -> MergeSchema:
        preserve = preserve or bool(schema.get(PRESERVE_UNKNOWN_FIELDS))
        if schema.get(MAP_TYPE) == "atomic":
            return ATOMIC
        if schema.get(MAP_TYPE) == "granular" and "$ref" in schema:  # the type is atomic everywhere else
            return self.build({**self._types[schema["$ref"]], MAP_TYPE: ""}, preserve=preserve)
        if "$ref" in schema:
            return self.type_schema(schema["$ref"])
        if schema.get("type") == "array":
            return self.list_schema(schema, preserve=preserve)
        if schema.get("type", "object") != "object" or schema.get("x-kubernetes-int-or-string"):
            return ATOMIC
        merge_schema = self.new_object_schema(schema, preserve=preserve)
        self.declare_fields(merge_schema, schema, preserve=preserve)
        return merge_schema

    def new_object_schema(self, schema: Object, *, preserve: bool) -> MergeSchema:
        """Return the schema of an object without its declared fields."""
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
        merge_schema.zero_fields = {name: struct for name, struct in structs.items() if struct or name in required}

    def list_schema(self, schema: Object, *, preserve: bool) -> MergeSchema:
        keys = list_item_keys(schema)
        if keys is None:
            return ATOMIC
        items = schema.get("items", {})
        item_schema = self._types[items["$ref"]] if "$ref" in items else items
        fields = item_schema.get("properties", {})
        defaults = {key: fields[key]["default"] for key in keys if "default" in fields.get(key, {})}
        return ListSchema(self.build(items, preserve=preserve), keys, defaults)


def list_item_keys(schema: Object) -> tuple[str, ...] | None:
    """Return the key fields of the items: empty for a set, None for an atomic list."""
    match schema.get(LIST_TYPE):
        case "map":
            return tuple(schema.get(LIST_KEYS, ()))
        case "set":
            return ()
        case None if str(schema.get(PATCH_STRATEGY, "")).startswith("merge"):
            return (schema[PATCH_MERGE_KEY],) if PATCH_MERGE_KEY in schema else ()
    return None
