"""Strategic merge patches: merge patches that know, from the schema, which lists are maps in disguise.

A list with the strategy `merge` is merged element by element: objects by their merge key (containers by name), scalars
as a set.  Other lists, and objects with the strategy `replace`, are replaced whole.  A patch says the rest in
directives:

    $patch: replace | delete                 in an object: it becomes just this, or empty
                                             in an element: the list becomes just the others, or loses this one
    $retainKeys: [name]                      the fields of this object that stay
    $setElementOrder/<field>: [...]          the order of the list in <field>
    $deleteFromPrimitiveList/<field>: [...]  scalars that leave the list in <field>

The results are those of apimachinery's StrategicMergePatch, surprises included: an element that is new comes before the
ones that the patch does not name; nulls and directives inside a new element or a replaced value stay where they are,
for the server's decoding to drop.  Only where upstream's own result is an accident of memory or of a sort do we go a
fixed way of our own: scalars that a live list holds twice, new elements under an empty $setElementOrder, directives
inside a new element that one patch names twice.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from tapestry.kube.budget import charge
from tapestry.kube.objects import Object
from tapestry.kube.patches import PatchError, json_type

PATCH_DIRECTIVE = "$patch"
RETAIN_KEYS = "$retainKeys"
SET_ELEMENT_ORDER = "$setElementOrder"
DELETE_FROM_PRIMITIVE_LIST = "$deleteFromPrimitiveList"


@dataclass(frozen=True, slots=True)
class PatchField:
    """How patches of one field apply.  `schema` is that of its value, or of each element where that is a list."""

    schema: "PatchSchema"
    strategy: str
    merge_key: str


class PatchSchema:
    """One type of an OpenAPI document, as far as patches care."""

    def __init__(self, properties: Mapping[str, Any], types: "PatchSchemas") -> None:
        self._properties = properties
        self._types = types
        self._fields: dict[str, PatchField] = {}

    def field(self, name: str) -> PatchField | None:
        """None for a field that the type does not name, as for every key of a plain map."""
        if name not in self._fields and name in self._properties:
            self._fields[name] = self._types.field(self._properties[name])
        return self._fields.get(name)


class PatchSchemas:
    """The types of one OpenAPI document, by name.  Each is read when a patch first comes to it, and once.

    `definitions` are the `components.schemas` of OpenAPI v3 or the `definitions` of v2.
    """

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions
        self._known: dict[str, PatchSchema] = {}

    def of(self, name: str) -> PatchSchema:
        """`of("io.k8s.api.core.v1.Pod")`; ValueError for a type that the document does not define."""
        if name not in self._known:
            if name not in self._definitions:
                raise ValueError(f"{name}: the OpenAPI document does not define this type")
            self._known[name] = PatchSchema(self._definitions[name].get("properties", {}), self)
        return self._known[name]

    def field(self, node: Mapping[str, Any]) -> PatchField:
        """The field that a property of a type describes."""
        # A patch that sends $retainKeys gets its way; the strategy of that name only tells clients to send it.
        strategies = [word for word in node.get("x-kubernetes-patch-strategy", "").split(",") if word != "retainKeys"]
        value = node.get("items", node)
        reference = value.get("allOf", [value])[0].get("$ref", "")
        schema = self.of(reference.rpartition("/")[2]) if reference else PatchSchema(value.get("properties", {}), self)
        return PatchField(schema, ",".join(strategies), node.get("x-kubernetes-patch-merge-key", ""))


def apply_strategic_merge_patch(original: Object, patch: Object, schema: PatchSchema) -> Object:
    """`original` after the patch; PatchError names the field that stands in the way.

    Neither is changed; the result shares with both what it can.
    """
    return merge_object(original, patch, schema, "")


def merge_object(original: Object, patch: Object, schema: PatchSchema, path: str) -> Object:
    charge(len(original) + len(patch))  # an element that the patch names again and again is copied each time
    if PATCH_DIRECTIVE in patch:
        return apply_object_directive(patch, path)
    result = retain_keys(original, patch, path) if RETAIN_KEYS in patch else dict(original)
    ordered = lists_in_patch_order(result, patch, schema, path)
    result.update(ordered)
    for key, value in patch.items():
        if key in ordered or key == RETAIN_KEYS or key.startswith(SET_ELEMENT_ORDER):
            continue
        deleting = key.startswith(DELETE_FROM_PRIMITIVE_LIST)
        name = directive_field(key, DELETE_FROM_PRIMITIVE_LIST, path) if deleting else key
        if value is None:
            result.pop(name, None)
        elif type(result.get(name)) is type(value):
            result[name] = merge_value(result[name], value, schema, name, child_path(path, name), deleting=deleting)
        elif not deleting:
            set_field(result, name, without_nulls(value))
    return result


def merge_value(had: Any, value: Any, schema: PatchSchema, name: str, path: str, *, deleting: bool) -> Any:
    """`value` merged into what the field `name` had, which is of the same JSON type."""
    if not isinstance(value, dict | list):
        return value
    field = known_field(schema, name, path)
    if isinstance(value, dict):
        return value if field.strategy == "replace" else merge_object(had, value, field.schema, path)
    if deleting and (had or value) and element_type(path, had, value) is not dict:  # objects would be merged
        gone = set(value)
        return [item for item in had if item not in gone]
    return merge_list(had, value, field, path) if deleting or field.strategy == "merge" else value


def apply_object_directive(patch: Object, path: str) -> Object:
    match patch[PATCH_DIRECTIVE]:
        case "replace":
            return {key: value for key, value in patch.items() if key != PATCH_DIRECTIVE}
        case "delete":
            return {}
        case other:
            raise PatchError(f"{child_path(path, PATCH_DIRECTIVE)}: {other!r} is neither replace nor delete")


def retain_keys(original: Object, patch: Object, path: str) -> Object:
    """`original` cut down to what $retainKeys names; the patch may set nothing else."""
    keys = patch[RETAIN_KEYS]
    if not isinstance(keys, list):
        raise PatchError(f"{child_path(path, RETAIN_KEYS)}: a list of field names is expected, not {json_type(keys)}")
    kept = {key for key in keys if isinstance(key, str)}
    for key, value in patch.items():
        if (
            key in kept
            or key == RETAIN_KEYS
            or value is None
            or key.startswith((SET_ELEMENT_ORDER, DELETE_FROM_PRIMITIVE_LIST))
        ):
            continue
        raise PatchError(f"{child_path(path, key)}: the patch sets it, but {RETAIN_KEYS} does not name it")
    return {key: value for key, value in original.items() if key in kept}


# -- lists


def merge_list(had: list[Any], patch: list[Any], field: PatchField, path: str) -> list[Any]:
    charge(len(had) + len(patch))
    if not had and not patch:
        return had
    items, named, live = merge_elements(had, patch, field, path)
    return order_elements(items, named, live, field.merge_key, path)


def merge_elements(
    had: list[Any], patch: list[Any], field: PatchField, path: str
) -> tuple[list[Any], list[Any], list[Any]]:
    """What the list holds after the patch, new elements last; the patch's plain elements; what was there and stays."""
    if element_type(path, had, patch) is not dict:
        return list(dict.fromkeys([*had, *patch])), patch, had
    if not field.merge_key:
        raise PatchError(f"{path}: its objects cannot be merged: the schema has no merge key for them")
    named, deleted, replacing = split_by_directive(patch, path)
    gone = set(element_keys(deleted, field.merge_key, path))
    if replacing:
        return named, named, named
    live = [item for item, key in zip(had, element_keys(had, field.merge_key, path), strict=True) if key not in gone]
    return merge_object_elements(live, named, field, path), named, live


def split_by_directive(patch: list[Object], path: str) -> tuple[list[Object], list[Object], bool]:
    """The plain elements, those that delete, and whether one replaces the list."""
    named, deleted, replacing = [], [], False
    for item in patch:
        if PATCH_DIRECTIVE not in item:
            named.append(item)
        elif item[PATCH_DIRECTIVE] == "delete":
            deleted.append(item)
        elif item[PATCH_DIRECTIVE] == "replace":
            replacing = True
        else:
            raise PatchError(f"{path}: {PATCH_DIRECTIVE}: {item[PATCH_DIRECTIVE]!r} is neither replace nor delete")
    return named, deleted, replacing


def merge_object_elements(live: list[Object], named: list[Object], field: PatchField, path: str) -> list[Object]:
    """Where several elements have one key, the first of them is patched."""
    items = list(live)
    places = first_indexes(element_keys(live, field.merge_key, path))
    for item, key in zip(named, element_keys(named, field.merge_key, path), strict=True):
        place = places.setdefault(key, len(items))
        if place == len(items):
            items.append(item)
        else:
            inside = f"{path}[{field.merge_key}={item[field.merge_key]}]"
            items[place] = merge_object(items[place], item, field.schema, inside)
    return items


def lists_in_patch_order(original: Object, patch: Object, schema: PatchSchema, path: str) -> dict[str, list[Any]]:
    """The lists that the patch gives an order, by field."""
    result = {}
    for key, order in patch.items():
        if not key.startswith(SET_ELEMENT_ORDER):
            continue
        name = directive_field(key, SET_ELEMENT_ORDER, path)
        inside = child_path(path, name)
        for value in (order, original.get(name, []), patch.get(name, [])):
            if not isinstance(value, list):
                raise PatchError(f"{inside}: {SET_ELEMENT_ORDER} is about lists; {json_type(value)} cannot be ordered")
        field = known_field(schema, name, inside)
        if name in original or name in patch:
            result[name] = list_in_patch_order(original.get(name), patch.get(name), order, field, inside)
    return result


def list_in_patch_order(
    had: list[Any] | None, patch: list[Any] | None, order: list[Any], field: PatchField, path: str
) -> list[Any]:
    """`had` and `patch` are None where there is no such field."""
    if not had and not patch:
        raise PatchError(f"{path}: {SET_ELEMENT_ORDER} has no elements to put in order")
    check_element_order(patch or [], order, field.merge_key, path)
    kind = element_type(path, had or [], patch or [])
    standing = had or []
    if patch is None:
        items = standing
    elif had is None:
        items = without_directives(patch)
    elif field.strategy != "merge":
        items = patch
    else:
        items, _, _ = merge_elements(had, patch, field, path)
        if kind is dict:
            # Upstream takes the live order from an array in which it has deleted and appended by then: an element that
            # came in the place of a deleted one counts as having stood there.
            standing = items[: len(had)]
    return order_elements(items, order, standing, field.merge_key, path)


def check_element_order(patch: list[Any], order: list[Any], merge_key: str, path: str) -> None:
    """The patch's elements must come in the order that it asks for, all of them named there."""
    if not patch or not order:
        return
    plain = [item for item in patch if not (isinstance(item, dict) and item.get(PATCH_DIRECTIVE) == "delete")]
    index = 0
    for wanted in element_keys(order, merge_key, path):
        while index < len(plain) and is_directive(plain[index]):
            index += 1
        if index < len(plain) and element_keys(plain[index : index + 1], merge_key, path) == [wanted]:
            index += 1
    if index < len(plain):
        raise PatchError(f"{path}: the elements of the patch are not in the order that its {SET_ELEMENT_ORDER} gives")


def order_elements(items: list[Any], order: list[Any], live: list[Any], merge_key: str, path: str) -> list[Any]:
    """`items`, those that `order` names in that order, the others woven in by the order in which they stood.

    One of the others comes before the first named one that stood behind it; a named one that is new stops nobody.
    """
    places = first_indexes(element_keys(order, merge_key, path))
    stood = first_indexes(element_keys(live, merge_key, path))
    keyed = list(zip(element_keys(items, merge_key, path), items, strict=True))
    named = sorted((pair for pair in keyed if pair[0] in places), key=lambda pair: places[pair[0]])
    nowhere = len(live)
    others = sorted((pair for pair in keyed if pair[0] not in places), key=lambda pair: stood.get(pair[0], nowhere))
    result = []
    index = 0
    for key, item in named:
        while index < len(others) and stood.get(others[index][0], nowhere) < stood.get(key, -1):
            result.append(others[index][1])
            index += 1
        result.append(item)
    return result + [item for _, item in others[index:]]


def element_type(path: str, *lists: list[Any]) -> type:
    """The one type that all elements have; lists of lists have no strategic merge."""
    kinds = {type(item) for item in chain(*lists)}
    if len(kinds) != 1 or kinds & {list, type(None)}:
        raise PatchError(f"{path}: only objects, or scalars of one kind, can be merged or put in order")
    return kinds.pop()


def element_keys(items: list[Any], merge_key: str, path: str) -> list[Hashable]:
    """What tells the elements apart: the values of their merge key, or themselves where there is none."""
    if not merge_key:
        return [element_key(item, path) for item in items]
    for item in items:
        if not isinstance(item, dict) or merge_key not in item:
            raise PatchError(f"{path}: an element without {merge_key!r}, which is the merge key of the list")
    return [element_key(item[merge_key], path) for item in items]


def element_key(value: Any, path: str) -> Hashable:
    """A key that keeps 1, 1.0 and true apart."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict | list):
        raise PatchError(f"{path}: {json_type(value)} cannot tell one element from another")
    return (type(value), value)


def first_indexes(keys: list[Hashable]) -> dict[Hashable, int]:
    places: dict[Hashable, int] = {}
    for index, key in enumerate(keys):
        places.setdefault(key, index)
    return places


# -- parts of a patch


def directive_field(key: str, directive: str, path: str) -> str:
    """The field that `$directive/field` is about."""
    name = key.removeprefix(f"{directive}/")
    if name == key:
        raise PatchError(f"{child_path(path, key)}: write {directive}/<field>")
    return name


def known_field(schema: PatchSchema, name: str, path: str) -> PatchField:
    field = schema.field(name)
    if field is None:
        raise PatchError(f"{path}: the schema does not name this field, so nothing says how to merge it")
    return field


def child_path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def set_field(result: Object, name: str, value: Any) -> None:
    """Set the field to a value that came with the patch; one that is a directive has nothing to act on."""
    if is_directive(value):
        result.pop(name, None)
    else:
        result[name] = without_directives(value)


def is_directive(value: Any) -> bool:
    return isinstance(value, dict) and PATCH_DIRECTIVE in value


def without_directives(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_directives(item) for key, item in value.items() if not is_directive(item)}
    if isinstance(value, list):
        return [without_directives(item) for item in value if not is_directive(item)]
    return value


def without_nulls(value: Any) -> Any:
    """Nulls are fields to delete; as elements of a list they are values and stay."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value
