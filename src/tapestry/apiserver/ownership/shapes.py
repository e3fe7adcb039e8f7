"""Shapes: into which fields a value divides, by its schema, and what follows from it for comparing and merging.

A scalar is one field; so is a list or map that is atomic.  A struct or map has the fields of its keys, a list of type
`map` those of its items by their key fields, a list of type `set` its items.  What a schema leaves open is divided by
what is there: objects by their keys, anything else not at all.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from tapestry.apiserver.ownership.fieldsets import (
    ITSELF,
    LEAF,
    Fields,
    as_member,
    below_of,
    is_member,
    key_of,
    step_text,
    value_key,
)
from tapestry.apiserver.recurring import remembered
from tapestry.apiserver.rows import Row
from tapestry.kube.objects import Object

OBJECT_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
ATOMIC_TYPES = ("io.k8s.apimachinery.pkg.runtime.RawExtension",)
PRESERVE, EMBEDDED = "x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"
LIST_TYPE, LIST_KEYS, MAP_TYPE = "x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type"
PATCH_STRATEGY, PATCH_KEY = "x-kubernetes-patch-strategy", "x-kubernetes-patch-merge-key"

ABSENT: Any = object()
"""In the place of a value that is not there: null is one that is."""

Difference = tuple[Fields | None, Fields | None]
"""What is new or another value, and what is gone; None where that is nothing."""
SAME: Difference = (None, None)


class Shape:
    """A value that is one field.  The other shapes redefine what they know better."""

    def whole(self, value: Any) -> Fields:  # noqa: ARG002
        """Every field in a value, also those that have fields themselves: what a writer takes who makes it."""
        return LEAF

    def stated(self, value: Any) -> Fields | None:  # noqa: ARG002
        """The fields that somebody names who applies the value; None where it names none."""
        return LEAF

    def compared(self, old: Any, new: Any) -> Difference:
        if old is ABSENT:
            return self.whole(new), None
        if new is ABSENT:
            return None, self.whole(old)
        return SAME if old == new else (LEAF, None)

    def merged(self, old: Any, new: Any) -> Any:  # noqa: ARG002
        """`old` as one who applies `new` wants it."""
        return new

    def pruned(self, value: Any, fields: Fields) -> Any:  # noqa: ARG002
        """The value without these fields; what they leave empty is there, and empty."""
        return value

    def named(self, fields: Fields) -> Fields:
        """The set with every declared field in it that has fields in it."""
        return fields

    def faults(self, value: Any) -> Iterator[tuple[str, str]]:  # noqa: ARG002
        """What nobody may apply: where, and why."""
        yield from ()

    def empty(self) -> Any:
        """What Go has in a field of this type that nobody set."""
        return None


ONE = Shape()


class Map(Shape):
    """A struct, a map, or both.  Its fields may be filled in after it was made: types refer to themselves."""

    def __init__(self, values: Shape | None = None) -> None:
        """`values` is the shape of what is under a key that is not declared; None where there may be none."""
        self.values = values
        self.fields: dict[str, tuple[str, Shape]] = {}
        self.always: dict[str, bool] = {}
        """Fields that Go has even where nobody set them, and whether as a struct rather than as null."""

    def declare(self, fields: Mapping[str, Shape]) -> None:
        self.fields.update({name: (f"f:{name}", shape) for name, shape in fields.items()})

    def at(self, key: str) -> tuple[str, Shape]:
        return self.fields.get(key) or (f"f:{key}", self.values or ONE)

    def whole(self, value: Any) -> Fields:
        if not value or type(value) is not dict:
            return LEAF
        found = {ITSELF: LEAF}
        declared, at = self.fields.get, self.at
        for key, each in value.items():
            step, shape = declared(key) or at(key)
            found[step] = LEAF if shape is ONE else shape.whole(each)
        return found

    def stated(self, value: Any) -> Fields | None:
        if not value or type(value) is not dict:
            return LEAF
        found = {}
        for key, each in value.items():
            step, shape = self.at(key)
            node = LEAF if each is None else shape.stated(each)
            if key not in self.fields:
                node = as_member(node)
            if node is not None:
                found[step] = node
        return found or None

    def compared(self, old: Any, new: Any) -> Difference:
        if old is ABSENT or new is ABSENT or old == new:
            return super().compared(old, new)
        if not fits(dict, old) or not fits(dict, new):
            return self.whole(new), below_of(self.whole(old)) or None
        if not old and not new:
            return LEAF, None
        had, has = old or {}, new or {}
        if all(each is None for each in had.values()):
            return made_of_nothing(has, self, tuple(had))
        return self.differing(had, has)

    def differing(self, had: Object, has: Object) -> Difference:
        changed: Fields = {}
        gone: Fields = {}
        declared = self.fields.get
        for key, new in has.items():
            old = had.get(key, ABSENT)
            if old is new:
                continue
            step, shape = declared(key) or self.at(key)
            if shape is ONE:
                if old != new:
                    changed[step] = LEAF
                continue
            more, less = shape.compared(old, new)
            if more is not None:
                changed[step] = more
            if less is not None:
                gone[step] = less
        for key, old in had.items():
            if key not in has:
                step, shape = self.at(key)
                gone[step] = shape.whole(old)
        return changed or None, gone or None

    def merged(self, old: Any, new: Any) -> Any:
        if type(old) is not dict or not new or type(new) is not dict:
            return old if new == {} and type(old) is dict else new
        return {
            **old,
            **{key: self.at(key)[1].merged(old[key], each) if key in old else each for key, each in new.items()},
        }

    def pruned(self, value: Any, fields: Fields) -> Any:
        if type(value) is not dict:
            return value
        found = {}
        for key, each in value.items():
            step, shape = self.at(key)
            node = fields.get(step)
            if node is None or not is_member(node):
                found[key] = each if node is None else shape.pruned(each, node)
        return found

    def named(self, fields: Fields) -> Fields:
        found = {}
        for step, node in fields.items():
            key = step[2:]
            below = self.at(key)[1].named(node) if node else node
            found[step] = as_member(below) if key in self.fields and step != ITSELF else below
        return found

    def faults(self, value: Any) -> Iterator[tuple[str, str]]:
        if type(value) is not dict:
            return
        for key, each in value.items():
            if key not in self.fields and self.values is None:
                yield f".{key}", "field not declared in schema"
            else:
                yield from ((f".{key}{path}", why) for path, why in self.at(key)[1].faults(each))

    def empty(self) -> Any:
        found = {name: self.fields[name][1].empty() if inside else None for name, inside in self.always.items()}
        return found if self.fields else None


@remembered
def made_of_nothing(value: Object, shape: Map, nulls: tuple[str, ...]) -> Difference:
    """How a struct differs from one that nobody set: some fields are null in it."""
    return shape.differing(dict.fromkeys(nulls), value)


class Items(Shape):
    """A list whose items are found by what is in them: `keys` of theirs, or all of them in a set."""

    def __init__(self, item: Shape, keys: tuple[str, ...] = (), defaults: Mapping[str, Any] | None = None) -> None:
        self.item = item
        self.keys = tuple(sorted(keys))
        self.defaults = dict(defaults or {})

    def step(self, item: Any) -> str:
        if not self.keys or type(item) is not dict:
            return value_key(item)
        if len(self.keys) == 1 and (value := item.get(self.keys[0])) is not None:  # nearly always
            return f'k:{{"{self.keys[0]}":{msgspec.json.encode(value).decode()}}}'
        found = {key: item.get(key, self.defaults.get(key)) for key in self.keys}
        return key_of({key: value for key, value in found.items() if value is not None})

    def by_step(self, items: Any) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        for each in items if type(items) is list else ():
            found.setdefault(self.step(each), []).append(each)
        return found

    def whole(self, value: Any) -> Fields:
        if not value or type(value) is not list:
            return LEAF
        found = {ITSELF: LEAF}
        for each in value:
            step = self.step(each)
            found[step] = LEAF if step in found else self.item.whole(each)
        return found

    def stated(self, value: Any) -> Fields | None:
        if type(value) is not list:
            return LEAF
        return {step: as_member(self.item.stated(same[0])) for step, same in self.by_step(value).items()} or None

    def compared(self, old: Any, new: Any) -> Difference:
        if old is ABSENT or new is ABSENT or old == new:
            return super().compared(old, new)
        if not old and not new:
            return LEAF, None
        if not fits(list, old) or not fits(list, new):
            return self.whole(new), below_of(self.whole(old)) or None
        had, has = self.by_step(old), self.by_step(new)
        return differing(self.pair(step, had.get(step, []), has.get(step, [])) for step in {**had, **has})

    def pair(self, step: str, old: list[Any], new: list[Any]) -> tuple[str, Shape, Any, Any]:
        """Items with the same key; several on one side are one field, as nobody could say which of them is meant."""
        if len(old) > 1 or len(new) > 1:
            return step, ONE, old or ABSENT, new or ABSENT
        return step, self.item, *(each[0] if each else ABSENT for each in (old, new))

    def merged(self, old: Any, new: Any) -> Any:
        if type(old) is not list or not old or type(new) is not list:
            return new
        had, has = self.by_step(old), self.by_step(new)
        found = []
        for step, index in interleaved([self.step(each) for each in old], list(has)):
            if step not in has:
                found.append(old[index])
            else:
                same = had.get(step, ())
                found.append(self.item.merged(same[0], has[step][0]) if len(same) == 1 else has[step][0])
        return found

    def pruned(self, value: Any, fields: Fields) -> Any:
        if type(value) is not list:
            return value
        found = []
        for each in value:
            node = fields.get(self.step(each))
            if node is None or not is_member(node):
                found.append(each if node is None else self.item.pruned(each, node))
        return found

    def named(self, fields: Fields) -> Fields:
        return {step: self.item.named(node) if node else node for step, node in fields.items()}

    def faults(self, value: Any) -> Iterator[tuple[str, str]]:
        for step, same in self.by_step(value).items():
            where = step_text(step)
            if len(same) > 1:
                yield "", f"duplicate entries for key {where}"
            if step == "k:{}":
                listed = "[" + " ".join(f'"{key}"' for key in self.keys) + "]"
                why = f"associative list with keys has an element that omits all key fields {listed}"
                yield "", f"element {value.index(same[0])}: {why} (and doesn't have default values for any key fields)"
            yield from ((where + path, why) for path, why in self.item.faults(same[0]))


def fits(kind: type, value: Any) -> bool:
    return value is None or type(value) is kind


def differing(pairs: Iterator[tuple[str, Shape, Any, Any]]) -> Difference:
    """What differs under the steps of one level."""
    changed: Fields = {}
    gone: Fields = {}
    for step, shape, old, new in pairs:
        if old is not new:
            more, less = shape.compared(old, new)
            if more is not None:
                changed[step] = more
            if less is not None:
                gone[step] = less
    return changed or None, gone or None


def interleaved(old: list[str], new: list[str]) -> Iterator[tuple[str, int]]:
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


OPEN = Map()
OPEN.values = OPEN
"""What no schema describes."""


class Shapes:
    """The shapes of kinds: of built-in ones by the published types, of custom ones by their own schemas."""

    def __init__(self, types: Mapping[str, Any]) -> None:
        self._types = types
        self._named: dict[str, Shape] = {}
        self._custom: dict[str, tuple[Object, Shape]] = {}
        self._nothing: dict[tuple[str, str], Object] = {}

    def of(self, row: Row) -> Shape:
        if not row.is_custom:
            return self.named(row.type)
        where = f"{row.resource.name}/{row.resource.version}"
        schema, shape = self._custom.get(where, (None, ONE))
        if schema is not row.schema:  # another definition than the last time
            shape = self.custom(row.schema)
            self._custom[where] = row.schema, shape
        return shape

    def nothing(self, row: Row) -> Object:
        """An object before anything is written into it: structs that Go always has are there."""
        where = row.resource.name, row.resource.version
        found = self._nothing.get(where)
        if found is None:
            kind = {"apiVersion": row.resource.api_version, "kind": row.resource.kind}
            found = self._nothing[where] = kind if row.is_custom else {**(self.of(row).empty() or {}), **kind}
        return found

    def custom(self, schema: Object) -> Shape:
        found = self.made(schema)
        if isinstance(found, Map):
            found.declare({"apiVersion": ONE, "kind": ONE, "metadata": self.named(OBJECT_META)})
        return found

    def named(self, name: str) -> Shape:
        found = self._named.get(name)
        if found is None:
            schema = self._types[name]
            if name in ATOMIC_TYPES:
                return ONE
            if "properties" not in schema:
                return self.made(schema)
            found = self._named[name] = self.begun(schema, preserve=False)
            self.finish(found, schema, preserve=False)
        return found

    def made(self, schema: Object, *, preserve: bool = False) -> Shape:
        preserve = preserve or bool(schema.get(PRESERVE))
        if schema.get(MAP_TYPE) == "atomic":
            return ONE
        if schema.get(MAP_TYPE) == "granular" and "$ref" in schema:  # its type is atomic everywhere else
            return self.made({**self._types[schema["$ref"]], MAP_TYPE: ""}, preserve=preserve)
        if "$ref" in schema:
            return self.named(schema["$ref"])
        if schema.get("type") == "array":
            return self.items(schema, preserve=preserve)
        if schema.get("type", "object") != "object" or schema.get("x-kubernetes-int-or-string"):
            return ONE
        found = self.begun(schema, preserve=preserve)
        self.finish(found, schema, preserve=preserve)
        return found

    def begun(self, schema: Object, *, preserve: bool) -> Shape:
        """An object's shape, before its fields are known."""
        values = schema.get("additionalProperties")
        if schema.get(MAP_TYPE) == "atomic":
            return ONE
        if isinstance(values, dict):
            return Map(self.made(values, preserve=preserve))
        is_open = values is True or (values is None and (preserve or not schema.get("properties")))
        return Map(OPEN if is_open else None)

    def finish(self, shape: Shape, schema: Object, *, preserve: bool) -> None:
        if not isinstance(shape, Map):
            return
        properties: Object = schema.get("properties", {})
        if schema.get(EMBEDDED):
            properties = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {}, **properties}
        shape.declare({name: self.made(each, preserve=preserve) for name, each in properties.items()})
        required = schema.get("required", ())
        structs = {name: each.get("default") == {} for name, each in properties.items()}
        shape.always = {name: inside for name, inside in structs.items() if inside or name in required}

    def items(self, schema: Object, *, preserve: bool) -> Shape:
        keys = item_keys(schema)
        if keys is None:
            return ONE
        items = schema.get("items", {})
        shown = self._types[items["$ref"]] if "$ref" in items else items
        fields = shown.get("properties", {})
        defaults = {key: fields[key]["default"] for key in keys if "default" in fields.get(key, {})}
        return Items(self.made(items, preserve=preserve), keys, defaults)


def item_keys(schema: Object) -> tuple[str, ...] | None:
    """The key fields of a list's items, none for a set; None for a list that is one field."""
    match schema.get(LIST_TYPE):
        case "map":
            return tuple(schema.get(LIST_KEYS, ()))
        case "set":
            return ()
        case None if str(schema.get(PATCH_STRATEGY, "")).startswith("merge"):
            return (schema[PATCH_KEY],) if PATCH_KEY in schema else ()
    return None
