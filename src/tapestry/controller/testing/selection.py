"""Which objects a request is about: a resource, a namespace or all of them, labels and fields."""

from collections.abc import Mapping
from dataclasses import dataclass

from tapestry.controller.testing.storage import Key
from tapestry.kube.errors import BadRequest
from tapestry.kube.objects import Object, labels_of, value_at
from tapestry.kube.resources import Resource
from tapestry.kube.selectors import (
    FieldSelector,
    LabelSelector,
    SelectorError,
    parse_field_selector,
    parse_label_selector,
)


@dataclass(frozen=True, slots=True)
class Selection:
    resource: Resource
    namespace: str | None
    labels: LabelSelector
    fields: FieldSelector

    def covers(self, key: Key) -> bool:
        return key.resource == self.resource and self.namespace in (None, key.namespace)

    def matches(self, obj: Object) -> bool:
        return self.labels.matches(labels_of(obj)) and self.fields.matches(
            {term.field: field_text(obj, term.field) for term in self.fields.terms}
        )

    def of(self, objects: Mapping[Key, Object]) -> list[Object]:
        """The selected ones, ordered by namespace and name."""
        covered = sorted((key.namespace, key.name, key) for key in objects if self.covers(key))
        return [objects[key] for *_, key in covered if self.matches(objects[key])]


def selection(resource: Resource, namespace: str | None, query: Mapping[str, str]) -> Selection:
    """What the selectors of a query choose.

    Unlike a real server, which knows a few fields of each kind, this one selects by any dotted path.
    """
    try:
        labels = parse_label_selector(query.get("labelSelector", ""))
        fields = parse_field_selector(query.get("fieldSelector", ""))
    except SelectorError as error:
        raise BadRequest(400, "BadRequest", f"unable to parse requirement: {error}") from error
    return Selection(resource, namespace, labels, fields)


def field_text(obj: Object, path: str) -> str:
    """A field as field selectors compare it: absent is empty, booleans are `true` and `false`."""
    value = value_at(obj, *path.split("."), default="")
    return str(value).lower() if isinstance(value, bool) else str(value)
