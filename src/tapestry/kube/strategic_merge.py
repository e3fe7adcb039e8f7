"""Strategic merge patches: merge patches that merge lists by key, as the schema says.

A list with the strategy `merge` is merged element by element: objects by their merge key (containers by name), scalars
as a set. Other lists, and objects with the strategy `replace`, are replaced as a whole. Directives control the rest:

    $patch: replace | delete                 in an object: replace it with this object, or empty it
                                             in an element: replace the list with the others, or remove this one
    $retainKeys: [name]                      fields of this object to retain
    $setElementOrder/<field>: [...]          order of the list in <field>
    $deleteFromPrimitiveList/<field>: [...]  scalars to remove from the list in <field>

Results equal those of apimachinery's StrategicMergePatch, including its surprises. New elements precede the elements
that the patch does not name. Nulls and directives inside a new element or a replaced value stay, and the server's
decoder drops them. Results differ where upstream depends on memory layout or on an unstable sort. There we use a
fixed rule: for scalars that occur twice in a live list, for new elements with an empty $setElementOrder, and for
directives inside a new element that one patch names twice.
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
    """Patch strategy of one field. `schema` is the schema of its value, or of the elements of a list."""

    schema: "PatchSchema"
    strategy: str
    merge_key: str


class PatchSchema:
    """Patch-related part of one type of an OpenAPI document."""

    def __init__(self, properties: Mapping[str, Any], types: "PatchSchemas") -> None:
        self._properties = properties
        self._types = types
        self._fields: dict[str, PatchField] = {}

    def field(self, name: str) -> PatchField | None:
        if name not in self._fields and name in self._properties:
            self._fields[name] = self._types.field(self._properties[name])
        return self._fields.get(name)


class PatchSchemas:
    """Types of one OpenAPI document by name. Each type is read once, when a patch first needs it.

    `definitions` are the `components.schemas` of OpenAPI v3 or the `definitions` of v2.
    """

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions
        self._known: dict[str, PatchSchema] = {}

    def of(self, name: str) -> PatchSchema:
        """Return the type, for example `of("io.k8s.api.core.v1.Pod")`. Raise ValueError if the document does not
        define it.
        """
        if name not in self._known:
            if name not in self._definitions:
                raise ValueError(f"{name}: the OpenAPI document does not define this type")
            self._known[name] = PatchSchema(self._definitions[name].get("properties", {}), self)
        return self._known[name]

    def field(self, node: Mapping[str, Any]) -> PatchField:
        # $retainKeys in a patch is always applied. The strategy `retainKeys` only tells clients to send it.
        strategies = [name for name in node.get("x-kubernetes-patch-strategy", "").split(",") if name != "retainKeys"]
        value = node.get("items", node)
        reference = value.get("allOf", [value])[0].get("$ref", "")
        schema = self.of(reference.rpartition("/")[2]) if reference else PatchSchema(value.get("properties", {}), self)
        return PatchField(schema, ",".join(strategies), node.get("x-kubernetes-patch-merge-key", ""))


def apply_strategic_merge_patch(original: Object, patch: Object, schema: PatchSchema) -> Object:
    """Apply a strategic merge patch. PatchError names the field that cannot be patched.

    Inputs are not changed. The result shares parts with both.
    """
    return merge_object(original, patch, schema, "")


def merge_object(original: Object, patch: Object, schema: PatchSchema, path: str) -> Object:
    charge(len(original) + len(patch))  # an element that the patch names repeatedly is copied each time
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


def merge_value(old: Any, value: Any, schema: PatchSchema, name: str, path: str, *, deleting: bool) -> Any:
    """Merge `value` into the current value of the field `name`, which has the same JSON type."""
    if not isinstance(value, dict | list):
        return value
    field = known_field(schema, name, path)
    if isinstance(value, dict):
        return value if field.strategy == "replace" else merge_object(old, value, field.schema, path)
    if deleting and (old or value) and element_type(path, old, value) is not dict:  # objects are merged below
        gone = set(value)
        return [item for item in old if item not in gone]
    return merge_list(old, value, field, path) if deleting or field.strategy == "merge" else value


def apply_object_directive(patch: Object, path: str) -> Object:
    match patch[PATCH_DIRECTIVE]:
        case "replace":
            return {key: value for key, value in patch.items() if key != PATCH_DIRECTIVE}
        case "delete":
            return {}
        case other:
            raise PatchError(f"{child_path(path, PATCH_DIRECTIVE)}: {other!r} is neither replace nor delete")


def retain_keys(original: Object, patch: Object, path: str) -> Object:
    """Return `original` with only the fields in $retainKeys. The patch must not set other fields."""
    keys = patch[RETAIN_KEYS]
    if not isinstance(keys, list):
        raise PatchError(f"{child_path(path, RETAIN_KEYS)}: a list of field names is expected, not {json_type(keys)}")
    retained = {key for key in keys if isinstance(key, str)}
    for key, value in patch.items():
        if (
            key in retained
            or key == RETAIN_KEYS
            or value is None
            or key.startswith((SET_ELEMENT_ORDER, DELETE_FROM_PRIMITIVE_LIST))
        ):
            continue
        raise PatchError(f"{child_path(path, key)}: the patch sets it, but {RETAIN_KEYS} does not name it")
    return {key: value for key, value in original.items() if key in retained}


# -- lists


def merge_list(old: list[Any], patch: list[Any], field: PatchField, path: str) -> list[Any]:
    charge(len(old) + len(patch))
    if not old and not patch:
        return old
    items, named, live = merge_elements(old, patch, field, path)
    return order_elements(items, named, live, field.merge_key, path)


def merge_elements(
    old: list[Any], patch: list[Any], field: PatchField, path: str
) -> tuple[list[Any], list[Any], list[Any]]:
    """Return the merged elements (new ones last), the plain elements of the patch, and the remaining live elements."""
    if element_type(path, old, patch) is not dict:
        return list(dict.fromkeys([*old, *patch])), patch, old
    if not field.merge_key:
        raise PatchError(f"{path}: its objects cannot be merged: the schema has no merge key for them")
    named, deleted, replacing = split_by_directive(patch, path)
    deleted_ids = set(element_keys(deleted, field.merge_key, path))
    if replacing:
        return named, named, named
    live = [
        item for item, key in zip(old, element_keys(old, field.merge_key, path), strict=True) if key not in deleted_ids
    ]
    return merge_object_elements(live, named, field, path), named, live


def split_by_directive(patch: list[Object], path: str) -> tuple[list[Object], list[Object], bool]:
    """Return the plain elements, the elements to delete, and True if a directive replaces the list."""
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
    """Merge elements by key. If several live elements have the same key, only the first is patched."""
    items = list(live)
    positions = first_indexes(element_keys(live, field.merge_key, path))
    for item, key in zip(named, element_keys(named, field.merge_key, path), strict=True):
        position = positions.setdefault(key, len(items))
        if position == len(items):
            items.append(item)
        else:
            element_path = f"{path}[{field.merge_key}={item[field.merge_key]}]"
            items[position] = merge_object(items[position], item, field.schema, element_path)
    return items


def lists_in_patch_order(original: Object, patch: Object, schema: PatchSchema, path: str) -> dict[str, list[Any]]:
    """Return the lists for which the patch sets an order, by field."""
    result = {}
    for key, order in patch.items():
        if not key.startswith(SET_ELEMENT_ORDER):
            continue
        name = directive_field(key, SET_ELEMENT_ORDER, path)
        field_path = child_path(path, name)
        for value in (order, original.get(name, []), patch.get(name, [])):
            if not isinstance(value, list):
                raise PatchError(f"{field_path}: {SET_ELEMENT_ORDER} applies to lists; {json_type(value)} has no order")
        field = known_field(schema, name, field_path)
        if name in original or name in patch:
            result[name] = list_in_patch_order(original.get(name), patch.get(name), order, field, field_path)
    return result


def list_in_patch_order(
    old: list[Any] | None, patch: list[Any] | None, order: list[Any], field: PatchField, path: str
) -> list[Any]:
    """Return one list in the order of the patch. `old` and `patch` are None if the field is missing."""
    if not old and not patch:
        raise PatchError(f"{path}: {SET_ELEMENT_ORDER} has no elements to put in order")
    check_element_order(patch or [], order, field.merge_key, path)
    type_ = element_type(path, old or [], patch or [])
    live = old or []
    if patch is None:
        items = live
    elif old is None:
        items = without_directives(patch)
    elif field.strategy != "merge":
        items = patch
    else:
        items, _, _ = merge_elements(old, patch, field, path)
        if type_ is dict:
            # Upstream takes the live order from an array in which it has already deleted and appended elements.
            # An element that replaced a deleted one therefore counts as live at that position.
            live = items[: len(old)]
    return order_elements(items, order, live, field.merge_key, path)


def check_element_order(patch: list[Any], order: list[Any], merge_key: str, path: str) -> None:
    """Raise PatchError unless the elements of the patch occur in the given order and all are named in it."""
    if not patch or not order:
        return
    elements = [item for item in patch if not (isinstance(item, dict) and item.get(PATCH_DIRECTIVE) == "delete")]
    index = 0
    for key in element_keys(order, merge_key, path):
        while index < len(elements) and is_directive(elements[index]):
            index += 1
        if index < len(elements) and element_keys(elements[index : index + 1], merge_key, path) == [key]:
            index += 1
    if index < len(elements):
        raise PatchError(f"{path}: the elements of the patch are not in the order that its {SET_ELEMENT_ORDER} gives")


def order_elements(items: list[Any], order: list[Any], live: list[Any], merge_key: str, path: str) -> list[Any]:
    """Sort `items`: those in `order` by that order, the others inserted by their live order.

    An unnamed item precedes the first named item that followed it in `live`. New named items do not affect it.
    """
    named_at = first_indexes(element_keys(order, merge_key, path))
    live_at = first_indexes(element_keys(live, merge_key, path))
    pairs = list(zip(element_keys(items, merge_key, path), items, strict=True))
    named = sorted((pair for pair in pairs if pair[0] in named_at), key=lambda pair: named_at[pair[0]])
    end = len(live)
    others = sorted((pair for pair in pairs if pair[0] not in named_at), key=lambda pair: live_at.get(pair[0], end))
    result = []
    index = 0
    for key, item in named:
        while index < len(others) and live_at.get(others[index][0], end) < live_at.get(key, -1):
            result.append(others[index][1])
            index += 1
        result.append(item)
    return result + [item for _, item in others[index:]]


def element_type(path: str, *lists: list[Any]) -> type:
    """Return the common type of all elements. Lists of lists have no strategic merge."""
    types = {type(item) for item in chain(*lists)}
    if len(types) != 1 or types & {list, type(None)}:
        raise PatchError(f"{path}: only objects, or scalars of one kind, can be merged or put in order")
    return types.pop()


def element_keys(items: list[Any], merge_key: str, path: str) -> list[Hashable]:
    """Return keys that identify the elements: the values of the merge key, or the elements themselves without one."""
    if not merge_key:
        return [element_key(item, path) for item in items]
    for item in items:
        if not isinstance(item, dict) or merge_key not in item:
            raise PatchError(f"{path}: an element has no {merge_key!r}, the merge key of the list")
    return [element_key(item[merge_key], path) for item in items]


def element_key(value: Any, path: str) -> Hashable:
    """Return a key that distinguishes 1, 1.0 and true."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict | list):
        raise PatchError(f"{path}: {json_type(value)} cannot be the key of an element")
    return (type(value), value)


def first_indexes(keys: list[Hashable]) -> dict[Hashable, int]:
    indexes: dict[Hashable, int] = {}
    for index, key in enumerate(keys):
        indexes.setdefault(key, index)
    return indexes


# -- helpers


def directive_field(key: str, directive: str, path: str) -> str:
    name = key.removeprefix(f"{directive}/")
    if name == key:
        raise PatchError(f"{child_path(path, key)}: write {directive}/<field>")
    return name


def known_field(schema: PatchSchema, name: str, path: str) -> PatchField:
    field = schema.field(name)
    if field is None:
        raise PatchError(f"{path}: the schema does not define this field, so it cannot be merged")
    return field


def child_path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def set_field(result: Object, name: str, value: Any) -> None:
    """Set the field to a value of the patch. A directive removes the field because there is nothing to apply it to."""
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
    """Remove null fields, which mean deletion. Nulls in a list are values and stay."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value
